"""The section `painters` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import Count, Section, Seed
from pipeline.jobs.configs import MeasureConfig

Kind = Literal["skip", "repeat", "reverse", "shuffle", "parallel", "loop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNTOUCHED = "none"  # in results/: the kind of the model as it is


class Strategies(Section):
    """In which other ways the middle layers are executed (Painters, figure 1), and on which images."""

    treated: Annotated[list[Count], Field(min_length=1)]
    kinds: Annotated[list[Kind], Field(min_length=1)]
    loops: Count
    orders: Count
    images: Count | None
    batch_size: Count
    seed: Seed

    def without_effect(self) -> set[str]:
        """Every image runs along every route."""
        return {"batch_size"}


class Painters(Strategies, PaperSection):
    """Transformer Layers as Painters (Sun, Pickett, Nain and Jones, 2024): evaluations of refined models, nothing is trained."""

    name = "painters"
    variants: Annotated[list[str], Field(min_length=1)]


class PaintersConfig(MeasureConfig):
    """The evaluation of one model under every strategy."""

    options: Strategies
