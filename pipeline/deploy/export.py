"""Writes trained weights as a folder that timm and the Hugging Face hub take."""

from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf
from torch import nn

from lsvit.checkpoint import CONFIG, SPEC
from lsvit.predict import PART_FILES, Opened
from lsvit.routed import RoutedModel
from pipeline.config.load import load
from pipeline.config.paper import Paper
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import BASELINE, read_variant
from pipeline.declared import PRESET, check_preset
from pipeline.deploy.card import make_card
from pipeline.deploy.predict import open_weights
from pipeline.errors import UserError, accepted
from pipeline.files import read_json, write_json
from pipeline.jobs.files import (
    EXECUTION,
    FINETUNED,
    JUDGES,
    ORIGIN,
    PRETRAINED,
    finetuned,
    sha256,
    weights_file,
)

# What timm says of the published weights, which these are not.
ABOUT = {"tag", "license", "description", "origin_url", "paper_name", "paper_ids", "notes"}


def find_training(variant: str, seed: int, declared: Collection[str]) -> Path:
    """The folder of a finished training of a declared variant.

    Raises:
        UserError: there is none; the line says which there are.
    """
    trainings = list(finetuned(BASELINE, 0).parents[1].glob(f"seed_*/{CONFIG}"))
    trainings += FINETUNED.glob(f"*/seed_*/{CONFIG}")
    variants = sorted({path.parents[1].name for path in trainings})
    if not variants and variant in declared:
        raise UserError(
            f"{FINETUNED}: not found, no training has finished; `dvc repro` makes them, "
            "or run in the repository's root"
        )
    if variant not in variants:
        raise UserError(f"variant: found {variant!r}, {accepted(variant, variants or declared)}")
    folder = finetuned(variant, seed).parent
    if not folder.is_dir():
        names = [path.name.removeprefix("seed_") for path in folder.parent.glob("seed_*")]
        seeds = ", ".join(sorted(names, key=int))
        raise UserError(f"seed of {variant}: found {seed}, accepted: {seeds}")
    return folder


def export(
    variant: str, seed: int, out: Path | None = None, *, papers: tuple[Paper, ...]
) -> tuple[Path, list[str]]:
    """Write a finished training's weights, with a model card, as timm and the hub take them.

    Returns:
        The folder, and one line for each thing that stock timm does not run as it is.

    Raises:
        UserError: there is no such training, it ran with another model or scale than
            `outs/params/` has, or the folder cannot be written.
    """
    params = load(papers=papers)
    training = find_training(variant, seed, params.all_variants)
    check_preset(training)
    weights = training / weights_file(JUDGES[params.protocol])
    opened = open_weights(str(weights))
    record = read_json(training / CONFIG)
    record["variant"] = read_variant(record["variant"]).model_dump(mode="json")
    record["variant"]["per"] = record.get("per", "batch")  # as the training resolved it
    record["model"] = ModelPreset.model_validate(record["model"]).model_dump(mode="json")
    if (training / EXECUTION).is_file():  # an older training has none
        record["options"]["ran on"] = (training / EXECUTION).read_text("utf-8").strip()
    origin: dict[str, Any] = {}
    for path in PRETRAINED.glob(f"seed_*/{ORIGIN}"):
        origin = read_json(path)
    spec = {
        "name": variant,
        "variant": record["variant"],
        "head": record["model"]["head"],
        "dataset": record["dataset"],
        "model": record["model_name"],
        "scale": read_json(PRESET, list)[1],
        "seed": seed,
        "protocol": params.protocol,
        "weights_sha256": sha256(weights),
    }
    name = f"{spec['dataset']}_{spec['model']}_{variant}_seed_{seed}"
    out = out or Path("exports", name)
    try:
        out.mkdir(parents=True, exist_ok=True)
        save_model(opened, spec, origin.get("license"), out)
        digests = {file.name: sha256(file) for file in sorted(out.glob("*.safetensors"))}
        write_json(out / SPEC, spec | {"sha256": digests})
        stock = runs_in_timm(opened.model, out)
        notes = stock_notes(opened.model, stock)
        card = make_card(opened, record, spec, origin, notes, stock, out)
        (out / "README.md").write_text(card, "utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    return out, notes


def save_model(opened: Opened, spec: dict[str, Any], license: str | None, out: Path) -> None:
    """Write model.safetensors and config.json by timm, and attached parts in files of their own."""
    backbone = deepcopy(opened.model.backbone)
    if has_lone_head(opened.model):
        double_head(backbone)
    cfg = {key: value for key, value in backbone.pretrained_cfg.items() if key not in ABOUT}
    if license:
        cfg["license"] = license
    backbone.pretrained_cfg = cfg
    model_args = {}
    if spec["variant"]["layers"] and not hasattr(backbone, "stem"):  # timm fixes a Mixer's depth
        model_args["depth"] = opened.model.num_layers
    save_for_hf(
        backbone,
        str(out),
        {"label_names": opened.classes},
        model_args,
        safe_serialization=True,
        data_config=opened.data,
    )
    config = read_json(out / CONFIG)
    # It stands beside them, and transformers would give it to timm a second time.
    config["model_args"].pop("num_classes")
    write_json(out / CONFIG, config, indent=2)
    for name, file in PART_FILES.items():
        (out / file).unlink(missing_ok=True)  # of an earlier export
        part: Any = getattr(opened.model, name)
        if len(part):
            save_file(part.state_dict(), out / file)


def has_lone_head(model: RoutedModel) -> bool:
    """True of a distilled model with a head on the class token alone."""
    return hasattr(model.backbone, "dist_token") and not hasattr(model.backbone, "head_dist")


def double_head(backbone: Any) -> None:
    """Double the head, and add a second one of zeros: stock timm averages both."""
    backbone.head_dist = nn.Linear(backbone.embed_dim, backbone.num_classes)
    with torch.no_grad():
        for parameter in backbone.head.parameters():
            parameter.mul_(2)
        for parameter in backbone.head_dist.parameters():
            parameter.zero_()


def runs_in_timm(model: RoutedModel, folder: Path) -> bool:
    """True if stock timm opens the folder and gives the model's logits in the original order."""
    if "encode" in model.position:
        return False
    try:
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    except RuntimeError:  # other layers or parameters
        return False
    return True


def stock_notes(model: RoutedModel, stock: bool) -> list[str]:
    """What a user of the weights in stock timm must know: one sentence each."""
    notes = []
    if "encode" in model.position:
        notes.append(
            f"stock timm runs it without its position embedding ({PART_FILES['position']}) "
            "and answers wrongly; lsvit runs it right"
        )
    elif not stock:
        notes.append(
            f"stock timm makes another {type(model.backbone).__name__} of its config, of other "
            "layers or parameters, and refuses the weights; lsvit runs it"
        )
    children: Any = model.named_children()
    for name, part in children:
        if name in PART_FILES and len(part) and "encode" not in part:
            notes.append(
                f"its {name} heads are apart, in {PART_FILES[name]}; stock timm does not need them"
            )
        if name not in ("backbone", *PART_FILES):
            notes.append(f"its {name}, of use in training, is left out; the answer needs none")
    if has_lone_head(model):
        notes.append(
            "one head on the class token was trained; stock timm averages two, so it is written "
            "doubled, beside a second one of zeros: their average is the trained head, exactly, "
            "but neither of them alone is"
        )
    return notes
