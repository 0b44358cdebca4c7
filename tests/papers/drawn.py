"""Reads the numbers back from drawn figures."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from papers import PAPERS
from pipeline.config.params import Params
from pipeline.report.figures import Figures, coloured
from pipeline.report.results import Results
from tests.papers.claim_suite import Tables, chosen, results_in

Draw = Callable[[Results, Params], dict[str, str]]  # of a paper's module `figures`


class DrawnFigures(Figures):
    """Keeps figures by name instead of writing files."""

    def __init__(self, folder: Path, params: Params, variants: list[str]) -> None:
        self.params = params
        label = Results(folder, PAPERS).label
        with_colour = coloured(variants, PAPERS)
        super().__init__(folder, params.paper_figures, with_colour, label)
        self.drawn: dict[str, Figure] = {}

    def draw(self, paper: Draw, tables: Tables, about: dict[str, Any]) -> dict[str, str]:
        """What a paper draws of these rows: see :func:`results_in`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figures, "of", lambda *_: self)
            return paper(results_in(self.folder, tables, about), self.params)

    def save(self, figure: Figure, name: str, **texts: str) -> None:
        self.drawn[name] = figure
        plt.close(figure)


def error_bars(axis: Axes) -> dict[str, pd.DataFrame]:
    """The lines with error bars of a panel, by label: columns mean and std, the index is x."""
    lines = {}
    for bars in axis.containers:
        assert isinstance(bars, ErrorbarContainer)
        middle, _, (bar,) = bars.lines
        heights = [segment[1, 1] - segment[0, 1] for segment in bar.get_segments()]
        line = pd.DataFrame({"mean": middle.get_ydata()}, index=middle.get_xdata())
        line["std"] = np.array(heights) / 2
        lines[str(bars.get_label())] = line
    return lines


def expect_line(
    drawn: pd.DataFrame, rows: pd.DataFrame, x: str, y: str, factor: float, apart: float
) -> None:
    """A line shows mean and standard deviation of `y` over the seeds by `x`, 0 for one seed.

    Lines that stand side by side are at most `apart` from their `x`.
    """
    expected = {}
    for place, values in rows.groupby(x)[y]:
        spread = values.std(ddof=1) if len(values) > 1 else 0.0
        expected[place] = (factor * values.mean(), factor * spread)
    assert list(drawn.index) == pytest.approx(sorted(expected), abs=apart)
    for place, (mean, std) in zip(drawn.index, drawn.to_numpy(), strict=True):
        nearest = min(expected, key=lambda known: abs(known - place))
        assert (mean, std) == pytest.approx(expected[nearest], abs=1e-9)


def expect_lines(
    axis: Axes,
    rows: Mapping[str, pd.DataFrame],
    x: str,
    y: str,
    factor: float = 100,
    apart: float = 1e-6,
) -> None:
    """A panel has these lines with error bars, each of its own rows: see :func:`expect_line`."""
    lines = error_bars(axis)
    assert lines.keys() == rows.keys()
    for label, own in rows.items():
        expect_line(lines[label], own, x, y, factor, apart)


def expect_case(figures: DrawnFigures, rows: pd.DataFrame, case: dict[str, Any]) -> None:
    """A panel is as a file of cases has it.

    The keys are its `figure` and number, `panel`; `rows`, the values of columns that its rows have,
    each one or several; `lines`, the same of each line by label; the columns `x` and `y`; maybe
    `factor`, and `guess`, the height of the last line, that of answers without looking.
    """
    shown = rows[chosen(rows, case["rows"])].dropna(subset=case["y"])
    lines = {label: shown[chosen(shown, where)] for label, where in case["lines"].items()}
    axis = figures.drawn[case["figure"]].axes[case["panel"]]
    expect_lines(axis, lines, case["x"], case["y"], case.get("factor", 100))
    if "guess" in case:
        assert np.asarray(axis.get_lines()[-1].get_ydata())[0] == case["guess"]
