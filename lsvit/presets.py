"""The presets of params.yaml, models and data sets, and their validation. No torch here."""

from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lsvit.sections import Count, Positive, Section

SIZES = {  # training, validation images of a source
    "embedded": (10_000, 2_000), "fashion_mnist": (60_000, 10_000), "digits": (1_437, 360),
    "cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "imagenet": (1_281_167, 50_000),
}  # fmt: skip


# Left out where empty when written down, so that a new section changes no job's identity.
Overrides = Annotated[dict[str, Any], Field(exclude_if=not_)]


class Preset(Section):
    """A named model or data set; both may override keys of the stages' sections."""

    pretrain: Overrides = Field(default_factory=dict)
    finetune: Overrides = Field(default_factory=dict)
    prune_eval: Overrides = Field(default_factory=dict)
    analysis: Overrides = Field(default_factory=dict)
    exits: Overrides = Field(default_factory=dict)
    smoothing: Overrides = Field(default_factory=dict)
    inversion: Overrides = Field(default_factory=dict)


class ModelPreset(Preset):
    """A timm model: architecture, arguments, and where its weights come from.

    `num_classes`: outputs, None for as many as the data set has classes. `head`: how a distilled DeiT is read; timm averages two
    heads, on the class and on the distillation token, the published code has one, on the class token.
    """

    timm: Annotated[str, Field(min_length=1)]
    kwargs: dict[str, Any] = Field(default_factory=dict)
    weights: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    num_classes: Count | None = None
    head: Literal["timm", "class_token"] = "timm"
    init_std: Positive | None = None

    def local_file(self, root: Path = Path()) -> Path | None:
        """The safetensors file that `weights` names, itself or in a folder of timm's layout; None for scratch and hub."""
        if self.weights in ("scratch", "hub"):
            return None
        path = root / self.weights
        return path / "model.safetensors" if path.is_dir() else path

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.weights in ("scratch", "hub") or self.weights.endswith(".safetensors") or "/" in self.weights):
            raise ValueError(f"weights\n{self.weights!r}\nscratch, hub, a .safetensors file, or a folder with one (with a / in its path)")
        for key, own in (("num_classes", "num_classes"), ("pretrained", "weights")):
            if key in self.kwargs:
                raise ValueError(f"kwargs.{key}\n{self.kwargs[key]!r}\nthe preset's own key {own}")
        numbers = {k: v for k, v in self.kwargs.items() if isinstance(v, int)}
        for key in ("embed_dim", "num_heads", "depth", "patch_size", "img_size"):
            if key in self.kwargs and numbers.get(key, 0) < 1:
                raise ValueError(f"kwargs.{key}\n{self.kwargs[key]!r}\na whole number, at least 1")
        if self.kwargs.get("embed_dim", 0) % self.kwargs.get("num_heads", 1):
            raise ValueError(f"kwargs.num_heads\n{self.kwargs['num_heads']}\na divisor of embed_dim {self.kwargs['embed_dim']}")
        if self.kwargs.get("img_size", 0) % self.kwargs.get("patch_size", 1):
            raise ValueError(f"kwargs.patch_size\n{self.kwargs['patch_size']}\na divisor of img_size {self.kwargs['img_size']}")
        return self


class DatasetPreset(Preset):
    """Where images come from, how many of them are used, and how many of the training images are held out."""

    source: Literal["embedded", "fashion_mnist", "digits", "cifar10", "cifar100", "imagenet", "image_folder"]
    folder: str | None = None
    resize: Literal["published", "timm"] = "published"
    train: Count | None = None
    validation: Count | None = None
    heldout: Count | None = None

    @model_validator(mode="after")
    def _folder_is_given(self) -> Self:
        if self.folder is None and self.source in ("imagenet", "image_folder"):
            raise ValueError("folder\nnull\nthe folder with the images")
        return self

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Images to train on, to validate on, and held out; None where only the source knows."""
        train, validation = SIZES.get(self.source, (None, None))
        train, validation = self.train or train, self.validation or validation
        if train is None or validation is None:
            return None
        return train - (self.heldout or 0), validation, self.heldout or 0
