"""The figure of layers on nodes shows the rows' means over seeds."""

from pathlib import Path

import pytest

from papers import PAPERS
from papers.nodes.figures import draw, draw_away
from pipeline.config.params import Params
from pipeline.report.results import Results
from tests.papers.claim_suite import committed
from tests.papers.drawn import DrawnFigures


@pytest.mark.parametrize("copies", [1, 2])
def test_lines_are_means_over_seeds(copies: int, params: Params, tmp_path: Path) -> None:
    """Right answers above, images a second below, a column for each number of copies."""
    rows = committed().table("nodes")
    figures = DrawnFigures(tmp_path, params, rows["variant"].unique())
    draw_away(figures, rows, 10, 0.1)
    shown = rows[(rows["fault"] == "healthy") | rows["fault"].str.startswith("gone")]
    shown = shown[shown["replication"] == copies].assign(away=100 * rows["gone"])
    above, below = (figures.drawn["nodes"].axes[place + copies - 1] for place in (0, 2))
    means = shown.groupby(["variant", "policy", "away"])["right"].mean()
    drawn = [line.get_ydata() for line, *_ in above.containers]
    assert len(drawn) == len(means.unstack())
    for own in (100 * means.unstack()).to_numpy():
        assert any(list(line) == pytest.approx(list(own)) for line in drawn)
    of_policies = shown.groupby(["policy", "away"])["images_per_s"].mean().unstack()
    policies = [list(line.get_ydata()) for line, *_ in below.containers]
    for policy, line in zip(("strict", "partial", "any"), policies, strict=True):
        assert line == pytest.approx(list(of_policies.loc[policy]))


def test_without_rows_nothing_is_drawn(params: Params, tmp_path: Path) -> None:
    assert draw(Results(tmp_path, PAPERS), params) == {}
