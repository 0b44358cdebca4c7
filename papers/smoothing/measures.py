"""What the over-smoothing paper's claims are decided on."""

from collections.abc import Callable, Sequence

import numpy as np

from lsvit.routes import ORDERS, Order
from papers.smoothing.section import SCRATCH, name_drop_path
from pipeline.report.evidence import Evidence, NotRun
from pipeline.report.tables import NONE

COSINE, ATTENTION = "patch_cosine", "attention_std"


def depths(e: Evidence) -> tuple[int, int]:
    """The smaller and the larger number of layers of the trainings from scratch."""
    numbers = e.rows("smoothing", "over-smoothing is", training=SCRATCH)["num_layers"]
    if numbers.nunique() < 2:
        raise NotRun("trainings from scratch at two depths are not among the results")
    return numbers.min(), numbers.max()


def profile(
    e: Evidence,
    column: str,
    losses: str = NONE,
    deep: bool | None = True,
    training: str = SCRATCH,
    order: Order = "sequential",
    changed: str = NONE,
    talking_heads: bool = False,
) -> np.ndarray:
    """A measure layer by layer: (seeds, layers), at the larger depth if `deep`; None: at any.

    It goes from the embedding on, of the attention from the first layer on.

    Raises:
        NotRun: it is not among the results.
    """
    where: dict[str, object] = {
        "training": training,
        "order": order,
        "changed": changed,
        "talking_heads": talking_heads,
    }
    if deep is not None:
        where["num_layers"] = depths(e)[deep]
    if training == SCRATCH:
        where["losses"] = losses
    rows = e.rows("smoothing", "over-smoothing is", **where)
    if column == ATTENTION:
        rows = rows[rows["layer"] > 0]
    if rows.empty or rows[column].isna().any():
        name = f"{e.label(training)}, {order}"
        if training == SCRATCH:
            name = f"losses {losses}, {where.get('num_layers')} layers"
            if changed != NONE:
                name += f", {changed.replace('_', ' ')}"
            if talking_heads:
                name += ", talking heads"
        raise NotRun(f"the {column.replace('_', ' ')} of {name} is not among the results")
    return rows.pivot_table(index="seed", columns="layer", values=column, sort=False).to_numpy()


def similarity(
    e: Evidence,
    losses: str = NONE,
    deep: bool | None = None,
    training: str = SCRATCH,
    order: Order = "sequential",
) -> np.ndarray:
    """Patch cosine similarity after the last layer, at the larger depth if `deep`."""
    return profile(e, COSINE, losses, deep, training, order)[:, -1]


def rise(e: Evidence) -> np.ndarray:
    """Similarity after the last layer minus that after the first, larger depth."""
    similarities = profile(e, COSINE)
    return similarities[:, -1] - similarities[:, 1]


def attention_rise(e: Evidence) -> np.ndarray:
    """Deviation of the attention scores, last minus first third of the layers, larger depth."""
    deviations = profile(e, ATTENTION)
    third = deviations.shape[1] // 3
    return deviations[:, -third:].mean(1) - deviations[:, :third].mean(1)


def attention(e: Evidence, losses: str) -> np.ndarray:
    """Deviation of the attention scores, mean over the layers, larger depth."""
    return profile(e, ATTENTION, losses).mean(1)


def accuracy(
    e: Evidence,
    losses: str,
    deep: bool = False,
    changed: str = NONE,
    talking_heads: bool = False,
    model: str = "",
) -> np.ndarray:
    """Accuracy in % of a training from scratch, at the larger depth if `deep`.

    Raises:
        NotRun: it is not among the results, or the claim is about another `model` than theirs.
    """
    if model and e.cell["model"] != model:
        raise NotRun(f"the claim is about {model}")
    accuracies = profile(e, "accuracy", losses, deep, changed=changed, talking_heads=talking_heads)
    return 100 * accuracies[:, -1]


def with_drop_path(e: Evidence, losses: str, rate: float) -> np.ndarray:
    """Accuracy in % with this drop path and talking heads at the larger depth."""
    whole = e.read("smoothing")["recipe"]["drop_path"]
    return accuracy(e, losses, True, name_drop_path(rate, whole), talking_heads=True)


def best_lead(e: Evidence, losses: str, others: Sequence[str]) -> np.ndarray:
    """The accuracy with losses minus that with the best of others."""
    return accuracy(e, losses) - np.max([accuracy(e, other) for other in others], axis=0)


def cost_of_removing(e: Evidence, part: str, losses: str) -> np.ndarray:
    """What accuracy loses when a part of the recipe is removed."""
    return accuracy(e, losses) - accuracy(e, losses, changed=f"without_{part}")


def change_of_order(e: Evidence, variant: str) -> np.ndarray:
    """The absolute change of a variant's similarity from original to arbitrary order."""
    sequential, arbitrary = (similarity(e, training=variant, order=order) for order in ORDERS)
    return np.abs(arbitrary - sequential)


MEASURES: dict[str, Callable[..., np.ndarray]] = {
    measure.__name__: measure
    for measure in (
        similarity,
        rise,
        attention_rise,
        attention,
        accuracy,
        with_drop_path,
        best_lead,
        cost_of_removing,
        change_of_order,
    )
}
MEASURES["refined_accuracy"] = Evidence.accuracy
