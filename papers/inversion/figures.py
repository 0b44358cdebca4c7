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
from papers.inversion.gallery import INVERTED, Entry, Gallery, picture_of
from papers.inversion.section import KEYS, NO_EDIT, TRAINED
from papers.inversion.tables import (
    FIRST,
    LAYER,
    OPTIMISERS,
    PLAIN,
    count_seeds,
    name_edit,
    name_point,
)
from pipeline.config.params import Params
from pipeline.config.variant import UNTRAINED
from pipeline.report.captions import counted, name_models, read_captions
from pipeline.report.charts import GRID
from pipeline.report.figures import (
    GREY,
    Figures,
    colours_by_depth,
    draw_means,
    grid_of_pictures,
    handles_of,
    in_order,
    over_seeds,
)
from pipeline.report.results import Results

MOST_CLASSES = 10  # on a page
MOST_FILTERS = 64
SMALL = 5.5  # points, of text beside pictures
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

    def caption(self, name: str, entries: Sequence[Entry] = (), **fields: Any) -> str:
        """Fill a caption's template.

        Args:
            name: of captions.yaml.
            entries: the models shown, of which it gives seed and training.
            fields: of this template alone.
        """
        optimiser = OPTIMISERS.get(self.main, self.main)
        steps = self.about["optimisers"][self.main]["steps"]
        return CAPTIONS[name].format(
            **self.about | fields,
            how=f"{optimiser}, {steps} steps from noise.",
            below=CAPTIONS["below"],
            whose=self._describe(entries) if entries else "",
            names=self.names,
        )

    def _describe(self, entries: Sequence[Entry]) -> str:
        """Seed, data set and training of models."""
        text = f"Seed {entries[0].seed}; {self.names}"
        shown = {entry.family for entry in entries}
        trained = [family for family in self.about["trained_here"] if family in shown]
        if trained:
            images = self.about["training_images"]
            images = f"{images} images" if images else "all training images"
            epochs = counted(self.about["epochs"], "epoch")
            text += f"; {', '.join(trained)}: trained by the stage, {epochs} of {images}"
        return f"{text}."

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
        layout: Any = figure.get_layout_engine()
        margin = TEXT / height
        layout.set(
            w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02, rect=(0, margin, 1, 1 - margin)
        )
        title_style: Any = {"ha": "right", "va": "center", "fontsize": SMALL + 0.5}
        text_style: Any = {"ha": "center", "va": "top", "fontsize": SMALL}
        for axis in axes.flat:
            axis.set_axis_off()
        for (title, pictures), row in zip(table, axes, strict=True):
            row[0].text(-0.12, 0.5, title, transform=row[0].transAxes, **title_style)
            for axis, (picture, text) in zip(row, pictures, strict=False):
                if picture is not None:
                    show(axis, picture)
                below = axis.text(0.5, -0.04, text, transform=axis.transAxes, **text_style)
                below.set_in_layout(False)  # the pictures keep their size
        for axis, head in zip(axes[0], heads, strict=True):
            axis.set_title(head, fontsize=SMALL + 0.5, pad=2)
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
        numbers = with_ratios(rows).set_index([*KEYS, "image", "point"]).sort_index()
        numbers = numbers[[PIXELS, EMBEDDING, INPUT]]
        page = []
        for (title, models), image in itertools.product(table, range(images)):
            first = next(model for model in models if model)
            pictures: list[Picture] = [(first.arrays["originals"][image], "original")]
            for model, point in itertools.product(models, points):
                pictures.append(find_picture(numbers, model, point, image))
            page.append((title, pictures))
        heads = [f"{head}\n{head_of(point)}".strip() for head in weights for point in points]
        self.draw_pictures(name, page, ["", *heads])

    def depths(self, rows: pd.DataFrame) -> str:
        """Draw originals and found inputs by depth, two rows a model. Returns the caption."""
        models = []
        for entry in self.models:
            if entry.edit == NO_EDIT and not entry.family.endswith(PLAIN):
                models.append(entry)
        table = [(f"{entry.family}\n{entry.weights}", [entry]) for entry in models]
        images = min(2, len(models[0].arrays["originals"]))
        self.draw_found("inversion_depth", rows, table, list_points(models), images=images)
        return self.caption("depth", models)

    def edits(self, rows: pd.DataFrame) -> str:
        """Draw found inputs of edited models, a row an edit. Returns the caption."""
        edited = {entry.family for entry in self.models if entry.edit != NO_EDIT}
        models = {}
        for entry in self.models:
            if entry.family in edited:
                models[entry.family, entry.edit, entry.weights] = entry
        table = []
        for family, edit in dict.fromkeys(key[:2] for key in models):
            change = name_edit(edit) or "as it is"
            change = change.replace("trained ", "trained\n").replace(" and ", " and\n")
            pair = [models.get((family, edit, weights)) for weights in (TRAINED, UNTRAINED)]
            table.append((f"{family}\n{change}", pair))
        points = [point for point in list_points(models.values()) if point.startswith(FIRST)]
        self.draw_found("inversion_ablation", rows, table, points, (TRAINED, UNTRAINED))
        return self.caption("ablation", list(models.values()))

    def curves(self) -> str:
        """Draw both distances over the iterations, a column a model. Returns the caption."""
        family = self.about["families"][0]
        models = []
        for optimiser in self.about["optimisers"]:
            keys = {"family": family, "optimiser": optimiser, "order": "sequential"}
            for weights in (TRAINED, UNTRAINED):
                models += self.gallery.find(weights=weights, edit=NO_EDIT, **keys)
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
                for i, (point, colour) in enumerate(zip(points, colours, strict=True)):
                    lines = arrays[distance][i]  # (images, T)
                    axis.plot(arrays["steps"], lines.T, color=colour, linewidth=0.4, alpha=0.45)
                    mean = axis.plot(arrays["steps"], lines.mean(0), color=colour, linewidth=1.4)
                    handles[name_point(point)] = mean[0]
                axis.axhline(1, color=GREY, linewidth=0.8, linestyle="--")
                axis.set(yscale="log")
            optimiser = OPTIMISERS.get(model.optimiser, model.optimiser)
            column[0].set_title(f"{model.family}, {model.weights}\n{optimiser}")
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
            if own["judge_probability"].notna().all():
                texts = [f"{value:.2f}" for value in own["judge_probability"]]
            else:
                texts = [f"({value:.2f})" for value in own["probability"]]
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
        panels = []
        for family, filters in families.items():
            trained = [weights for weights in filters if weights != UNTRAINED]
            if UNTRAINED not in filters or not trained:
                continue
            shown = {weights: filters[weights] for weights in (UNTRAINED, trained[0])}
            if family in self.about["scratch"]:
                shown["change"] = filters[trained[0]] - filters[UNTRAINED]
            panels.append((family, shown))
        figure, axes = self.figures.panels(1, nrows=3, ncols=len(panels))
        figure.set_size_inches(1.7 * len(panels), 6)
        for axis in axes.flat:
            axis.set_axis_off()
        for column, (family, shown) in zip(axes.T, panels, strict=True):
            for axis, (weights, values) in zip(column, shown.items(), strict=False):
                show(axis, filter_grid(values[:MOST_FILTERS]))
                name = self.figures.label(weights)
                axis.set_title(f"{family}, {name}: {neighbours(values).mean():.2f}")
        self.figures.save(figure, "patch_filters")
        return self.caption("filters", models, filters=MOST_FILTERS)

    def orders(self, rows: pd.DataFrame) -> str:
        """Draw how much of their input the layers of variants keep, in both orders.

        Returns:
            The caption.
        """
        figure, axes = self.figures.panels(0.62, ncols=2, sharey=True, width_ratios=(3, 2))
        width = self.figures.size.column_width
        figure.set_size_inches(1.6 * width, 0.85 * width)
        rows = with_ratios(rows[(rows["optimiser"] == self.main) & (rows["edit"] == NO_EDIT)])
        layers = rows["point"].str.extract(rf"{LAYER}(\d+)", expand=False).astype(float) + 1
        rows = rows.assign(is_alone=layers.notna(), place=layers.fillna(rows["depth"]))
        means = rows.groupby(["weights", "order", "is_alone", "place", "seed"], sort=False)[TOKENS]
        means = np.log10(means.mean()).reset_index()
        lines = means.groupby(["weights", "order", "is_alone"], sort=False)
        for (weights, order, is_alone), line in lines:
            untrained = {"color": GREY, "marker": "o", "label": self.figures.label(weights)}
            look = in_order(self.figures.variant_looks.get(weights, untrained), order)
            look |= {"capsize": 2, "markersize": 3, "linewidth": 1}
            if is_alone:
                look["linestyle"] = "none"
            draw_means(axes[0, int(is_alone)], over_seeds(line, "place", TOKENS, 1), **look)
        for axis in axes[0]:
            axis.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        axes[0, 0].set(xlabel="layers executed", xticks=rows["depth"].unique())
        axes[0, 0].set(ylabel="log10 of token distance\n/ yardstick")
        axes[0, 1].set(xlabel="layer, alone", xticks=layers.dropna().unique())
        self.figures.finish(figure, "inversion_orders", handles_of(axes[0, 0]))
        seeds = count_seeds([rows["seed"].nunique()])
        return self.caption("orders", images=rows["image"].nunique(), seeds=seeds)


def find_picture(numbers: pd.DataFrame, model: Entry | None, point: str, image: int) -> Picture:
    """The input found for a point of a model, with its numbers; BLANK if there is none."""
    if model is None or point not in model.arrays["points"]:
        return BLANK
    pixels, outputs, inputs = numbers.loc[(*model[:-1], image, point)]
    place = model.arrays["points"].tolist().index(point)
    text = f"{pixels:.2f}\n{shorten(outputs)} | {shorten(inputs)}"
    return model.arrays["found"][place, image], text


def list_points(entries: Collection[Entry]) -> list[str]:
    """The points that any of the models has, by the layers executed, layers alone last."""
    points = dict.fromkeys(str(point) for entry in entries for point in entry.arrays["points"])

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


def show(axis: Axes, picture: np.ndarray) -> None:
    """Draw (C, H, W) of values in [0, 1]."""
    axis.imshow(picture_of(picture), cmap="gray", vmin=0, vmax=1, interpolation="nearest")


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
    white: Any = {"mode": "constant", "constant_values": 1}
    # One line above and left of every tile, and white tiles to fill the last row.
    more = ((0, across * down - count), (0, 0), (1, 0), (1, 0))
    cells = np.pad([stretch(tile) for tile in tiles], more, **white)
    grid = cells.reshape(down, across, channels, height + 1, width + 1).transpose(2, 0, 3, 1, 4)
    grid = grid.reshape(channels, down * (height + 1), across * (width + 1))
    return np.pad(grid, ((0, 0), (0, 1), (0, 1)), **white)


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw every figure whose rows are there. Returns captions by title."""
    about = results.read("inversion")
    figures = InversionFigures(Figures.of(results, params), Gallery(INVERTED), about)
    return figures.draw(results.table("inversion"), results.table("class_images"))
