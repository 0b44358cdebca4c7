"""The figures of multi-exit ViT: exits by cost, under other orders, and dynamic inference."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers.exits.compute.budgets import practical
from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, LABELS
from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.report.captions import read_captions
from pipeline.report.figures import (
    GREY,
    Figures,
    distinct_looks,
    draw_lines,
    draw_means,
)
from pipeline.report.results import Results

CAPTIONS = read_captions(__file__)
THIN = {"linewidth": 0.9, "elinewidth": 0.5, "markersize": 2.5}
LOOKS = {branch: THIN | look for branch, look in distinct_looks(LABELS).items()}
POLICIES = {
    "budget": {"label": "budget known", "color": "#0072B2", "marker": "s"},
    "anytime": {"label": "anytime", "color": "#D55E00", "marker": "v"},
    "confidence": {"label": "confidence", "color": "#009E73", "marker": "D"},
}
ORDERS = {"sequential": "original order", "arbitrary": "arbitrary order", "pruned": "pruned"}
STAR: Any = {
    "color": "#444444",
    "marker": "*",
    "markersize": 7,
    "markerfacecolor": "none",
    "markeredgewidth": 0.7,
    "linestyle": "none",
    "elinewidth": 0.5,
    "label": "final exit",
}
CIRCLE: Any = {
    "linestyle": "none",
    "marker": "o",
    "markersize": 7,
    "markerfacecolor": "none",
    "markeredgecolor": "black",
    "markeredgewidth": 0.7,
    "label": "practical",
    "zorder": 5,
}
LEGEND = [*LABELS.values(), "final exit", "practical"]
ACCURACY, ERROR = "accuracy (%)", "mean absolute error"


def average_exits(rows: pd.DataFrame) -> pd.DataFrame:
    """Average exits over the seeds: a row an exit, in the order of depth.

    Args:
        rows: of exits.csv, of one backbone in one order.

    Returns:
        `mean` and `std` of the accuracy in % or, where objects are counted, of the error; `cost` in
        multiply-adds, `latency` in ms; `share`, of the seeds where the exit is practical; and
        `circled`, practical among the means, on which single seeds may disagree.
    """
    value, sign = 100 * rows["accuracy"], 1
    if rows["mae"].notna().all():
        value, sign = rows["mae"], -1
    exits = rows.assign(value=value, cost=rows["flops"] / 2)
    means = exits.groupby(["branch", "depth"], sort=False).agg(
        mean=("value", "mean"),
        std=("value", "std"),
        cost=("cost", "first"),
        latency=("latency_ms", "first"),
        share=("practical", "mean"),
    )
    means = means.reset_index().fillna({"std": 0})
    circled = practical(means["cost"].to_numpy(), sign * means["mean"].to_numpy())
    return means.assign(circled=circled).sort_values("depth")


def draw_tradeoff(figures: Figures, rows: pd.DataFrame, hardware: str, name: str) -> str:
    """Draw exits on a frozen backbone by what they cost, in operations and in time.

    This is Figure 5 of multi-exit ViT.

    Returns:
        The caption.
    """
    exits = average_exits(rows)
    is_last = exits["branch"] == LAST_EXIT
    final = exits[is_last].iloc[0]
    scale, unit = unit_of(final["cost"])
    early = exits[~is_last].assign(cost=exits["cost"] / scale)
    late = early[early["depth"] >= np.median(early["depth"].unique())]
    counts = rows["mae"].notna().all()
    figure, [[above], [middle], [below]] = figures.panels(1.75, nrows=3)
    panels = ((above, early, "cost"), (middle, late, "cost"), (below, early, "latency"))
    for axis, panel_exits, cost in panels:
        for branch, look in LOOKS.items():
            line = panel_exits[panel_exits["branch"] == branch].set_index(cost)
            if len(line):
                draw_means(axis, line, **look | {"markersize": 3})
        circled = panel_exits[panel_exits["circled"]]
        axis.plot(circled[cost], circled["mean"], **CIRCLE)
        axis.axhline(final["mean"], color=GREY, linewidth=0.8, linestyle="--", label="final exit")
        axis.set(ylabel=ERROR if counts else ACCURACY)
        axis.set(xlabel=f"multiply-adds up to and including the branch ({unit})")
    above.set(title="all depths")
    middle.set(title=f"from {late['depth'].min()} layers on, enlarged")
    middle.set(ylim=limits(late, final["mean"]))
    below.set(title="all depths, enlarged, measured time", xlabel="latency of one image (ms)")
    below.set(ylim=limits(early, final["mean"]))
    figures.finish(figure, name, order=LEGEND)
    circled = early[early["circled"]]
    task, better, variant = "Accuracy", "above", figures.label(rows["variant"].iloc[0])
    if counts:
        task, better = "Counting error (lower is better)", "below"
        variant = "trained to count"
    return CAPTIONS["tradeoff"].format(
        task=task,
        better=better,
        variant=variant,
        seeds=rows["seed"].nunique(),
        circled=len(circled),
        early=len(early),
        most=(circled["share"] > 0.5).sum(),
        hardware=hardware,
    )


def draw_orders(figures: Figures, rows: pd.DataFrame, keep: int) -> str:
    """Draw exits of every frozen backbone under orders it may not know. Returns the caption."""
    variants = list(rows["variant"].unique())
    known = rows.groupby("variant")["branch"].agg(set)
    branches = set.intersection(*known)
    percent = rows.assign(accuracy=100 * rows["accuracy"])
    height = 0.3 + 0.45 * len(variants)
    grid: Any = {"nrows": len(variants), "ncols": len(ORDERS), "sharex": True, "sharey": True}
    figure, axes = figures.panels(height, **grid)
    for line, variant in zip(axes, variants, strict=True):
        for axis, order in zip(line, ORDERS, strict=True):
            is_here = (rows["variant"] == variant) & (rows["order"] == order)
            draw_depths(axis, percent[is_here], "accuracy", branches)
        line[0].set(ylabel=f"{figures.label(variant)}\n{ACCURACY}", ylim=(0, 100))
    for axis, title in zip(axes[0], ORDERS.values(), strict=True):
        axis.set(title=title)
    ticks = np.linspace(0, int(rows["depth"].max()), 5).round()[1:]
    axes[-1, 1].set(xlabel="layers executed before the exit", xticks=np.unique(ticks))
    figures.finish(figure, "exits_orders", order=LEGEND)
    return CAPTIONS["orders"].format(keep=keep, seeds=rows["seed"].nunique())


def draw_dynamic(figures: Figures, budgets: pd.DataFrame, exits: pd.DataFrame) -> str:
    """Draw accuracy under budgets, and the exits' calibration. Returns the caption."""
    figure, [[above], [below]] = figures.panels(1.45, nrows=2)
    scale, unit = unit_of(exits["flops"].max() / 2)
    for policy, look in POLICIES.items():
        rows = budgets[budgets["policy"] == policy]
        place = rows.groupby("seed").cumcount()  # among the budgets of its seed
        budget = (rows["budget"] / 2 / scale).groupby(place).mean()
        accuracy = (100 * rows["accuracy"]).groupby(place)
        mean = accuracy.mean()
        std = accuracy.std().fillna(0)
        above.plot(budget, mean, markersize=3, **look)
        band: Any = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
        above.fill_between(budget, mean - std, mean + std, **band)
    percent = exits.assign(
        cost=exits["flops"] / 2 / scale, accuracy=100 * exits["accuracy"], ece=100 * exits["ece"]
    )
    draw_lines(above, percent, "cost", "accuracy", "branch", {LAST_EXIT: STAR}, factor=1)
    above.set(xlabel=f"budget of an image on average (multiply-adds, {unit})")
    above.set(ylabel=ACCURACY)
    above.legend(loc="lower right")
    draw_depths(below, percent, "ece", LABELS)
    below.set(xlabel="layers executed before the exit", ylabel="calibration error (%)")
    below.xaxis.get_major_locator().set_params(integer=True)
    corner: Any = {"loc": "lower left", "bbox_to_anchor": (-0.1, 1.0)}
    below.legend(ncols=3, columnspacing=1, handlelength=1.6, **corner)
    figures.finish(figure, "exits_dynamic", handles={})
    sure = budgets[budgets["policy"] == "confidence"]
    return CAPTIONS["dynamic"].format(
        variant=figures.label(exits["variant"].iloc[0]),
        fewest=budgets["exits"].min(),
        most=budgets["exits"].max(),
        excess=100 * max((sure["flops"] / sure["budget"]).max() - 1, 0),
        seeds=budgets["seed"].nunique(),
    )


def draw_depths(axis: Axes, rows: pd.DataFrame, column: str, branches: Iterable[str]) -> None:
    """Draw a column by depth: a line a branch, the final exit as a star."""
    looks = {branch: look for branch, look in LOOKS.items() if branch in branches}
    draw_lines(axis, rows, "depth", column, "branch", looks | {LAST_EXIT: STAR}, factor=1)


def unit_of(multiply_adds: float) -> tuple[float, str]:
    """The unit in which so many are shown, and its letter."""
    return (1e9, "G") if multiply_adds >= 1e9 else (1e6, "M")


def limits(exits: pd.DataFrame, final: float) -> tuple[float, float]:
    """Limits of an axis that shows the final exit and all means but MLP-EE's.

    These would spoil the scale (multi-exit ViT, figure 5).
    """
    others = exits[exits["branch"] != "mlp"]
    means = [*(others if len(others) else exits)["mean"], final]
    margin = 0.15 * (max(means) - min(means)) or 1
    return min(means) - margin, max(means) + margin


def draw_exits(
    figures: Figures, exits: pd.DataFrame, dynamic: pd.DataFrame, about: Mapping[str, Any]
) -> dict[str, str]:
    """Draw every figure whose rows are there.

    Args:
        figures: saves them.
        exits: exits.csv.
        dynamic: exits_dynamic.csv.
        about: exits.json.

    Returns:
        Captions by title.
    """
    frozen = exits[(exits["strategy"] == CLASSIFIER_WISE) & exits["order"].isin(ORDERS)]
    classes = frozen[frozen["dataset"] != COUNTING]
    counted = frozen[(frozen["dataset"] == COUNTING) & (frozen["order"] == "sequential")]
    hardware = about["hardware"]
    captions = {}
    if len(classes):
        variants = classes["variant"].unique()
        variant = BASELINE if BASELINE in variants else variants[0]
        rows = classes[(classes["order"] == "sequential") & (classes["variant"] == variant)]
        captions["Exits, trade-off"] = draw_tradeoff(figures, rows, hardware, "exits_tradeoff")
        captions["Exits, orders"] = draw_orders(figures, classes, about["keep"])
        budgets = dynamic[dynamic["variant"] == variant]
        captions["Exits, dynamic"] = draw_dynamic(figures, budgets, rows)
    if len(counted):
        captions["Exits, counting"] = draw_tradeoff(figures, counted, hardware, "exits_counting")
    return captions


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    exits, dynamic = results.table("exits"), results.table("exits_dynamic")
    return draw_exits(Figures.of(results, params), exits, dynamic, results.read("exits"))
