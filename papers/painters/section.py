"""The section `painters` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import Count, NoEffect, Seed
from pipeline.jobs.configs import MeasureConfig

Kind = Literal["skip", "repeat", "reverse", "shuffle", "parallel", "loop"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNTOUCHED = "none"  # in results/: the kind of the model as it is


class Painters(PaperSection):
    """Transformer Layers as Painters (Sun, Pickett, Nain and Jones, 2024): evaluations, no
    training.

    In which other ways the middle layers of refined models are executed (figure 1).
    """

    name = "painters"
    treated: Annotated[list[Count], Field(min_length=1)]
    """How many layers lie in the middle."""
    kinds: Annotated[list[Kind], Field(min_length=1)]
    """skip: left out. repeat: each replaced by the one in the centre. reverse. shuffle: random
    order. parallel: side by side, outputs averaged. loop: that, `loops` times one after another."""
    loops: Count
    """Models with a position part know as many positions as layers: at most the least `treated`."""
    orders: Count
    """Of shuffle, all where fewer exist; the same for every variant and seed."""
    images: Count | None
    """Validation images; null: all."""
    batch_size: Annotated[Count, NoEffect()]
    seed: Seed
    """Of the random orders."""
    variants: Annotated[list[str], Field(min_length=1), NoEffect()]
    """LayerShuffle's models know their layers in any order."""


class PaintersConfig(MeasureConfig):
    """The evaluation of one model under every strategy."""

    options: Painters
