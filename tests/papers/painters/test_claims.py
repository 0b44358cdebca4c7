"""The claims of Painters."""

from functools import cache

import pandas as pd
import pytest

from papers.painters import PAPER
from tests.papers.claim_suite import ClaimSuite, Tables, read_cases

CASES = read_cases(__file__, "painters")


class TestPainters(ClaimSuite):
    paper = PAPER
    known = CASES["known"]
    changes = CASES["changes"]
    missing = CASES["missing"]

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = []
        for kind, values in CASES["kept"].items():
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
