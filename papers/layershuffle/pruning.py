"""Figures 1b and 1c of LayerShuffle: accuracy with some of the layers."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lsvit.routes import ORDERS
from papers.layershuffle.section import ALL
from pipeline.config.variant import BASELINE
from pipeline.report.captions import counted, read_captions
from pipeline.report.evaluations import count_orders
from pipeline.report.figures import (
    GREY,
    Figures,
    Look,
    draw_chance,
    draw_means,
    handles_of,
)

CAPTIONS = read_captions(__file__)
STYLES: Look = {"random": "-", "first": "--", "spaced": ":"}  # of lines, by which layers are kept
FIGURE_1 = ("ls", "layerdrop")  # and refit-k: the paper's lines, its method in front
ACCURACY = "validation accuracy (%)"


def draw_pruning(
    figures: Figures, cells: pd.DataFrame, order: str, name: str, chance: float
) -> str:
    """Draw figure 1b or 1c: accuracy against layers kept, the paper's lines alone.

    Args:
        figures: saves the figure.
        cells: of :func:`pipeline.report.evaluations.summarise`.
        order: sequential or arbitrary.
        name: of the files.
        chance: accuracy in % of guessing.

    Returns:
        The caption.
    """
    cells = cells[cells["order"] == order]
    refits = cells[cells["variant"].str.startswith("refit")].sort_values("keep")
    baseline = cells[cells["full"] & (cells["variant"] == BASELINE)]  # refit with all layers
    lines = cells[cells["variant"].isin(FIGURE_1)]
    figure, [[axis]] = figures.panels(0.9)
    looks = figures.looks(FIGURE_1)
    handles: dict[str, Any] = {}
    choices = lines.loc[lines["choose"] != ALL, "choose"].unique()
    for choose in choices:
        chosen = lines[lines["choose"].isin([choose, ALL])]
        _draw_kept(axis, chosen, looks, linestyle=STYLES[choose])
        handles = handles_of(axis) | handles  # the first style stands for the variant
    if len(refits):
        line = pd.concat([refits, baseline]).set_index("keep")
        look: Look = {"color": GREY, "marker": "*", "markersize": 7, "zorder": 0}
        draw_means(axis, 100 * line[["mean", "std"]], capsize=2, label="refit-k", **look)
    draw_chance(axis, chance)
    handles = handles_of(axis) | handles
    for choose in choices:
        handles[f"{choose} layers"] = Line2D([], [], color="black", linestyle=STYLES[choose])
    axis.set(
        xlabel="layers kept",
        ylabel=ACCURACY,
        ylim=(0, 100),
        xticks=sorted({*lines["keep"], *refits["keep"]}),
    )
    figures.finish(figure, name, handles)
    full = lines[lines["full"]]
    noun = "orders" if full["orders"].max() > 1 else "order"
    counts = [f"k = {cell.keep}: {counted(cell.orders, 'order')}" for cell in refits.itertuples()]
    return CAPTIONS["pruning"].format(
        order="their original order" if order == "sequential" else "random order",
        seeds=counted(lines["n"].max(), "seed"),
        pruned=_describe_pruned(lines[lines["choose"] == "random"]),
        orders=count_orders(full, noun),
        images=full["images"].max(),
        refits=CAPTIONS["pruning_refits"].format(counts=", ".join(counts)) if counts else "",
    )


def _describe_pruned(pruned: pd.DataFrame) -> str:
    """How many routes the cells with fewer layers are over, and how much single routes differ."""
    if pruned.empty:
        return ""
    text = CAPTIONS["pruning_pruned"].format(orders=count_orders(pruned, "random routes"))
    spreads = 100 * pruned["std_orders"]
    if spreads.notna().any():
        text += CAPTIONS["pruning_spread"].format(
            routes=pruned["spread_orders"].max(), low=spreads.min(), high=spreads.max()
        )
    return text


def draw_pruning_of_all(figures: Figures, cells: pd.DataFrame, chance: float) -> str:
    """Draw every variant's accuracy against layers kept, in both orders. Returns the caption."""
    cells = cells[cells["choose"].isin(["random", ALL])]
    looks = figures.looks(dict.fromkeys(cells["variant"]))
    figure, axes = figures.panels(1.25, nrows=2, sharex=True)
    for axis, order in zip(axes[:, 0], ORDERS, strict=True):
        _draw_kept(axis, cells[cells["order"] == order], looks, apart=0.18)
        axis.set(ylabel=f"accuracy (%),\n{order}")
        draw_chance(axis, chance)
    axes[1, 0].set(xlabel="layers kept")
    figures.finish(figure, "pruning")
    return CAPTIONS["pruning_of_all"].format(seeds=counted(cells["n"].max(), "seed"))


def _draw_kept(
    axis: Axes, cells: pd.DataFrame, looks: dict[str, Look], apart: float = 0, **style: Any
) -> None:
    """Draw lines of accuracy against layers kept, the first variant in front, `apart` in x."""
    for behind, (variant, look) in enumerate(looks.items()):
        line = cells[cells["variant"] == variant].sort_values("keep").set_index("keep")
        line.index = line.index + apart * place_beside(behind, len(looks))
        front = 2 + len(looks) - behind
        draw_means(axis, 100 * line[["mean", "std"]], capsize=2, zorder=front, **look, **style)
    kept = cells.loc[cells["variant"].isin(looks), "keep"]
    axis.set(ylabel=ACCURACY, xticks=sorted(kept.unique()), ylim=(0, 100))


def place_beside(number: int, count: int) -> float:
    """Where one of several lines stands beside the others: from -count / 2 to count / 2."""
    return number - (count - 1) / 2
