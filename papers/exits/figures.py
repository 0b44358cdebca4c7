"""The figures of multi-exit ViT: accuracy against cost, exits under other orders, dynamic inference."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.exits.compute.budgets import practical
from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, LABELS
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.config.variant import BASELINE
from pipeline.report.evaluations import label
from pipeline.report.figures import GREY, MARKERS, OKABE_ITO, Figures, handles_of, legend_above
from pipeline.report.results import Results

COLOURS, SHAPES = (
    dict(zip(LABELS, OKABE_ITO, strict=False)),
    dict(zip(LABELS, MARKERS, strict=False)),
)
POLICIES = {
    "budget": ("budget known", "#0072B2", "s"),
    "anytime": ("anytime", "#D55E00", "v"),
    "confidence": ("confidence", "#009E73", "D"),
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


class Metric(NamedTuple):
    """What exits are judged by."""

    column: str
    factor: float  # to the unit that is shown
    name: str
    sign: int  # 1: higher is better


ACCURACY, ERROR = (
    Metric("accuracy", 100, "accuracy (%)", 1),
    Metric("mae", 1, "mean absolute error", -1),
)


def over_seeds(rows: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """A row an exit: mean and std over the seeds in the unit shown, costs, share of seeds where it is practical, and `circled`.

    `circled`: practical among the means, which is what a figure of means shows; single seeds may disagree.
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
    return exits.assign(
        circled=practical(exits["cost"].to_numpy(), metric.sign * exits["mean"].to_numpy())
    ).sort_values("depth")


class ExitFigures(Figures):
    """Draws and saves the figures of early exits, beside those of :class:`Figures`."""

    def draw_exits(
        self, exits: pd.DataFrame, dynamic: pd.DataFrame, about: dict[str, Any]
    ) -> dict[str, str]:
        """Every figure whose rows are there. Returns captions by title.

        Args:
            exits: exits.csv.
            dynamic: exits_dynamic.csv.
            about: exits.json.
        """
        frozen = exits[exits["strategy"] == CLASSIFIER_WISE]
        frozen = frozen[frozen["order"].isin(ORDERS)]
        classes, counted = (
            frozen[frozen["dataset"] != COUNTING],
            frozen[frozen["dataset"] == COUNTING],
        )
        captions = {}
        if len(classes):
            variants = list(dict.fromkeys(classes["variant"]))
            shown = BASELINE if BASELINE in variants else variants[0]
            own = classes[(classes["variant"] == shown) & (classes["order"] == "sequential")]
            captions["Exits, trade-off"] = self.tradeoff(
                own, ACCURACY, about["hardware"], "exits_tradeoff"
            )
            captions["Exits, orders"] = self.orders(classes, about["keep"], "exits_orders")
            captions["Exits, dynamic"] = self.dynamic(
                dynamic[dynamic["variant"] == shown], own, "exits_dynamic"
            )
        if len(counted):
            own = counted[counted["order"] == "sequential"]
            captions["Exits, counting"] = self.tradeoff(
                own, ERROR, about["hardware"], "exits_counting"
            )
        return captions

    def tradeoff(self, rows: pd.DataFrame, metric: Metric, hardware: str, name: str) -> str:
        """Figure 5 of multi-exit ViT: exits on a frozen backbone by what they cost, in operations and in time. Returns the caption."""
        exits = over_seeds(rows, metric)
        early, final = (
            exits[exits["branch"] != LAST_EXIT],
            exits[exits["branch"] == LAST_EXIT].iloc[0],
        )
        scale, unit = (1e9, "G") if final["cost"] >= 1e9 else (1e6, "M")
        early = early.assign(cost=early["cost"] / scale)
        late = early[early["depth"] >= np.median(early["depth"].unique())]
        figure, axes = self.panels(1.75, nrows=3)
        for axis, part, cost in zip(
            axes[:, 0], (early, late, early), ("cost", "cost", "latency"), strict=True
        ):
            self._exits(axis, part, cost)
            axis.axhline(
                final["mean"], color=GREY, linewidth=0.8, linestyle="--", label="final exit"
            )
            axis.set(
                ylabel=metric.name, xlabel=f"multiply-adds up to and including the branch ({unit})"
            )
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes[0, 0].set(title="all depths")
        axes[1, 0].set(
            title=f"from {late['depth'].min()} layers on, enlarged",
            ylim=_limits(late, final["mean"]),
        )
        axes[2, 0].set(
            title="all depths, enlarged, measured time",
            ylim=_limits(early, final["mean"]),
            xlabel="latency of one image (ms)",
        )
        _legend(figure, axes[0, 0])
        self.save(figure, name)
        circled = early[early["circled"]]
        chosen = f"{len(circled)} of {len(early)} exits, {(circled['share'] > 0.5).sum()} of which are so in more than half of the seeds"
        better, task, variant = "above", "Accuracy", label(rows["variant"].iloc[0])
        if metric is ERROR:
            better, task, variant = "below", "Counting error (lower is better)", "trained to count"
        return (
            f"{task} of early exits on a frozen backbone ({variant}, classifier-wise) against what an image costs. Mean over "
            f"{rows['seed'].nunique()} seeds; bars: standard deviation over the seeds. Circled: practical on these means, i.e. {better} "
            f"every exit that costs fewer operations ({chosen}). Dashed: the final exit. Middle and bottom: enlarged, which cuts bars, and "
            f"MLP-EE where it lies far off. Bottom: median time of one image on {hardware}; circles as above."
        )

    def _exits(self, axis: Axes, exits: pd.DataFrame, cost: str) -> None:
        """A line a branch architecture; practical exits circled."""
        for branch in [name for name in LABELS if name in set(exits["branch"])]:
            line = exits[exits["branch"] == branch]
            axis.errorbar(
                line[cost],
                line["mean"],
                line["std"],
                color=COLOURS[branch],
                marker=SHAPES[branch],
                markersize=3,
                linewidth=0.9,
                elinewidth=0.5,
                label=LABELS[branch],
            )
        circled = exits[exits["circled"]]
        axis.plot(
            circled[cost],
            circled["mean"],
            linestyle="none",
            marker="o",
            markersize=7,
            markerfacecolor="none",
            markeredgecolor="black",
            markeredgewidth=0.7,
            label="practical",
            zorder=5,
        )

    def orders(self, rows: pd.DataFrame, keep: int, name: str) -> str:
        """Exits of every frozen backbone under orders it may not know. Returns the caption."""
        variants = list(dict.fromkeys(rows["variant"]))
        of_each = [set(rows.loc[rows["variant"] == variant, "branch"]) for variant in variants]
        branches = [branch for branch in LABELS if all(branch in found for found in of_each)]
        figure, axes = self.panels(
            0.3 + 0.45 * len(variants),
            nrows=len(variants),
            ncols=len(ORDERS),
            sharex=True,
            sharey=True,
        )
        depth = int(rows["depth"].max())
        for line, variant in zip(axes, variants, strict=True):
            for axis, (order, title) in zip(line, ORDERS.items(), strict=True):
                exits = over_seeds(
                    rows[(rows["variant"] == variant) & (rows["order"] == order)], ACCURACY
                )
                self._depths(axis, exits, branches)
                axis.grid(axis="y", linewidth=0.4, alpha=0.5)
                if variant == variants[0]:
                    axis.set(title=title)
            line[0].set(ylabel=f"{label(variant)}\n{ACCURACY.name}", ylim=(0, 100))
        axes[-1, 1].set(
            xlabel="layers executed before the exit",
            xticks=np.unique(np.linspace(0, depth, 5).round()[1:]),
        )
        _legend(figure, axes[0, 0])
        self.save(figure, name)
        return (
            f"Early exits keyed by depth when the layers before them run in another order: accuracy after so many layers, by branch (those "
            f"all backbones have). Branches were trained in the order of their backbone's own training (LS: arbitrary). Arbitrary: a "
            f"random order for every image; pruned: {keep} random layers for every image, in their original order. Star: the final exit. "
            f"Mean over {rows['seed'].nunique()} seeds; bars: standard deviation over the seeds."
        )

    def _depths(self, axis: Axes, exits: pd.DataFrame, branches: list[str]) -> None:
        """A line a branch by depth, the final exit as a star."""
        for branch in [name for name in branches if name in set(exits["branch"])]:
            line = exits[exits["branch"] == branch]
            axis.errorbar(
                line["depth"],
                line["mean"],
                line["std"],
                color=COLOURS[branch],
                marker=SHAPES[branch],
                markersize=2.5,
                linewidth=0.9,
                elinewidth=0.5,
                label=LABELS[branch],
            )
        final = exits[exits["branch"] == LAST_EXIT]
        axis.errorbar(final["depth"], final["mean"], final["std"], **STAR)

    def dynamic(self, rows: pd.DataFrame, exits: pd.DataFrame, name: str) -> str:
        """Accuracy under budgets by policy, and how well the exits' confidence is calibrated. Returns the caption."""
        figure, axes = self.panels(1.45, nrows=2)
        above, below = axes[:, 0]
        scale, unit = (1e9, "G") if exits["flops"].max() >= 2e9 else (1e6, "M")
        for policy, (title, colour, marker) in POLICIES.items():
            own = rows[rows["policy"] == policy]
            curve = own.assign(
                k=own.groupby("seed").cumcount(),
                accuracy=100 * own["accuracy"],
                budget=own["budget"] / 2 / scale,
            )
            curve = (
                curve.groupby("k")
                .agg(budget=("budget", "mean"), mean=("accuracy", "mean"), std=("accuracy", "std"))
                .fillna(0)
            )
            above.plot(
                curve["budget"],
                curve["mean"],
                color=colour,
                marker=marker,
                markersize=3,
                label=title,
            )
            above.fill_between(
                curve["budget"],
                curve["mean"] - curve["std"],
                curve["mean"] + curve["std"],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        final = over_seeds(exits[exits["branch"] == LAST_EXIT], ACCURACY).iloc[0]
        above.errorbar([final["cost"] / scale], [final["mean"]], [final["std"]], **STAR)
        above.set(
            xlabel=f"budget of an image on average (multiply-adds, {unit})", ylabel=ACCURACY.name
        )
        above.legend(loc="lower right")
        self._depths(below, over_seeds(exits, Metric("ece", 100, "", -1)), list(LABELS))
        below.set(xlabel="layers executed before the exit", ylabel="calibration error (%)")
        below.xaxis.get_major_locator().set_params(integer=True)
        below.legend(
            loc="lower left", bbox_to_anchor=(-0.1, 1.0), ncols=3, columnspacing=1, handlelength=1.6
        )
        for axis in (above, below):
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        self.save(figure, name)
        sure = rows[rows["policy"] == "confidence"]
        return (
            f"Above: accuracy under a budget, with the exits of a frozen backbone ({label(exits['variant'].iloc[0])}) that are practical "
            f"on images apart ({rows['exits'].min()} to {rows['exits'].max()} a seed, one a depth, the last exit among "
            f"them). Budget known: one exit for all images, the best that fits. Anytime: every exit on the way answers and is paid for; "
            f"the last answer before the budget ends. "
            f"Confidence: an image leaves when its answer is sure enough, by thresholds set on those images so that the budget holds on "
            f"average (exceeded by at most {100 * max((sure['flops'] / sure['budget']).max() - 1, 0):.1f} %). {rows['seed'].nunique()} "
            f"seeds: the k-th of a seed's budgets, from its cheapest exit to all of its exits, and its accuracy, averaged over the seeds; "
            f"bands: standard deviation. Below: expected calibration error of the exits (15 bins), mean and standard deviation over the "
            f"seeds."
        )


def _legend(figure: Figure, axis: Axes) -> None:
    """One legend for all panels: branches in the paper's order, then the rest."""
    found = handles_of(axis)
    names = [name for name in [*LABELS.values(), "final exit", "practical"] if name in found]
    legend_above(figure, {name: found[name] for name in names}, columns=4 if len(names) <= 4 else 3)


def _limits(exits: pd.DataFrame, final: float) -> tuple[float, float]:
    """Of an axis that shows the means of all but MLP-EE, which would spoil the scale (multi-exit ViT, figure 5), and the final exit."""
    others = exits[exits["branch"] != "mlp"]
    shown = [*(others if len(others) else exits)["mean"], final]
    margin = 0.15 * (max(shown) - min(shown)) or 1
    return min(shown) - margin, max(shown) + margin


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    figures = ExitFigures(
        results.folder / "figures", params.resolve(PaperFigures), list(params.all_variants)
    )
    return figures.draw_exits(
        results.table("exits"), results.table("exits_dynamic"), results.read("exits")
    )
