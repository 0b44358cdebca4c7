"""What Painters' claims are decided on.

As in the paper, accuracy counts from chance (0 %) to that of the model as it is (100 %).
"""

from collections.abc import Sequence

import numpy as np

from papers.painters.section import UNTOUCHED, Kind
from pipeline.config.variant import BASELINE
from pipeline.report.evidence import Evidence


def kept(e: Evidence, kind: Kind, most: float = 1) -> np.ndarray:
    """What the baseline keeps of its accuracy above chance under a strategy, in %.

    Args:
        e: the results.
        kind: of the strategy.
        most: the mean is over the numbers of treated layers up to this share of all layers.

    Raises:
        NotRun: it is not among the results.
    """
    rows = e.rows("painters", "painters is", variant=BASELINE)
    own = rows[(rows["kind"] == kind) & (rows["treated"] <= most * e.num_layers)]
    up_to = f", at most {most * e.num_layers:g} layers" if most < 1 else ""
    accuracy = e.by_seed(own, "accuracy", f"{e.label(BASELINE)} under {kind}{up_to}")
    whole = e.by_seed(rows[rows["kind"] == UNTOUCHED], "accuracy", f"{e.label(BASELINE)} as it is")
    e.orders += own["orders"].unique().tolist()
    return e.excess(100 * accuracy, 100 * whole)


def least_kept(e: Evidence, kinds: Sequence[Kind], most: float = 1) -> np.ndarray:
    """What is kept under the worst of several strategies."""
    return np.min([kept(e, kind, most) for kind in kinds], axis=0)


def smallest_lead(e: Evidence, kinds: Sequence[Kind], over: Sequence[Kind]) -> np.ndarray:
    """What is kept under the worst of some strategies minus that under the best of others."""
    return least_kept(e, kinds) - np.max([kept(e, kind) for kind in over], axis=0)


MEASURES = {"kept": kept, "least_kept": least_kept, "smallest_lead": smallest_lead}
