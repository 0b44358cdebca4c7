"""The claims on layers on nodes, and the chart of their rows."""

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from papers.nodes import PAPER
from papers.nodes.charts import charts
from pipeline.report.ledger import FAILS, HOLDS, UNDECIDED, WEAKER
from pipeline.report.results import Results
from tests.papers.claim_suite import Change, ClaimSuite, Tables, add

# Images answered rightly, in %, by fault; from "two" on with two nodes a layer alone
RIGHT: dict[tuple[str, str], dict[str, Any]] = {
    ("baseline", "strict"): {"healthy": 90, "two": {"gone_1": 60, "gone_3": 30, "away": 40}},
    ("baseline", "partial"): {"healthy": 80, "gone_1": 40, "gone_3": 30, "two": {}},
    ("layerdrop", "partial"): {"healthy": 80, "gone_1": 50, "gone_3": 50, "two": {}},
    ("ls", "any"): dict.fromkeys(("healthy", "gone_1", "gone_3", "gone_6", "lost"), 74)
    | {"gone_9": 54, "away": 70, "two": {}},
}
GONE = {
    "healthy": 0.0,
    "gone_1": 0.0833,
    "gone_3": 0.25,
    "gone_6": 0.5,
    "gone_9": 0.75,
    "away": 0.0,
    "lost": 0.0,
}


def of(variant: str, amount: float, column: str = "right", **where: Any) -> Change:
    """Adds to a number of a variant."""
    return add("nodes", column, amount, variant=variant, **where)


KNOWN = {
    "none-lost": 0,
    "half-away": 80,
    "strict": (74 - 30 + 74 + 54) / 3,
    "few-away": 14,
    "partial": 74,
    "partial-few": 24,
    "healthy": 16,
    "coming-going": 30,
    "throughput": 25,
    "tail": -50,
}
CHANGES = [
    ("none-lost", of("ls", 1, "lost", fault="lost", seed=0), UNDECIDED),
    ("none-lost", of("ls", 20, "lost", fault="lost"), FAILS),
    ("half-away", of("ls", -0.1, fault="gone_6"), WEAKER),  # 67.5 % above chance
    ("half-away", of("ls", -0.3, fault="gone_6"), FAILS),
    ("half-away", of("ls", -0.3, fault="gone_6", replication=2), HOLDS),
    ("strict", of("baseline", 0.9, policy="strict", replication=2), FAILS),
    ("few-away", of("ls", -0.2, fault="gone_1", replication=2), FAILS),
    ("partial", of("layerdrop", 0.8, fault="gone_6"), FAILS),
    ("partial-few", of("layerdrop", 0.3, fault="gone_3"), HOLDS),
    ("partial-few", of("baseline", 0.6, policy="partial"), FAILS),  # the better one counts
    ("healthy", of("ls", 0.2, fault="healthy"), FAILS),
    ("coming-going", of("ls", -0.5, fault="away", replication=2), FAILS),
    ("throughput", of("ls", -20, "images_per_s", fault="lost", replication=2), FAILS),
]
MISSING = [
    ({"fault": "gone_6"}, {"half-away", "strict", "partial"}),
    ({"policy": "partial"}, {"partial", "partial-few"}),
    ({"variant": "ls"}, set(KNOWN)),
    ({"replication": 2}, set(KNOWN) - {"none-lost", "half-away"}),
    ({"nodes": 12}, set(KNOWN)),
]


class TestNodes(ClaimSuite):
    paper = PAPER
    known = KNOWN
    changes = CHANGES
    missing = MISSING

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = []
        for (variant, policy), right in RIGHT.items():
            free = policy == "any"
            numbers = {"lost": 0 if free else 5, "p99_s": 1.5 if free else 3.0}
            numbers |= {"images_per_s": 50.0 if free else 40.0, "micro_batches": 100}
            for copies in (1, 2):
                by_fault = right | (right["two"] if copies == 2 else {})
                for fault, gone in GONE.items():
                    row = {"variant": variant, "policy": policy, "replication": copies}
                    share = by_fault.get(fault, 0) / 100
                    rows.append(row | numbers | {"fault": fault, "gone": gone, "right": share})
        frame = pd.DataFrame(rows).assign(nodes=12, images=500)
        seeds = [frame.assign(seed=seed) for seed in range(3)]
        return {"nodes": pd.concat(seeds, ignore_index=True)}


def test_a_chart_for_each_number_of_copies(tmp_path: Path) -> None:
    results = Results(tmp_path)
    results.tables |= TestNodes.made()
    assert len(charts(results).charts) == 2
