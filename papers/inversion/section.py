"""The section `inversion` of params.yaml, its validation, and what its jobs depend on. No torch here."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lsvit.routes import Order
from pipeline.config.sections import PaperSection
from pipeline.config.types import NUMBER, Count, Float, NonNegative, Positive, Section, Seed
from pipeline.jobs.configs import MeasureConfig

TRAINED = "trained"  # in results/: the trained weights of a family
NO_EDIT = "none"  # of a model as it is
Part = Literal["residuals", "norms", "attention", "mlp"]
Transplant = Literal["patch_embed", "pos_embed", "norm1"]


class Descent(Section):
    """How an input is found that gives a state: plain gradient descent, as in the source, or Adam."""

    method: Literal["gd", "adam"]
    lrs: Annotated[
        list[Positive], Field(min_length=1)
    ]  # tried beside each other; every image and point keeps the best
    steps: Count
    schedule: Literal["constant", "cosine"] = "constant"  # cosine: to 0
    blur: NonNegative = 0.0  # sigma of a 3x3 Gaussian blur after every step, in pixels; 0: none
    total_variation: NonNegative = (
        0.0  # weight of the mean absolute difference of neighbouring pixels; 0: none
    )


class ClassImages(Section):
    """Class-maximising inputs."""

    steps: Count
    lr: Positive
    target: Float  # C, the large constant that the class's output is drawn to
    blur: NonNegative  # sigma of the 3x3 Gaussian blur, in pixels, at first
    jitter: Annotated[int, Field(ge=0), NUMBER]  # pixels by which crops move
    jitter_after: Annotated[int, Field(ge=0), NUMBER]  # steps
    batch_size: Count  # classes that go through the model at once

    def without_effect(self) -> set[str]:
        """The classes do not depend on each other."""
        return {"batch_size"}


class Family(Section):
    """A model trained from scratch by the stage; without keys: the chosen model and its starting weights."""

    timm: Annotated[str, Field(min_length=1)] | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)
    init_std: Positive | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.timm is None and (self.kwargs or self.init_std):
            raise ValueError(
                "timm\nnull\na timm model, or no keys for the chosen model and its starting weights"
            )
        return self


class InversionMeasure(Section):
    """Which images are inverted, and the yardstick."""

    images: Count
    depths: Annotated[list[Count], Field(min_length=1)] | None
    sigma: Positive
    shifts: Count
    met: Positive
    batch_size: Count
    records: Count
    seed: Seed

    def without_effect(self) -> set[str]:
        """The points and images do not depend on each other."""
        return {"batch_size"}


class Inversion(InversionMeasure, PaperSection):
    """What layers represent: inversion, ablation, transplant, class-maximising inputs, filters."""

    name = "inversion"
    within = {"images": "validation"}  # noqa: RUF012 (a ClassVar)
    taken = (TRAINED,)
    merged = ("training", "class_images")
    seeds: Count | None
    families: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], Family], Field(min_length=1)
    ]
    training: dict[str, Any]
    optimisers: Annotated[
        dict[Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")], Descent],
        Field(min_length=1),
    ]
    ablations: dict[str, list[Annotated[list[Part], Field(min_length=1)]]]
    transplants: dict[str, list[Annotated[list[Transplant], Field(min_length=1)]]]
    variants: list[str]
    class_images: ClassImages


class InversionConfig(MeasureConfig):
    """Inversions of one model along routes in one order; `seed` is the training's, or of a random initialisation."""

    options: InversionMeasure
    descent: Descent
    alone: bool  # invert layers alone too
    order: Order
    ablation: list[Part]  # taken out of every block
    transplant: list[Transplant]  # taken over from the donor
    donor_sha256: str | None = None
    precision: Literal["fp32"] = "fp32"  # distances fall below what half precision can tell
    seed: int


class ClassImagesConfig(MeasureConfig):
    """The class-maximising inputs of one model; another training of it tells what it takes them for."""

    options: ClassImages
    judge_sha256: str | None
    precision: Literal["fp32"] = "fp32"
    seed: int
