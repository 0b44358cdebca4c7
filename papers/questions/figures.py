"""The figures of our own questions: pruned models, and means over many passes."""

import pandas as pd

from pipeline.config.params import Params
from pipeline.config.variant import BASELINE
from pipeline.report.captions import counted, name_models, read_captions
from pipeline.report.figures import (
    GREY,
    Figures,
    Look,
    draw_chance,
    draw_lines,
    over_seeds,
)
from pipeline.report.results import Results

CAPTIONS = read_captions(__file__)
WAYS = {"chosen": "-", "healed": "--", "random": ":"}  # of pruning, that are drawn
PASSES = {"ls": "orders", "layerdrop": "drop", BASELINE: "dropout"}
MEASURES = {
    "accuracy": "accuracy (%)",
    "ece": "ECE (%)",
    "auarc": "AUARC (%)",
    "auroc": "AUROC (%)",
}


def about(rows: pd.DataFrame) -> dict[str, object]:
    """What both captions say."""
    return {
        "seeds": counted(rows["seed"].nunique(), "seed"),
        "images": rows["images"].max(),
        "names": name_models(rows),
    }


def cheapest(results: Results, flops: pd.Series) -> pd.DataFrame:
    """Rows of models that were trained with fewer layers, and of early exits.

    Args:
        results: of prune_eval.csv and exits.csv, where they are.
        flops: of an image through k layers, by k.

    Returns:
        Columns method, seed, flops and accuracy.
    """
    frames = []
    trained = results.table("prune_eval")
    if len(trained):
        name = "refit_" + trained["keep"].astype(str)
        own = trained[(trained["variant"] == name) & (trained["order"] == "sequential")]
        own = own.assign(method="trained with k", flops=own["keep"].map(flops))
        frames.append(own.dropna(subset="flops"))
    exits = results.table("exits")
    if len(exits):
        own = exits[(exits["variant"] == BASELINE) & (exits["strategy"] == "classifier_wise")]
        own = own[(own["order"] == "sequential") & (own["dataset"] == results.cell["dataset"])]
        means = own.groupby(["depth", "branch"])["judge"].mean()
        best = own.set_index(["depth", "branch"]).loc[means.groupby("depth").idxmax()]
        frames.append(best.assign(method="exits"))
    if not frames:
        return pd.DataFrame()
    return pd.concat([frame[["method", "seed", "flops", "accuracy"]] for frame in frames])


def draw_pruning(figures: Figures, rows: pd.DataFrame, others: pd.DataFrame, chance: float) -> str:
    """Draw accuracy against operations. Returns the caption.

    Args:
        figures: saves the figure.
        rows: of questions.csv, of pruned models.
        others: see :func:`cheapest`.
        chance: accuracy in % of guessing.
    """
    keys = ["variant", "seed", "way", "count"]
    numbers = rows.pivot_table("value", keys, "measure").reset_index()
    whole = numbers["way"] == "whole"
    by_count = numbers.groupby("count")["flops"].min()  # a linear map costs a little more
    numbers["flops"] = numbers["flops"].fillna(numbers["count"].map(by_count)) / 1e6
    looks: dict[object, Look] = {}
    frames = []
    for variant, look in figures.looks(dict.fromkeys(rows["variant"])).items():
        for way, style in WAYS.items():
            own = numbers[(numbers["variant"] == variant) & (whole | (numbers["way"] == way))]
            if (own["way"] == way).any():
                name = f"{look['label']}, {way}"
                looks[name] = look | {"linestyle": style, "label": name}
                frames.append(own.assign(method=name))
    for name, style in {"trained with k": "-.", "exits": ":"}.items():
        looks[name] = {"color": GREY, "marker": "x", "linestyle": style, "label": name}
    if len(others):
        frames.append(others.assign(flops=others["flops"] / 1e6))
    figure, axes = figures.panels(0.9)
    draw_lines(axes[0, 0], pd.concat(frames), "flops", "accuracy", "method", looks, capsize=1.5)
    axes[0, 0].set(xlabel="MFLOPs of an image", ylabel="validation accuracy (%)", ylim=(0, 100))
    draw_chance(axes[0, 0], chance)
    figures.finish(figure, "questions_pruning", columns=2)
    return CAPTIONS["pruning"].format(calibration="held-out losses", **about(rows))


def draw_passes(figures: Figures, rows: pd.DataFrame) -> str:
    """Draw what judges the mean over 1, 2, ... passes, a panel each. Returns the caption."""
    figure, axes = figures.panels(1.1, nrows=2, ncols=2, sharex=True)
    for axis, (measure, name) in zip(axes.flat, MEASURES.items(), strict=True):
        own = rows[rows["measure"] == measure]
        for variant, look in figures.looks(PASSES).items():
            of_variant = own[own["variant"] == variant]
            several = of_variant[of_variant["way"] == PASSES[variant]]
            if several.empty:
                continue
            means = over_seeds(several, "count", "value")
            label = f"{look['label']}, {PASSES[variant]}"
            axis.plot(means.index, means["mean"], color=look["color"], label=label)
            one = 100 * of_variant[of_variant["way"] == "one"]["value"].mean()
            axis.axhline(one, color=look["color"], linestyle=":", linewidth=0.8)
        axis.set(ylabel=name)
    for axis in axes[-1]:
        axis.set(xlabel="passes")
    figures.finish(figure, "questions_passes")
    return CAPTIONS["passes"].format(**about(rows))


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the figures if their stage has run. Returns captions by title."""
    rows = results.table("questions")
    if rows.empty:
        return {}
    figures = Figures.of(results, params)
    pruned = rows[rows["part"] == "pruning"]
    plain = pruned[(pruned["measure"] == "flops") & (pruned["way"] != "patch")]
    flops = plain.groupby("count")["value"].first()
    captions = {
        "Pruned models": draw_pruning(figures, pruned, cheapest(results, flops), results.chance),
        "Means over many passes": draw_passes(figures, rows[rows["part"] == "passes"]),
    }
    return captions
