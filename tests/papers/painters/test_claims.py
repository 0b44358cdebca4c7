"""The claims of Painters."""

from functools import cache

import pandas as pd
import pytest

from papers.painters import PAPER
from tests.papers.claim_suite import ClaimSuite, Tables, of_seeds, read_cases

CASES = read_cases(__file__, "painters")


class TestPainters(ClaimSuite):
    paper = PAPER
    cases = CASES

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = []
        for kind, values in CASES["kept"].items():
            for treated, kept in values.items():
                row = {"kind": kind, "treated": treated, "accuracy": 0.1 + 0.9 * kept / 100}
                rows.append(row | {"orders": 10 if kind == "shuffle" else 1})
        baseline = pd.DataFrame(rows).assign(variant="baseline")
        ls = baseline.assign(variant="ls", accuracy=1.0)  # no claim is about it
        return {"painters": of_seeds(pd.concat([baseline, ls]))}

    @pytest.mark.parametrize(("name", "orders"), CASES["orders"].items())
    def test_orders_are_counted(self, name: str, orders: int) -> None:
        assert self.entry(name, self.made())["orders"]["max"] == orders
