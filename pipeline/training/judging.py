"""Which epoch of a training is kept. No torch here."""

from pipeline.config.samplers import Spec, training_order
from pipeline.jobs.files import Row


def judged_loss(row: Row, route: Spec, judge: str) -> float:
    """What chooses the epoch: the loss that is trained for, in the order that is trained for.

    `row` is an epoch of a training with this `route`, `judge` the split. Where a model has an
    objective beside its loss, as with early exits, the objective counts.
    """
    place = f"{judge}/{training_order(route)}"
    return row.get(f"{place}/objective", row[f"{place}/loss"])


def kept_epoch(history: list[Row], route: Spec, judge: str = "validation") -> Row:
    """The epoch whose weights were kept: lowest :func:`judged_loss`, the last of equals."""
    return min(reversed(history), key=lambda row: judged_loss(row, route, judge))
