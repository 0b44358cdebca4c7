"""The section `questions` of params.yaml, and what its jobs depend on. No torch here."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import NUMBER, AtMost, Count, Fraction, Natural, NoEffect, Seed
from pipeline.jobs.configs import MeasureConfig
from pipeline.jobs.files import ROWS, write_rows

Starts = Literal["separate", "common"]
Way = Literal["random", "first", "spaced", "influence", "greedy", "laco", "patch"]
Row = tuple[str, int, str, float]  # way, count, measure, value


def write_numbers(folder: Path, rows: Iterable[Row], images: int) -> None:
    """Write the rows of a job, all of so many images, as its `rows.csv`."""
    lines = [
        (way, count, images, measure, round(float(value), 6)) for way, count, measure, value in rows
    ]
    write_rows(folder / ROWS, ("way", "count", "images", "measure", "value"), lines)


def pruned_file(keep: int) -> str:
    """File name of the weights of a model with so many layers left, which can be trained on."""
    return f"pruned_{keep}.safetensors"


class Measured(PaperSection):
    """What all questions share."""

    images: Count | None
    """Validation images; null: all."""
    batch_size: Annotated[Count, NoEffect()]
    seed: Seed
    """Of routes and merges."""


class Passes(Measured):
    """Many passes of the same images through one model."""

    routes: Count
    """Random orders, or passes with layers dropped, at most."""
    shorter: Annotated[list[Count], AtMost("layers")]
    """Layers of shorter routes."""
    drop: Fraction
    """Of MC stochastic depth: the rate at which layers are left out."""
    dropout: Fraction
    """Of MC dropout: the rate at which numbers that a block gives are set to 0."""


class Merges(Measured):
    """Models whose layers come from several trainings."""

    members: list[Annotated[int, Field(ge=2), NUMBER]]
    """From how many trainings, where there are so many."""
    draws: Count
    """Merges of so many."""
    outside: Literal["first", "mean"]
    """Embedding, last norm and head: the first training's, or the mean over all."""


class Pruning(Measured):
    """Models with fewer layers."""

    keep: Annotated[list[Count], AtMost("layers", less=1)]
    """How many layers are kept."""
    ways: Annotated[list[Way], Field(min_length=1)]
    """random; first; spaced; influence: those that change their input most (ShortGPT); greedy: the
    one without which the loss is least goes first; laco: runs of layers merged into one (LaCo);
    patch: a linear map, least squares, in place of a run of layers (ReplaceMe)."""
    subsets: Count
    """Random choices of layers."""
    calibration: Count
    """Held-out images, or training images where none are held out, that choose and fit."""


class Questions(Passes, Merges, Pruning):
    """Questions of ours: merged models, informed pruning, and what many passes are good for."""

    name = "questions"
    variants: Annotated[list[str], Field(min_length=1), NoEffect()]
    """Without position parts and exits, with all layers."""
    seeds: Annotated[Count | None, NoEffect()]
    """Measure the models of so many of `seeds`; null: of all. Merges take layers from all."""
    common: Annotated[dict[str, Count], NoEffect()]
    """Further trainings of a variant, from the first seed's starting weights, for merges. With
    published weights none is needed."""
    healed: Annotated[Natural, NoEffect()]
    """Seeds whose pruned models are trained on."""
    healing_epochs: Annotated[Count, NoEffect()]
    """For so many epochs, in their original order, as the baseline is."""


class PassesConfig(MeasureConfig):
    """Many passes through one model."""

    options: Passes


class MergesConfig(MeasureConfig):
    """Merges of several trainings; `weights` are the first one's."""

    options: Merges
    others_sha256: list[str | None]


class PruningConfig(MeasureConfig):
    """One model pruned in every way."""

    options: Pruning
