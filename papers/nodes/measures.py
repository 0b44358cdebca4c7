"""What the claims about layers on nodes are decided on, on 12 nodes.

Accuracy counts from chance (0 %) to that of the baseline on healthy nodes (100 %).
"""

from collections.abc import Sequence

import numpy as np

from papers.nodes.section import Policy
from pipeline.config.variant import BASELINE
from pipeline.report.evidence import Evidence, NotRun

NODES = 12


def mean_of(
    e: Evidence,
    column: str,
    variant: str,
    policy: Policy,
    faults: Sequence[str],
    copies: Sequence[int],
) -> np.ndarray:
    """A column of a variant under a policy, mean over some faults and copies of a layer."""
    rows = e.rows("nodes", "nodes is", variant=variant, policy=policy, nodes=NODES)
    rows = rows[rows["replication"].isin(copies) & rows["fault"].isin(faults)]
    if rows.groupby(["fault", "replication"]).ngroups < len(faults) * len(copies):
        which = ", ".join(faults)
        raise NotRun(f"{e.label(variant)} in {policy} order with {which} is not among the results")
    return e.by_seed(rows, column, f"{e.label(variant)} {policy}")


def right(
    e: Evidence,
    variant: str,
    policy: Policy,
    faults: Sequence[str],
    copies: Sequence[int] = (1, 2),
) -> np.ndarray:
    """Images answered rightly in % of all, mean over faults and copies."""
    return 100 * mean_of(e, "right", variant, policy, faults, copies)


def half_away(e: Evidence) -> np.ndarray:
    """What LS keeps with half of the nodes away, of the baseline on healthy nodes."""
    own = right(e, "ls", "any", ["gone_6"], [1])
    return e.excess(own, right(e, BASELINE, "strict", ["healthy"], [1]))


def lead_over_partial(e: Evidence, faults: Sequence[str]) -> np.ndarray:
    """LS in any order minus the better of baseline and LayerDrop in partial order."""
    own = right(e, "ls", "any", faults)
    others = [right(e, name, "partial", faults) for name in (BASELINE, "layerdrop")]
    return own - np.max(others, axis=0)


def relative(e: Evidence, column: str, fault: str, copies: Sequence[int] = (1, 2)) -> np.ndarray:
    """A column of LS in any order over that of the baseline in strict order, less 1, in %."""
    own = mean_of(e, column, "ls", "any", [fault], copies)
    return 100 * (own / mean_of(e, column, BASELINE, "strict", [fault], copies) - 1)


MEASURES = {
    measure.__name__: measure for measure in (right, half_away, lead_over_partial, relative)
}
