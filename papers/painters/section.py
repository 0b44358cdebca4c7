"""The section `painters` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import Count, Seed
from pipeline.jobs.configs import MeasureConfig

Kind = Literal["skip", "repeat", "reverse", "shuffle", "parallel", "loop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNTOUCHED = "none"  # in results/: the kind of the model as it is


class Painters(PaperSection):
    """Transformer Layers as Painters (Sun, Pickett, Nain and Jones, 2024): evaluations of refined models, nothing is trained.

    In which other ways their middle layers are executed (figure 1), and on which images.
    """

    name = "painters"
    variants: Annotated[list[str], Field(min_length=1)]
    treated: Annotated[list[Count], Field(min_length=1)]
    kinds: Annotated[list[Kind], Field(min_length=1)]
    loops: Count
    orders: Count
    images: Count | None
    batch_size: Count
    seed: Seed

    def without_effect(self) -> set[str]:
        """Each model is evaluated alone. Every image runs along every route."""
        return {"variants", "batch_size"}


class PaintersConfig(MeasureConfig):
    """The evaluation of one model under every strategy."""

    options: Painters
