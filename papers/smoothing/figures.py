"""The figures of over-smoothing: patch similarity and attention along the layers, and in both orders."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lsvit.routes import ORDERS
from papers.smoothing.section import SCRATCH
from papers.smoothing.tables import trained_how
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.config.variant import UNTRAINED
from pipeline.report.evaluations import label
from pipeline.report.figures import GREY, MARKERS, OKABE_ITO, Figures, handles_of, legend_above
from pipeline.report.results import Results
from pipeline.report.tables import NONE

# losses -> name, colour, marker
LOSSES = {
    NONE: ("class loss", OKABE_ITO[0], "o"),
    "cosine": ("+ cosine", OKABE_ITO[6], "v"),
    "contrastive": ("+ contrastive, cosines", OKABE_ITO[5], "^"),
    "mixing": ("+ mixing", OKABE_ITO[1], "s"),
    "contrastive+mixing": ("+ contrastive + mixing", OKABE_ITO[3], "D"),
}
LINES = {"sequential": "-", "arbitrary": "--"}
EXECUTED = "layers executed"
SIMILAR = 0.6  # above, the axis of the similarity ends at 1


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


def over_layers(rows: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Mean and standard deviation over the seeds (0 for one) by layers executed, where there is a value."""
    found = rows.dropna(subset=measure.column).groupby("layer")[measure.column]
    return found.agg(["mean", "std"]).fillna({"std": 0})


class SmoothingFigures(Figures):
    """Draws and saves the figures of over-smoothing, beside those of :class:`Figures`."""

    def draw_smoothing(self, rows: pd.DataFrame, about: dict[str, Any]) -> dict[str, str]:
        """Every figure that smoothing.csv has rows for; `about` is smoothing.json. Returns captions by title."""
        plain = rows[(rows["removed"] == NONE) & ~rows["talking_heads"].astype(bool)]
        is_trained = (plain["training"] == SCRATCH) & plain["losses"].isin(LOSSES)
        trained = plain[is_trained]
        shown = plain[
            is_trained
            | (plain["training"] == UNTRAINED) & plain["num_layers"].isin(trained["num_layers"])
        ]
        variants = rows[~rows["training"].isin([SCRATCH, UNTRAINED])]
        captions = {}
        for measure, title, name in (
            (COSINE, "patch cosine", "smoothing_cosine"),
            (ATTENTION, "attention", "smoothing_attention"),
        ):
            if trained[measure.column].notna().any():
                captions[f"Over-smoothing, {title}"] = self.smoothing_depths(
                    shown, measure, name, about
                )
        if len(variants):
            captions["Over-smoothing, orders"] = self.smoothing_orders(
                variants, "smoothing_orders", about["images"]
            )
        return captions

    def smoothing_depths(
        self, rows: pd.DataFrame, measure: Measure, name: str, about: dict[str, Any]
    ) -> str:
        """Figure 2 of over-smoothing: a measure along the layers, a panel a depth. Returns the caption.

        Args:
            rows: of models trained from scratch, and of random initialisations, if there are some.
            measure: which.
            name: of the files.
            about: smoothing.json.
        """
        trained, untrained = (rows[rows["training"] == kind] for kind in (SCRATCH, UNTRAINED))
        depths = sorted(trained["num_layers"].unique())
        figure, axes = self._figure(0.22 + 0.56 * len(depths), nrows=len(depths), sharey=True)
        for axis, depth in zip(axes[:, 0], depths, strict=True):
            here = trained[trained["num_layers"] == depth]
            for i, (losses, (title, colour, marker)) in enumerate(LOSSES.items()):
                self._along(
                    axis,
                    here[here["losses"] == losses],
                    measure,
                    i,
                    color=colour,
                    marker=marker,
                    label=title,
                )
            reference = untrained[untrained["num_layers"] == depth]
            self._along(axis, reference, measure, color=GREY, linestyle="--", label="untrained")
            axis.set(title=f"{depth} layers")
            _scales(axis, rows, measure, depth)
        axes[-1, 0].set(xlabel=EXECUTED)
        handles = handles_of(*axes[:, 0])
        legend_above(
            figure,
            {
                name: handles[name]
                for name in [*(title for title, *_ in LOSSES.values()), "untrained"]
                if name in handles
            },
        )
        self._save(figure, name)
        reference = (
            f" Dashed: random initialisation (n = {untrained['seed'].nunique()})."
            if len(untrained)
            else ""
        )
        return (
            f"Over-smoothing, Figure 2{'a' if measure is COSINE else 'b'}: {measure.caption}, of models trained from scratch with and "
            f"without losses against it (n = {trained['seed'].nunique()} seeds), on {about['images']} training images of "
            f"{_names(trained)}; {trained_how(about)}. Lines: mean over "
            f"the seeds; bars: standard deviation over the seeds.{reference} Published: 24-layer DeiT-Base on 10,000 training images of "
            f"ImageNet, as a drawing, without numbers."
        )

    def _along(
        self, axis: Axes, rows: pd.DataFrame, measure: Measure, place: int = 0, **style: Any
    ) -> None:
        """A line over the layers, if there are rows. Markers and bars at about five layers, by `place` others: lines lie close."""
        line = over_layers(rows, measure)
        if line.empty:
            return
        step = max(round(len(line) / 5), 1)
        some = (place % step, step)
        axis.errorbar(
            line.index,
            line["mean"],
            line["std"],
            errorevery=some,
            markevery=some,
            linewidth=1,
            elinewidth=0.7,
            markersize=3,
            **style,
        )

    def smoothing_orders(self, rows: pd.DataFrame, name: str, images: int) -> str:
        """Both measures of refined variants along sequential and arbitrary orders, and their accuracy. Returns the caption.

        Args:
            rows: of the variants alone.
            name: of the files.
            images: that the measures are means over.
        """
        variants, looks = list(dict.fromkeys(rows["training"])), self._looks(rows)
        measures = [
            measure for measure in (COSINE, ATTENTION) if rows[measure.column].notna().any()
        ]
        heights = [*(0.52 for _ in measures), 0.12 + 0.06 * len(variants)]
        figure, axes = self._figure(0.3 + sum(heights), nrows=len(heights), height_ratios=heights)
        for axis, measure in zip(axes[:-1, 0], measures, strict=True):
            for (variant, order), own in rows.groupby(["training", "order"], sort=False):
                look = looks[variant]
                self._along(
                    axis,
                    own,
                    measure,
                    variants.index(variant),
                    **look,
                    linestyle=LINES[order],
                    markerfacecolor=_filled(order, look["color"]),
                )
            _scales(axis, rows, measure, rows["num_layers"].max())
        axes[len(measures) - 1, 0].set(xlabel=EXECUTED)
        self._accuracies(axes[-1, 0], rows, looks)
        blank: Axes = axes[-1, 0]
        handles = {
            label(variant): blank.plot([], [], **looks[variant], markersize=3)[0]
            for variant in variants
        }
        for order in [order for order in ORDERS if order in set(rows["order"])]:
            handles[order] = blank.plot(
                [],
                [],
                color=GREY,
                linestyle=LINES[order],
                marker="o",
                markersize=3,
                markerfacecolor=_filled(order, GREY),
            )[0]
        legend_above(figure, handles)
        self._save(figure, name)
        count = rows["seed"].nunique()
        return (
            f"Refined variants in the original order and in arbitrary ones (a random order for every image), on {_names(rows)}: "
            f"{'; '.join(measure.caption for measure in measures)}, on {images} training images; below, accuracy on the validation "
            f"images (that of Table 1). Mean "
            f"over {count} seed{'s' if count > 1 else ''}; bars: standard deviation over the seeds. Not in the source, which "
            f"keeps the order of the layers."
        )

    def _looks(self, rows: pd.DataFrame) -> dict[str, dict[str, Any]]:
        """Colour and marker of every variant: those of the other figures, unless they leave one out or give two the same."""
        variants = list(dict.fromkeys(rows["training"]))
        known = {self.colours.get(variant) for variant in variants} - {None}
        if len(known) == len(variants):
            return {
                variant: {"color": self.colours[variant], "marker": self.markers[variant]}
                for variant in variants
            }
        places = enumerate(variants)
        return {
            variant: {"color": OKABE_ITO[i % len(OKABE_ITO)], "marker": MARKERS[i % len(MARKERS)]}
            for i, variant in places
        }

    def _accuracies(self, axis: Axes, rows: pd.DataFrame, looks: dict[str, dict[str, Any]]) -> None:
        """A line of the panel a variant: its accuracy in both orders."""
        last = (
            rows[rows["layer"] == rows["num_layers"]]
            .groupby(["training", "order"])["accuracy"]
            .agg(["mean", "std"])
            .fillna({"std": 0})
        )
        for (variant, order), value in (100 * last).iterrows():
            look, inside = looks[variant], _filled(order, looks[variant]["color"])
            axis.errorbar(
                [value["mean"]],
                [list(looks).index(variant)],
                xerr=[value["std"]],
                **look,
                markerfacecolor=inside,
                markersize=4,
                capsize=2,
                linestyle="none",
            )
        axis.set(
            xlabel="validation accuracy (%)",
            xlim=(0, 100),
            yticks=np.arange(len(looks)),
            yticklabels=[label(v) for v in looks],
        )
        axis.set(ylim=(len(looks) - 0.5, -0.5))  # the first on top
        axis.grid(axis="x", linewidth=0.4, alpha=0.5)


def _filled(order: str, colour: str) -> str:
    """The inside of a marker: hollow in arbitrary order."""
    return colour if order == "sequential" else "white"


def _scales(axis: Axes, rows: pd.DataFrame, measure: Measure, depth: int) -> None:
    """Layers from 0 to the depth; the measure from 0 or its least, similarity to 1 unless all are low."""
    bottom, top = min(0, 1.05 * rows[measure.column].min()), 1.08 * rows[measure.column].max()
    if measure is COSINE:
        top = 1.02 if top > SIMILAR else top
    axis.set(ylabel=measure.name, ylim=(bottom, top), xlim=(-0.03 * depth, 1.03 * depth))
    axis.locator_params(axis="x", integer=True, nbins=7, steps=[1, 2, 3, 4, 6, 10])
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)


def _names(rows: pd.DataFrame) -> str:
    """Data set and model, for captions."""
    return f"{', '.join(dict.fromkeys(rows['dataset']))} (model {', '.join(dict.fromkeys(rows['model']))})"


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    figures = SmoothingFigures(
        results.folder / "figures", params.resolve(PaperFigures), list(params.all_variants)
    )
    return figures.draw_smoothing(results.table("smoothing"), results.read("smoothing"))
