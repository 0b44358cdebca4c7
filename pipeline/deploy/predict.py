"""Predictions from trained weights, and how much they depend on the order of the layers."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from lsvit.routed import RoutedModel
from lsvit.routes import Route, evaluation_routes
from lsvit.weights import load_weights
from pipeline.config.types import Float, Positive
from pipeline.config.variant import Variant, read_variant
from pipeline.data.decode import in_mode
from pipeline.declared import changed
from pipeline.errors import UserError, one_line, plain
from pipeline.files import read_json, reading
from pipeline.jobs.configs import RunConfig
from pipeline.jobs.files import CONFIG, DATA, sha256
from pipeline.jobs.job import has
from pipeline.models.weights import attach, build, input_size, normalisation, read_tensors

if TYPE_CHECKING:
    from PIL.Image import Image

CHUNK = 64  # orders run at once
MODEL, SPEC = "model.safetensors", "lsvit.json"  # of an export, beside config.json
Side = Annotated[int, Field(ge=1, le=4096)]  # of an image
Layers = Annotated[int, Field(ge=1, le=512)]
PARTS, EXITS = "position.safetensors", "exits.safetensors"


class Opened(NamedTuple):
    """A trained model on the CPU, in eval mode, with timm's data config and the names of its classes."""

    model: RoutedModel
    data: dict[str, Any]  # input_size (C, H, W), mean, std, crop_pct, crop_mode, interpolation
    classes: list[str]  # of the first outputs; a preset's `num_classes` may have given it more


class Preprocessing(BaseModel):
    """What a config may say of how images are made: others' words, of which some would fill the memory."""

    input_size: tuple[Literal[1, 3], Side, Side]  # (C, H, W)
    mean: tuple[Float, ...]
    std: tuple[Positive, ...]
    crop_pct: Annotated[float, Field(ge=0.1, le=2)]
    crop_mode: Literal["center", "squash", "border"]
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos", "random"]


class Architecture(BaseModel):
    """What a config may ask of timm: a layer takes 10 ms to make, long before a file is found not to fit."""

    depth: Layers = 1
    num_blocks: Layers = 1  # of a Mixer


# ---- open -------------------------------------------------------------------------------------------------------------


def open_weights(where: str) -> Opened:
    """Open an exported folder, ``hf-hub:<repository>``, or a safetensors file beside the `config.json` of an export or a training.

    Raises:
        UserError: there is nothing to open, or it is no model that this project can run.
    """
    file = find_weights(where)
    config = read_json(file.parent / CONFIG)
    return open_export(file) if "architecture" in config else open_training(file)


def find_weights(where: str) -> Path:
    """The safetensors file that :func:`open_weights` opens. Raises UserError if there is none."""
    path = _snapshot(where.removeprefix("hf-hub:")) if where.startswith("hf-hub:") else Path(where)
    file = path / MODEL if path.is_dir() else path
    if not file.is_file() or not (file.parent / CONFIG).is_file():
        missing = file if not file.is_file() else file.parent / CONFIG
        raise UserError(
            f"weights: {missing} does not exist; accepted: an exported folder ({MODEL}, {CONFIG}), hf-hub:<repository>, "
            f"a .safetensors file beside its {CONFIG}"
        )
    return file


def training_sha256(where: str) -> str:
    """The sha256 of the training's file of weights, also of those that were exported from it. Raises UserError as :func:`open_weights`."""
    file = find_weights(where)
    spec = file.parent / SPEC
    if not spec.exists():
        return sha256(file)
    with reading(spec):
        return read_json(spec)["weights_sha256"]


def _snapshot(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(repository, allow_patterns=[MODEL, CONFIG, PARTS, EXITS, SPEC])
        )
    except Exception as error:  # the hub client raises many kinds
        raise UserError(
            f"hf-hub:{repository} cannot be had ({type(error).__name__}), accepted also: an exported folder"
        ) from None


def open_training(file: Path) -> Opened:
    """Open the weights of a finished training, of `outs/`; the images it was trained on must lie in `outs/prepare_data/`.

    Raises:
        UserError: a file is missing, or other images lie there.
    """
    found = read_json(file.parent / CONFIG)
    try:
        config = RunConfig.model_validate(
            {key: found[key] for key in RunConfig.model_fields if key in found}
        )
    except ValueError:
        raise UserError(
            f"{file.parent / CONFIG}: neither of an export nor of a training of this version"
        ) from None
    meta = read_json(DATA / "meta.json") if (DATA / "meta.json").is_file() else {}
    if meta.get("sha256") != config.data_sha256:
        raise UserError(
            f"{DATA}: not the images that {file} was trained on; `dvc repro` or `dvc checkout` brings them"
        )
    if changed(file):
        print(
            f"warning: {file}: not as its stage left it, by what DVC noted; `dvc checkout` brings that back",
            file=sys.stderr,
        )
    model = build(config.model, len(meta["classes"]), config.variant, file).eval()
    in_chans, size = input_size(model, config.model)
    mean, std = (
        values if len(values) == in_chans else values * in_chans
        for values in normalisation(config.model, meta)
    )
    data = {
        "input_size": (in_chans, size, size),
        "mean": mean,
        "std": std,
        "crop_mode": "center",
        "crop_pct": 1.0,
        "interpolation": "bilinear",
    }
    if meta.get("resize") == "timm":
        data |= {
            key: model.backbone.pretrained_cfg[key]
            for key in ("crop_pct", "crop_mode", "interpolation")
        }
    return Opened(model, data, meta["classes"])


def open_export(file: Path) -> Opened:
    """Open a safetensors file in a folder of timm's layout; `lsvit.json`, if there, says which parts belong to it.

    Raises:
        UserError: the model cannot be made, is of another family, has no head, or the file does not fit it.
    """
    from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_model_data_config

    config, spec = file.parent / CONFIG, file.parent / SPEC
    try:
        noted = read_json(spec) if spec.is_file() else {"variant": {"route": "sequential"}}
        variant = read_variant(noted["variant"])
        damaged = [
            name
            for name, digest in noted.get("sha256", {}).items()
            if not has(file.parent / name, digest)
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UserError(
            f"{spec}: found no variant or checksums that lsvit knows, accepted: the file that `lsvit export` writes"
        ) from None
    if damaged:
        raise UserError(
            f"{file.parent / damaged[0]}: not what was exported, by the sha256 in {SPEC}; accepted: the file as it was"
        )
    _accept(Architecture, read_json(config).get("model_args") or {}, config, "model_args")
    with torch.device("meta"):  # nothing of it lies in memory
        planned = _make(file, variant)
    for part, name in (
        (planned.backbone, file.name),
        (planned.position, PARTS),
        (planned.exits, EXITS),
    ):
        needed = sum(map(Tensor.numel, part.parameters()))
        held = sum(map(Tensor.numel, read_tensors(file.parent / name).values())) if needed else 0
        if needed > held:
            raise UserError(
                f"{file.parent / name}: does not fit its config.json: it holds {held:,} numbers, the model has {needed:,}"
            )
    model = _make(file, variant)
    backbone: Any = model.backbone
    try:
        load_weights(model, file)
        for part, name in ((model.position, PARTS), (model.exits, EXITS)):
            if len(part):
                part.load_state_dict(read_tensors(file.parent / name))
    except RuntimeError as error:
        raise UserError(
            f"{file}: does not fit its config.json: {' '.join(str(error).split())[:200]}"
        ) from None
    names, subset = (
        backbone.pretrained_cfg.get("label_names") or [],
        infer_imagenet_subset(backbone),
    )
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{config}: label_names: found {str(names)[:80]}, accepted: a list of words"
        )
    if not names and subset:
        names = ImageNetInfo(subset).label_descriptions()
    data = resolve_model_data_config(backbone)
    _accept(Preprocessing, data, config)
    embed = getattr(backbone, "stem", None) or backbone.patch_embed
    stem = next(part for part in backbone.modules() if isinstance(part, torch.nn.Conv2d))
    takes = (
        stem.in_channels,
        *(embed.img_size if embed.strict_img_size else data["input_size"][1:]),
    )
    if data["input_size"] != takes:
        raise UserError(
            f"{config}: input_size: found {data['input_size']}, accepted: {takes}, what its model takes"
        )
    return Opened(model.eval(), data, list(names))


def _make(file: Path, variant: Variant) -> RoutedModel:
    """The model that a folder's config asks for, with a variant's parts and random weights. Raises UserError if there is none."""
    import timm

    try:
        backbone: Any = timm.create_model(f"local-dir:{file.parent}", pretrained=False)
    except Exception as error:  # timm raises many kinds
        raise UserError(
            f"{file.parent / CONFIG}: timm cannot make this model: {' '.join(str(error).split())[:200]}"
        ) from None
    if not getattr(backbone, "num_classes", 0):
        raise UserError(f"{file}: a model without a head, accepted: one with classes")
    return attach(backbone, variant)


def _accept(section: type[BaseModel], values: object, file: Path, prefix: str = "") -> None:
    try:
        section.model_validate(values)
    except ValidationError as error:
        raise UserError(one_line(error, section, prefix, str(file))) from None


# ---- predict ----------------------------------------------------------------------------------------------------------


def choose_routes(
    model: RoutedModel, order: str, keep: int | None, orders: int, seed: int
) -> list[Route]:
    """The routes of a prediction: the one that is meant, or at most `orders` random ones (all where fewer exist).

    Args:
        order: sequential, arbitrary, reversed, or layers with commas between them, which may repeat or be absent.
        keep: so many random layers; None: all.

    Raises:
        UserError: no such order, layer or number of layers.
    """
    layers = model.num_layers
    kept = layers if keep is None else keep
    if not 1 <= kept <= layers:
        raise UserError(f"--keep: found {kept}, accepted: 1 to {layers}, the layers of the model")
    if order == "arbitrary":
        return evaluation_routes(layers, kept, "arbitrary", orders, seed)
    if order in ("sequential", "reversed"):
        routes = evaluation_routes(layers, kept, "sequential", orders, seed)
        return routes if order == "sequential" else [route[::-1] for route in routes]
    given = [part.strip() for part in order.split(",")]
    known = all(part.isdecimal() and int(part) < layers for part in given)
    if not known or keep is not None or (len(model.position) and len(given) > layers):
        most = f", at most {layers} of them" if len(model.position) else ""
        raise UserError(
            f"--order: found {order!r}, accepted: sequential, arbitrary, reversed, or, without --keep, "
            f"layers from 0 to {layers - 1}{most}, with commas between them"
        )
    return [tuple(map(int, given))]


def read_image(path: Path, data: dict[str, Any]) -> Tensor:
    """An image file of any size and mode as the model takes it: (C, H, W), resized, cropped and normalised as `data` says.

    Raises:
        UserError: it cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            image = in_mode(file, "L" if data["input_size"][0] == 1 else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{path}: not an image that can be read ({getattr(error, 'strerror', None) or type(error).__name__})"
        ) from None
    return transform(data)(image)


def transform(data: dict[str, Any]) -> "Callable[[Image], Tensor]":
    """What makes an image (mode L or RGB, any size) a model's input (C, H, W): resized, cropped and normalised as `data` says."""
    from timm.data import create_transform

    return create_transform(**data, is_training=False)


@torch.inference_mode()
def predict(
    opened: Opened, image: Tensor, routes: list[Route], top: int, exit: int | None = None
) -> dict[str, Any]:
    """Run an image (C, H, W) along every route, all of one length, up to the early exit at this depth, if one is given.

    Returns:
        `orders`, how many routes; `top`, the classes of highest mean probability with its standard deviation over the orders
        (n - 1; None for a single one); `agree`, in how many orders the first of them is the answer.
    """
    tables = torch.tensor(routes).split(CHUNK)
    each = torch.cat(
        [opened.model(image.expand(len(table), -1, -1, -1), table, exit=exit) for table in tables]
    ).softmax(-1)
    mean, best = each.mean(0).topk(min(top, each.shape[1]))
    spread = each.std(0)[best].tolist() if len(routes) > 1 else [None] * len(best)
    names = [opened.classes[i] if i < len(opened.classes) else f"output {i}" for i in best.tolist()]
    rows = [
        {"class": name, "index": i, "probability": p, "std": std}
        for name, i, p, std in zip(names, best.tolist(), mean.tolist(), spread, strict=True)
    ]
    return {"orders": len(routes), "agree": int((each.argmax(-1) == best[0]).sum()), "top": rows}


def show(found: dict[str, Any]) -> None:
    """Print what :func:`predict` found about one image, with the keys `image` and `order` added, as a table.

    Names of files and classes are others' words: nothing in them is obeyed, neither by rich nor by the terminal.
    """
    from rich.markup import escape
    from rich.table import Table

    from pipeline.report.tables import console

    image, names = (
        escape(plain(found["image"])),
        [escape(plain(row["class"])) for row in found["top"]],
    )
    title = f"{image}: {found['order']}, {found['keep']} layers"
    table = Table("class", "probability", "std over orders", title=title, title_justify="left")
    for name, row in zip(names, found["top"], strict=True):
        table.add_row(
            name, f"{row['probability']:.4f}", "–" if row["std"] is None else f"{row['std']:.4f}"
        )
    if "exit" in found:
        exit = "{branch} after {depth} of {keep} layers, {flops:.4g} FLOPs, {latency_ms:.3g} ms".format(
            keep=found["keep"], **found["exit"]
        )
        table.title = f"{image}: {found['order']}, {exit}"
    table.caption = f"{names[0]} is the answer in {found['agree']} of {found['orders']} orders"
    console(80).print(table)
