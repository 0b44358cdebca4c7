"""The sections `prune_eval` and `analysis` of params.yaml, and what their jobs depend on. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import NUMBER, Count, Sampler, Seed, Share
from pipeline.jobs.configs import MeasureConfig


class PruneEval(PaperSection):
    """Accuracy with k layers kept, sequential and arbitrary (section 4.2)."""

    name = "prune_eval"
    keep: Annotated[list[Count], Field(min_length=1)]
    orders: Count
    per: Literal["pass", "batch", "sample", "latin"]
    variants: list[str]  # of which the samplers are evaluated
    samplers: list[Sampler]
    images: Count | None
    batch_size: Count
    seed: Seed

    def without_effect(self) -> set[str]:
        """Each model is evaluated alone; the batch size, unless each batch has routes of its own."""
        return {"variants"} if self.per in ("batch", "latin") else {"variants", "batch_size"}

    def of(self, variant: str) -> "PruneEval":
        """For one variant: without samplers, where they are evaluated of others alone."""
        return self if variant in self.variants else self.model_copy(update={"samplers": []})


class Analysis(PaperSection):
    """UMAP of a layer's output and class-token contributions (section 4.3)."""

    name = "analysis"
    within = {"images": "validation", "neighbors": "images"}  # noqa: RUF012 (a ClassVar)
    variants: Annotated[list[str], Field(min_length=1)]
    layer: Annotated[int, Field(ge=0), NUMBER]
    images: Annotated[
        int, Field(ge=13), NUMBER
    ]  # of which four fifths have the ten neighbours that tell a position
    neighbors: Annotated[int, Field(ge=2), NUMBER]
    min_dist: Share
    seed: Seed

    def without_effect(self) -> set[str]:
        """Each model is analysed alone."""
        return {"variants"}


SAMPLER_ROWS, ANALYSIS_NUMBERS = "samplers.csv", "numbers.json"


class EvalConfig(MeasureConfig):
    """One evaluation; `seed` is the training's, so that every seed is evaluated on routes of its own."""

    seed: int
    options: PruneEval


class AnalysisConfig(MeasureConfig):
    """The analysis of one model."""

    options: Analysis
