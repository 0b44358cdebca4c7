"""What layers in any order should buy where they lie on nodes that fail, which LayerShuffle's authors give as its purpose, and the rules.

Nobody has measured it: all lines are beyond the paper. Accuracy counts from chance (0 %) to that of the baseline on healthy nodes (100 %).
"""

from itertools import product

import numpy as np
import pandas as pd

from papers.nodes.section import Policy
from pipeline.config.variant import BASELINE
from pipeline.report.evaluations import label
from pipeline.report.ledger import ABOVE_ZERO, INF, Claim, Evidence, NotRun

BEYOND = "beyond the papers: LayerShuffle, section 6, on nodes"
NODES, HEALTHY = 12, "healthy"
GONE = ("gone_3", "gone_6", "gone_9")  # a quarter, half and three quarters of 12 nodes
LS = "ls"
DROP = "layerdrop"


def rows_of(
    e: Evidence,
    variant: str,
    policy: Policy,
    faults: tuple[str, ...] | None = None,
    copies: int | None = None,
) -> pd.DataFrame:
    """The rows of a variant under a policy on 12 nodes, of some faults (None: any), with so many copies of each layer (None: 1 and 2)."""
    both = (1, 2) if copies is None else (copies,)
    rows = e.rows("nodes", "nodes is", variant=variant, policy=policy, nodes=NODES)
    rows = rows[rows["replication"].isin(both)]
    rows = rows if faults is None else rows[rows["fault"].isin(faults)]
    if rows.empty or {*product(faults or (), both)} - {
        *zip(rows["fault"], rows["replication"], strict=True)
    }:
        raise NotRun(
            f"{label(variant)} in {policy} order with {', '.join(faults or ('any fault',))} is not among the results"
        )
    return rows


def right(
    e: Evidence, variant: str, policy: Policy, faults: tuple[str, ...], copies: int | None = None
) -> np.ndarray:
    """Images answered rightly in % of all, mean over faults and copies: a value a seed."""
    return 100 * e.by_seed(
        rows_of(e, variant, policy, faults, copies), "right", f"{label(variant)} {policy}"
    )


def _kept(e: Evidence) -> np.ndarray:
    return e.excess(
        right(e, LS, "any", ("gone_6",), 1), right(e, BASELINE, "strict", (HEALTHY,), 1)
    )


def _lost(e: Evidence) -> np.ndarray:
    rows = rows_of(e, LS, "any")
    return (
        100
        * (rows["lost"] / rows["micro_batches"]).groupby(rows["seed"], sort=False).max().to_numpy()
    )


def _partial(e: Evidence, faults: tuple[str, ...]) -> np.ndarray:
    return np.maximum(right(e, BASELINE, "partial", faults), right(e, DROP, "partial", faults))


def _speed(e: Evidence, fault: str, copies: int) -> np.ndarray:
    own = e.by_seed(rows_of(e, LS, "any", (fault,), copies), "images_per_s", "LS any")
    other = e.by_seed(
        rows_of(e, BASELINE, "strict", (fault,), copies), "images_per_s", "baseline strict"
    )
    return 100 * (own / other - 1)


def _tail(e: Evidence) -> np.ndarray:
    own = e.by_seed(rows_of(e, LS, "any", (HEALTHY,)), "p99_s", "LS any")
    return 100 * (
        own / e.by_seed(rows_of(e, BASELINE, "strict", (HEALTHY,)), "p99_s", "baseline strict") - 1
    )


RIGHT = "images answered rightly in % of all"
COPIES = "mean over one and two copies of each layer"
CLAIMS = [
    Claim(
        "nodes.none-lost",
        BEYOND,
        "With layers in any order no answer is lost as long as one layer and the head live",
        "not studied",
        "micro-batches without an answer in % of all, under the fault with most of them",
        _lost,
        (0, 0),
        (0, 1),
        "%",
        possible=(0, 100),
    ),
    Claim(
        "nodes.half-away",
        BEYOND,
        "With half of the nodes away for good, LS answers nearly as well as a whole model",
        "not studied",
        "LS, any order, one copy of each layer, 6 of 12 nodes away: accuracy above chance in % of the baseline's on healthy nodes",
        _kept,
        (75, INF),
        (50, INF),
        "%",
    ),
    Claim(
        "nodes.strict",
        BEYOND,
        "With nodes away any order beats strict order with failover to copies",
        "not studied",
        f"LS, any order, minus baseline, strict order, both with two copies of each layer: {RIGHT}, mean over 3, 6 and 9 of 12 away",
        lambda e: right(e, LS, "any", GONE, 2) - right(e, BASELINE, "strict", GONE, 2),
        ABOVE_ZERO,
    ),
    Claim(
        "nodes.few-away",
        BEYOND,
        "With one node of twelve away and two copies of each layer any order beats strict order",
        "not studied",
        f"LS, any order, minus baseline, strict order, both with two copies of each layer: {RIGHT}, 1 of 12 away",
        lambda e: (
            right(e, LS, "any", ("gone_1",), 2) - right(e, BASELINE, "strict", ("gone_1",), 2)
        ),
        ABOVE_ZERO,
    ),
    Claim(
        "nodes.partial",
        BEYOND,
        "With more layers away than partial order may leave out any order beats it too",
        "not studied",
        f"LS, any order, minus the better of baseline and LayerDrop in partial order: {RIGHT}, {COPIES}, 6 of 12 away",
        lambda e: right(e, LS, "any", ("gone_6",)) - _partial(e, ("gone_6",)),
        ABOVE_ZERO,
    ),
    Claim(
        "nodes.partial-few",
        BEYOND,
        "With as few layers away as partial order may leave out any order beats it too",
        "not studied",
        f"LS, any order, minus the better of baseline and LayerDrop in partial order: {RIGHT}, {COPIES}, 1 and 3 of 12 away",
        lambda e: right(e, LS, "any", ("gone_1", "gone_3")) - _partial(e, ("gone_1", "gone_3")),
        ABOVE_ZERO,
    ),
    Claim(
        "nodes.healthy",
        BEYOND,
        "On healthy nodes any order costs accuracy",
        "not studied",
        f"baseline, strict order, minus LS, any order: {RIGHT}, healthy nodes, {COPIES}",
        lambda e: right(e, BASELINE, "strict", (HEALTHY,)) - right(e, LS, "any", (HEALTHY,)),
        ABOVE_ZERO,
    ),
    Claim(
        "nodes.coming-going",
        BEYOND,
        "Where nodes come and go any order beats strict order with failover to copies",
        "not studied",
        f"LS, any order, minus baseline, strict order, both with two copies of each layer: {RIGHT}, nodes away a quarter of their time",
        lambda e: right(e, LS, "any", ("away",), 2) - right(e, BASELINE, "strict", ("away",), 2),
        ABOVE_ZERO,
    ),
    Claim(
        "nodes.throughput",
        BEYOND,
        "Where messages are lost any order answers more images a second than strict order",
        "not studied",
        "images a second of LS, any order, over those of the baseline, strict order, less 1, in %: two copies of each layer, 5 % of "
        "messages lost",
        lambda e: _speed(e, "lost", 2),
        ABOVE_ZERO,
        unit="%",
    ),
    Claim(
        "nodes.tail",
        BEYOND,
        "On healthy nodes the latest answers come earlier in any order than in strict order",
        "not studied",
        f"99th percentile of latency of LS, any order, over that of the baseline, strict order, less 1, in %: healthy nodes, {COPIES}",
        _tail,
        (-INF, 0),
        unit="%",
    ),
]
TITLE = "Layers on nodes"  # of the room in the report
HEADLINE: tuple[str, ...] = ()  # claims whose value `dvc metrics` shows
