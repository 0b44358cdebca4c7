"""The section `smoothing` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator

from lsvit.routes import Order
from pipeline.config.sections import PaperSection
from pipeline.config.types import Count, Fraction, NonNegative, Positive, Section, Seed, Share
from pipeline.jobs.configs import MeasureConfig

WHOLE = "none"  # of the recipe was removed
SCRATCH = "scratch"  # in results/: a model trained by this stage


class Loss(Section):
    """One of the losses against over-smoothing; in params.yaml a number is its weight."""

    weight: NonNegative = 1.0


class Contrastive(Loss):
    """The patch contrastive loss, see :func:`papers.smoothing.losses.patch_contrastive`.

    `normalize`: of cosines, not of the source's dot products.
    """

    normalize: bool = True


class Mixing(Loss):
    """The patch mixing loss; `alpha`: of CutMix's Beta distribution."""

    alpha: Positive = 1.0


LossT = TypeVar("LossT", bound=Loss)


def _number_is_weight(value: Any) -> Any:
    return value if isinstance(value, dict | Loss | None) else {"weight": value}


def _absent_at_zero(loss: LossT | None) -> LossT | None:
    return loss if loss and loss.weight else None


def _weighed(kind: type[Loss]) -> BeforeValidator:
    return BeforeValidator(_number_is_weight, json_schema_input_type=kind | float | None)


PRESENT = AfterValidator(_absent_at_zero)


class Losses(Section):
    """What is added to the class loss against over-smoothing. A weight of 0 is the same as none."""

    cosine: Annotated[Loss | None, _weighed(Loss), PRESENT] = None
    contrastive: Annotated[Contrastive | None, _weighed(Contrastive), PRESENT] = None
    mixing: Annotated[Mixing | None, _weighed(Mixing), PRESENT] = None

    def __str__(self) -> str:
        names = [name for name in type(self).model_fields if getattr(self, name)]
        dot = self.contrastive and not self.contrastive.normalize
        return (
            "+".join(f"{name}_dot" if dot and name == "contrastive" else name for name in names)
            or "none"
        )


class Recipe(Section):
    """The parts of DeiT's training recipe that over-smoothing's Table 4 removes one at a time; by default all are off.

    `repeats`: repeated augmentation, how often an epoch shows an image; `erasing`: probability of random erasing; `mixup`: alpha of
    the Beta distribution, 0: none; `drop_path`: timm's stochastic depth, of single samples, growing linearly from 0 at the first
    layer to this rate at the last of all the model has (MLP-Mixers: the same in every layer); 0: what the preset's kwargs say.
    """

    repeats: Count = 1
    erasing: Share = 0.0
    mixup: NonNegative = 0.0
    drop_path: Fraction = 0.0

    def without(self, part: str) -> "Recipe":
        """The recipe with one part as it is by default."""
        return self.model_copy(update={part: type(self).model_fields[part].default})


class SmoothingProfiles(Section):
    """Which images the measures of a model are taken over."""

    images: Count
    batch_size: Count
    seed: Seed

    def without_effect(self) -> set[str]:
        """Every image has a route of its own."""
        return {"batch_size"}


class Smoothing(SmoothingProfiles, PaperSection):
    """Over-smoothing: models trained from scratch with and without the losses against it, and profiles of them and of variants."""

    name = "smoothing"
    taken = (SCRATCH,)
    merged = ("recipe", "kwargs", "training")
    seeds: Count | None
    depths: list[Count]
    losses: list[Losses]
    best: Losses
    removed: list[Literal["repeats", "erasing", "mixup", "drop_path"]]
    talking_heads: list[Count]
    variants: list[str]
    kwargs: dict[str, Any]
    recipe: Recipe
    training: dict[str, Any]


PROFILE = "profile.json"


class ProfileConfig(MeasureConfig):
    """The smoothness of one model along routes in one order; `seed` is the training's, or of a random initialisation."""

    options: SmoothingProfiles
    order: Order
    seed: int
