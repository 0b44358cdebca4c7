"""The figures of multi-exit ViT: exits by cost, under other orders, and dynamic inference."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.exits.compute.budgets import practical
from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, LABELS
from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.report.evaluations import label
from pipeline.report.figures import (
    GREY,
    Figures,
    distinct_looks,
    draw_grid,
    draw_means,
    handles_of,
    legend_above,
)
from pipeline.report.results import Results

LOOKS = distinct_looks(LABELS)
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
TRADEOFF_CAPTION = (
    "{task} of early exits on a frozen backbone ({variant}, classifier-wise) against what an "
    "image costs. Mean over {seeds} seeds; bars: standard deviation over the seeds. Circled: "
    "practical on these means, i.e. {better} every exit that costs fewer operations ({circled} of"
    " {early} exits, {most} of which are so in more than half of the seeds). Dashed: the final "
    "exit. Middle and bottom: enlarged, which cuts bars, and MLP-EE where it lies far off. "
    "Bottom: median time of one image on {hardware}; circles as above."
)
ORDERS_CAPTION = (
    "Early exits keyed by depth when the layers before them run in another order: accuracy after "
    "so many layers, by branch (those all backbones have). Branches were trained in the order of "
    "their backbone's own training (LS: arbitrary). Arbitrary: a random order for every image; "
    "pruned: {keep} random layers for every image, in their original order. Star: the final exit."
    " Mean over {seeds} seeds; bars: standard deviation over the seeds."
)
DYNAMIC_CAPTION = (
    "Above: accuracy under a budget, with the exits of a frozen backbone ({variant}) that are "
    "practical on images apart ({fewest} to {most} a seed, one a depth, the last exit among "
    "them). Budget known: one exit for all images, the best that fits. Anytime: every exit on the"
    " way answers and is paid for; the last answer before the budget ends. Confidence: an image "
    "leaves when its answer is sure enough, by thresholds set on those images so that the budget "
    "holds on average (exceeded by at most {excess:.1f} %). {seeds} seeds: the k-th of a seed's "
    "budgets, from its cheapest exit to all of its exits, and its accuracy, averaged over the "
    "seeds; bands: standard deviation. Below: expected calibration error of the exits (15 bins), "
    "mean and standard deviation over the seeds."
)


class Metric(NamedTuple):
    """What exits are judged by."""

    column: str
    factor: float  # to the unit that is shown
    name: str
    sign: int  # 1: higher is better


ACCURACY = Metric("accuracy", 100, "accuracy (%)", 1)
ERROR = Metric("mae", 1, "mean absolute error", -1)
CALIBRATION = Metric("ece", 100, "", -1)


def average_exits(rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """A row an exit: mean and std over the seeds in the unit shown, and its costs.

    Also the share of seeds where it is practical, and `circled`: practical among the means, which
    is what a figure of means shows; single seeds may disagree.
    """
    values = rows.assign(value=metric.factor * rows[metric.column], cost=rows["flops"] / 2)
    exits = values.groupby(["branch", "depth"], sort=False).agg(
        mean=("value", "mean"),
        std=("value", "std"),
        cost=("cost", "first"),
        latency=("latency_ms", "first"),
        share=("practical", "mean"),
    )
    exits = exits.reset_index().fillna({"std": 0})
    circled = practical(exits["cost"].to_numpy(), metric.sign * exits["mean"].to_numpy())
    return exits.assign(circled=circled).sort_values("depth")


class ExitFigures(Figures):
    """Draws and saves the figures of early exits, beside those of :class:`Figures`."""

    def draw_exits(
        self, exits: pd.DataFrame, dynamic: pd.DataFrame, about: dict[str, Any]
    ) -> dict[str, str]:
        """Draw every figure whose rows are there.

        Args:
            exits: exits.csv.
            dynamic: exits_dynamic.csv.
            about: exits.json.

        Returns:
            Captions by title.
        """
        frozen = exits[(exits["strategy"] == CLASSIFIER_WISE) & exits["order"].isin(ORDERS)]
        sequential = frozen[frozen["order"] == "sequential"]
        classes = frozen[frozen["dataset"] != COUNTING]
        counted = sequential[sequential["dataset"] == COUNTING]
        hardware = about["hardware"]
        captions = {}
        if len(classes):
            variants = classes["variant"].unique()
            shown = BASELINE if BASELINE in variants else variants[0]
            own = sequential[sequential["dataset"] != COUNTING]
            own = own[own["variant"] == shown]
            budgets = dynamic[dynamic["variant"] == shown]
            caption = self.tradeoff(own, ACCURACY, hardware, "exits_tradeoff")
            captions["Exits, trade-off"] = caption
            captions["Exits, orders"] = self.orders(classes, about["keep"], "exits_orders")
            captions["Exits, dynamic"] = self.dynamic(budgets, own, "exits_dynamic")
        if len(counted):
            caption = self.tradeoff(counted, ERROR, hardware, "exits_counting")
            captions["Exits, counting"] = caption
        return captions

    def tradeoff(self, rows: pd.DataFrame, metric: Metric, hardware: str, name: str) -> str:
        """Draw exits on a frozen backbone by what they cost, in operations and in time.

        This is Figure 5 of multi-exit ViT.

        Returns:
            The caption.
        """
        exits = average_exits(rows, metric)
        final = exits[exits["branch"] == LAST_EXIT].iloc[0]
        scale, unit = (1e9, "G") if final["cost"] >= 1e9 else (1e6, "M")
        early = exits[exits["branch"] != LAST_EXIT]
        early = early.assign(cost=early["cost"] / scale)
        late = early[early["depth"] >= np.median(early["depth"].unique())]
        figure, axes = self.panels(1.75, nrows=3)
        panels = ((early, "cost"), (late, "cost"), (early, "latency"))
        for axis, (shown, cost) in zip(axes[:, 0], panels, strict=True):
            draw_branches(axis, shown, cost, LABELS, markersize=3)
            circled = shown[shown["circled"]]
            axis.plot(circled[cost], circled["mean"], **CIRCLE)
            axis.axhline(
                final["mean"], color=GREY, linewidth=0.8, linestyle="--", label="final exit"
            )
            axis.set(ylabel=metric.name)
            axis.set(xlabel=f"multiply-adds up to and including the branch ({unit})")
            draw_grid(axis)
        above, middle, below = axes[:, 0]
        above.set(title="all depths")
        middle.set(title=f"from {late['depth'].min()} layers on, enlarged")
        middle.set(ylim=limits(late, final["mean"]))
        below.set(title="all depths, enlarged, measured time", xlabel="latency of one image (ms)")
        below.set(ylim=limits(early, final["mean"]))
        draw_legend(figure, above)
        self.save(figure, name)
        circled = early[early["circled"]]
        task, better, variant = "Accuracy", "above", label(rows["variant"].iloc[0])
        if metric is ERROR:
            task, better = "Counting error (lower is better)", "below"
            variant = "trained to count"
        return TRADEOFF_CAPTION.format(
            task=task,
            better=better,
            variant=variant,
            seeds=rows["seed"].nunique(),
            circled=len(circled),
            early=len(early),
            most=(circled["share"] > 0.5).sum(),
            hardware=hardware,
        )

    def orders(self, rows: pd.DataFrame, keep: int, name: str) -> str:
        """Draw exits of every frozen backbone under orders it may not know. Returns the caption."""
        variants = list(rows["variant"].unique())
        known = rows.groupby("variant")["branch"].agg(set)
        branches = [branch for branch in LABELS if all(branch in own for own in known)]
        height = 0.3 + 0.45 * len(variants)
        grid: Any = {"nrows": len(variants), "ncols": len(ORDERS), "sharex": True, "sharey": True}
        figure, axes = self.panels(height, **grid)
        for line, variant in zip(axes, variants, strict=True):
            for axis, order in zip(line, ORDERS, strict=True):
                own = rows[(rows["variant"] == variant) & (rows["order"] == order)]
                draw_depths(axis, average_exits(own, ACCURACY), branches)
                draw_grid(axis)
            line[0].set(ylabel=f"{label(variant)}\n{ACCURACY.name}", ylim=(0, 100))
        for axis, title in zip(axes[0], ORDERS.values(), strict=True):
            axis.set(title=title)
        ticks = np.linspace(0, int(rows["depth"].max()), 5).round()[1:]
        axes[-1, 1].set(xlabel="layers executed before the exit", xticks=np.unique(ticks))
        draw_legend(figure, axes[0, 0])
        self.save(figure, name)
        return ORDERS_CAPTION.format(keep=keep, seeds=rows["seed"].nunique())

    def dynamic(self, rows: pd.DataFrame, exits: pd.DataFrame, name: str) -> str:
        """Draw accuracy under budgets, and the exits' calibration. Returns the caption."""
        figure, axes = self.panels(1.45, nrows=2)
        above, below = axes[:, 0]
        scale, unit = (1e9, "G") if exits["flops"].max() >= 2e9 else (1e6, "M")
        for policy, look in POLICIES.items():
            own = rows[rows["policy"] == policy]
            place = own.groupby("seed").cumcount()  # among the budgets of its seed
            budget = (own["budget"] / 2 / scale).groupby(place).mean()
            accuracy = (100 * own["accuracy"]).groupby(place)
            mean, std = accuracy.mean(), accuracy.std().fillna(0)
            above.plot(budget, mean, markersize=3, **look)
            band: Any = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            above.fill_between(budget, mean - std, mean + std, **band)
        final = average_exits(exits[exits["branch"] == LAST_EXIT], ACCURACY).iloc[0]
        above.errorbar([final["cost"] / scale], [final["mean"]], [final["std"]], **STAR)
        above.set(xlabel=f"budget of an image on average (multiply-adds, {unit})")
        above.set(ylabel=ACCURACY.name)
        above.legend(loc="lower right")
        draw_depths(below, average_exits(exits, CALIBRATION), list(LABELS))
        below.set(xlabel="layers executed before the exit", ylabel="calibration error (%)")
        below.xaxis.get_major_locator().set_params(integer=True)
        place = {"loc": "lower left", "bbox_to_anchor": (-0.1, 1.0)}
        below.legend(ncols=3, columnspacing=1, handlelength=1.6, **place)
        for axis in (above, below):
            draw_grid(axis)
        self.save(figure, name)
        sure = rows[rows["policy"] == "confidence"]
        return DYNAMIC_CAPTION.format(
            variant=label(exits["variant"].iloc[0]),
            fewest=rows["exits"].min(),
            most=rows["exits"].max(),
            excess=100 * max((sure["flops"] / sure["budget"]).max() - 1, 0),
            seeds=rows["seed"].nunique(),
        )


def draw_branches(
    axis: Axes, exits: pd.DataFrame, x: str, branches: Sequence[str] | dict[str, str], **style: Any
) -> None:
    """Draw a line a branch architecture against the column `x`."""
    for branch in branches:
        line = exits[exits["branch"] == branch].set_index(x)
        if len(line):
            draw_means(axis, line, linewidth=0.9, elinewidth=0.5, **LOOKS[branch], **style)


def draw_depths(axis: Axes, exits: pd.DataFrame, branches: Sequence[str]) -> None:
    """Draw a line a branch by depth, the final exit as a star."""
    draw_branches(axis, exits, "depth", branches, markersize=2.5)
    draw_means(axis, exits[exits["branch"] == LAST_EXIT].set_index("depth"), **STAR)


def draw_legend(figure: Figure, axis: Axes) -> None:
    """Draw one legend for all panels: branches in the paper's order, then the rest."""
    handles = handles_of(axis)
    names = [name for name in [*LABELS.values(), "final exit", "practical"] if name in handles]
    columns = 4 if len(names) <= 4 else 3
    legend_above(figure, {name: handles[name] for name in names}, columns)


def limits(exits: pd.DataFrame, final: float) -> tuple[float, float]:
    """Limits of an axis that shows the final exit and all means but MLP-EE's.

    These would spoil the scale (multi-exit ViT, figure 5).
    """
    others = exits[exits["branch"] != "mlp"]
    shown = [*(others if len(others) else exits)["mean"], final]
    margin = 0.15 * (max(shown) - min(shown)) or 1
    return min(shown) - margin, max(shown) + margin


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    rows = results.table("exits"), results.table("exits_dynamic")
    return ExitFigures.of(results, params).draw_exits(*rows, results.read("exits"))
