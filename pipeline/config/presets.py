"""The model presets of params.yaml, and their validation. No torch here."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lsvit.text import user_path
from pipeline.config.types import (
    Added,
    Count,
    NonNegative,
    Part,
    Positive,
    Section,
    Share,
    refuse,
)

OWN_WEIGHTS = ("scratch", "random")  # those that begin with random weights, a set a seed
FORMATS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")
SIZES = ("embed_dim", "num_heads", "depth", "patch_size", "img_size")  # keyword arguments of timm


class Pixels(Section):
    """How a model's images are made, in timm's words."""

    mean: list[Share] | None = None
    """Of the pixels from 0 to 1, by channel."""
    std: list[Part] | None = None
    """Of the pixels from 0 to 1, by channel."""
    crop_pct: Part | None = None
    """Part of an image's side that is cropped."""
    crop_mode: Literal["center", "squash", "border"] | None = None
    """squash: an image is made square before it is cropped."""
    interpolation: Literal["bilinear", "bicubic"] | None = None
    """Of the resized image."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.mean or ()) != len(self.std or ()):
            raise refuse("std", self.std, "as many numbers as mean has")
        return self


class ModelPreset(Section):
    """A timm model: architecture, arguments, and where its weights come from.

    Sections beside these keys override values for the model.
    """

    timm: Annotated[str, Field(min_length=1)]
    """Architecture and weight tag."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Of timm.create_model."""
    weights: Annotated[str, Field(min_length=1)]
    """scratch (the stage pretrain trains them), random (nothing does, a set a seed), hub (`timm`
    then needs the tag), a file of weights (.safetensors, or torch.save's), or a folder of timm's
    or transformers' layout."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Checksum that the weights' file must have."""
    num_classes: Count | None = None
    """Outputs; null: as many as the data set has classes (published code: 1000 for CIFAR-100)."""
    head: Literal["timm", "class_token"] = "timm"
    """timm: a distilled DeiT averages two heads. class_token: the published code's single one."""
    init_std: Positive | None = None
    """Of the layers' initial weights, of models from scratch. timm's 0.02 suits a width of 768; a
    narrower model hardly depends on layer order with it, so 0.02 * sqrt(768 / width)."""
    init_growth: NonNegative = 0.0
    """g: what the l-th layer adds to its input starts l^g times as large, so that late layers
    change their input as much as early ones do."""
    pixels: Annotated[Pixels | None, Added(None)] = None
    """null: as the config.json beside local weights says, else as timm has it for the tag."""
    scale: str = "published"
    """A key of `scales`, used where params.yaml chooses none."""

    def local_file(self, root: Path = Path()) -> Path | None:
        """The file that `weights` names, itself or in a folder, if it names one."""
        if self.weights in (*OWN_WEIGHTS, "hub"):
            return None
        path = root / user_path(self.weights)
        if path.is_dir():
            torch_file = path / "pytorch_model.bin"
            path /= "model.safetensors"
            return torch_file if torch_file.is_file() and not path.is_file() else path
        return path

    @model_validator(mode="after")
    def _check(self) -> Self:
        is_local = self.weights.endswith(FORMATS) or "/" in self.weights
        if self.weights not in (*OWN_WEIGHTS, "hub") and not is_local:
            accepted = (
                f"scratch, random, hub, a file ({', '.join(FORMATS)}), or a folder (with a /)"
            )
            raise refuse("weights", self.weights, accepted)
        for key, own_key in (("num_classes", "num_classes"), ("pretrained", "weights")):
            if key in self.kwargs:
                raise refuse(f"kwargs.{key}", self.kwargs[key], f"the preset's own key {own_key}")
        for key in SIZES:
            value = self.kwargs.get(key, 1)
            if not isinstance(value, int) or value < 1:
                raise refuse(f"kwargs.{key}", value, "a whole number, at least 1")
        channels = self.kwargs.get("in_chans", 3)
        means = (self.pixels and self.pixels.mean) or []
        if len(means) not in (0, 1, channels):
            raise refuse("pixels.mean", means, f"a number, or one for each of {channels} channels")
        for part, whole in (("num_heads", "embed_dim"), ("patch_size", "img_size")):
            total = self.kwargs.get(whole, 0)
            value = self.kwargs.get(part, 1)
            if total % value:
                raise refuse(f"kwargs.{part}", value, f"a divisor of {whole} {total}")
        return self
