"""Trained weights leave the repository: a folder in the Hugging Face hub's layout, with its model card."""

import html
import json
from collections.abc import Collection
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lsvit.routed import RoutedModel
from pipeline.config.load import load
from pipeline.config.paper import Paper
from pipeline.config.variant import BASELINE
from pipeline.deploy.predict import EXITS, MODEL, PARTS, SPEC, Opened, open_weights
from pipeline.errors import UserError, accepted, plain
from pipeline.files import read_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import (
    CONFIG,
    EXECUTION,
    FINETUNED,
    JUDGES,
    ORIGIN,
    PRETRAINED,
    RESULTS,
    finetuned,
    sha256,
    weights_file,
)

if TYPE_CHECKING:
    import pandas as pd

ABOUT = {
    "tag",
    "license",
    "description",
    "origin_url",
    "paper_name",
    "paper_ids",
    "notes",
}  # what timm says of the published weights
SCALED = Path(
    "outs/params/model.json"
)  # what the stages ran with: the model's name, the scale, the preset


def find_training(variant: str, seed: int, declared: Collection[str] = ()) -> Path:
    """The folder of a finished training of a declared variant. Raises UserError saying which there are."""
    trainings = [
        *finetuned(BASELINE, 0).parents[1].glob(f"seed_*/{CONFIG}"),
        *FINETUNED.glob(f"*/seed_*/{CONFIG}"),
    ]
    variants = sorted({path.parents[1].name for path in trainings})
    if not variants and variant in declared:
        raise UserError(
            f"{FINETUNED}: not found, no training has finished; `dvc repro` makes them, or run in the repository's root"
        )
    if variant not in variants:
        raise UserError(f"variant: found {variant!r}, {accepted(variant, variants or declared)}")
    folder = finetuned(variant, seed).parent
    if not folder.is_dir():
        seeds = sorted(
            int(path.name.removeprefix("seed_")) for path in folder.parent.glob("seed_*")
        )
        raise UserError(f"seed of {variant}: found {seed}, accepted: {', '.join(map(str, seeds))}")
    return folder


def export(
    variant: str, seed: int, out: Path | None = None, *, papers: tuple[Paper, ...]
) -> tuple[Path, list[str]]:
    """Write a finished training's weights as a folder that stock timm and the Hugging Face hub take, with its model card.

    Returns:
        The folder, and one line for each thing that stock timm does not run as it is.

    Raises:
        UserError: there is no such training, or the folder cannot be written.
    """
    params = load(papers=papers)
    folder = find_training(variant, seed, params.all_variants)
    weights = folder / weights_file(JUDGES[params.protocol])
    opened, record = open_weights(str(weights)), read_json(folder / CONFIG)
    own = TrainConfig.model_validate(
        {key: value for key, value in record.items() if key in TrainConfig.model_fields}
    )
    config = record | own.model_dump(mode="json", exclude={"options"})
    if (ran := folder / EXECUTION).is_file():  # older trainings have none
        config["options"]["ran on"] = ran.read_text().strip()
    origin: dict[str, Any] = next(
        (read_json(path) for path in PRETRAINED.glob(f"seed_*/{ORIGIN}")), {}
    )
    scaled = read_json(SCALED, list)
    out = (
        out or Path("exports") / f"{config['dataset']}_{config['model_name']}_{variant}_seed_{seed}"
    )
    config["variant"]["per"] = own.per  # resolved; a job's variant has none of its own
    spec = {
        "name": variant,
        "variant": config["variant"],
        "head": config["model"]["head"],
        "dataset": config["dataset"],
        "model": config["model_name"],
        "scale": scaled[1],
        "seed": seed,
        "protocol": params.protocol,
        "weights_sha256": sha256(weights),
    }
    notes = stock_notes(opened.model, spec)
    try:
        out.mkdir(parents=True, exist_ok=True)
        _save(opened, spec, origin.get("license"), out)
        text = card(opened, config, spec, origin, notes, sha256(out / MODEL), measured(spec))
        (out / "README.md").write_text(text)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    return out, notes


def runs_in_timm(model: RoutedModel, spec: dict[str, Any]) -> bool:
    """Whether stock timm makes the model from a config.json and gives its logits in the original order."""
    cut_mixer = spec["variant"]["layers"] is not None and hasattr(
        model.backbone, "stem"
    )  # timm fixes the depth of those
    return (
        "encode" not in model.position
        and not cut_mixer
        and not spec["variant"].get("talking_heads")
    )


def stock_notes(model: RoutedModel, spec: dict[str, Any]) -> list[str]:
    """What a user of the weights in stock timm must know: one sentence each."""
    notes = []
    if spec["variant"].get("talking_heads"):
        notes.append(
            f"stock timm's {type(model.backbone).__name__} has no talking heads and refuses the weights; lsvit runs it"
        )
    elif "encode" in model.position:
        notes.append(
            f"stock timm runs it without its position embedding ({PARTS}) and answers wrongly; lsvit runs it right"
        )
    elif not runs_in_timm(model, spec):
        notes.append(
            f"stock timm cannot make a {type(model.backbone).__name__} of {model.num_layers} layers from a config; lsvit runs it"
        )
    if "predict" in model.position:
        notes.append(
            f"the heads that predict positions are apart, in {PARTS}; the answer does not need them"
        )
    if hasattr(model, "patch_head"):
        notes.append(
            "the head on every patch, which the patch mixing loss trained, is left out; the answer does not need it"
        )
    if len(model.exits):
        notes.append(
            f"its early exits, after {', '.join(model.exits)} layers, are apart, in {EXITS}; the last answer does not need them"
        )
    if _lone_head(model):
        notes.append(
            "one head on the class token was trained; stock timm averages two, so it is written doubled, beside a second one of "
            "zeros: their average is the trained head, exactly, but neither of them alone is"
        )
    return notes


def _lone_head(model: RoutedModel) -> bool:
    return hasattr(model.backbone, "dist_token") and not hasattr(model.backbone, "head_dist")


def _save(opened: Opened, spec: dict[str, Any], license: str | None, out: Path) -> None:
    """Write model.safetensors and config.json by timm, lsvit.json and, where there are parts, their own files."""
    from safetensors.torch import save_file
    from timm.models import save_for_hf

    model, backbone = opened.model, deepcopy(opened.model.backbone)
    if _lone_head(model):
        backbone.head_dist = nn.Linear(backbone.embed_dim, backbone.num_classes)
        with torch.no_grad():
            for own, second in zip(
                backbone.head.parameters(), backbone.head_dist.parameters(), strict=True
            ):
                own.mul_(2)
                second.zero_()
    about = {"license": license} if license else {}
    backbone.pretrained_cfg = {
        key: value for key, value in backbone.pretrained_cfg.items() if key not in ABOUT
    } | about
    depth = (
        {"depth": model.num_layers}
        if spec["variant"]["layers"] and not hasattr(backbone, "stem")
        else {}
    )
    save_for_hf(
        backbone,
        str(out),
        {"label_names": opened.classes},
        depth,
        safe_serialization=True,
        data_config=opened.data,
    )
    config = read_json(out / CONFIG)
    config["model_args"].pop(
        "num_classes"
    )  # stands beside them, and transformers gives it a second time
    (out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    for part, file in ((model.position, PARTS), (model.exits, EXITS)):
        (out / file).unlink(missing_ok=True)  # of an earlier export
        if len(part):
            save_file(part.state_dict(), out / file)
    left = {file.name: sha256(file) for file in sorted(out.glob("*.safetensors"))}
    (out / SPEC).write_text(json.dumps(spec | {"sha256": left}, indent=1) + "\n")


# ---- the model card ---------------------------------------------------------------------------------------------------

CARD = """\
---
{front}---

# {model} on {dataset}: {name}, seed {seed}

A {architecture} of {layers} layers, trained by lsvit, a reference implementation of LayerShuffle (Freiberger, Kun, Løvlie, Risi, 2024):
vision transformers that keep working when their layers run in any order, or some are missing. It takes images of
{height} x {height} pixels (channels: {channels}) and tells {classes} classes: {class_names}.

## How it was trained

Starting weights: {start}. Data: `{dataset}`, arrays with sha256 `{data_sha256}`.
Scale: `{scale}` of lsvit's params.yaml, which says how much is computed (`published`: as much as in the papers).

{options}

## Accuracy

{accuracy}

## How to run it

{stock}In any order, with lsvit:

```python
import torch
from pipeline.deploy.predict import open_weights

model, data, classes = open_weights(".")  # this folder; or "hf-hub:<repository>"
images = torch.randn(2, {channels}, {height}, {height})  # normalised as `data` says
with torch.inference_mode():
    model(images)  # the original order
    model(images, {backwards})  # any other
    model(images, {half})  # some of the layers, and only these are executed
```

    lsvit predict photo.png --weights . --order arbitrary

## Limits

{limits}

## Files

`{MODEL}` sha256 `{digest}`{parts}. `lsvit.json` says what lsvit needs to know.
"""

STOCK = """\
In its original order, with timm alone:

```python
import timm

stock = timm.create_model("local-dir:.", pretrained=True).eval()  # this folder; or "hf-hub:<repository>"
```

"""


def card(
    opened: Opened,
    config: dict[str, Any],
    spec: dict[str, Any],
    origin: dict[str, Any],
    notes: list[str],
    digest: str,
    cells: "pd.DataFrame | None",
) -> str:
    """The README.md of an export: front matter of the hub, and what was trained, measured and left open."""
    from huggingface_hub import EvalResult, ModelCardData

    from pipeline.report.tables import markdown_table

    model, classes = opened.model, opened.classes
    full = [] if cells is None else [row for row in cells.itertuples() if row.full]
    task = {
        "task_type": "image-classification",
        "dataset_type": config["dataset"],
        "dataset_name": config["dataset"],
    }
    results = [
        EvalResult(
            **task,
            metric_type="accuracy",
            metric_name=f"top-1 accuracy (%), {row.order} order",
            metric_value=round(100 * row.own, 2),
        )
        for row in full
    ]
    front = ModelCardData(
        license=origin.get("license"),
        library_name="timm",
        pipeline_tag="image-classification",
        base_model=origin.get("hf_hub_id"),
        tags=["timm", "image-classification", "layershuffle"],
        datasets=[config["dataset"]],
        metrics=["accuracy"],
        model_name=f"{spec['model']}_{spec['name']}",
        eval_results=results or None,
    )
    layers = range(model.num_layers)
    options = {
        **config["variant"],
        "position": config["variant"]["position"],
        **config["options"],
        "seed": config["seed"],
        "head": spec["head"],
        "protocol": spec["protocol"],
    }
    start = (
        f"{origin['timm']} ({origin.get('hf_hub_id') or origin['file']}, sha256 `{origin['sha256']}`)"
        if origin
        else f"trained from scratch on the same data ({config['model']['timm']}, {json.dumps(_made(config['model']))})"
    )
    return CARD.format(
        front=f"{front.to_yaml()}\n",
        **{key: spec[key] for key in ("model", "dataset", "scale", "name", "seed")},
        architecture=config["model"]["timm"].partition(".")[0],
        layers=len(layers),
        channels=opened.data["input_size"][0],
        height=opened.data["input_size"][1],
        classes=len(classes),
        start=start,
        data_sha256=config["data_sha256"],
        class_names=", ".join(html.escape(plain(name)) for name in classes[:20])
        + (", ..." if len(classes) > 20 else ""),
        options=markdown_table(
            [
                {"key": key, "value": f"`{json.dumps(value)}`"}
                for key, value in options.items()
                if key != "finetune"
            ]
        ),
        accuracy=_accuracy(config, cells),
        stock=STOCK if runs_in_timm(model, spec) else "",
        backwards=tuple(reversed(layers)),
        half=tuple(layers[::2]),
        limits=_limits(config, spec, notes),
        MODEL=MODEL,
        digest=digest,
        parts="".join(
            f", `{file}` beside it"
            for part, file in ((model.position, PARTS), (model.exits, EXITS))
            if len(part)
        ),
    )


def _made(preset: dict[str, Any]) -> dict[str, Any]:
    """What a model from scratch is made with."""
    return preset["kwargs"] | {
        key: preset[key] for key in ("init_std", "init_growth") if preset[key]
    }


def measured(spec: dict[str, Any]) -> "pd.DataFrame | None":
    """Accuracy of a training's variant from `results/`, see :func:`pipeline.report.evaluations.summarise`; `own`: of its seed alone.

    None where `results/` is of another data set, model, scale, protocol or of other seeds.
    """

    from pipeline.jobs.rows import read_rows
    from pipeline.report.evaluations import summarise

    cell, file = RESULTS / "cell.json", RESULTS / "prune_eval.csv"
    wanted = {key: spec[key] for key in ("dataset", "model", "scale", "protocol")}
    if not (cell.is_file() and file.is_file()) or not wanted.items() <= read_json(cell).items():
        return None
    rows = read_rows(file)
    rows = rows[rows["variant"] == spec["name"]]
    own = rows[rows["seed"] == spec["seed"]]
    if own.empty:
        return None
    return summarise(rows).merge(
        summarise(own)[["order", "keep", "mean"]].rename(columns={"mean": "own"}),
        on=["order", "keep"],
    )


def _accuracy(config: dict[str, Any], cells: "pd.DataFrame | None") -> str:
    from pipeline.report.statistics import METHOD
    from pipeline.report.tables import markdown_table

    if cells is None:
        return "Not evaluated: `results/` did not hold this data set, model, scale and seed when it was exported."
    rows = [
        {
            "order": c.order,
            "layers kept": c.keep,
            "mean": f"{100 * c.mean:.2f}",
            "interval": "–" if c.n < 2 else f"[{100 * c.low:.2f}, {100 * c.high:.2f}]",
            "seeds": c.n,
            "orders": f"{c.orders:.0f}",
            "images": f"{c.images:.0f}",
            "this seed": f"{100 * c.own:.2f}",
        }
        for c in cells.itertuples()
    ]
    return (
        f"Top-1 accuracy in % on the validation images of `{config['dataset']}`. *mean*: over the seeds, these weights are of one; "
        f"*interval*: {METHOD}; *orders*: different ones behind a seed's mean.\n\n{markdown_table(rows)}"
    )


def _limits(config: dict[str, Any], spec: dict[str, Any], notes: list[str]) -> str:
    chosen = (
        "the reported validation images chose the epoch"
        if spec["protocol"] == "paper"
        else "held-out images chose the epoch"
    )
    latin = [
        "its layers ran along Latin orders in training (lsvit.latin), not one random order a batch as in the paper"
    ]
    notes = [*(latin if spec["variant"]["per"] == "latin" else []), *notes]
    limits = [
        f"trained and measured on `{config['dataset']}` alone; other images were not tried",
        chosen,
        "the intervals cover the seeds, not the finite number of images",
        *notes,
    ]
    return "\n".join(f"- {limit[0].upper()}{limit[1:]}." for limit in limits)
