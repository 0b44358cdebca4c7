"""The figures of inversion: found inputs, distance curves, class images, filters, orders."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from papers.inversion.compute.ratios import (
    EMBEDDING,
    INPUT,
    PIXELS,
    TOKENS,
    neighbours,
    with_ratios,
)
from papers.inversion.gallery import INVERTED, Entry, Gallery
from papers.inversion.section import KEYS, NO_EDIT, TRAINED
from papers.inversion.tables import FIRST, LAYER, PLAIN, name_edit, name_optimiser, name_point
from pipeline.config.params import Params
from pipeline.config.variant import UNTRAINED
from pipeline.report.captions import counted, name_models, read_captions
from pipeline.report.charts import GRID
from pipeline.report.figures import (
    GREY,
    Figures,
    colours_by_depth,
    draw_chance,
    draw_means,
    grid_of_pictures,
    handles_of,
    in_order,
    over_seeds,
)
from pipeline.report.results import Results

FROM_SCRATCH = (TRAINED, UNTRAINED)
MOST_CLASSES = 10  # on a page
MOST_FILTERS = 64
SMALL, LARGE = 5.5, 6  # points, of text below pictures and beside them
TILE, TEXT = 0.52, 0.22  # inches, of a picture and of what stands below it
Picture = tuple[np.ndarray | None, str]  # (C, H, W), or none; the text below
BLANK: Picture = (None, "")
CAPTIONS = read_captions(__file__)


class InversionFigures:
    """Draws the figures of inversion.

    Args:
        figures: saves them.
        gallery: the arrays.
        about: inversion.json.
    """

    def __init__(self, figures: Figures, gallery: Gallery, about: dict[str, Any]) -> None:
        self.figures = figures
        self.gallery = gallery
        self.about = about
        self.main = next(iter(about["optimisers"]))
        self.names = name_models(gallery.index)
        self.models: list[Entry] = []  # of all families, of each the edited ones last
        for family in about["families"]:
            self.models += gallery.find(family=family, optimiser=self.main, order="sequential")

    def draw(self, rows: pd.DataFrame, classes: pd.DataFrame) -> dict[str, str]:
        """Draw every figure that inversion.csv and class_images.csv have rows for.

        Returns:
            Captions by title.
        """
        captions = {"Inversion, depth": self.depths(rows), "Inversion, curves": self.curves()}
        if (rows["edit"] != NO_EDIT).any():
            captions["Inversion, ablation"] = self.edits(rows)
        if len(classes):
            captions["Class images"] = self.class_images(classes)
        captions["Patch-embedding filters"] = self.filters()
        variants = rows[rows["family"] == rows["model"]]
        if (variants["weights"] != UNTRAINED).any():
            captions["Inversion, orders"] = self.orders(variants)
        return captions

    def caption(self, name: str, entries: Sequence[Entry], **fields: Any) -> str:
        """Fill a caption's template.

        Args:
            name: of captions.yaml.
            entries: the models shown, of which it gives seed, data set and training.
            fields: of this template alone.
        """
        about = self.about
        whose = f"Seed {entries[0].seed}; {self.names}"
        shown = {entry.family for entry in entries}
        trained = [family for family in about["trained_here"] if family in shown]
        if trained:
            images = about["training_images"]
            images = f"{images} images" if images else "all training images"
            epochs = counted(about["epochs"], "epoch")
            whose += f"; {', '.join(trained)}: trained by the stage, {epochs} of {images}"
        steps = about["optimisers"][self.main]["steps"]
        return CAPTIONS[name].format(
            **about | fields,
            how=f"{name_optimiser(self.main)}, {steps} steps from noise.",
            below=CAPTIONS["below"],
            whose=f"{whose}.",
            names=self.names,
        )

    def draw_pictures(
        self, name: str, table: Sequence[tuple[str, Sequence[Picture]]], heads: Sequence[str]
    ) -> None:
        """Draw a page of pictures with a text below each.

        Args:
            name: of the files.
            table: (title, pictures) of each row.
            heads: of the columns.
        """
        figure, axes = self.figures.panels(1, nrows=len(table), ncols=len(heads))
        longest = max(len(line) for title, _ in table for line in title.split("\n"))
        height = (TILE + TEXT) * len(table) + 0.25
        figure.set_size_inches(TILE * len(heads) + 0.05 * longest, height)
        rect = (0, TEXT / height, 1, 1 - TEXT / height)
        figure.set_layout_engine(
            "constrained", w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02, rect=rect
        )
        for (title, pictures), row in zip(table, axes, strict=True):
            first = row[0]
            place = first.transAxes
            first.text(-0.12, 0.5, title, transform=place, ha="right", va="center", fontsize=LARGE)
            for axis, (picture, text) in zip(row, pictures, strict=False):
                if picture is not None:
                    show(axis, picture)
                place = axis.transAxes
                below = axis.text(
                    0.5, -0.04, text, transform=place, ha="center", va="top", fontsize=SMALL
                )
                below.set_in_layout(False)  # the pictures keep their size
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, head in zip(axes[0], heads, strict=True):
            axis.set_title(head, fontsize=LARGE, pad=2)
        figure.dpi = self.figures.size.dpi  # the layout of a text depends on it
        figure.draw_without_rendering()
        self.figures.save(figure, name, **{GRID: grid_of_pictures(axes, heads)})

    def draw_found(
        self,
        name: str,
        rows: pd.DataFrame,
        table: Sequence[tuple[str, Sequence[Entry | None]]],
        points: Sequence[str],
        weights: Sequence[str] = ("",),
        images: int = 1,
    ) -> None:
        """Draw a page of images and the inputs found for them.

        Below each stand its pixel correlation and both distances relative to the yardstick.

        Args:
            name: of the files.
            rows: of inversion.csv.
            table: (title, models side by side) of each row.
            points: of each model, blank where it has no such point or is missing.
            weights: heads of the models side by side.
            images: how many, below each other.
        """
        numbers = with_ratios(rows).set_index([*KEYS, "image", "point"])[[PIXELS, EMBEDDING, INPUT]]
        page = []
        for (title, models), image in itertools.product(table, range(images)):
            first = next(model for model in models if model)
            pictures: list[Picture] = [(first.arrays["originals"][image], "original")]
            for model, point in itertools.product(models, points):
                picture = BLANK
                if model and point in model.arrays["points"]:
                    pixels, outputs, inputs = numbers.loc[(*model[:-1], image, point)]
                    text = f"{pixels:.2f}\n{shorten(outputs)} | {shorten(inputs)}"
                    place = model.arrays["points"].tolist().index(point)
                    picture = model.arrays["found"][place, image], text
                pictures.append(picture)
            page.append((title, pictures))
        heads = [f"{head}\n{head_of(point)}".strip() for head in weights for point in points]
        self.draw_pictures(name, page, ["", *heads])

    def depths(self, rows: pd.DataFrame) -> str:
        """Draw originals and found inputs by depth, two rows a model. Returns the caption."""
        models = [
            entry
            for entry in self.models
            if entry.edit == NO_EDIT and not entry.family.endswith(PLAIN)
        ]
        table = [(f"{entry.family}\n{entry.weights}", [entry]) for entry in models]
        images = min(2, len(models[0].arrays["originals"]))
        self.draw_found("inversion_depth", rows, table, list_points(models), images=images)
        return self.caption("depth", models)

    def edits(self, rows: pd.DataFrame) -> str:
        """Draw found inputs of edited models, a row an edit. Returns the caption."""
        edited = {entry.family for entry in self.models if entry.edit != NO_EDIT}
        models = [entry for entry in self.models if entry.family in edited]
        pairs: dict[str, list[Entry | None]] = {}  # trained and untrained, by title
        for entry in models:
            change = name_edit(entry.edit) or "as it is"
            change = change.replace("trained ", "trained\n").replace(" and ", " and\n")
            pair = pairs.setdefault(f"{entry.family}\n{change}", [None, None])
            if entry.weights in FROM_SCRATCH:
                pair[FROM_SCRATCH.index(entry.weights)] = entry
        points = [point for point in list_points(models) if point.startswith(FIRST)]
        table = list(pairs.items())
        self.draw_found("inversion_ablation", rows, table, points, FROM_SCRATCH)
        return self.caption("ablation", models)

    def curves(self) -> str:
        """Draw both distances over the iterations, a column a model. Returns the caption."""
        keys = {"family": self.about["families"][0], "edit": NO_EDIT, "order": "sequential"}
        models = []
        for optimiser, weights in itertools.product(self.about["optimisers"], FROM_SCRATCH):
            models += self.gallery.find(optimiser=optimiser, weights=weights, **keys)
        figure, axes = self.figures.panels(
            1, nrows=2, ncols=len(models), sharey="row", sharex="col"
        )
        figure.set_size_inches(1.55 * len(models) + 0.6, 3.4)
        handles: dict[str, Any] = {}
        for column, model in zip(axes.T, models, strict=True):
            arrays = model.arrays
            points = [point for point in arrays["points"].tolist() if not point.startswith(LAYER)]
            colours = colours_by_depth(len(points))
            for axis, distance in zip(column, ("embedding", "input"), strict=True):
                # Layers alone come last; lines are (images, T).
                for point, colour, lines in zip(points, colours, arrays[distance], strict=False):
                    axis.plot(arrays["steps"], lines.T, color=colour, linewidth=0.4, alpha=0.45)
                    mean = axis.plot(arrays["steps"], lines.mean(0), color=colour, linewidth=1.4)
                    handles[name_point(point)] = mean[0]
                draw_chance(axis, 1, "yardstick")
                axis.set(yscale="log")
            column[0].set_title(
                f"{model.family}, {model.weights}\n{name_optimiser(model.optimiser)}"
            )
            column[1].set(xlabel="iterations")
        axes[0, 0].set(ylabel="embedding distance\n/ yardstick")
        axes[1, 0].set(ylabel="input distance\n/ yardstick")
        self.figures.finish(figure, "inversion_curves", handles, columns=5)
        return self.caption("curves", models, images=len(models[0].arrays["originals"]))

    def class_images(self, classes: pd.DataFrame) -> str:
        """Draw class-maximising inputs, a row a model. Returns the caption."""
        models = self.gallery.find("class_images")
        table = []
        for model in models:
            keys = [model.family, model.weights, model.seed]
            own = classes[(classes[["family", "weights", "seed"]] == keys).all(axis=1)]
            texts = own["judge_probability"].map("{:.2f}".format)
            if own["judge_probability"].isna().any():
                texts = own["probability"].map("({:.2f})".format)
            pictures = [stretch(image.astype(np.float32)) for image in model.arrays["images"]]
            shown = list(zip(pictures, texts, strict=True))[:MOST_CLASSES]
            table.append((f"{model.family}\n{self.figures.label(model.weights)}", shown))
        names = models[0].arrays["classes"][:MOST_CLASSES].tolist()
        heads = [name.replace(" ", "\n").replace("/", "/\n").replace("$", r"\$") for name in names]
        self.draw_pictures("class_images", table, heads)
        return self.caption("class images", models, classes=MOST_CLASSES)

    def filters(self) -> str:
        """Draw patch-embedding filters, a column a family. Returns the caption."""
        models = self.gallery.find(edit=NO_EDIT, optimiser=self.main)
        families: dict[str, dict[str, np.ndarray]] = {}
        for model in models:
            families.setdefault(model.family, {})[model.weights] = model.arrays["filters"]
        # Those that training can be seen in
        families = {family: filters for family, filters in families.items() if len(filters) > 1}
        figure, axes = self.figures.panels(1, nrows=3, ncols=len(families))
        figure.set_size_inches(1.7 * len(families), 6)
        for axis in axes.flat:
            axis.set_axis_off()
        for column, (family, filters) in zip(axes.T, families.items(), strict=True):
            before = filters.pop(UNTRAINED)
            weights, after = next(iter(filters.items()))
            shown = {UNTRAINED: before, weights: after}
            if family in self.about["scratch"]:
                shown["change"] = after - before
            for axis, (name, values) in zip(column, shown.items(), strict=False):
                show(axis, filter_grid(values[:MOST_FILTERS]))
                title = f"{family}, {self.figures.label(name)}"
                axis.set_title(f"{title}: {neighbours(values).mean():.2f}")
        self.figures.save(figure, "patch_filters")
        return self.caption("filters", models, filters=MOST_FILTERS)

    def orders(self, rows: pd.DataFrame) -> str:
        """Draw how much of their input the layers of variants keep, in both orders.

        Returns:
            The caption.
        """
        figure, axes = self.figures.panels(0.85, ncols=2, sharey=True, width_ratios=(3, 2))
        figure.set_figwidth(1.6 * self.figures.size.column_width)
        rows = with_ratios(rows[(rows["optimiser"] == self.main) & (rows["edit"] == NO_EDIT)])
        layers = rows["point"].str.extract(rf"{LAYER}(\d+)", expand=False).astype(float) + 1
        rows = rows.assign(is_alone=layers.notna(), place=layers.fillna(rows["depth"]))
        keys = ["weights", "order", "is_alone"]
        tokens = rows.groupby([*keys, "place", "seed"], sort=False)[TOKENS].mean()
        lines = np.log10(tokens).reset_index().groupby(keys, sort=False)
        for (weights, order, is_alone), line in lines:
            untrained = {"color": GREY, "marker": "o", "label": self.figures.label(weights)}
            look = in_order(self.figures.variant_looks.get(weights, untrained), order)
            if is_alone:
                look["linestyle"] = "none"
            means = over_seeds(line, "place", TOKENS, 1)
            draw_means(axes[0, int(is_alone)], means, capsize=2, markersize=3, linewidth=1, **look)
        for axis in axes[0]:
            axis.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        ylabel = "log10 of token distance\n/ yardstick"
        axes[0, 0].set(xlabel="layers executed", xticks=rows["depth"].unique(), ylabel=ylabel)
        axes[0, 1].set(xlabel="layer, alone", xticks=layers.dropna().unique())
        self.figures.finish(figure, "inversion_orders", handles_of(axes[0, 0]))
        seeds = counted(rows["seed"].nunique(), "seed")
        return self.caption("orders", self.models, images=rows["image"].nunique(), seeds=seeds)


def list_points(entries: Collection[Entry]) -> list[str]:
    """The points that any of the models has, by the layers executed, layers alone last."""
    points = {str(point) for entry in entries for point in entry.arrays["points"]}

    def place(point: str) -> tuple[bool, int]:
        _, _, number = point.partition(" ")
        return point.startswith(LAYER), int(number or -1)

    return sorted(points, key=place)


def shorten(ratio: float) -> str:
    """A ratio in few characters: "<.01", ".12", "1.2", "12"."""
    if ratio < 0.01:
        return "<.01"
    if ratio < 0.995:
        return f"{ratio:.2f}".removeprefix("0")
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def head_of(point: str) -> str:
    """The head of a point's column, in two lines."""
    text = name_point(point).replace("patch ", "patch\n")
    return text.replace(" layer", "\nlayer").replace(" alone", "\nalone")


def show(axis: Axes, values: np.ndarray) -> None:
    """Draw (C, H, W), clipped to [0, 1]: three channels in colour, else the grey of their mean."""
    clipped = np.clip(values.astype(np.float32), 0, 1)
    picture = clipped.transpose(1, 2, 0) if len(clipped) == 3 else clipped.mean(0)
    axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def stretch(values: np.ndarray) -> np.ndarray:
    """Scale values so that they go from 0 to 1."""
    return (values - values.min()) / max(float(np.ptp(values)), 1e-12)


def filter_grid(filters: np.ndarray) -> np.ndarray:
    """Filters (D, C, h, w) as one image, each normalised to [0, 1], white lines between them.

    Source: representation, "ViT input processing convolutions".

    Returns:
        (3, H, W) of filters of three channels, else (1, H, W), a tile a channel.
    """
    tiles = filters if filters.shape[1] == 3 else filters.reshape(-1, 1, *filters.shape[2:])
    count, channels, height, width = tiles.shape
    across = int(np.ceil(np.sqrt(count)))
    down = int(np.ceil(count / across))
    grid = np.ones((channels, down * (height + 1) + 1, across * (width + 1) + 1))
    for place, tile in enumerate(tiles):
        top = 1 + place // across * (height + 1)
        left = 1 + place % across * (width + 1)
        grid[:, top : top + height, left : left + width] = stretch(tile)
    return grid


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    about = results.read("inversion")
    figures = InversionFigures(Figures.of(results, params), Gallery(INVERTED), about)
    return figures.draw(results.table("inversion"), results.table("class_images"))
