"""What needs no transformer, no depth or no order, and where it is as good as what has them."""

from typing import NamedTuple

import pandas as pd

from lsvit.routes import Order
from papers.layershuffle.section import LOGISTIC
from pipeline.config.variant import BASELINE
from pipeline.jobs.rows import seed_means
from pipeline.report.statistics import Estimate, estimate


class Floor(NamedTuple):
    """A model, the floor under it, and what cannot be judged where the floor is as good."""

    model: str
    order: Order  # of the model; a floor has none, or runs in its own
    floor: str
    unjudged: str
    claims: tuple[str, ...] = ()  # which are then not comparable


DEPTH = Floor(
    BASELINE,
    "sequential",
    "refit_3",
    "what more than three layers are good for",
    ("fig1b.keep3.layerdrop", "fig1b.refit", "fig1b.refit9"),
)
FLOORS = (
    Floor(BASELINE, "sequential", LOGISTIC, "what a transformer is good for"),
    Floor(BASELINE, "sequential", "refit_1", "what more than one layer is good for"),
    DEPTH,
    Floor("ls", "arbitrary", LOGISTIC, "what LS keeps of a transformer"),
    Floor("ls", "arbitrary", "shared", "what layers of their own are good for in any order"),
    Floor("ls", "arbitrary", "parallel", "what layers one after another are good for in any order"),
)


def find_lead(rows: pd.DataFrame, floor: Floor) -> Estimate | None:
    """Estimate the lead of a model over its floor, in points, seed by seed.

    The floor is as good if the interval reaches zero.

    Args:
        rows: prune_eval.csv.
        floor: of FLOORS.

    Returns:
        None where one of the two was not run.
    """
    means = seed_means(rows)
    if not {floor.model, floor.floor} <= set(means.index.unique("variant")):
        return None
    paired = means.loc[floor.model][floor.order] - means.loc[floor.floor]["sequential"]
    return estimate(100 * paired.to_numpy())


def describe_lead(lead: Estimate) -> str:
    """A lead in points: "-0.3 [-1.1, 0.5]", or its mean alone where one seed has no interval."""
    if lead.n < 2:
        return f"{lead.mean:.1f}"
    return f"{lead.mean:.1f} [{lead.low:.1f}, {lead.high:.1f}]"
