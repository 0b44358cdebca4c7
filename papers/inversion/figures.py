"""The figures of inversion: found inputs by depth, ablation and transplant, distance curves, class images, filters, orders."""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lsvit.routes import ORDERS
from papers.inversion.compute.ratios import EMBEDDING, INPUT, PIXELS, TOKENS, with_ratios
from papers.inversion.gallery import INVERTED, Arrays, Gallery, neighbours, picture_of
from papers.inversion.section import NO_EDIT, TRAINED, Inversion
from papers.inversion.tables import FIRST, LAYER, MODEL, OPTIMISERS, name_point
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.config.variant import UNTRAINED
from pipeline.report.charts import GRID
from pipeline.report.evaluations import label
from pipeline.report.figures import (
    GREY,
    OKABE_ITO,
    Figures,
    colours_by_depth,
    grid_of_pictures,
    legend_above,
)
from pipeline.report.results import Results

MOST_CLASSES, MOST_FILTERS = 10, 64  # on a page
BELOW = (
    "Below each: its pixel correlation with the original; distance of the outputs | of the inputs, relative to those of a slightly "
    "shifted image (the yardstick). One of the images; means over all are in inversion_table.md."
)
SMALL = 5.5  # points, of text beside pictures
TILE, TEXT = 0.52, 0.22  # inches, of a picture and of what stands below it


class InversionFigures(Figures):
    """Draws and saves the figures of inversion, beside those of :class:`Figures`.

    Weights of the families `scratch` began as the untrained ones.
    """

    def __init__(
        self,
        folder: Path,
        size: PaperFigures,
        variants: list[str],
        gallery: Gallery,
        about: dict[str, Any],
        scratch: Container[str],
    ) -> None:
        super().__init__(folder, size, variants)
        self.gallery, self.about, self.scratch, self.main = (
            gallery,
            about,
            scratch,
            next(iter(about["optimisers"])),
        )
        first = self.gallery.index.iloc[0]
        self.families = list(about["families"])
        self.names = f"{first['dataset']} (model {first['model']})"

    def draw_inversion(self, rows: pd.DataFrame, classes: pd.DataFrame) -> dict[str, str]:
        """Every figure that inversion.csv and class_images.csv have rows for. Returns captions by title."""
        captions = {"Inversion, depth": self.depths(rows), "Inversion, curves": self.curves()}
        edits = set(rows["edit"])
        if any(edit.startswith("without") for edit in edits):
            captions["Inversion, ablation"] = self.ablation(rows)
        if any(edit.startswith("with ") for edit in edits):
            captions["Inversion, transplant"] = self.transplants(rows)
        if len(classes):
            captions["Class images"] = self.class_images(classes)
        captions["Patch-embedding filters"] = self.filters()
        variants = rows[rows["family"] == rows["model"]]
        if len(variants[variants["weights"] != UNTRAINED]):
            captions["Inversion, orders"] = self.orders(variants)
        return captions

    def _pictures(
        self,
        name: str,
        table: Sequence[tuple[str, Sequence[tuple[np.ndarray | None, str]]]],
        heads: Sequence[str],
    ) -> None:
        """A page of pictures with a number below each. `table`: (title of the row, its pictures (C, H, W) and their texts)."""
        figure, axes = self._figure(1, nrows=len(table), ncols=len(heads))
        longest = max(len(line) for title, _ in table for line in title.split("\n"))
        height = (TILE + TEXT) * len(table) + 0.25
        figure.set_size_inches(TILE * len(heads) + 0.05 * longest, height)
        layout: Any = figure.get_layout_engine()
        layout.set(
            w_pad=0.01,
            h_pad=0.01,
            wspace=0.02,
            hspace=0.02,
            rect=(0, TEXT / height, 1, 1 - TEXT / height),
        )
        for axis in axes.flat:
            axis.set_axis_off()
        for (title, pictures), line in zip(table, axes, strict=True):
            line[0].text(
                -0.12,
                0.5,
                title,
                transform=line[0].transAxes,
                ha="right",
                va="center",
                fontsize=SMALL + 0.5,
            )
            for axis, (picture, text) in zip(line, pictures, strict=False):
                if picture is not None:
                    _show(axis, picture)
                below = axis.text(
                    0.5,
                    -0.04,
                    text,
                    transform=axis.transAxes,
                    ha="center",
                    va="top",
                    fontsize=SMALL,
                )
                below.set_in_layout(False)  # the pictures keep their size
        for axis, head in zip(axes[0], heads, strict=True):
            axis.set_title(head, fontsize=SMALL + 0.5, pad=2)
        figure.dpi = self.size.dpi  # the layout of a text depends on it
        figure.draw_without_rendering()
        self._save(figure, name, **{GRID: grid_of_pictures(axes, heads)})

    def _row(
        self,
        rows: pd.DataFrame,
        keys: dict[str, Any],
        arrays: Arrays,
        image: int,
        points: Sequence[str],
    ) -> list[tuple[Any, str]]:
        """The pictures found for an image, their pixel correlation with it, and both distances relative to the yardstick."""
        own = rows[
            np.logical_and.reduce([rows[key] == keys[key] for key in (*MODEL, "seed")])
            & (rows["image"] == image)
        ]
        numbers, names = with_ratios(own).set_index("point"), list(arrays["points"])
        texts = {
            p: f"{row[PIXELS]:.2f}\n{_short(row[EMBEDDING])} | {_short(row[INPUT])}"
            for p, row in numbers.iterrows()
        }
        return [
            (arrays["found"][names.index(p), image], texts[p]) if p in names else (None, "")
            for p in points
        ]

    def depths(self, rows: pd.DataFrame) -> str:
        """Original and found inputs by depth, and of layers alone, a row a family and weights. Returns the caption."""
        found = [
            self.gallery.find(family=f, edit=NO_EDIT, optimiser=self.main, order="sequential")
            for f in self.families
        ]
        shown = [each for family in found for each in family]
        points = _points(shown)
        table = []
        for keys, arrays in shown:
            pictures = [
                (arrays["originals"][0], "original"),
                *self._row(rows, keys, arrays, 0, points),
            ]
            table.append((f"{keys['family']}\n{keys['weights']}", pictures))
        self._pictures("inversion_depth", table, ["", *(_head(point) for point in points)])
        return (
            f"Inputs found for the states of models as they are: behind the patch embedding, after the first layers, and after one layer "
            f"alone, right behind the embedding. {self._how()} {BELOW} {self._whose(shown)}"
        )

    def ablation(self, rows: pd.DataFrame) -> str:
        """Found inputs with parts taken out of every block, a row a family and edit. Returns the caption."""
        table, shown, edited = [], [], {}
        for family in self.families:
            models = [
                each
                for each in self.gallery.find(
                    family=family, optimiser=self.main, order="sequential"
                )
                if not each[0]["edit"].startswith("with ")
            ]
            if any(keys["edit"] != NO_EDIT for keys, _ in models):
                edited[family] = models
                shown += models
        points = [point for point in _points(shown) if point.startswith(FIRST)]
        for family, models in edited.items():
            for edit in dict.fromkeys(keys["edit"] for keys, _ in models):
                changed = "as it is" if edit == NO_EDIT else edit.replace("+", ",\n")
                title = f"{family}\n{changed}"
                pictures: list[tuple[Any, str]] = [(models[0][1]["originals"][0], "original")]
                for weights in (TRAINED, UNTRAINED):
                    own = [
                        each
                        for each in models
                        if (each[0]["edit"], each[0]["weights"]) == (edit, weights)
                    ]
                    pictures += (
                        self._row(rows, *own[0], 0, points) if own else [(None, "")] * len(points)
                    )
                table.append((title, pictures))
        heads = [
            "",
            *(f"{weights}\n{_head(point)}" for weights in (TRAINED, UNTRAINED) for point in points),
        ]
        self._pictures("inversion_ablation", table, heads)
        return (
            f"Inputs found after the first layers with parts taken out of every block, the other weights kept (of MLP-Mixers attention is "
            f"the mixing of the tokens). {self._how()} {BELOW} {self._whose(shown)}"
        )

    def transplants(self, rows: pd.DataFrame) -> str:
        """Found inputs of untrained models with trained parts, between untrained and trained. Returns the caption."""
        table, shown = [], []
        for family in self.families:
            models = self.gallery.find(family=family, optimiser=self.main, order="sequential")
            plain = {
                keys["weights"]: (keys, arrays)
                for keys, arrays in models
                if keys["edit"] == NO_EDIT
            }
            edited = [each for each in models if each[0]["edit"].startswith("with ")]
            shown += [plain[UNTRAINED], *edited, plain[TRAINED]] if edited else []
        points = [point for point in _points(shown) if not point.startswith(LAYER)]
        images = min(2, len(shown[0][1]["originals"]))
        for keys, arrays in shown:
            pictures: list[tuple[Any, str]] = []
            for image in range(images):
                pictures += [
                    (arrays["originals"][image], "original"),
                    *self._row(rows, keys, arrays, image, points),
                ]
            edit = keys["edit"].removeprefix("with ").replace("+", " +\n")
            title = keys["weights"] if keys["edit"] == NO_EDIT else f"trained\n{edit}"
            table.append((f"{keys['family']}, {title}", pictures))
        self._pictures(
            "inversion_transplant", table, ["", *(_head(point) for point in points)] * images
        )
        return (
            f"Inputs found for an untrained model into which trained parts were put: patch embedding, position embedding, the first "
            f"block's first LayerNorm; first and last row: nothing, everything trained. {self._how()} {BELOW} {self._whose(shown)}"
        )

    def curves(self) -> str:
        """Both distances over the iterations, a column a model and optimiser. Returns the caption."""
        shown = [
            each
            for name in self.about["optimisers"]
            for weights in (TRAINED, UNTRAINED)
            for each in self.gallery.find(
                family=self.families[0],
                weights=weights,
                edit=NO_EDIT,
                optimiser=name,
                order="sequential",
            )
        ]
        figure, axes = self._figure(1, nrows=2, ncols=len(shown), sharey="row", sharex="col")
        figure.set_size_inches(1.55 * len(shown) + 0.6, 3.4)
        handles: dict[str, Any] = {}
        for column, (keys, arrays) in zip(axes.T, shown, strict=True):
            points = [str(p) for p in arrays["points"] if not str(p).startswith(LAYER)]
            for axis, distance in zip(column, ("embedding", "input"), strict=True):
                for point, colour in zip(points, colours_by_depth(len(points)), strict=True):
                    lines = arrays[distance][list(arrays["points"]).index(point)]
                    axis.plot(arrays["steps"], lines.T, color=colour, linewidth=0.4, alpha=0.45)
                    handles[name_point(point)] = axis.plot(
                        arrays["steps"], lines.mean(0), color=colour, linewidth=1.4
                    )[0]
                axis.axhline(1, color=GREY, linewidth=0.8, linestyle="--")
                axis.set(yscale="log")
                axis.grid(axis="y", linewidth=0.4, alpha=0.5)
            column[0].set_title(
                f"{keys['family']}, {keys['weights']}\n{OPTIMISERS.get(keys['optimiser'], keys['optimiser'])}"
            )
            column[1].set(xlabel="iterations")
        axes[0, 0].set(ylabel="embedding distance\n/ yardstick")
        axes[1, 0].set(ylabel="input distance\n/ yardstick")
        legend_above(figure, handles, columns=5)
        self._save(figure, "inversion_curves")
        return (
            f"Distance of the found input's output from the original's (above) and of the found input from the original (below) over the "
            f"iterations, relative to that of a slightly shifted image (dashed: sigma {self.about['sigma']:g}, mean of "
            f"{self.about['shifts']}). Thin: the {len(shown[0][1]['originals'])} images; thick: their mean. Of several learning rates of "
            f"gradient descent the one that ends nearest; a cosine schedule ends flat whether the descent has arrived or not. "
            f"{self._whose(shown)}"
        )

    def class_images(self, classes: pd.DataFrame) -> str:
        """The page of class-maximising inputs, a row a model. Returns the caption."""
        shown, options = self.gallery.find("class_images"), self.about["class_images"]
        names = [str(name) for name in shown[0][1]["classes"]][:MOST_CLASSES]
        table = []
        for keys, arrays in shown:
            own = classes[
                (classes["family"] == keys["family"])
                & (classes["weights"] == keys["weights"])
                & (classes["seed"] == keys["seed"])
            ]
            judged = own["judge_probability"].notna().all()
            texts = [
                f"{value:.2f}" if judged else f"({value:.2f})"
                for value in own["judge_probability" if judged else "probability"]
            ]
            pictures = [
                _stretched(picture.astype(np.float32)) for picture in arrays["images"][: len(names)]
            ]
            table.append(
                (
                    f"{keys['family']}\n{label(keys['weights'])}",
                    list(zip(pictures, texts, strict=False)),
                )
            )
        self._pictures(
            "class_images", table, [name.replace(" ", "\n").replace("/", "/\n") for name in names]
        )
        return (
            f"Class-maximising inputs, {options['steps']} steps from noise, all classes at once (the first {MOST_CLASSES} are shown); a "
            f"3x3 blur annealed from sigma {options['blur']:g}, random crops after {options['jitter_after']} steps. Each from its darkest "
            f"to its lightest pixel. Below each: the probability that another training of the same model gives the class; in brackets, "
            f"where there is no other, that the model itself gives. {self._whose(shown)}"
        )

    def filters(self) -> str:
        """Patch-embedding filters as images: untrained, trained, what training changed; a column a family. Returns the caption."""
        found = {
            family: self.gallery.find(family=family, edit=NO_EDIT, optimiser=self.main)
            for family in self.gallery.families
        }
        models = [
            (family, {keys["weights"]: arrays["filters"] for keys, arrays in own})
            for family, own in found.items()
        ]
        panels = [(family, own) for family, own in models if UNTRAINED in own and len(own) > 1]
        figure, axes = self._figure(1, nrows=3, ncols=len(panels))
        figure.set_size_inches(1.7 * len(panels), 6)
        for axis in axes.flat:
            axis.set_axis_off()
        for column, (family, own) in zip(axes.T, panels, strict=True):
            name = next(name for name in own if name != UNTRAINED)
            shown = {label(each): own[each] for each in (UNTRAINED, name)}
            shown |= {"change": own[name] - own[UNTRAINED]} if family in self.scratch else {}
            for axis, (title, filters) in zip(column, shown.items(), strict=False):
                _show(axis, filter_grid(filters[:MOST_FILTERS]))
                axis.set_title(f"{family}, {title}: {neighbours(filters):.2f}")
        self._save(figure, "patch_filters")
        return (
            f"Filters of the patch embedding (the first {MOST_FILTERS}), above untrained, then trained, and what training changed, where "
            f"it began with them (initial noise covers it); each from its least to its greatest weight; models that read neither one nor "
            f"three channels: a tile a channel. Numbers: correlation of weights one pixel apart, over all filters (0: noise). "
            f"{self._whose([each for own in found.values() for each in own])}"
        )

    def orders(self, rows: pd.DataFrame) -> str:
        """How much of what went in layers keep, of variants in both orders: along the layers, and layers alone. Returns the caption."""
        figure, axes = self._figure(0.62, ncols=2, sharey=True, width_ratios=(3, 2))
        figure.set_size_inches(1.6 * self.size.column_width, 0.85 * self.size.column_width)
        shown = with_ratios(rows[(rows["optimiser"] == self.main) & (rows["edit"] == NO_EDIT)])
        handles: dict[str, Any] = {}
        for i, (weights, order) in enumerate(
            dict.fromkeys(zip(shown["weights"], shown["order"], strict=True))
        ):
            own = shown[(shown["weights"] == weights) & (shown["order"] == order)]
            colour = (
                GREY
                if weights == UNTRAINED
                else self.colours.get(weights, OKABE_ITO[i % len(OKABE_ITO)])
            )
            style = {
                "color": colour,
                "marker": self.markers.get(weights, "o"),
                "linestyle": "-" if order == ORDERS[0] else "--",
                "markerfacecolor": colour if order == ORDERS[0] else "white",
                "capsize": 2,
                "markersize": 3,
            }
            handles[f"{label(weights)}, {order}"] = _along(
                axes[0, 0], own[~own["point"].str.startswith(LAYER)], "depth", style
            )
            alone = own[own["point"].str.startswith(LAYER)]
            if len(alone):
                _along(
                    axes[0, 1],
                    alone.assign(layer=alone["point"].str.split().str[1].astype(int) + 1),
                    "layer",
                    style | {"linestyle": "none"},
                )
        ticks = (
            shown["depth"].unique(),
            [
                int(point.split()[1]) + 1
                for point in shown["point"].unique()
                if point.startswith(LAYER)
            ],
        )
        for axis, text, places in zip(
            axes[0], ("layers executed", "layer, alone"), ticks, strict=True
        ):
            axis.set(xlabel=text, yscale="log", xticks=places)
            axis.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
            axis.grid(axis="y", linewidth=0.4, alpha=0.5)
        axes[0, 0].set(ylabel="token distance / yardstick")
        legend_above(figure, handles)
        self._save(figure, "inversion_orders")
        count = shown["seed"].nunique()
        return (
            f"What layers keep of their input: distance of the tokens of the found input from those of the original, relative to a "
            f"slightly shifted image's (dotted), after the first layers of the original order and of arbitrary ones (a random order "
            f"for each of {shown['image'].nunique()} images), and after one layer alone. Lower keeps more, as far as the descent gets. "
            f"Geometric mean over {count} seed{'s' * (count > 1)}; bars: standard deviation of the logarithm over the seeds. "
            f"{self._how()} {self.names}."
        )

    def _how(self) -> str:
        descent = self.about["optimisers"][self.main]
        return f"{OPTIMISERS.get(self.main, self.main)}, {descent['steps']} steps from noise."

    def _whose(self, shown: Sequence[tuple[dict[str, Any], Arrays]]) -> str:
        """Seed and training of the models shown, for captions."""
        here = [
            name
            for name in self.about["trained_here"]
            if any(keys["family"] == name for keys, _ in shown)
        ]
        images = (
            f"{self.about['training_images']} images"
            if self.about["training_images"]
            else "all training images"
        )
        epochs = f"{self.about['epochs']} epoch{'s' * (self.about['epochs'] > 1)} of {images}"
        trained = f"; {', '.join(here)}: trained by the stage, {epochs}" if here else ""
        return f"Seed {shown[0][0]['seed']}; {self.names}{trained}."


def _along(axis: Axes, rows: pd.DataFrame, column: str, style: dict[str, Any]) -> Any:
    """A line with bars, mean and standard deviation over the seeds of the logarithm."""
    seeds = (
        np.log(rows.groupby([column, "seed"])[TOKENS].mean())
        .groupby(column)
        .agg(["mean", "std"])
        .fillna({"std": 0})
    )
    middle, low, high = (np.exp(seeds["mean"] + sign * seeds["std"]) for sign in (0, -1, 1))
    return axis.errorbar(seeds.index, middle, (middle - low, high - middle), linewidth=1, **style)


def _points(shown: Sequence[tuple[dict[str, Any], Arrays]]) -> list[str]:
    """The points that any of the models has, by the layers executed, layers alone last."""
    found = dict.fromkeys(str(point) for _, arrays in shown for point in arrays["points"])
    return sorted(
        found,
        key=lambda point: (point.startswith(LAYER), int(point.split()[1]) if " " in point else -1),
    )


def _short(ratio: float) -> str:
    """A ratio in few characters: "<.01", ".12", "1.2", "12"."""
    if ratio < 0.01:
        return "<.01"
    return (
        f"{ratio:.2f}".removeprefix("0")
        if ratio < 0.995
        else f"{ratio:.1f}"
        if ratio < 9.95
        else f"{ratio:.0f}"
    )


def _head(point: str) -> str:
    return (
        name_point(point)
        .replace("patch ", "patch\n")
        .replace(" layer", "\nlayer")
        .replace(" alone", "\nalone")
    )


def _show(axis: Axes, picture: np.ndarray) -> None:
    """Draw (C, H, W) of values in [0, 1]."""
    axis.imshow(picture_of(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def _stretched(values: np.ndarray) -> np.ndarray:
    """From the least value, 0, to the greatest, 1."""
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def filter_grid(filters: np.ndarray) -> np.ndarray:
    """Filters (D, C, h, w) as one image, each normalised to [0, 1] (representation, "ViT input processing convolutions").

    Returns:
        (3, H, W) of filters of three channels, else (1, H, W), a tile a channel, with white lines between tiles.
    """
    tiles = filters if filters.shape[1] == 3 else filters.reshape(-1, 1, *filters.shape[2:])
    across = int(np.ceil(np.sqrt(len(tiles))))
    _, channels, height, width = tiles.shape
    grid = np.ones(
        (channels, (height + 1) * -(-len(tiles) // across) + 1, (width + 1) * across + 1),
        np.float32,
    )
    for i, tile in enumerate(tiles):
        top, left = (i // across) * (height + 1) + 1, (i % across) * (width + 1) + 1
        grid[:, top : top + height, left : left + width] = _stretched(tile)
    return grid


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    size, gallery, about = (
        params.resolve(PaperFigures),
        Gallery(INVERTED),
        results.read("inversion"),
    )
    plan = params.resolve(Inversion)
    scratch = [name for name, family in plan.families.items() if family.timm]
    scratch += [
        name for name in (params.model, *plan.families) if params.model_preset.weights == "scratch"
    ]
    figures = InversionFigures(
        results.folder / "figures", size, list(params.all_variants), gallery, about, scratch
    )
    return figures.draw_inversion(results.table("inversion"), results.table("class_images"))
