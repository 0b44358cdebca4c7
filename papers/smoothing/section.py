"""The section `smoothing` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Any

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from lsvit.routes import Order
from pipeline.config.sections import PaperSection
from pipeline.config.types import (
    NUMBER,
    Added,
    Count,
    Fraction,
    Merged,
    NoEffect,
    NonNegative,
    Part,
    Section,
    Seed,
    Share,
)
from pipeline.jobs.configs import MeasureConfig

WHOLE = "none"  # of the recipe was changed
SCRATCH = "scratch"  # in results/: a model trained by this stage
PROFILE = "profile.json"


class Loss(Section):
    """One of the losses against over-smoothing. In params.yaml a number is its weight."""

    weight: NonNegative = 1.0


class Contrastive(Loss):
    """The patch contrastive loss, see :func:`papers.smoothing.losses.patch_contrastive`."""

    normalize: bool = False
    """Of cosines, where the source takes dot products."""


def _read_loss(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """A number is a weight, and a loss of weight 0 is absent."""
    loss = validate(value if isinstance(value, dict | Loss | None) else {"weight": value})
    return loss if loss and loss.weight else None


def _weighed(kind: type[Loss]) -> WrapValidator:
    return WrapValidator(_read_loss, json_schema_input_type=kind | float | None)


class Losses(Section):
    """What is added to the class loss against over-smoothing. A weight of 0 is the same as none."""

    cosine: Annotated[Loss | None, _weighed(Loss)] = None
    contrastive: Annotated[Contrastive | None, _weighed(Contrastive)] = None
    mixing: Annotated[Loss | None, _weighed(Loss)] = None
    """The patch mixing loss. Patches are mixed by `recipe.cutmix`; without it all patches of an
    image have its label."""

    def __str__(self) -> str:
        sum_of_names = "+".join(name for name, loss in self if loss) or "none"
        if self.contrastive and self.contrastive.normalize:
            return sum_of_names.replace("contrastive", "contrastive_cosines")
        return sum_of_names


class Recipe(Section):
    """DeiT's training recipe, whose parts Table 4 removes one at a time. By default all are off."""

    repeats: Count = 1
    """Repeated augmentation: how often an epoch shows an image."""
    crop: Annotated[Part, Added(1.0)] = 1.0
    """Random resized crop: the least share of an image's area that is kept; 1: none."""
    flip: Annotated[Share, Added(0.0)] = 0.0
    """Probability of a horizontal flip."""
    randaugment: Annotated[int, Field(ge=0, le=10), NUMBER, Added(0)] = 0
    """Magnitude of RandAugment; 0: none."""
    erasing: Share = 0.0
    """Probability of random erasing."""
    mixup: NonNegative = 0.0
    """Alpha of the Beta distribution; 0: none. With CutMix, half of the batches have either."""
    cutmix: Annotated[NonNegative, Added(0.0)] = 0.0
    """Alpha of the Beta distribution; 0: none. Boxes are cut along the grid of patches."""
    label_smoothing: Annotated[Fraction, Added(0.0)] = 0.0
    drop_path: Fraction = 0.0
    """timm's stochastic depth, of single samples. It grows linearly from 0 at the first layer to
    this rate at the last of all the model has; MLP-Mixers have it in every layer. 0: as the
    preset's kwargs."""

    def without(self, part: str) -> "Recipe":
        """The recipe with one part as it is by default."""
        return self.model_copy(update={part: getattr(Recipe(), part)})


def name_drop_path(rate: float, whole: float) -> str:
    """What `changed` in results/ says of a drop path where the whole recipe has another one."""
    return WHOLE if rate == whole else f"drop_path_{rate:g}"


class SmoothingProfiles(Section):
    """Which images the measures of a model are taken over."""

    images: Count
    """Training images that a profile is the mean of."""
    batch_size: Annotated[Count, NoEffect()]
    seed: Seed
    """Of the arbitrary orders."""


class Smoothing(SmoothingProfiles, PaperSection):
    """Over-smoothing: models trained from scratch with and without the losses against it.

    Their initial weights are alike in all layers. Profiles, layer after layer, of them and of
    variants.
    """

    name = "smoothing"
    taken = (SCRATCH,)
    seeds: Count | None
    """Use only the first n of `seeds`; null: all."""
    depths: list[Count]
    """Layers; [] trains nothing (talking_heads: [] too)."""
    losses: list[Losses]
    """The rows of Table 1, at each depth, and the source's formula as it stands."""
    best: Losses
    """"Ours" of Tables 3 and 4."""
    removed: list[str]
    """From the recipe, one at a time, at the smallest depth, with and without `best` (Table 4)."""
    talking_heads: list[Count]
    """Depths at which `best` is also trained with talking heads (Table 3)."""
    drop_paths: list[Fraction]
    """Rates with which `best`, and `best` without the contrastive loss, are trained with talking
    heads at the largest depth (Table 5)."""
    variants: list[str]
    """Refined models whose profiles are taken too, in sequential and arbitrary order."""
    kwargs: Annotated[dict[str, Any], Merged()]
    """Of the model, over those of its preset."""
    recipe: Annotated[Recipe, Merged()]
    """Of every row; a preset may change single keys."""
    training: Annotated[dict[str, Any], Merged()]
    """DeiT's; over the values of `pretrain`; a preset may change single keys."""


class ProfileConfig(MeasureConfig):
    """The smoothness of one model along routes in one order.

    `seed` is the training's, or that of a random initialisation.
    """

    options: SmoothingProfiles
    order: Order
    seed: int
