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
from pipeline.report.evaluations import label
from pipeline.report.figures import (
    GREY,
    OKABE_ITO,
    Figures,
    distinct_looks,
    draw_grid,
    draw_means,
    handles_of,
    legend_above,
    over_seeds,
)
from pipeline.report.results import Results
from pipeline.report.tables import NONE

LOSSES = {
    NONE: {"label": "class loss", "color": OKABE_ITO[0], "marker": "o"},
    "cosine": {"label": "+ cosine", "color": OKABE_ITO[6], "marker": "v"},
    "contrastive": {"label": "+ contrastive, cosines", "color": OKABE_ITO[5], "marker": "^"},
    "mixing": {"label": "+ mixing", "color": OKABE_ITO[1], "marker": "s"},
    "contrastive+mixing": {
        "label": "+ contrastive + mixing",
        "color": OKABE_ITO[3],
        "marker": "D",
    },
}
REFERENCE: Any = {"label": "untrained", "color": GREY, "linestyle": "--"}
EXECUTED = "layers executed"
SIMILAR = 0.6  # above, the axis of the similarity ends at 1
DEPTHS_CAPTION = (
    "Over-smoothing, Figure 2{part}: {measure}, of models trained from scratch with and without "
    "losses against it (n = {seeds} seeds), on {images} training images of {names}; {how}. Lines: "
    "mean over the seeds; bars: standard deviation over the seeds.{reference} Published: 24-layer "
    "DeiT-Base on 10,000 training images of ImageNet, as a drawing, without numbers."
)
ORDERS_CAPTION = (
    "Refined variants in the original order and in arbitrary ones (a random order for every "
    "image), on {names}: {measures}, on {images} training images; below, accuracy on the "
    "validation images (that of Table 1). Mean over {seeds}; bars: standard deviation over the "
    "seeds. Not in the source, which keeps the order of the layers."
)


class Measure(NamedTuple):
    """What is drawn along the layers."""

    column: str
    name: str  # of the axis
    caption: str


COSINE = Measure(
    "patch_cosine",
    "patch cosine similarity",
    "cosine similarity of an image's patches, mean over all pairs",
)
ATTENTION = Measure(
    "attention_std",
    "std of attention",
    "standard deviation of a patch's softmax attention scores, mean over patches and heads",
)


class SmoothingFigures(Figures):
    """Draws and saves the figures of over-smoothing, beside those of :class:`Figures`."""

    def draw_smoothing(self, rows: pd.DataFrame, about: dict[str, Any]) -> dict[str, str]:
        """Draw every figure that smoothing.csv has rows for; `about` is smoothing.json.

        Returns:
            Captions by title.
        """
        plain = rows[(rows["removed"] == NONE) & ~rows["talking_heads"].astype(bool)]
        trained = plain[(plain["training"] == SCRATCH) & plain["losses"].isin(LOSSES)]
        untrained = plain[plain["training"] == UNTRAINED]
        untrained = untrained[untrained["num_layers"].isin(trained["num_layers"])]
        variants = rows[~rows["training"].isin([SCRATCH, UNTRAINED])]
        captions = {}
        if trained[COSINE.column].notna().any():
            caption = self.depths(trained, untrained, COSINE, "smoothing_cosine", about)
            captions["Over-smoothing, patch cosine"] = caption
        if trained[ATTENTION.column].notna().any():
            caption = self.depths(trained, untrained, ATTENTION, "smoothing_attention", about)
            captions["Over-smoothing, attention"] = caption
        if len(variants):
            captions["Over-smoothing, orders"] = self.orders(variants, about["images"])
        return captions

    def depths(
        self,
        trained: pd.DataFrame,
        untrained: pd.DataFrame,
        measure: Measure,
        name: str,
        about: dict[str, Any],
    ) -> str:
        """Draw a measure along the layers, a panel a depth: Figure 2 of over-smoothing.

        Args:
            trained: rows of models trained from scratch.
            untrained: rows of random initialisations, if there are some.
            measure: which.
            name: of the files.
            about: smoothing.json.

        Returns:
            The caption.
        """
        depths = sorted(trained["num_layers"].unique())
        figure, axes = self.panels(0.22 + 0.56 * len(depths), nrows=len(depths), sharey=True)
        for axis, depth in zip(axes[:, 0], depths, strict=True):
            here = trained[trained["num_layers"] == depth]
            for i, (losses, look) in enumerate(LOSSES.items()):
                draw_layers(axis, here[here["losses"] == losses], measure, i, **look)
            reference = untrained[untrained["num_layers"] == depth]
            draw_layers(axis, reference, measure, **REFERENCE)
            axis.set(title=f"{depth} layers")
            set_scales(axis, pd.concat([trained, untrained]), measure, depth)
        axes[-1, 0].set(xlabel=EXECUTED)
        handles = handles_of(*axes[:, 0])
        names = [look["label"] for look in (*LOSSES.values(), REFERENCE)]
        self.finish(figure, axes, name, {key: handles[key] for key in names if key in handles})
        reference_text = ""
        if len(untrained):
            seeds = untrained["seed"].nunique()
            reference_text = f" Dashed: random initialisation (n = {seeds})."
        return DEPTHS_CAPTION.format(
            part="a" if measure is COSINE else "b",
            measure=measure.caption,
            seeds=trained["seed"].nunique(),
            images=about["images"],
            names=name_models(trained),
            how=trained_how(about),
            reference=reference_text,
        )

    def orders(self, rows: pd.DataFrame, images: int) -> str:
        """Draw both measures of variants along both orders, and their accuracy.

        Args:
            rows: of the variants alone.
            images: that the measures are means over.

        Returns:
            The caption.
        """
        looks = self.variant_colours(list(dict.fromkeys(rows["training"])))
        measures = [m for m in (COSINE, ATTENTION) if rows[m.column].notna().any()]
        heights = [0.52] * len(measures) + [0.12 + 0.06 * len(looks)]
        figure, axes = self.panels(0.3 + sum(heights), nrows=len(heights), height_ratios=heights)
        for axis, measure in zip(axes[:, 0], measures, strict=False):
            for (variant, order), own in rows.groupby(["training", "order"], sort=False):
                style = looks[variant] | order_style(order, looks[variant]["color"])
                draw_layers(axis, own, measure, list(looks).index(variant), **style)
            set_scales(axis, rows, measure, rows["num_layers"].max())
            draw_grid(axis)
        axes[len(measures) - 1, 0].set(xlabel=EXECUTED)
        blank: Axes = axes[-1, 0]
        draw_accuracies(blank, rows, looks)
        handles = {}
        for look in looks.values():
            handles[look["label"]] = blank.plot([], [], **look, markersize=3)[0]
        for order in ORDERS:
            if order in set(rows["order"]):
                style = order_style(order, GREY)
                line = blank.plot([], [], color=GREY, marker="o", markersize=3, **style)
                handles[order] = line[0]
        legend_above(figure, handles)
        self.save(figure, "smoothing_orders")
        seeds = rows["seed"].nunique()
        return ORDERS_CAPTION.format(
            names=name_models(rows),
            measures="; ".join(measure.caption for measure in measures),
            images=images,
            seeds="1 seed" if seeds == 1 else f"{seeds} seeds",
        )

    def variant_colours(self, variants: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Looks of variants: those of other figures unless these do not tell all apart."""
        looks = self.looks(variants)
        if len({look["color"] for look in looks.values()}) == len(variants):
            return looks
        return distinct_looks({variant: label(variant) for variant in variants})


def draw_layers(
    axis: Axes, rows: pd.DataFrame, measure: Measure, place: int = 0, **style: Any
) -> None:
    """Draw a line over the layers, if there are rows.

    Markers and bars stand at about five layers, by `place` at others: lines lie close.
    """
    rows = rows.dropna(subset=measure.column)
    if rows.empty:
        return
    means = over_seeds(rows, "layer", measure.column, 1)
    step = max(round(len(means) / 5), 1)
    marked = (place % step, step)
    style |= {"errorevery": marked, "markevery": marked, "markersize": 3}
    draw_means(axis, means, linewidth=1, elinewidth=0.7, **style)


def draw_accuracies(axis: Axes, rows: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
    """Draw the accuracy of every variant in both orders, a line of the panel each."""
    last = rows[rows["layer"] == rows["num_layers"]]
    for (variant, order), own in last.groupby(["training", "order"]):
        mean, std = over_seeds(own, "layer", "accuracy").iloc[0]
        style = looks[variant] | order_style(order, looks[variant]["color"])
        style |= {"markersize": 4, "capsize": 2, "linestyle": "none"}
        place = list(looks).index(variant)
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
    bottom = min(0, 1.05 * rows[measure.column].min())
    top = 1.08 * rows[measure.column].max()
    if measure is COSINE and top > SIMILAR:
        top = 1.02
    axis.set(ylabel=measure.name, ylim=(bottom, top), xlim=(-0.03 * depth, 1.03 * depth))
    axis.locator_params(axis="x", integer=True, nbins=7, steps=[1, 2, 3, 4, 6, 10])


def name_models(rows: pd.DataFrame) -> str:
    """Data set and model, for captions."""
    datasets = ", ".join(dict.fromkeys(rows["dataset"]))
    return f"{datasets} (model {', '.join(dict.fromkeys(rows['model']))})"


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    figures = SmoothingFigures.of(results, params)
    return figures.draw_smoothing(results.table("smoothing"), results.read("smoothing"))
