"""What every paper's figures share. Only the papers' figures and this module import matplotlib.

Colours: Okabe and Ito's colour-blind safe palette (yellow replaced by brown) for variants, viridis (dark: near the input) for positions.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.config.sections import PaperFigures
from pipeline.report.evaluations import CONTROLS

OKABE_ITO = ["#000000", "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#E69F00", "#CC79A7", "#8B6914"]
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
UNDATED: dict[str, Any] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}  # by format


class Figures:
    """Draws and saves figures in `folder`, the same bytes for the same results."""

    def __init__(self, folder: Path, size: PaperFigures, variants: list[str]) -> None:
        self.folder, self.size = folder, size
        plain = [v for v in variants if not v.startswith("refit") and v not in CONTROLS]
        self.colours = {v: OKABE_ITO[i % len(OKABE_ITO)] for i, v in enumerate(plain)}
        self.markers = {v: MARKERS[i % len(MARKERS)] for i, v in enumerate(plain)}
        folder.mkdir(parents=True, exist_ok=True)
        matplotlib.rcParams.update(STYLE)

    def _figure(self, height: float, **grid: Any) -> tuple[Figure, np.ndarray]:
        return plt.subplots(
            figsize=(self.size.column_width, height * self.size.column_width),
            layout="constrained",
            squeeze=False,
            **grid,
        )

    def _save(self, figure: Figure, name: str, **texts: str) -> None:
        """Write a figure in every format; the texts go into a PNG's metadata."""
        for kind in self.size.formats:
            metadata = UNDATED[kind] | (texts if kind == "png" else {})
            figure.savefig(self.folder / f"{name}.{kind}", dpi=self.size.dpi, metadata=metadata)
        plt.close(figure)

    def _chance(self, axis: Axes, chance: float) -> None:
        axis.axhline(chance, color="#777777", linewidth=0.8, linestyle="--")
        axis.annotate(
            "chance",
            (0.995, chance),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=6.5,
            color="#777777",
        )


def colours_by_depth(count: int) -> np.ndarray:
    """So many colours, dark near the input: (count, 4)."""
    return plt.get_cmap("viridis")(np.linspace(0, 1, count))


def handles_of(*axes: Axes) -> dict[str, Any]:
    """What the axes' legends would show, by name."""
    return {
        name: handle
        for axis in axes
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }


def grid_of_pictures(axes: np.ndarray, heads: Sequence[str]) -> str:
    """Where the pictures of a drawn figure stand, as JSON: the heads of its columns, and the edges of its columns and of its rows, with
    what stands below them, as fractions from the left and from above.

    Args:
        axes: (rows, columns), some of them without a picture.
        heads: of the columns.
    """
    rows, columns = (
        [
            [
                axis.get_position()
                for axis in line
                if axis.images or not any(other.images for other in line)
            ]
            for line in table
        ]
        for table in (axes, axes.T)
    )
    above = (
        2 / axes[0, 0].figure.bbox.height
    )  # pixels, so that nothing of a picture is left in the row before
    between = [
        (max(box.x1 for box in left) + min(box.x0 for box in right)) / 2
        for left, right in pairwise(columns)
    ]
    edges = {
        "columns": [columns[0][0].x0, *between, 1.0],
        "rows": [*(1 - max(box.y1 for box in line) - above for line in rows), 1.0],
    }
    found = {name: [round(float(edge), 5) for edge in values] for name, values in edges.items()}
    return json.dumps({"heads": [head.replace("\n", " ") for head in heads]} | found)


def legend_above(figure: Figure, handles: dict[str, Any], columns: int = 3) -> None:
    """A legend above the figure, which makes room for it, of so many columns or, where names are long, as many as fit its width."""
    for count in range(min(columns, len(handles)), 0, -1):
        legend = figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside upper center",
            ncols=count,
            columnspacing=1,
            handlelength=2,
        )
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


GREY = "#777777"
