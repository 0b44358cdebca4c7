"""The claims of our own questions, and their figures."""

from functools import cache
from typing import Any

import pandas as pd
import pytest

from papers.questions import PAPER
from papers.questions.figures import draw_merges, draw_passes
from tests.papers.claim_suite import ClaimSuite, Tables, of_seeds, read_cases
from tests.papers.drawn import DrawnFigures, expect_case

CASES = read_cases(__file__, "questions")


class TestQuestions(ClaimSuite):
    paper = PAPER
    cases = CASES

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = []
        for part, variant, way, measure, values in CASES["rows"]:
            where = {"part": part, "variant": variant, "way": way, "measure": measure}
            for count, value in values.items():
                rows.append(where | {"count": count, "value": value / 100})
        frame = pd.DataFrame(rows).assign(dataset="d", model="m", images=100)
        return {"questions": of_seeds(frame)}


@pytest.mark.parametrize("case", CASES["lines"])
def test_lines(case: dict[str, Any], figures: DrawnFigures) -> None:
    rows = TestQuestions.made()["questions"]
    draw_passes(figures, rows[rows["part"] == "passes"])
    draw_merges(figures, rows[rows["part"].isin(["separate", "common"])], 10)
    expect_case(figures, rows, case)
