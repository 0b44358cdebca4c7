"""The figures of over-smoothing: patch similarity and attention along the layers."""

from typing import Any, NamedTuple

import pandas as pd

from papers.smoothing.section import SCRATCH
from papers.smoothing.tables import is_plain, trained_how
from pipeline.config.params import Params
from pipeline.config.variant import UNTRAINED
from pipeline.report.captions import counted, name_models, read_captions
from pipeline.report.figures import (
    GREY,
    OKABE_ITO,
    Figures,
    Look,
    distinct_looks,
    draw_lines,
    draw_means,
    in_order,
    over_seeds,
)
from pipeline.report.results import Results
from pipeline.report.tables import NONE

CAPTIONS = read_captions(__file__)
LOOKS: dict[str, Look] = {  # of trainings by their losses, and of random initialisations
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
    UNTRAINED: {"label": "untrained", "color": GREY, "linestyle": "--"},
}
THIN: Look = {"linewidth": 1, "elinewidth": 0.7, "markersize": 3}


class Measure(NamedTuple):
    """What is drawn along the layers."""

    column: str
    name: str  # of the axis
    caption: str
    part: str  # of the source's Figure 2
    figure: str  # name of the file
    title: str


MEASURES = (
    Measure(
        column="patch_cosine",
        name="patch cosine similarity",
        caption="cosine similarity of an image's patches, mean over all pairs",
        part="a",
        figure="smoothing_cosine",
        title="Over-smoothing, patch cosine",
    ),
    Measure(
        column="attention_std",
        name="std of attention",
        caption="standard deviation of a patch's softmax attention scores, "
        "mean over patches and heads",
        part="b",
        figure="smoothing_attention",
        title="Over-smoothing, attention",
    ),
)


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    figures = Figures.of(results, params)
    rows = results.table("smoothing")
    about = results.read("smoothing")
    plain = rows[is_plain(rows)]
    trained = plain[(plain["training"] == SCRATCH) & plain["losses"].isin(LOOKS)]
    untrained = plain[plain["training"] == UNTRAINED]
    untrained = untrained[untrained["num_layers"].isin(trained["num_layers"])]
    variants = rows[~rows["training"].isin([SCRATCH, UNTRAINED])]
    captions = {}
    for measure in MEASURES:
        if trained[measure.column].notna().any():
            captions[measure.title] = draw_depths(figures, trained, untrained, measure, about)
    if len(variants):
        captions["Over-smoothing, orders"] = draw_orders(figures, variants, about["images"])
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
    column = measure.column
    rows = pd.concat([trained, untrained.assign(losses=UNTRAINED)]).dropna(subset=column)
    depths = rows.groupby("num_layers")
    figure, axes = figures.panels(0.22 + 0.56 * len(depths), nrows=len(depths), sharey=True)
    for axis, (depth, models) in zip(axes[:, 0], depths, strict=True):
        draw_lines(axis, models, "layer", column, "losses", LOOKS, factor=1, **THIN)
        axis.set(title=f"{depth} layers", ylabel=measure.name)
        axis.locator_params(axis="x", integer=True)
    axes[-1, 0].set(xlabel="layers executed")
    figures.finish(figure, measure.figure)
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


def draw_orders(figures: Figures, rows: pd.DataFrame, images: int) -> str:
    """Draw both measures of variants along both orders.

    Args:
        figures: saves the figure.
        rows: of the variants alone.
        images: that the measures are means over.

    Returns:
        The caption.
    """
    looks = distinct_looks({name: figures.label(name) for name in rows["training"].unique()})
    measures = [measure for measure in MEASURES if rows[measure.column].notna().any()]
    figure, axes = figures.panels(0.3 + 0.52 * len(measures), nrows=len(measures))
    for axis, measure in zip(axes[:, 0], measures, strict=True):
        lines = rows.dropna(subset=measure.column).groupby(["training", "order"], sort=False)
        for (variant, order), line in lines:
            means = over_seeds(line, "layer", measure.column, 1)
            draw_means(axis, means, **THIN, **in_order(looks[variant], order))
        axis.set(ylabel=measure.name)
        axis.locator_params(axis="x", integer=True)
    axes[-1, 0].set(xlabel="layers executed")
    figures.finish(figure, "smoothing_orders", columns=2)
    return CAPTIONS["orders"].format(
        names=name_models(rows),
        measures="; ".join(measure.caption for measure in measures),
        images=images,
        seeds=counted(rows["seed"].nunique(), "seed"),
    )
