"""The figures of over-smoothing: patch similarity and attention along the layers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lsvit.routes import ORDERS
from papers.smoothing.section import SCRATCH
from papers.smoothing.tables import trained_how
from pipeline.config.params import Params
from pipeline.config.variant import UNTRAINED
from pipeline.report.captions import counted, name_models, read_captions
from pipeline.report.figures import (
    GREY,
    OKABE_ITO,
    Figures,
    distinct_looks,
    draw_grid,
    draw_means,
    legend_above,
    over_seeds,
)
from pipeline.report.results import Results
from pipeline.report.tables import NONE

CAPTIONS = read_captions(__file__)
LOSSES: dict[str, dict[str, Any]] = {
    NONE: {"label": "class loss", "color": OKABE_ITO[0], "marker": "o"},
    "cosine": {"label": "+ cosine", "color": OKABE_ITO[6], "marker": "v"},
    "mixing": {"label": "+ mixing", "color": OKABE_ITO[1], "marker": "s"},
    "contrastive": {"label": "+ contrastive", "color": OKABE_ITO[5], "marker": "^"},
    "contrastive+mixing": {"label": "+ contrastive + mixing", "color": OKABE_ITO[3], "marker": "D"},
    "contrastive_cosines": {
        "label": "+ contrastive, of cosines",
        "color": OKABE_ITO[2],
        "marker": "P",
        "linestyle": ":",
    },
}
REFERENCE: Any = {"label": "untrained", "color": GREY, "linestyle": "--"}
EXECUTED = "layers executed"
SIMILAR = 0.6  # above, the axis of the similarity ends at 1


class Measure(NamedTuple):
    """What is drawn along the layers."""

    column: str
    name: str  # of the axis
    caption: str
    part: str  # of the source's Figure 2
    figure: str  # name of the file
    title: str


COSINE = Measure(
    column="patch_cosine",
    name="patch cosine similarity",
    caption="cosine similarity of an image's patches, mean over all pairs",
    part="a",
    figure="smoothing_cosine",
    title="Over-smoothing, patch cosine",
)
ATTENTION = Measure(
    column="attention_std",
    name="std of attention",
    caption="standard deviation of a patch's softmax attention scores, mean over patches and heads",
    part="b",
    figure="smoothing_attention",
    title="Over-smoothing, attention",
)
MEASURES = (COSINE, ATTENTION)


def draw_smoothing(
    figures: Figures, rows: pd.DataFrame, about: dict[str, Any], chance: float
) -> dict[str, str]:
    """Draw every figure that smoothing.csv has rows for; `about` is smoothing.json.

    Returns:
        Captions by title.
    """
    plain = rows[(rows["changed"] == NONE) & ~rows["talking_heads"].astype(bool)]
    trained = plain[(plain["training"] == SCRATCH) & plain["losses"].isin(LOSSES)]
    untrained = plain[plain["training"] == UNTRAINED]
    untrained = untrained[untrained["num_layers"].isin(trained["num_layers"])]
    variants = rows[~rows["training"].isin([SCRATCH, UNTRAINED])]
    captions = {}
    for measure in MEASURES:
        if trained[measure.column].notna().any():
            captions[measure.title] = draw_depths(figures, trained, untrained, measure, about)
    if len(variants):
        captions["Over-smoothing, orders"] = draw_orders(figures, variants, about["images"], chance)
    return captions


def draw_depths(
    figures: Figures,
    trained: pd.DataFrame,
    untrained: pd.DataFrame,
    measure: Measure,
    about: dict[str, Any],
) -> str:
    """Draw a measure along the layers, a panel a depth: Figure 2 of over-smoothing.

    Args:
        figures: saves the figure.
        trained: rows of models trained from scratch.
        untrained: rows of random initialisations, if there are some.
        measure: which.
        about: smoothing.json.

    Returns:
        The caption.
    """
    depths = sorted(trained["num_layers"].unique())
    figure, axes = figures.panels(0.22 + 0.56 * len(depths), nrows=len(depths), sharey=True)
    everything = pd.concat([trained, untrained])
    for axis, depth in zip(axes[:, 0], depths, strict=True):
        models = trained[trained["num_layers"] == depth]
        for place, (losses, look) in enumerate(LOSSES.items()):
            marked = (place, len(LOSSES))
            draw_layers(axis, models[models["losses"] == losses], measure, marked, **look)
        reference = untrained[untrained["num_layers"] == depth]
        draw_layers(axis, reference, measure, (0, len(LOSSES)), **REFERENCE)
        axis.set(title=f"{depth} layers")
        set_scales(axis, everything, measure, depth)
    axes[-1, 0].set(xlabel=EXECUTED)
    labels = [look["label"] for look in (*LOSSES.values(), REFERENCE)]
    figures.finish(figure, measure.figure, order=labels)
    reference = ""
    if len(untrained):
        reference = CAPTIONS["reference"].format(seeds=untrained["seed"].nunique())
    return CAPTIONS["depths"].format(
        part=measure.part,
        measure=measure.caption,
        seeds=trained["seed"].nunique(),
        images=about["images"],
        names=name_models(trained),
        how=trained_how(about),
        reference=reference,
    )


def draw_orders(figures: Figures, rows: pd.DataFrame, images: int, chance: float) -> str:
    """Draw both measures of variants along both orders, and their accuracy.

    Args:
        figures: saves the figure.
        rows: of the variants alone.
        images: that the measures are means over.
        chance: accuracy in % of guessing.

    Returns:
        The caption.
    """
    looks = choose_looks(figures, list(dict.fromkeys(rows["training"])))
    measures = [measure for measure in MEASURES if rows[measure.column].notna().any()]
    heights = [0.52] * len(measures) + [0.12 + 0.06 * len(looks)]
    figure, axes = figures.panels(0.3 + sum(heights), nrows=len(heights), height_ratios=heights)
    *panels, last = axes[:, 0]
    for axis, measure in zip(panels, measures, strict=True):
        lines = rows.groupby(["training", "order"], sort=False)
        for place, ((variant, order), line) in enumerate(lines):
            style = looks[variant] | order_style(order, looks[variant]["color"])
            draw_layers(axis, line, measure, (place, len(lines)), **style)
        set_scales(axis, rows, measure, rows["num_layers"].max())
        draw_grid(axis)
    if panels:
        panels[-1].set(xlabel=EXECUTED)
    draw_accuracies(last, rows, looks)
    last.axvline(chance, color=GREY, linewidth=0.8, linestyle=":")
    last.annotate(" chance", (chance, -0.45), va="top", fontsize=6.5, color=GREY)
    handles = {}
    for look in looks.values():
        handles[look["label"]] = last.plot([], [], **look, markersize=3)[0]
    for order in ORDERS:
        if order in set(rows["order"]):
            style = {"color": GREY, "marker": "o", "markersize": 3} | order_style(order, GREY)
            handles[order] = last.plot([], [], **style)[0]
    legend_above(figure, handles)
    figures.save(figure, "smoothing_orders")
    return CAPTIONS["orders"].format(
        names=name_models(rows),
        measures="; ".join(measure.caption for measure in measures),
        images=images,
        seeds=counted(rows["seed"].nunique(), "seed"),
    )


def choose_looks(figures: Figures, variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Looks of variants: those of other figures unless these do not tell all apart."""
    looks = figures.looks(variants)
    if len({look["color"] for look in looks.values()}) == len(variants):
        return looks
    return distinct_looks({variant: figures.label(variant) for variant in variants})


def draw_layers(
    axis: Axes, rows: pd.DataFrame, measure: Measure, marked: tuple[int, int], **style: Any
) -> None:
    """Draw a line over the layers, if there are rows.

    Markers and bars stand at every n-th layer from one on, `marked`: lines lie close.
    """
    rows = rows.dropna(subset=measure.column)
    if rows.empty:
        return
    means = over_seeds(rows, "layer", measure.column, 1)
    style |= {"errorevery": marked, "markevery": marked, "markersize": 3}
    draw_means(axis, means, linewidth=1, elinewidth=0.7, **style)


def draw_accuracies(axis: Axes, rows: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    """Draw the accuracy of every variant, both orders one below the other."""
    last = rows[rows["layer"] == rows["num_layers"]]
    for (variant, order), accuracies in last.groupby(["training", "order"]):
        mean, std = over_seeds(accuracies, "layer", "accuracy").iloc[0]
        style = looks[variant] | order_style(order, looks[variant]["color"])
        style |= {"markersize": 4, "capsize": 2, "linestyle": "none"}
        place = list(looks).index(variant) + (-0.17 if order == "sequential" else 0.17)
        axis.errorbar([mean], [place], xerr=[std], **style)
    axis.set(xlabel="validation accuracy (%)", xlim=(0, 100))
    axis.set(yticks=np.arange(len(looks)), yticklabels=[look["label"] for look in looks.values()])
    axis.set(ylim=(len(looks) - 0.5, -0.5))  # the first on top
    draw_grid(axis, "x")


def order_style(order: str, colour: str) -> dict[str, Any]:
    """Line and inside of a marker: dashed and hollow in arbitrary order."""
    if order == "sequential":
        return {"linestyle": "-", "markerfacecolor": colour}
    return {"linestyle": "--", "markerfacecolor": "white"}


def set_scales(axis: Axes, rows: pd.DataFrame, measure: Measure, depth: int) -> None:
    """Show layers from 0 to the depth, and similarity up to 1 unless all are low."""
    values = rows[measure.column]
    bottom = min(0, 1.05 * values.min())
    top = 1.08 * values.max()
    if measure is COSINE and top > SIMILAR:
        top = 1.02
    axis.set(ylabel=measure.name, ylim=(bottom, top), xlim=(-0.03 * depth, 1.03 * depth))
    axis.locator_params(axis="x", integer=True, nbins=7, steps=[1, 2, 3, 4, 6, 10])


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    figures = Figures.of(results, params)
    rows, about = results.table("smoothing"), results.read("smoothing")
    return draw_smoothing(figures, rows, about, results.chance)
