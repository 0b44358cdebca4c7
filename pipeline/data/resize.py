"""How images are brought to a model's size."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError


class Resize(NamedTuple):
    """The published evaluation transform: resize, then crop the centre.

    `size` is the shorter side, or (height, width) of an image squeezed into a square. `crop` is the
    side of the cropped image.
    """

    size: int | tuple[int, int]
    interpolation: str  # bilinear or bicubic, with antialiasing
    crop: int


def pixels_of(model: ModelPreset) -> Any:
    """timm's configuration of a model's images: that of its tag, with what the preset says instead.

    None if timm has none for the model, and the preset says nothing.
    """
    import timm
    from timm.models import PretrainedCfg

    cfg: Any = timm.get_pretrained_cfg(model.timm)
    if model.pixels is None:
        return cfg
    return replace(cfg or PretrainedCfg(), **model.pixels.model_dump(exclude_none=True))


def resizing(model: ModelPreset, reading: str) -> Resize:
    """How images are brought to the model's size: `published`, or as `timm` evaluates the weights.

    Raises:
        UserError: timm evaluates these weights in another way than by resizing and cropping, or
            the size is not known.
    """
    cfg = pixels_of(model)
    size = model.kwargs.get("img_size") or (cfg and cfg.input_size[-1])
    if not size:
        raise UserError(
            f"models.*.kwargs.img_size: found none, and timm has none for {model.timm}, "
            "accepted: a size in pixels"
        )
    if reading == "published":
        return Resize(size, "bilinear", size)
    crop_mode = cfg.crop_mode if cfg else None
    if crop_mode not in ("center", "squash"):
        raise UserError(
            f"datasets.*.resize: found 'timm', accepted: published "
            f"(timm's crop of {model.timm} is {crop_mode!r})"
        )
    scaled = math.floor(size / cfg.crop_pct)
    shape: int | tuple[int, int] = (scaled, scaled) if crop_mode == "squash" else scaled
    return Resize(shape, cfg.interpolation, size)
