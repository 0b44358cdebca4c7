"""The sections `prune_eval` and `analysis` of params.yaml, and what their jobs depend on. No torch
here."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import (
    NUMBER,
    Added,
    AtMost,
    Count,
    Natural,
    NoEffect,
    Positive,
    Sampler,
    Seed,
    Share,
)
from pipeline.jobs.configs import MeasureConfig

SAMPLER_ROWS = "samplers.csv"
LOGISTIC = "logistic_regression"  # its name among the variants of results/
MISLED = "_misled"  # ends the name of a variant that is told wrong positions
Choose = Literal["random", "first", "spaced"]
ALL = "all"  # of layers none is left out: there is nothing to choose
ANALYSIS_NUMBERS = "numbers.json"
COLUMNS = (  # of the rows of an evaluation
    "keep",
    "choose",
    "order",
    "route",
    "routes",
    "images",
    "accuracy",
    "loss",
    "position_accuracy",
    "std_images",
)


class PruneEval(PaperSection):
    """Accuracy with k layers kept, sequential and arbitrary (section 4.2)."""

    name = "prune_eval"
    taken = (LOGISTIC,)
    takes_orderless = True
    keep: Annotated[list[Count], Field(min_length=1), AtMost("layers")]
    """How many layers are kept."""
    choose: Annotated[list[Choose], Field(min_length=1), Added(["random"])]
    """Which k of L layers are kept, which the paper does not say. random: others for every route.
    first: the first k. spaced: round(i (L - 1) / (k - 1)) for i below k. Variants other than those
    of `variants` have the first choice of this list alone."""
    orders: Count
    """Random orders of a cell, all of them where fewer exist: of per: pass, and for the spread over
    orders."""
    per: Literal["pass", "batch", "sample", "latin"]
    """sample: one pass over the images, an order for each. pass: every image under every order.
    batch: one pass, an order per batch (published code). latin: as sample, but Latin routes."""
    variants: Annotated[list[str], NoEffect()]
    """Evaluated with all choices of layers, and under those of the samplers that fit their depth,
    an order per image."""
    samplers: list[Sampler]
    """fix_first: 0 is the control: how much of the collapse comes from the first layers alone."""
    images: Count | None
    """Validation images for pruned layers and for the spread over orders; null: all."""
    batch_size: Annotated[Count, NoEffect(unless="per", values=("batch", "latin"))]
    seed: Seed
    logistic: Annotated[list[Positive], Added([])]
    """Values of C, the inverse strength of regularisation, of the logistic regression on pixels
    that Table 1 has beside the models. Held-out images choose; without them the first is taken.
    Empty: none is fitted, for images that do not fit into memory."""

    def of(self, variant: str) -> "PruneEval":
        """The options for one variant: no samplers and one choice if only others have them."""
        changes: dict[str, Any] = {"logistic": []}
        if variant not in self.variants:
            changes |= {"samplers": [], "choose": self.choose[:1]}
        return self.model_copy(update=changes)


class Analysis(PaperSection):
    """UMAP of a layer's output and class-token contributions (section 4.3)."""

    name = "analysis"
    variants: Annotated[list[str], Field(min_length=1), NoEffect()]
    """Beside the starting weights."""
    layer: Natural
    """Whose output figures 4a and 4b show, 0-based."""
    images: Annotated[int, Field(ge=13), NUMBER, AtMost("validation")]
    """Four fifths of them must have the ten neighbours that tell a position."""
    neighbors: Annotated[int, Field(ge=2), NUMBER, AtMost("images", less=1)]
    """Of UMAP."""
    min_dist: Share
    """Of UMAP."""
    seed: Seed


class EvalConfig(MeasureConfig):
    """One evaluation; `seed` is the training's, so that every seed has routes of its own."""

    seed: int
    options: PruneEval
    misled: Annotated[bool, Added(False)] = False  # told wrong positions


class LogisticConfig(MeasureConfig):
    """The logistic regression. It has no seed: nothing in it is drawn."""

    values: list[float]  # of C


class AnalysisConfig(MeasureConfig):
    """The analysis of one model."""

    options: Analysis
