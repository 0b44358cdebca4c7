"""The claims of our own questions, and their figures."""

from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from papers.questions import PAPER
from papers.questions.figures import PASSES, draw_merges, draw_passes
from pipeline.config.params import Params
from tests.papers.claim_suite import ClaimSuite, Tables, chosen, of_seeds, read_cases
from tests.papers.drawn import DrawnFigures, expect_lines

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


def test_lines_of_passes(params: Params, tmp_path: Path) -> None:
    rows = TestQuestions.made()["questions"]
    figures = DrawnFigures(tmp_path, params, ["baseline", "ls", "layerdrop"])
    draw_passes(figures, rows[rows["part"] == "passes"])
    panel = figures.drawn["questions_passes"].axes[3]
    own = {}
    for variant, label in (("ls", "LS"), ("baseline", "baseline")):
        where = {"variant": variant, "way": PASSES[variant], "measure": "auroc"}
        own[label] = rows[chosen(rows, where)]
    expect_lines(panel, own, "count", "value")


@pytest.mark.parametrize(("panel", "order"), [(0, "sequential"), (1, "arbitrary")])
def test_lines_of_merges(panel: int, order: str, params: Params, tmp_path: Path) -> None:
    rows = TestQuestions.made()["questions"]
    rows = rows[rows["part"].isin(["separate", "common"])]
    figures = DrawnFigures(tmp_path, params, ["baseline", "ls"])
    draw_merges(figures, rows, 10)
    own = {}
    for (variant, part), lines in rows[rows["way"] == order].groupby(["variant", "part"]):
        own[f"{figures.label(variant)}, {part} starts"] = lines
    expect_lines(figures.drawn["questions_merges"].axes[panel], own, "count", "value")
