"""Which epoch of a training is kept. No torch here."""

from lsvit.routes import training_order
from pipeline.config.variant import Variant
from pipeline.jobs.files import Row


def judging_loss(judge: str, variant: Variant) -> str:
    """The metric that chooses the epoch on the judging split: the loss that is trained for, in the order that is trained for."""
    return f"{judge}/{training_order(variant.route)}/{'objective' if variant.exits else 'loss'}"


def kept_epoch(history: list[Row], variant: Variant, judge: str = "validation") -> Row:
    """The epoch whose weights were kept: lowest :func:`judging_loss`, last of equals."""
    return min(reversed(history), key=lambda row: row[judging_loss(judge, variant)])
