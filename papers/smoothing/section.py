"""The section `smoothing` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Any, Literal

from lsvit.routes import Order
from pipeline.config.sections import PaperSection
from pipeline.config.types import Count, Section, Seed
from pipeline.config.variant import Losses, Recipe
from pipeline.jobs.configs import MeasureConfig

WHOLE = "none"  # of the recipe was removed
SCRATCH = "scratch"  # in results/: a model trained by this stage


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
