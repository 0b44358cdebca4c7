"""What all papers' figures share."""

from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt

from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.report.figures import STYLE, Figures, handles_of, legend_above


@pytest.mark.parametrize(
    ("names", "columns"),
    [
        (list("abcd"), 4),
        (list("abcde"), 3),
        (["a loss with a long name", "another such", "and one more of it"], 2),
    ],
)
@matplotlib.rc_context(STYLE)
def test_a_legend_is_as_wide_as_its_figure_at_most(names: list[str], columns: int) -> None:
    figure, axes = plt.subplots(layout="constrained", figsize=(3.2, 2))
    for name in names:
        axes.plot([0, 1], label=name)
    legend_above(figure, handles_of(axes))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    found = legend.get_window_extent()
    assert figure.bbox.x0 <= found.x0 < found.x1 <= figure.bbox.x1
    assert len({round(text.get_window_extent().x0) for text in legend.get_texts()}) == columns
    plt.close(figure)


@matplotlib.rc_context()
def test_a_users_matplotlibrc_is_not_the_figures(tmp_path: Path, params: Params) -> None:
    matplotlib.rcParams["axes.grid"] = True
    Figures(tmp_path, params.resolve(PaperFigures), [])
    assert not matplotlib.rcParams["axes.grid"]
