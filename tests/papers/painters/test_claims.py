"""The claims of Painters."""

from functools import cache

import pandas as pd
import pytest

from papers.painters import PAPER
from pipeline.report.ledger import FAILS, HOLDS, UNDECIDED, WEAKER
from tests.papers.claim_suite import Change, ClaimSuite, Tables, add

# Accuracy above chance in % of that of the model as it is (90 points), by layers treated
KEPT = {
    "none": {0: 100},
    "skip": {2: 80, 6: 40, 10: 0},
    "repeat": {2: 60, 6: 0, 10: 0},
    "reverse": {2: 90, 6: 60, 10: 0},
    "shuffle": {2: 95, 6: 80, 10: 35},
    "parallel": {2: 90, 6: 50, 10: 10},
    "loop": {2: 95, 6: 70, 10: 45},
}


def of(kind: str, amount: float, **where: int) -> Change:
    """Adds to the baseline's accuracy above chance under a strategy, in %."""
    points = 0.9 * amount / 100
    return add("painters", "accuracy", points, variant="baseline", kind=kind, **where)


KNOWN = {"skip": 80, "repeat": 20, "order": 75, "parallel": 10, "loop": 20, "least-harm": 20}
CHANGES = [
    ("skip", of("skip", -40, treated=2), WEAKER),  # 40 %: less than half, no catastrophe
    ("skip", of("skip", -60, treated=2), FAILS),
    ("skip", of("skip", -40, treated=6), HOLDS),  # half of the layers are not a few
    ("skip", of("skip", -60, treated=2, seed=0), UNDECIDED),  # the seeds disagree
    ("repeat", of("repeat", 15), WEAKER),  # 5 points: worse, not much worse
    ("repeat", of("repeat", 25), FAILS),
    ("order", of("reverse", -40), WEAKER),
    ("order", of("reverse", -60), FAILS),
    ("order", of("shuffle", -80), FAILS),
    ("order", of("reverse", -80, treated=10), HOLDS),  # more than half of the layers
    ("parallel", of("parallel", -15), FAILS),
    ("parallel", of("parallel", -30, seed=0), UNDECIDED),
    ("loop", of("parallel", 25), FAILS),
    ("least-harm", of("loop", -25), FAILS),
    ("least-harm", of("shuffle", -25), FAILS),
    ("least-harm", of("reverse", 25), FAILS),
    ("least-harm", of("repeat", 25), HOLDS),  # still the worst
]
MISSING = [
    ({"kind": "repeat"}, {"repeat", "least-harm"}),
    ({"kind": "shuffle"}, {"order", "least-harm"}),
    ({"treated": 2}, {"skip"}),
    ({"kind": "none"}, set(KNOWN)),
    ({"variant": "baseline"}, set(KNOWN)),
]


class TestPainters(ClaimSuite):
    paper = PAPER
    known = KNOWN
    changes = CHANGES
    missing = MISSING

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = []
        for kind, values in KEPT.items():
            for treated, kept in values.items():
                row = {"kind": kind, "treated": treated, "accuracy": 0.1 + 0.9 * kept / 100}
                rows.append(row | {"orders": 10 if kind == "shuffle" else 1})
        baseline = pd.concat(
            pd.DataFrame(rows).assign(variant="baseline", seed=seed) for seed in range(3)
        )
        ls = baseline.assign(variant="ls", accuracy=1.0)  # no claim is about it
        return {"painters": pd.concat([baseline, ls], ignore_index=True)}

    @pytest.mark.parametrize(("name", "orders"), [("order", 10), ("least-harm", 10), ("skip", 1)])
    def test_orders_are_counted(self, name: str, orders: int) -> None:
        assert self.entry(name, self.made())["orders"]["max"] == orders
