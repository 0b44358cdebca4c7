"""Models of presets and variants, and the weights they start from."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import lsvit.checkpoint
import lsvit.position
from lsvit.routed import RoutedModel
from lsvit.text import one_line
from lsvit.weights import load_weights
from pipeline.config.presets import OWN_WEIGHTS, ModelPreset
from pipeline.config.variant import PLAIN, Position, Variant
from pipeline.data.resize import pixels_of
from pipeline.errors import UserError
from pipeline.models.extensions import extensions_of
from pipeline.models.tokens import patch_embed

# The last product of what a layer adds to its input.
ADDED = ("attn.proj", "fc2", "linear_tokens")


@contextmanager
def user_errors() -> Iterator[None]:
    """Raise the library's ValueError as a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None


# ---- models ------------------------------------------------------------------------------------


def create_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model, initialised.

    It has outputs for `num_classes` classes, or the preset's own larger number. Under
    ``head: class_token`` a distilled DeiT has no second head.

    Raises:
        UserError: timm does not know the model or the tag, or refuses the arguments; under
            ``weights: hub`` there is no tag; the outputs are too few, or there is no class token
            to read.
    """
    import timm

    import pipeline.models.mixers  # noqa: F401 (registers names)

    check_name(preset)
    outputs = preset.num_classes or num_classes
    if outputs < num_classes:
        raise UserError(
            f"models.*.num_classes of {preset.timm}: found {outputs}, "
            f"accepted: null, or at least the data set's {num_classes} classes"
        )
    try:
        model: Any = timm.create_model(preset.timm, **(preset.kwargs | {"num_classes": outputs}))
    except Exception as error:  # timm raises many kinds
        raise UserError(f"timm cannot make {preset.timm}: {one_line(error)}") from None
    if preset.head == "class_token":
        if getattr(model, "global_pool", None) != "token":
            raise UserError(
                f"models.*.head of {preset.timm}: found 'class_token', "
                "accepted: timm (its head reads no class token)"
            )
        if hasattr(model, "head_dist"):
            del model.head_dist
    if preset.weights in OWN_WEIGHTS:
        _initialise(model, preset)
    return model


def check_name(preset: ModelPreset) -> None:
    """Raises UserError if timm has no such model, or no such weights of it."""
    import timm

    name, _, tag = preset.timm.partition(".")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=5)
        raise UserError(
            f"models.*.timm: found {name!r}, accepted: a model of timm {timm.__version__}, "
            f"for example {', '.join(near)}"
        )
    tags = [model.partition(".")[2] for model in timm.list_pretrained(f"{name}.*")]
    needs_tag = preset.weights == "hub"  # a bare name is whatever weights timm prefers today
    if tag not in tags and (tag or needs_tag):
        problem = f"has no weights tagged {tag!r}" if tag else "needs the tag of its weights"
        accepted = ", ".join(f"{name}.{tag}" for tag in tags) or "scratch, a file"
        raise UserError(f"models.*.timm: {name} {problem}, accepted: {accepted}")


def _initialise(model: Any, preset: ModelPreset) -> None:
    """Draw and scale the weights of the blocks as the preset says."""
    if preset.init_std is not None:
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=preset.init_std)
    if preset.init_growth:
        for number, block in enumerate(model.blocks, 1):
            for name, module in block.named_modules():
                if name.endswith(ADDED):
                    module.weight.data.mul_(number**preset.init_growth)


def position_parts(position: Position) -> lsvit.position.Position:
    """A variant's position parts as the library takes them."""
    encode = position.encode
    predict = position.predict
    return lsvit.position.Position(
        lsvit.position.Encode(**dict(encode)) if encode else None,
        lsvit.position.Predict(**dict(predict)) if predict else None,
    )


def attach(backbone: Any, variant: Variant) -> RoutedModel:
    """The routed model of a timm model with a variant's layers and parts.

    Raises:
        UserError: a part does not fit the model, or the model is not routable.
    """
    extensions = extensions_of(variant)
    for extension in extensions:
        extension.prepare(backbone)
    if variant.layers:
        backbone.blocks = backbone.blocks[: variant.layers]
    with user_errors():
        model = RoutedModel(backbone, position_parts(variant.position))
    for extension in extensions:
        extension.attach(model)
    return model


def build(
    preset: ModelPreset,
    num_classes: int,
    variant: Variant = PLAIN,
    weights: Path | None = None,
) -> RoutedModel:
    """A routed model of the preset with the layers and parts of a variant.

    `weights` is a file of :func:`lsvit.weights.save_weights`. Parts that it does not have keep
    their initialisation.

    Raises:
        UserError: as :func:`create_backbone` and :func:`attach` do, or the file is damaged.
    """
    kwargs = dict(preset.kwargs)
    for extension in extensions_of(variant):
        kwargs |= extension.model_kwargs()
    backbone = create_backbone(preset.model_copy(update={"kwargs": kwargs}), num_classes)
    model = attach(backbone, variant)
    if weights is not None:
        with user_errors():
            load_weights(model, weights)
    return model


def input_size(model: RoutedModel, preset: ModelPreset) -> tuple[int, int]:
    """(in_chans, img_size) of the model's images. Raises UserError if they are no squares."""
    height, width = patch_embed(model.backbone).img_size
    if height != width:
        raise UserError(f"img_size: found {height}x{width}, accepted: square images")
    return preset.kwargs.get("in_chans", 3), height


def normalisation(
    preset: ModelPreset, meta: dict[str, Any]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels: the preset's, of the weights, else of the data."""
    cfg = pixels_of(preset)
    in_chans = preset.kwargs.get("in_chans", 3)
    is_given = preset.pixels is not None and preset.pixels.mean is not None
    is_published = preset.weights not in OWN_WEIGHTS and cfg is not None
    if is_given or (is_published and len(cfg.mean) == in_chans):
        return tuple(cfg.mean), tuple(cfg.std)
    return tuple(meta["mean"]), tuple(meta["std"])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises UserError if it is none."""
    with user_errors():
        return lsvit.checkpoint.read_tensors(path)
