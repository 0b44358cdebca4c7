"""What every paper's figures share. Only this module and the papers' figures import matplotlib.

Colours: Okabe and Ito's colour-blind safe palette (yellow replaced by brown) for variants,
viridis (dark: near the input) for positions.

A figure is drawn in three steps::

    figure, axes = figures.panels(0.78)
    draw_lines(axes[0, 0], rows, "keep", "accuracy", "variant", figures.looks(variants))
    figures.finish(figure, "name")
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lsvit.routes import Order
from pipeline.config.paper import Paper
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.config.variant import BASELINE
from pipeline.report.charts import PALETTE
from pipeline.report.results import Results

OKABE_ITO = ["#000000", *PALETTE[1:8]]
GREY = "#777777"
MARKERS = "os^Dv<>P"
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 6.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "legend.frameon": False,
    "svg.hashsalt": "lsvit",
}
UNDATED: dict[str, Any] = {  # by format
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
Look = dict[str, Any]  # keyword arguments of matplotlib's `errorbar`


class Figures:
    """Makes and saves figures in `folder`, the same bytes for the same results.

    Args:
        folder: made if it is missing.
        size: width, resolution and formats.
        variants: those that have a colour of their own.
        label: names a variant.
    """

    def __init__(
        self,
        folder: Path,
        size: PaperFigures,
        variants: Iterable[str],
        label: Callable[[str], str] = str,
    ) -> None:
        self.folder = folder
        self.size = size
        self.label = label
        self.variant_looks = distinct_looks({variant: label(variant) for variant in variants})
        folder.mkdir(parents=True, exist_ok=True)
        matplotlib.rcdefaults()  # a user's matplotlibrc is not the figures'
        matplotlib.rcParams.update(STYLE)

    @classmethod
    def of(cls, results: Results, params: Params) -> Self:
        """Make the figures of a folder of results."""
        size = params.resolve(PaperFigures)
        # those that a scale leaves out too, so that the others look alike at every scale
        declared = dict.fromkeys([BASELINE, *params.variants, *params.all_variants])
        variants = coloured(declared, results.papers)
        return cls(results.folder / "figures", size, variants, results.label)

    def looks(self, variants: Iterable[str]) -> dict[str, Look]:
        """Colour, marker and label of the given variants that have a colour."""
        return {v: self.variant_looks[v] for v in variants if v in self.variant_looks}

    def panels(self, height: float, **grid: Any) -> tuple[Figure, np.ndarray]:
        """Make an empty figure of one column's width.

        Args:
            height: as a share of the width.
            grid: `nrows`, `ncols` and more of matplotlib's `subplots`.

        Returns:
            The figure and its axes, (rows, columns).
        """
        width = self.size.column_width
        return plt.subplots(
            figsize=(width, height * width), layout="constrained", squeeze=False, **grid
        )

    def finish(
        self,
        figure: Figure,
        name: str,
        handles: Mapping[str, Any] | None = None,
        columns: int = 3,
        order: Sequence[str] = (),
    ) -> None:
        """Draw grid lines into every panel, put one legend above them and save the figure.

        Args:
            figure: as drawn.
            name: of the files, without their suffix.
            handles: of the legend by label. Default: those of all panels. Empty: no legend.
            columns: of the legend, at most.
            order: of the labels. Default: as drawn.
        """
        for axis in figure.axes:
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        if handles is None:
            handles = handles_of(*figure.axes)
        if order:
            handles = {name: handles[name] for name in order if name in handles}
        legend_above(figure, handles, columns)
        self.save(figure, name)

    def save(self, figure: Figure, name: str, **texts: str) -> None:
        """Write a figure in every format and close it. The texts go into a PNG's metadata."""
        for file_format in self.size.formats:
            metadata = dict(UNDATED[file_format])
            if file_format == "png":
                metadata |= texts
            file = self.folder / f"{name}.{file_format}"
            figure.savefig(file, dpi=self.size.dpi, metadata=metadata)
        plt.close(figure)


def coloured(variants: Iterable[str], papers: Iterable[Paper]) -> list[str]:
    """The variants that have a colour of their own in the figures."""
    patterns = [pattern for paper in papers for pattern in paper.without_colour]
    return [name for name in variants if not any(fnmatch(name, p) for p in patterns)]


def distinct_looks(labels: Mapping[Any, str]) -> dict[Any, Look]:
    """Colour, marker and label of each key, in the order of the palette."""
    looks = {}
    for i, (key, text) in enumerate(labels.items()):
        colour = OKABE_ITO[i % len(OKABE_ITO)]
        looks[key] = {"color": colour, "marker": MARKERS[i % len(MARKERS)], "label": text}
    return looks


def in_order(look: Look, order: Order) -> Look:
    """A look in one order of the layers: dashed and hollow in arbitrary order."""
    look = look | {"label": f"{look['label']}, {order}"}
    if order == "arbitrary":
        look |= {"linestyle": "--", "markerfacecolor": "white"}
    return look


def over_seeds(rows: pd.DataFrame, x: str, y: str, factor: float = 100.0) -> pd.DataFrame:
    """Average a column over the seeds.

    Args:
        rows: one or more a seed and value of `x`.
        x: the column that becomes the index, in ascending order.
        y: the column that is averaged.
        factor: the unit shown, 100 for fractions in per cent.

    Returns:
        Columns `mean` and `std`, the sample standard deviation, missing for a single row.
    """
    return factor * rows.groupby(x)[y].agg(["mean", "std"])


def draw_means(axis: Axes, means: pd.DataFrame, **look: Any) -> None:
    """Draw a line with error bars: columns `mean` and `std` (missing: no bar) against the index."""
    axis.errorbar(means.index, means["mean"], means["std"].fillna(0), **look)


def draw_lines(
    axis: Axes,
    rows: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    looks: Mapping[Any, Look],
    factor: float = 100.0,
    **style: Any,
) -> None:
    """Draw one line a look: mean and standard deviation over the seeds of `y` against `x`.

    Args:
        axis: the panel.
        rows: of all lines.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        by: column that tells the lines apart. Its values are the keys of `looks`.
        looks: of each line, in drawing order. A line without rows is not drawn.
        factor: the unit of `y` shown, 100 for fractions in per cent.
        style: what all lines share.
    """
    for key, look in looks.items():
        line_rows = rows[rows[by] == key]
        if not line_rows.empty:
            draw_means(axis, over_seeds(line_rows, x, y, factor), **style, **look)


def draw_chance(axis: Axes, chance: float, label: str = "chance") -> None:
    """Draw a dashed line at the accuracy or error of guessing, in the axis' unit."""
    axis.axhline(chance, color=GREY, linewidth=0.8, linestyle="--", label=label)


def colours_by_depth(count: int) -> np.ndarray:
    """So many colours, dark near the input: (count, 4)."""
    return plt.get_cmap("viridis")(np.linspace(0, 1, count))


def handles_of(*axes: Axes) -> dict[str, Any]:
    """What the axes' legends would show, by name."""
    handles: dict[str, Any] = {}
    for axis in axes:
        drawn, names = axis.get_legend_handles_labels()
        handles |= dict(zip(names, drawn, strict=True))
    return handles


def legend_above(figure: Figure, handles: Mapping[str, Any], columns: int = 3) -> None:
    """Put a legend above the figure, which makes room for it.

    It has `columns` columns, four names one row, or as many as fit the figure's width.
    """
    if len(handles) == 4:
        columns = 4
    for count in range(min(columns, len(handles)), 0, -1):
        legend = figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper center",
            ncols=count,
            columnspacing=1,
            handlelength=2.8,
        )
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def grid_of_pictures(axes: np.ndarray, heads: Sequence[str]) -> str:
    """Where the pictures of a drawn figure stand, as JSON that the report page reads.

    Args:
        axes: (rows, columns), some of them without a picture.
        heads: of the columns.

    Returns:
        `heads`, and the edges of the columns and of the rows (with what stands below them), as
        fractions of the figure from the left and from above.
    """
    row_boxes = [_boxes(row) for row in axes]
    column_boxes = [_boxes(column) for column in axes.T]
    edges = [column_boxes[0][0].x0]
    for left, right in pairwise(column_boxes):
        right_end = max(box.x1 for box in left)
        left_end = min(box.x0 for box in right)
        edges.append((right_end + left_end) / 2)
    # Two pixels more, so that no line of a picture is left in the row before.
    above = 2 / axes[0, 0].figure.bbox.height
    tops = [1 - max(box.y1 for box in boxes) - above for boxes in row_boxes]
    grid = {
        "heads": [head.replace("\n", " ") for head in heads],
        "columns": [round(float(edge), 5) for edge in [*edges, 1.0]],
        "rows": [round(float(top), 5) for top in [*tops, 1.0]],
    }
    return json.dumps(grid)


def _boxes(line: np.ndarray) -> list[Any]:
    """Places of the panels with a picture in a row or column, or of all if none has one."""
    pictures = [axis for axis in line if axis.images]
    return [axis.get_position() for axis in pictures or line]
