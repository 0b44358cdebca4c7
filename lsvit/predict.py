"""Opens exported models, and predicts classes of images over orders of the layers."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import timm
import torch
from timm.data import (
    ImageNetInfo,
    create_transform,
    infer_imagenet_subset,
    resolve_model_data_config,
)
from torch import Tensor

from lsvit.checkpoint import (
    CONFIG,
    FILES,
    PROCESSOR,
    SPEC,
    About,
    describe_misfit,
    read_about,
    read_checkpoint,
    read_spec,
    read_tensors,
    say,
    weights_in,
)
from lsvit.images import in_mode
from lsvit.position import Encode, Position, Predict
from lsvit.routed import RoutedModel
from lsvit.routes import Order, Route, evaluation_routes
from lsvit.text import one_line, user_path

if TYPE_CHECKING:
    from PIL.Image import Image

# Files of an export. Whatever lsvit attaches to timm's model has a file of its own.
MODEL = FILES[0]
PART_FILES = {"position": "position.safetensors", "exits": "exits.safetensors"}
CHUNK = 64  # orders run at once
# Models of this package: 12 layers for grey images of 28 pixels, the ten classes of Fashion-MNIST.
MICRO = ("ls_micro", "baseline_micro")
RELEASED = Path(__file__).parent / "released"


class Opened(NamedTuple):
    """A trained model on the CPU, in eval mode."""

    model: RoutedModel
    data: dict[str, Any]  # timm's: input_size (C, H, W), mean, std, crop_pct, interpolation, ...
    classes: list[str]  # names of the first outputs; a model may have more

    def transform(self, image: "Image") -> Tensor:
        """An image of any size and mode as the model takes it: (C, H, W), normalised."""
        return as_input(image, self.data)


Attach = Callable[[Any, dict[str, Any]], RoutedModel]  # timm's model, the variant as in lsvit.json


# ---- open --------------------------------------------------------------------------------------


def load(where: str | Path) -> Opened:
    """Open a trained model.

    Early exits are not attached. A model that a paper changed is opened by the pipeline.

    Args:
        where: a model of this package, "ls_micro" (LayerShuffle) or "baseline_micro"; an exported
            folder, timm's or transformers'; ``hf-hub:<repository>``; a file of weights in such a
            folder.

    Raises:
        ValueError: there is nothing to open, or it is no model that lsvit can run.
    """
    return open_export(find_weights(where))


open_weights = load  # its name in the cards of released models


def find_weights(where: str | Path) -> Path:
    """The file of weights of what :func:`load` takes.

    Raises:
        ValueError: there is none, none in one file, or no config.json beside it.
    """
    path = user_path(where)
    if isinstance(where, str) and where in MICRO:
        path = RELEASED / where
    elif isinstance(where, str) and where.startswith("hf-hub:"):
        path = _download(where.removeprefix("hf-hub:"))
    file = weights_in(path) if path.is_dir() else path
    check_whole(file)
    for needed in (file, file.parent / CONFIG):
        if not needed.is_file():
            raise ValueError(
                f"weights: {needed} does not exist; accepted: {', '.join(MICRO)}, an exported "
                f"folder ({MODEL}, {CONFIG}), hf-hub:<repository>, a file of weights beside its "
                f"{CONFIG}"
            )
    return file


def check_whole(file: Path) -> None:
    """Raises ValueError if a file of weights is absent, or an index, and its shards are there."""
    indices = sorted(file.parent.glob("*.index.json"))
    if indices and (file in indices or not file.is_file()):
        raise ValueError(
            f"{indices[0]}: found weights in shards, accepted: one file, which "
            "`model.save_pretrained(FOLDER, max_shard_size='100GB')` writes"
        )


def describe_pixels(folder: Path, about: About) -> str:
    """A line if the folder of a model does not say how its pixels are normalised."""
    if "mean" in about.data:
        return ""
    source = CONFIG if about.is_timm else PROCESSOR
    return (
        f"{folder}: no {source} says mean and std of its pixels, "
        f"so they are read as those of timm's {about.architecture}"
    )


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download

    files = [*FILES, CONFIG, PROCESSOR, SPEC, *PART_FILES.values()]
    try:
        return Path(snapshot_download(repository, allow_patterns=files))
    except Exception as error:  # the hub client raises many kinds
        raise ValueError(
            f"hf-hub:{repository} cannot be had ({type(error).__name__}), "
            "accepted also: an exported folder"
        ) from None


def attach_parts(backbone: Any, variant: dict[str, Any]) -> RoutedModel:
    """The routed model of timm's, with a variant's number of layers and its position parts.

    Raises:
        ValueError: it is not routable, or the variant has unknown keys.
    """
    specs = variant.get("position") or {}
    try:
        encode = Encode(**specs["encode"]) if specs.get("encode") is not None else None
        predict = Predict(**specs["predict"]) if specs.get("predict") is not None else None
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{SPEC}: position: not of this version ({error})") from None
    backbone.blocks = backbone.blocks[: variant.get("layers")]
    return RoutedModel(backbone, Position(encode, predict))


def open_export(file: Path, attach: Attach = attach_parts) -> Opened:
    """Open a file of weights in a folder of timm's or transformers' layout.

    Args:
        file: the weights of the model.
        attach: makes the routed model that lsvit.json describes.

    Raises:
        ValueError: a file is not as it was exported, timm cannot make the model, it is not
            routable, or the weights do not fit.
    """
    folder = file.parent
    spec = read_spec(folder)
    about = read_about(folder)
    if about is None:
        raise ValueError(f"{folder / CONFIG}: neither timm's nor that of transformers' ViT")
    if line := describe_pixels(folder, about):
        say(line)
    try:
        if about.is_timm:
            backbone: Any = timm.create_model(f"local-dir:{folder}", pretrained=False)
        else:
            backbone = timm.create_model(
                about.architecture, pretrained_cfg_overlay=about.data, **about.model_args
            )
    except Exception as error:  # timm raises many kinds
        raise ValueError(
            f"{folder / CONFIG}: timm cannot make this model: {one_line(error)}"
        ) from None
    if not backbone.num_classes or not hasattr(backbone, "blocks"):
        raise ValueError(
            f"{folder}: {type(backbone).__name__} is not routable, accepted: timm's "
            "VisionTransformer and MlpMixer families, with a head"
        )
    tensors = read_checkpoint(file)
    if not about.is_timm and "head_dist.weight" not in tensors and hasattr(backbone, "head_dist"):
        del backbone.head_dist  # transformers' DeiT without a teacher has one head
    model = attach(backbone, spec.get("variant", {}))
    state = model.backbone.state_dict()
    misfit = describe_misfit(tensors, {name: tensor.shape for name, tensor in state.items()})
    if misfit:
        raise ValueError(f"{file}: does not fit its {CONFIG}: {misfit}")
    model.backbone.load_state_dict(tensors)
    try:
        for name, part_file in PART_FILES.items():
            part: Any = getattr(model, name)
            if len(part):
                part.load_state_dict(read_tensors(folder / part_file))
    except RuntimeError as error:
        raise ValueError(f"{folder}: does not fit its {SPEC}: {one_line(error)}") from None
    return Opened(
        model.eval(), resolve_model_data_config(backbone), name_outputs(folder, about, backbone)
    )


def name_outputs(folder: Path, about: About, backbone: Any) -> list[str]:
    """Names of a model's outputs: its own, else ImageNet's where they are as many, with a line.

    Raises:
        ValueError: there are more names than outputs.
    """
    if len(about.classes) > backbone.num_classes:
        raise ValueError(
            f"{folder / CONFIG}: found {len(about.classes)} names of classes, "
            f"accepted: at most {backbone.num_classes}, the model's outputs"
        )
    subset = infer_imagenet_subset(backbone)
    if about.classes or not subset:
        return about.classes
    say(f"{folder / CONFIG}: no names of classes; the {backbone.num_classes} of {subset} are taken")
    return [str(name) for name in ImageNetInfo(subset).label_descriptions()]


# ---- predict -----------------------------------------------------------------------------------


def choose_routes(
    model: RoutedModel, order: str, keep: int | None, orders: int, seed: int
) -> list[Route]:
    """The routes of a prediction: the named one, or at most `orders` random ones.

    Args:
        model: whose layers are ordered.
        order: sequential, arbitrary, reversed, or layers with commas between them, which may repeat
            or be absent.
        keep: so many random layers; None: all.
        orders: how many random routes; all where fewer exist.
        seed: of random routes.

    Raises:
        ValueError: no such order, layer or number of layers.
    """
    num_layers = model.num_layers
    num_kept = num_layers if keep is None else keep
    if not 1 <= num_kept <= num_layers:
        raise ValueError(
            f"keep: found {num_kept}, accepted: 1 to {num_layers}, the layers of the model"
        )
    if order in ("sequential", "reversed", "arbitrary"):
        kind: Order = "arbitrary" if order == "arbitrary" else "sequential"
        routes = evaluation_routes(num_layers, num_kept, kind, orders, seed)
        return [route[::-1] for route in routes] if order == "reversed" else routes
    names = [name.strip() for name in order.split(",")]
    are_layers = all(name.isdecimal() and int(name) < num_layers for name in names)
    too_long = len(model.position) > 0 and len(names) > num_layers
    if not are_layers or too_long or keep is not None:
        limit = f", at most {num_layers} of them" if len(model.position) else ""
        raise ValueError(
            f"order: found {order!r}, accepted: sequential, arbitrary, reversed, or, without keep, "
            f"layers from 0 to {num_layers - 1}{limit}, with commas between them"
        )
    return [tuple(int(name) for name in names)]


def transform(data: dict[str, Any]) -> "Callable[[Image], Tensor]":
    """What makes an image (mode L or RGB, any size) a model's input (C, H, W)."""
    return create_transform(**data, is_training=False)


def as_input(image: "Image", data: dict[str, Any]) -> Tensor:
    """An image of any size and mode as a model takes it: (C, H, W), normalised."""
    mode = "L" if data["input_size"][0] == 1 else "RGB"
    return transform(data)(in_mode(image, mode))


def open_image(path: Path) -> "Image":
    """An image file, decoded as those to train on: mode RGB.

    Raises:
        ValueError: it cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            return in_mode(file, "RGB")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except Exception as error:  # a damaged file raises almost anything
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{path}: not an image that can be read ({reason})") from None


def read_image(path: Path, data: dict[str, Any]) -> Tensor:
    """An image file as the model takes it: (C, H, W), resized, cropped and normalised.

    Raises:
        ValueError: it cannot be read.
    """
    return as_input(open_image(path), data)


@torch.inference_mode()
def predict(
    opened: Opened, image: Tensor, routes: list[Route], top: int, exit: int | None = None
) -> dict[str, Any]:
    """Run an image (C, H, W) along every route.

    Args:
        opened: the model.
        image: normalised.
        routes: all of one length.
        top: how many classes to answer.
        exit: depth of the early exit that answers; None: the model's own head.

    Returns:
        `orders`, how many routes; `top`, the classes of highest mean probability with its standard
        deviation over the orders (n - 1; None for a single one); `agree`, in how many orders the
        first of them is the answer.
    """
    outputs = []
    for table in torch.tensor(routes).split(CHUNK):
        batch = image.expand(len(table), -1, -1, -1)
        outputs.append(opened.model(batch, table, exit=exit))
    probabilities = torch.cat(outputs).softmax(-1)  # (R, C)
    mean, best = probabilities.mean(0).topk(min(top, probabilities.shape[1]))
    rows = []
    for probability, index in zip(mean.tolist(), best.tolist(), strict=True):
        std = float(probabilities[:, index].std()) if len(routes) > 1 else None
        name = opened.classes[index] if index < len(opened.classes) else f"output {index}"
        rows.append({"class": name, "index": index, "probability": probability, "std": std})
    agree = int((probabilities.argmax(-1) == best[0]).sum())
    return {"orders": len(routes), "agree": agree, "top": rows}
