"""The figure of layers on nodes shows the rows' means over seeds."""

from pathlib import Path

import pytest

from papers import PAPERS
from papers.nodes.figures import draw, draw_away, method
from pipeline.config.params import Params
from pipeline.report.results import Results
from tests.papers.claim_suite import committed
from tests.papers.drawn import DrawnFigures, expect_lines


@pytest.mark.parametrize("copies", [1, 2])
def test_lines_are_means_over_seeds(copies: int, params: Params, tmp_path: Path) -> None:
    """Right answers above, images a second below, a column for each number of copies."""
    figures = DrawnFigures(tmp_path, params, ["baseline", "ls"])
    rows = committed().table("nodes")
    draw_away(figures, rows, 10)
    shown = rows[(rows["fault"] == "healthy") | rows["fault"].str.startswith("gone")]
    shown = shown[shown["replication"] == copies].assign(away=100 * rows["gone"])
    lines = {}
    for (variant, policy), own in shown.groupby(["variant", "policy"]):
        lines[method(figures.label(str(variant)), policy)] = own
    above, below = (figures.drawn["nodes"].axes[place + copies - 1] for place in (0, 2))
    expect_lines(above, lines, "away", "right")
    expect_lines(below, lines, "away", "images_per_s", 1)


def test_without_rows_nothing_is_drawn(params: Params, tmp_path: Path) -> None:
    assert draw(Results(tmp_path, PAPERS), params) == {}
