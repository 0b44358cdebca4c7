"""The model presets of params.yaml, and their validation. No torch here."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.types import Count, NonNegative, Positive, Section


class ModelPreset(Section):
    """A timm model: architecture, arguments, and where its weights come from.

    `num_classes`: outputs, None for as many as the data set has classes. `head`: how a distilled DeiT is read; timm averages two
    heads, on the class and on the distillation token, the published code has one, on the class token. `init_std`: of the layers' initial
    weights, of models from scratch; with `init_growth` g, that of what the l-th layer adds to its input is l^g times as large, so that
    late layers change their input as much as early ones do. `scale`: used where params.yaml names none.
    """

    timm: Annotated[str, Field(min_length=1)]
    kwargs: dict[str, Any] = Field(default_factory=dict)
    weights: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    num_classes: Count | None = None
    head: Literal["timm", "class_token"] = "timm"
    init_std: Positive | None = None
    init_growth: NonNegative = 0.0
    scale: str = "published"

    def local_file(self, root: Path = Path()) -> Path | None:
        """The safetensors file that `weights` names, itself or in a folder of timm's layout; None for scratch and hub."""
        if self.weights in ("scratch", "hub"):
            return None
        path = root / self.weights
        return path / "model.safetensors" if path.is_dir() else path

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (
            self.weights in ("scratch", "hub")
            or self.weights.endswith(".safetensors")
            or "/" in self.weights
        ):
            raise ValueError(
                f"weights\n{self.weights!r}\nscratch, hub, a .safetensors file, or a folder with one (with a / in its path)"
            )
        for key, own in (("num_classes", "num_classes"), ("pretrained", "weights")):
            if key in self.kwargs:
                raise ValueError(f"kwargs.{key}\n{self.kwargs[key]!r}\nthe preset's own key {own}")
        numbers = {k: v for k, v in self.kwargs.items() if isinstance(v, int)}
        for key in ("embed_dim", "num_heads", "depth", "patch_size", "img_size"):
            if key in self.kwargs and numbers.get(key, 0) < 1:
                raise ValueError(f"kwargs.{key}\n{self.kwargs[key]!r}\na whole number, at least 1")
        if self.kwargs.get("embed_dim", 0) % self.kwargs.get("num_heads", 1):
            raise ValueError(
                f"kwargs.num_heads\n{self.kwargs['num_heads']}\na divisor of embed_dim {self.kwargs['embed_dim']}"
            )
        if self.kwargs.get("img_size", 0) % self.kwargs.get("patch_size", 1):
            raise ValueError(
                f"kwargs.patch_size\n{self.kwargs['patch_size']}\na divisor of img_size {self.kwargs['img_size']}"
            )
        return self
