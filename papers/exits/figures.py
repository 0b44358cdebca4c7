"""The figures of multi-exit ViT: exits by cost, under other orders, and dynamic inference."""

from typing import Any

import numpy as np
import pandas as pd

from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, LABELS
from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.report.captions import counted, read_captions
from pipeline.report.figures import (
    GREY,
    Figures,
    distinct_looks,
    draw_chance,
    draw_lines,
    draw_means,
)
from pipeline.report.results import Results

CAPTIONS = read_captions(__file__)
THIN = {"linewidth": 0.9, "elinewidth": 0.5, "markersize": 2.5}
LOOKS = distinct_looks(LABELS)
POLICIES = {
    "budget": {"label": "budget known", "color": "#0072B2", "marker": "s"},
    "anytime": {"label": "anytime", "color": "#D55E00", "marker": "v"},
    "confidence": {"label": "confidence", "color": "#009E73", "marker": "D"},
}
ORDERS = {"sequential": "original order", "arbitrary": "arbitrary order", "pruned": "pruned"}
HOLLOW: Any = {
    "linestyle": "none",
    "markersize": 7,
    "markerfacecolor": "none",
    "markeredgewidth": 0.7,
}
STAR = HOLLOW | {"color": "#444444", "marker": "*", "elinewidth": 0.5, "label": "final exit"}
CIRCLE = HOLLOW | {"marker": "o", "markeredgecolor": "black", "label": "practical", "zorder": 5}
CHANCE, GUESS = "chance", "a constant guess"
LEGEND = [*LABELS.values(), "final exit", "practical", CHANCE, GUESS]
ACCURACY, ERROR = "accuracy (%)", "mean absolute error"


def average_exits(rows: pd.DataFrame) -> pd.DataFrame:
    """Average exits over the seeds: a row an exit, in the order of depth.

    Args:
        rows: of exits.csv, of one backbone in the order that its exits were trained in.

    Returns:
        `mean` and `std` of the accuracy in % or, where objects are counted, of the error; `cost` in
        multiply-adds; and `circled`: practical in more than half of the seeds.
    """
    value = rows["mae"].fillna(100 * rows["accuracy"])
    exits = rows.assign(value=value, cost=rows["flops"] / 2, practical=rows["practical"].eq(True))
    means = exits.groupby(["branch", "depth"], as_index=False, sort=False).agg(
        mean=("value", "mean"),
        std=("value", "std"),
        cost=("cost", "first"),
        circled=("practical", "mean"),
    )
    means = means.fillna({"std": 0}).assign(circled=means["circled"] > 0.5)
    return means.sort_values("depth")


def draw_tradeoff(figures: Figures, rows: pd.DataFrame, guess: float, name: str) -> str:
    """Draw exits on a frozen backbone by what they cost: Figure 5 of multi-exit ViT.

    Args:
        figures: saves it.
        rows: of exits.csv, see :func:`average_exits`.
        guess: the accuracy in %, or the error, of answering without looking.
        name: of the file.

    Returns:
        The caption.
    """
    exits = average_exits(rows)
    is_last = exits["branch"] == LAST_EXIT
    final = exits[is_last].iloc[0]
    scale, unit = unit_of(final["cost"])
    early = exits[~is_last].assign(cost=exits["cost"] / scale)
    half = int(np.median(early["depth"].unique()))
    counts = rows["mae"].notna().all()
    figure, [[whole], [above], [below]] = figures.panels(1.75, nrows=3)
    panels = {
        title_of(rows): (whole, early),
        f"up to {half} layers, enlarged": (above, early[early["depth"] <= half]),
        f"from {half} layers on, enlarged": (below, early[early["depth"] >= half]),
    }
    for title, (axis, shown) in panels.items():
        for branch, look in LOOKS.items():
            line = shown[shown["branch"] == branch].set_index("cost")
            if len(line):
                draw_means(axis, line, **THIN | look | {"markersize": 3})
        circled = shown[shown["circled"]]
        axis.plot(circled["cost"], circled["mean"], **CIRCLE)
        axis.axhline(final["mean"], color=GREY, linewidth=0.8, linestyle=":", label="final exit")
        axis.set(title=title, ylabel=ERROR if counts else ACCURACY)
        if axis is not whole:
            axis.set(ylim=limits(shown, final["mean"]))
    draw_chance(whole, guess, GUESS if counts else CHANCE)
    below.set(xlabel=f"multiply-adds up to and including the branch ({unit})")
    figures.finish(figure, name, order=LEGEND)
    task, reference, variant = "Accuracy", CHANCE, figures.label(rows["variant"].iloc[0])
    if counts:
        task = "Counting error (lower is better)"
        reference = f"the expected error of always answering the middle, {guess:.2f}"
        variant = "trained to count"
    return CAPTIONS["tradeoff"].format(
        task=task,
        reference=reference,
        variant=variant,
        seeds=counted(rows["seed"].nunique(), "seed"),
        circled=early["circled"].sum(),
        early=len(early),
    )


def draw_orders(figures: Figures, rows: pd.DataFrame, chance: float, keep: int) -> str:
    """Draw exits of every frozen backbone under orders it may not know: a line a backbone.

    Args:
        figures: saves it.
        rows: of exits.csv.
        chance: accuracy in % of guessing.
        keep: layers of a pruned route.

    Returns:
        The caption.
    """
    early = rows[rows["branch"] != LAST_EXIT]
    common = set.intersection(*early.groupby("variant")["branch"].agg(set))
    early = early[early["branch"].isin(common)]
    keys = ["variant", "order", "seed", "depth"]
    means = early.groupby(keys, as_index=False, sort=False)["accuracy"].mean()
    figure, [axes] = figures.panels(0.55, ncols=len(ORDERS), sharex=True, sharey=True)
    looks = figures.looks(means["variant"].unique())
    for axis, (order, title) in zip(axes, ORDERS.items(), strict=True):
        draw_lines(axis, means[means["order"] == order], "depth", "accuracy", "variant", looks)
        draw_chance(axis, chance)
        axis.set(title=title)
    axes[0].set(ylabel=ACCURACY, ylim=(0, 100))
    axes[0].xaxis.get_major_locator().set_params(integer=True)
    axes[1].set(xlabel="layers executed before the exit")
    figures.finish(figure, "exits_orders")
    return CAPTIONS["orders"].format(
        data=title_of(rows),
        branches=", ".join(LABELS[branch] for branch in LABELS if branch in common),
        keep=keep,
        seeds=counted(rows["seed"].nunique(), "seed"),
    )


def draw_dynamic(figures: Figures, budgets: pd.DataFrame, exits: pd.DataFrame) -> str:
    """Draw accuracy under budgets. Returns the caption."""
    figure, [[axis]] = figures.panels(0.75)
    scale, unit = unit_of(exits["flops"].max() / 2)
    place = budgets.groupby(["policy", "seed"]).cumcount()  # among the budgets of its seed
    places = (budgets["budget"] / 2 / scale).groupby([budgets["policy"], place])
    budgets = budgets.assign(cost=places.transform("mean"))
    draw_lines(axis, budgets, "cost", "accuracy", "policy", POLICIES, **THIN)
    final = exits.assign(cost=exits["flops"] / 2 / scale)
    draw_lines(axis, final, "cost", "accuracy", "branch", {LAST_EXIT: STAR})
    xlabel = f"budget of an image on average (multiply-adds, {unit})"
    axis.set(title=title_of(exits), xlabel=xlabel, ylabel=ACCURACY)
    figures.finish(figure, "exits_dynamic")
    sure = budgets[budgets["policy"] == "confidence"]
    return CAPTIONS["dynamic"].format(
        variant=figures.label(exits["variant"].iloc[0]),
        fewest=budgets["exits"].min(),
        most=budgets["exits"].max(),
        excess=100 * max((sure["flops"] / sure["budget"]).max() - 1, 0),
        seeds=counted(budgets["seed"].nunique(), "seed"),
    )


def title_of(rows: pd.DataFrame) -> str:
    """The data set and the model of rows of exits.csv."""
    return f"{rows['dataset'].iloc[0]}, {rows['model'].iloc[0]}"


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


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    figures = Figures.of(results, params)
    exits = results.table("exits")
    dynamic = results.table("exits_dynamic")
    about = results.read("exits")
    frozen = exits[exits["strategy"] == CLASSIFIER_WISE]
    in_order = frozen[frozen["order"] == "sequential"]
    classes = frozen[frozen["dataset"] != COUNTING]
    objects = in_order[in_order["dataset"] == COUNTING]
    captions = {}
    if len(classes):
        variants = classes["variant"].unique()
        variant = BASELINE if BASELINE in variants else variants[0]
        rows = in_order[in_order["variant"] == variant]
        budgets = dynamic[dynamic["variant"] == variant]
        chance = results.chance
        captions["Exits, trade-off"] = draw_tradeoff(figures, rows, chance, "exits_tradeoff")
        captions["Exits, orders"] = draw_orders(figures, classes, chance, about["keep"])
        captions["Exits, dynamic"] = draw_dynamic(figures, budgets, rows)
    if len(objects):
        most = about["counting"]["most"]
        guess = np.abs(np.arange(most + 1) - most / 2).mean()
        captions["Exits, counting"] = draw_tradeoff(figures, objects, guess, "exits_counting")
    return captions
