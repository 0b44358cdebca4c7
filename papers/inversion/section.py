"""The section `inversion` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from lsvit.routes import Order
from pipeline.config.sections import PaperSection
from pipeline.config.types import (
    AtMost,
    Count,
    Float,
    Merged,
    Natural,
    NoEffect,
    NonNegative,
    Positive,
    Section,
    Seed,
    refuse,
)
from pipeline.jobs.configs import MeasureConfig

TRAINED = "trained"  # in results/: the trained weights of a family
NO_EDIT = "none"  # of a model as it is
# The columns that tell inverted models apart, beside data set and model
KEYS = ["family", "weights", "edit", "order", "optimiser", "seed"]
Part = Literal["residuals", "norms", "attention", "mlp"]
Transplant = Literal["patch_embed", "pos_embed", "norm1"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]


class Descent(Section):
    """How an input is found that gives a state: plain gradient descent, as in the source, or
    Adam."""

    method: Literal["gd", "adam"]
    lrs: Annotated[list[Positive], Field(min_length=1)]
    """Tried beside each other; every image and point keeps the best."""
    steps: Count
    schedule: Literal["constant", "cosine"] = "constant"
    """cosine: to 0."""
    blur: NonNegative = 0.0
    """Sigma of a 3x3 Gaussian blur after every step, in pixels; 0: none."""


class ClassImages(Section):
    """Class-maximising inputs."""

    steps: Count
    lr: Positive
    target: Float
    """C, the large constant that the class's output is drawn to."""
    blur: NonNegative
    """Sigma of the 3x3 Gaussian blur, in pixels, at first."""
    jitter: Natural
    """Pixels by which crops move."""
    jitter_after: Natural
    """Steps."""
    batch_size: Annotated[Count, NoEffect()]
    """Classes that go through the model at once."""


class Family(Section):
    """A model trained from scratch by the stage. {} is the chosen model and its starting weights.

    Its img_size and in_chans are those of the chosen model.
    """

    timm: Annotated[str, Field(min_length=1)] | None = None
    kwargs: dict[str, Any] = Field(default_factory=dict)
    init_std: Positive | None = None

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if self.timm is None and (self.kwargs or self.init_std):
            wanted = "a timm model, or no keys for the chosen model and its starting weights"
            raise refuse("timm", None, wanted)
        return self


class InversionMeasure(Section):
    """Which images are inverted, and the yardstick."""

    images: Annotated[Count, AtMost("validation")]
    """Validation images, of different classes, for each seed; every seed has others."""
    depths: Annotated[list[Count], Field(min_length=1)] | None
    """Invert the states after so many layers, and the last of these alone; null: 1, a third, two
    thirds, all."""
    sigma: Positive
    """Of the yardstick's slightly shifted images, of pixels in [0, 1]; the source has 1/18,
    1/20."""
    shifts: Count
    """Shifted images of each."""
    met: Positive
    """For the verdict an embedding distance below this share of the yardstick counts as 0."""
    batch_size: Annotated[Count, NoEffect()]
    """Inputs that are found at once, times the learning rates."""
    records: Count
    """Points of a curve."""
    seed: Seed
    """Of the noise that inputs are found from."""


class Inversion(InversionMeasure, PaperSection):
    """What layers represent: inversion, ablation, transplant, class-maximising inputs, filters."""

    name = "inversion"
    taken = (TRAINED,)
    seeds: Count | None
    """Use only the first n of `seeds`; null: all."""
    families: Annotated[dict[Name, Family], Field(min_length=1)]
    training: Annotated[dict[str, Any], Merged()]
    """Of the families, over the values of `pretrain`; a preset may change single keys."""
    optimisers: Annotated[dict[Name, Descent], Field(min_length=1)]
    """The first is that of edited models and variants; others are for the first family as it is."""
    ablations: dict[str, list[Annotated[list[Part], Field(min_length=1)]]]
    """By family, the parts taken out of every block."""
    transplants: dict[str, list[Annotated[list[Transplant], Field(min_length=1)]]]
    """By family, the trained parts put into the untrained model."""
    variants: list[str]
    """Refined models, in sequential and arbitrary order."""
    class_images: Annotated[ClassImages, Merged()]


class InversionConfig(MeasureConfig):
    """Inversions of one model along routes in one order.

    `seed` is the training's, or that of a random initialisation.
    """

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
    """The class-maximising inputs of one model; another training of it judges them."""

    options: ClassImages
    judge_sha256: str | None
    precision: Literal["fp32"] = "fp32"
    seed: int
