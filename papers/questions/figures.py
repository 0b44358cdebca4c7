"""The figures of our own questions: pruned models, and means over many passes."""

import pandas as pd

from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.report.captions import describe_rows, read_captions
from pipeline.report.figures import GREY, Figures, Look, draw_chance, draw_lines
from pipeline.report.results import Results

CAPTIONS = read_captions(__file__)
WAYS = {"chosen": "-", "healed": "--", "random": ":"}  # of pruning, that are drawn
ORDERS = {"sequential": "original order", "arbitrary": "random orders"}
PASSES = {"ls": "orders", "layerdrop": "drop", BASELINE: "dropout"}
MEASURES = {
    "accuracy": "accuracy (%)",
    "ece": "ECE (%)",
    "auarc": "AUARC (%)",
    "auroc": "AUROC (%)",
}


def trained_with_fewer(results: Results, flops: pd.Series) -> pd.DataFrame:
    """Models refined with their first k layers, and the best early exit of each depth.

    Args:
        results: of prune_eval.csv and exits.csv, where they are.
        flops: of an image through k layers, by k.

    Returns:
        Rows with method, seed, flops and accuracy.
    """
    frames = [pd.DataFrame()]
    refined = results.table("prune_eval")
    if len(refined):
        own = (refined["variant"] == "refit_" + refined["keep"].astype(str)) & (
            refined["order"] == "sequential"
        )
        refined = refined[own & refined["keep"].isin(flops.index)]
        frames.append(refined.assign(method="trained with k", flops=refined["keep"].map(flops)))
    exits = results.table("exits")
    if len(exits):
        own = (exits["variant"] == BASELINE) & (exits["strategy"] == "classifier_wise")
        exits = exits[own & exits["judge"].notna() & (exits["dataset"] == results.cell["dataset"])]
        judged = exits.groupby(["depth", "branch"])["judge"].mean()
        best = exits.set_index(["depth", "branch"]).loc[judged.groupby("depth").idxmax()]
        frames.append(best.assign(method="exits"))
    return pd.concat(frames)


def draw_pruning(figures: Figures, rows: pd.DataFrame, others: pd.DataFrame, chance: float) -> str:
    """Draw accuracy against operations. Returns the caption.

    Args:
        figures: saves the figure.
        rows: of questions.csv, of pruned models, with their flops.
        others: see :func:`trained_with_fewer`.
        chance: accuracy in % of guessing.
    """
    looks: dict[str, Look] = {}
    frames = [others]
    for variant, look in figures.looks(dict.fromkeys(rows["variant"])).items():
        for way, style in WAYS.items():
            ways = [way] if way == "healed" else [way, "whole"]  # healed ones are of other images
            own = rows[(rows["variant"] == variant) & rows["way"].isin(ways)]
            name = f"{look['label']}, {way}"
            looks[name] = look | {"linestyle": style, "label": name}
            if (own["way"] == way).any():
                frames.append(own.assign(method=name, accuracy=own["value"]))
    for name in ("trained with k", "exits"):
        looks[name] = {"color": GREY, "marker": "x" if name == "exits" else "+", "label": name}
    lines = pd.concat(frames)
    lines["flops"] /= 1e6
    figure, axes = figures.panels(0.9)
    draw_lines(axes[0, 0], lines, "flops", "accuracy", "method", looks, capsize=1.5)
    axes[0, 0].set(xlabel="MFLOPs of an image", ylabel="validation accuracy (%)", ylim=(0, 100))
    draw_chance(axes[0, 0], chance)
    figures.finish(figure, "questions_pruning", columns=2)
    pruned = rows[rows["way"] != "healed"]
    return CAPTIONS["pruning"].format(**describe_rows(pruned), most=lines["images"].max())


def draw_passes(figures: Figures, rows: pd.DataFrame) -> str:
    """Draw what judges the mean over 1, 2, ... passes, a panel each. Returns the caption."""
    own = rows[rows["way"] == rows["variant"].map(PASSES)]
    figure, axes = figures.panels(1.1, nrows=2, ncols=2, sharex=True)
    for axis, (measure, name) in zip(axes.flat, MEASURES.items(), strict=True):
        lines = own[own["measure"] == measure]
        draw_lines(axis, lines, "count", "value", "variant", figures.looks(PASSES))
        one = rows[(rows["measure"] == measure) & (rows["way"] == "one")]
        one = 100 * one[one["variant"] == "ls"]["value"].mean()
        draw_chance(axis, one, "LS, one pass")
        axis.set(ylabel=name)
    for axis in axes[-1]:
        axis.set(xlabel="passes")
    figures.finish(figure, "questions_passes")
    return CAPTIONS["passes"].format(**describe_rows(rows))


def draw_merges(figures: Figures, rows: pd.DataFrame, chance: float) -> str:
    """Draw accuracy by number of trainings merged, a panel an order. Returns the caption."""
    looks = {}
    for variant, look in figures.looks(dict.fromkeys(rows["variant"])).items():
        for starts, style in {"separate": "--", "common": "-"}.items():
            label = f"{look['label']}, {starts} starts"
            looks[variant + starts] = look | {"linestyle": style, "label": label}
    rows = rows.assign(method=rows["variant"] + rows["part"])
    figure, axes = figures.panels(0.8, ncols=2, sharey=True)
    for axis, (order, title) in zip(axes[0], ORDERS.items(), strict=True):
        own = rows[rows["way"] == order]
        draw_lines(axis, own, "count", "value", "method", looks, capsize=1.5)
        axis.set(title=title, xlabel="trainings merged", ylim=(0, 100))
        draw_chance(axis, chance)
    axes[0, 0].set(ylabel="validation accuracy (%)")
    figures.finish(figure, "questions_merges", columns=2)
    return CAPTIONS["merges"].format(**describe_rows(rows))


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the figures if there are rows. Returns captions by title."""
    rows = results.table("questions")
    if rows.empty:
        return {}
    figures = Figures.of(results, params)
    pruned = rows[rows["part"] == "pruning"]
    flops = pruned[pruned["measure"] == "flops"].groupby("count")["value"].min()
    pruned = pruned[pruned["measure"] == "accuracy"]
    pruned = pruned.assign(flops=pruned["count"].map(flops))
    merged = rows[rows["part"].isin(["separate", "common"])]
    others = trained_with_fewer(results, flops)
    return {
        "Pruned models": draw_pruning(figures, pruned, others, results.chance),
        "Means over many passes": draw_passes(figures, rows[rows["part"] == "passes"]),
        "Merged models": draw_merges(figures, merged, results.chance),
    }
