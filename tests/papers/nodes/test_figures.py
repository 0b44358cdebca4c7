"""The figure of layers on nodes shows the rows' means over seeds."""

import pytest

from papers.nodes.figures import draw
from tests.papers.claim_suite import committed
from tests.papers.drawn import DrawnFigures


@pytest.mark.parametrize("copies", [1, 2])
def test_lines_are_means_over_seeds(copies: int, figures: DrawnFigures) -> None:
    """Right answers above, images a second below, a column for each number of copies."""
    rows = committed().table("nodes")
    figures.draw(draw, {"nodes": rows}, {})
    above, below = figures.drawn["nodes"].axes[copies - 1 :: 2]
    shown = rows[(rows["fault"] == "healthy") | rows["fault"].str.startswith("gone")]
    shown = shown[shown["replication"] == copies]
    answers = 100 * shown.groupby(["variant", "policy", "gone"])["right"].mean().unstack()
    drawn = [list(line.get_ydata()) for line, *_ in above.containers]
    assert len(drawn) == len(answers)
    for expected in answers.to_numpy().tolist():
        assert any(line == pytest.approx(expected) for line in drawn)
    speed = shown.groupby(["policy", "gone"])["images_per_s"].mean().unstack()
    lines = [list(line.get_ydata()) for line, *_ in below.containers]
    for policy, line in zip(("strict", "partial", "any"), lines, strict=True):
        assert line == pytest.approx(list(speed.loc[policy]))
    for line, *_ in above.containers + below.containers:
        assert list(line.get_xdata()) == pytest.approx([100 * away for away in speed])
