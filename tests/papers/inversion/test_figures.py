"""Tables and figures of inversion: numbers by hand, what every picture is of, what is not drawn."""

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from papers.inversion.compute.ratios import neighbours
from papers.inversion.compute.rows import CLASS_COLUMNS, CLASS_KEYS
from papers.inversion.figures import InversionFigures, filter_grid, shorten
from papers.inversion.gallery import Gallery
from papers.inversion.section import KEYS
from papers.inversion.tables import inversion_numbers, write
from pipeline.config.params import Params
from pipeline.report.charts import GRID
from pipeline.report.figures import Figures
from tests.conftest import cases_of
from tests.papers.claim_suite import results_in
from tests.papers.drawn import DrawnFigures, expect_lines

MODEL = "vit_micro"
COLUMNS = ["dataset", "model", *KEYS]
POINTS = {"patch_embed": 0, "first 1": 1, "first 3": 3, "layer 0": 1, "layer 2": 1}  # depths
STEPS, CLASSES = np.array([0, 5, 10]), ["bag", "coat", "t-shirt/top"]
CASES = cases_of(__file__)
ABOUT, MODELS = CASES["about"], CASES["models"]

# ---- numbers and tables --------------------------------------------------------------------------


def row(**changes: Any) -> dict[str, Any]:
    """A row of inversion.csv: the first layer, met exactly as nearly as the yardstick."""
    return CASES["row"] | changes


def test_numbers_are_means_of_the_seeds_means() -> None:
    """Seed 0 has ratios 0.5 and 1.5, seed 1 one of 3: mean 2, deviation of 1 and 3."""
    others = CASES["others"]
    rows = [
        row(embedding_distance=1.0, verdict="invertible here"),
        row(embedding_distance=12.0, yardstick=8.0, image=1),
        row(embedding_distance=6.0, seed=1, input_distance=12.0, token_distance=15.0),
        *(row(**{key: value}) for key, value in others.items()),
    ]
    found = inversion_numbers(pd.DataFrame(rows))
    for name in ("embedding_ratio", "input_ratio", "token_ratio"):
        assert found[name].tolist() == [2, *[1] * 6]
        assert found[f"{name}_std"].iloc[0] == round(math.sqrt(2), 6)
        assert found[f"{name}_std"].iloc[1:].isna().all()
    assert found["pixel_correlation"].tolist() == [0.5] * 7
    counts = found[["verdict", "count", "n", "seeds"]].iloc[0]
    assert counts.tolist() == ["non-unique", 2, 3, 2]
    for number, (key, value) in enumerate(others.items()):
        assert found[key].iloc[number + 1] == value


def test_the_table(params: Params, tmp_path: Path) -> None:
    """It holds the numbers, in which no edit is a word."""
    rows = pd.DataFrame([row(), row(edit="without mlp", seed=1)])
    write(results_in(tmp_path, {"inversion": rows}, ABOUT), params)
    table = pd.read_csv(tmp_path / "inversion_table.csv", keep_default_na=False, na_values=[""])
    pd.testing.assert_frame_equal(table, inversion_numbers(rows), check_dtype=False)


# ---- filters -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "across"), [(1, 3), (3, 3), (4, 6)])
def test_filters_are_tiles(channels: int, across: int) -> None:
    """Three channels are colours; of others every channel is a tile. Lines between are white."""
    filters = np.random.default_rng(channels).normal(3, 5, (7, channels, 4, 5))
    tiles = filters if channels == 3 else filters.reshape(-1, 1, 4, 5)
    down = math.ceil(len(tiles) / across)
    expected = np.ones((len(tiles[0]), 5 * down + 1, 6 * across + 1))
    for place, tile in enumerate(tiles):
        top, left = 1 + 5 * (place // across), 1 + 6 * (place % across)
        scaled = (tile - tile.min()) / np.ptp(tile)
        expected[:, top : top + 4, left : left + 5] = scaled
    np.testing.assert_allclose(filter_grid(filters), expected, atol=1e-6)
    assert not filter_grid(np.full((1, 1, 2, 2), 3.0))[0, 1:3, 1:3].any()


@pytest.fixture
def gradient() -> np.ndarray:
    """Three filters of 8 x 8 with a gradient along x: (3, 1, 8, 8)."""
    return np.broadcast_to(np.arange(8.0), (3, 1, 8, 8))


def test_neighbours_of_a_gradient(gradient: np.ndarray) -> None:
    """It is 1 along y; along x mean i (i + 1) over mean i², i from -3.5."""
    expected = pytest.approx([(1 + 3.75 / 5.25) / 2] * 3)
    assert neighbours(gradient) == expected
    assert neighbours(gradient.swapaxes(2, 3) * -0.01 + 4) == expected
    levels = np.array([10.0, -20.0, 3.0]).reshape(3, 1, 1, 1)
    assert neighbours(gradient + levels) == expected


def test_neighbours_of_what_has_no_gradient() -> None:
    places = np.arange(8)
    board = 7 + (-1.0) ** np.add.outer(places, places)
    constant = np.full((8, 8), 3.0)
    assert neighbours(np.stack([board, constant])[:, None]) == pytest.approx([-1, 0])
    noise = np.random.default_rng(0).standard_normal((400, 1, 8, 8))
    assert abs(neighbours(noise).mean()) < 0.03


# ---- figures -------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What stage inversion leaves."""

    folder: Path
    rows: pd.DataFrame
    classes: pd.DataFrame
    about: dict[str, Any]


def value(number: int, point: str, image: int) -> float:
    """The grey of the input found for a model, point and image, and its correlation: 0.xyz."""
    return (100 * image + 10 * list(POINTS).index(point) + number) / 1000


def make(
    folder: Path, models: Sequence[Sequence[str]] = MODELS, images: int = 2, channels: int = 1
) -> Made:
    """Rows, arrays and class images of two seeds in the stage's form; the ViT's have a judge."""
    rows: list[dict[str, Any]] = []
    classes: list[dict[str, Any]] = []
    index: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    folder.mkdir()

    def save(kind: str, model: Sequence[Any], **arrays: Any) -> dict[str, Any]:
        keys: dict[str, Any] = dict(zip(COLUMNS, ("d_10k", MODEL, *model), strict=True))
        file = f"{len(index)}.npz"
        np.savez(folder / file, **arrays)
        index.append({"file": file, "kind": kind} | keys)
        return keys

    for (number, model), seed in itertools.product(enumerate(models), (0, 1)):
        own = [point for point in POINTS if model[2] == "none" or not point.startswith("layer")]
        if model[0] == "mixer":
            own = [point for point in own if point != "first 3"]
        places = list(itertools.product(own, range(images)))
        greys = [value(number, point, image) for point, image in places]
        found = np.zeros((len(own), images, channels, 6, 6), np.float16)
        found[:] = np.reshape(greys, (len(own), images, 1, 1, 1))
        curve = np.arange(len(own))[:, None, None] + np.arange(images)[:, None] + np.ones(3)
        drawn = np.random.default_rng([len(model[0]), len(model[1]), seed])
        keys = save(
            "inversion",
            (*model, seed),
            originals=rng.random((images, channels, 6, 6)),
            points=np.array(own),
            steps=STEPS,
            found=found,
            embedding=curve,
            input=10 * curve,
            filters=drawn.normal(size=(70, channels, 3, 3)),
        )
        for (point, image), grey in zip(places, greys, strict=True):
            changes = keys | {"point": point, "depth": POINTS[point], "image": image}
            changes |= {"pixel_correlation": grey, "embedding_distance": 2 * (0.5 + grey)}
            tokens = 5.0 * (1 + number) * (1 + POINTS[point]) * (1 + seed)
            changes |= {"input_distance": 12 * grey, "token_distance": tokens}
            rows.append(row(**changes, lr=0.1 * (1 + image) + seed))
    trained = dict.fromkeys(tuple(model[:2]) for model in models if model[1] != "untrained")
    for names, seed in itertools.product(trained, (0, 1)):
        pictures = rng.normal(size=(3, channels, 6, 6)).astype(np.float16)
        model = (*names, "none", "sequential", "")
        keys = save("class_images", (*model, seed), images=pictures, classes=np.array(CLASSES))
        for c, name in enumerate(CLASSES):
            entry = keys | {"class": name, "probability": 0.9 - 0.1 * c}
            if names[0] == "vit":
                entry |= {"judge_probability": 0.1 * c + 0.01, "judge_sees": "bag"}
            classes.append(entry)
    (folder / "index.json").write_text(json.dumps(index))
    families = list(dict.fromkeys(model[0] for model in models if model[0] != MODEL))
    optimisers = {model[-1]: ABOUT["optimisers"][model[-1]] for model in reversed(models)}
    about = ABOUT | {"families": families, "optimisers": optimisers}
    return Made(
        folder,
        pd.DataFrame(rows),
        pd.DataFrame(classes, columns=[*CLASS_KEYS, *CLASS_COLUMNS]),
        about,
    )


class Kept(InversionFigures):
    """Keeps what it draws instead of writing it."""

    def __init__(self, made: Made, params: Params) -> None:
        figures = DrawnFigures(made.folder, params, ["baseline", "ls"])
        super().__init__(figures, Gallery(made.folder), made.about)
        self.pages: dict[str, Any] = {}
        self.drawn = figures.drawn

    def draw_pictures(self, name: str, table: Sequence[Any], heads: Sequence[str]) -> None:
        self.pages[name] = [list(pictures) for _, pictures in table], list(heads)


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make(tmp_path_factory.mktemp("inversion") / "arrays")


@pytest.fixture(scope="module")
def figures(full: Made, params: Params) -> Kept:
    """All of them, drawn."""
    figures = Kept(full, params)
    figures.draw(full.rows, full.classes)
    return figures


def read(picture: np.ndarray | None, text: str) -> int | str | None:
    """The thousandths of a found input's grey, whose numbers stand below."""
    if picture is None or text == "original":
        return text or None
    grey = round(float(picture.mean()), 3)
    assert text == f"{grey:.2f}\n{shorten(0.5 + grey)} | {shorten(3 * grey)}"
    return round(1000 * grey)


def test_pictures(figures: Kept) -> None:
    """Found inputs under the head of their point with their numbers; blank where there is none."""
    for page, expected in CASES["pages"].items():
        lines, heads = figures.pages[f"inversion_{page}"]
        assert [[read(*pictures) for pictures in line] for line in lines] == expected
        assert heads == CASES["heads"][page]
        assert np.array_equal(lines[0][0][0], figures.models[0].arrays["originals"][0])


def test_curves_of_the_first_family(figures: Kept) -> None:
    """A column a model and optimiser: a line an image, their mean, and the yardstick."""
    axes = np.array(figures.drawn["inversion_curves"].axes).reshape(2, 4)
    for level, factor in enumerate((1, 10)):
        for axis in axes[level]:
            lines = [list(line.get_ydata()) for line in axis.get_lines()]
            expected = [[factor * (p + y)] * 3 for p in range(3) for y in (1, 2, 1.5)]
            assert lines[:-1] == expected  # no layers alone
            assert set(lines[-1]) == {1}
            assert axis.get_lines()[2].get_xdata().tolist() == STEPS.tolist()
            assert axis.get_yscale() == "log"


def test_class_images(figures: Kept) -> None:
    """What another training says of the first seed's, in brackets what the model itself says."""
    lines, heads = figures.pages["class_images"]
    assert heads == ["bag", "coat", "t-shirt/\ntop"]
    texts = [[text for _, text in pictures] for pictures in lines]
    assert texts == [["0.01", "0.11", "0.21"]] + [["(0.90)", "(0.80)", "(0.70)"]] * 2
    entry = figures.gallery.find("class_images", family="mixer")[0]
    images = entry.arrays["images"].astype(np.float32)
    for (picture, _), image in zip(lines[1], images, strict=True):
        expected = (image - image.min()) / (image.max() - image.min())
        np.testing.assert_allclose(picture, expected, atol=1e-6)


def test_filters(figures: Kept) -> None:
    """Untrained above trained, 64 of them; below what training changed, where they were its start.

    The number is one of all filters.
    """
    axes = np.array(figures.drawn["patch_filters"].axes).reshape(3, 3)
    for column, (family, weights) in zip(
        axes.T, [("vit", "trained"), ("mixer", "trained"), (MODEL, "ls")], strict=True
    ):
        where = {"family": family, "optimiser": "adam"}
        before = figures.gallery.find(weights="untrained", **where)[0].arrays["filters"]
        after = figures.gallery.find(weights=weights, **where)[0].arrays["filters"]
        for axis, filters in zip(column, (before, after, after - before), strict=True):
            if axis is column[2] and family != "vit":
                assert not axis.images
                continue
            expected = filter_grid(filters[:64])[0]
            np.testing.assert_allclose(axis.images[0].get_array(), expected, atol=1e-6)
            assert axis.get_title().endswith(f": {neighbours(filters).mean():.2f}")


def test_orders(full: Made, figures: Kept) -> None:
    """A line an order in logarithms, whose means are geometric; layers alone count from 1."""
    edited = full.rows[full.rows["edit"] != "none"].assign(family=MODEL, weights="ls")
    rows = full.rows[full.rows["family"] == MODEL]
    figures.orders(pd.concat([rows, edited]))  # edited models are no part of it
    names = rows["weights"].map(figures.figures.label)
    rows = rows[rows["image"] == 0].assign(label=names + ", " + rows["order"])
    rows["log"] = np.log10(rows["token_distance"] / rows["token_yardstick"])
    alone = rows["point"].str.startswith("layer")
    last = rows[alone].assign(depth=rows["point"].map({"layer 0": 1, "layer 2": 3}))
    axes = figures.drawn["inversion_orders"].axes
    for axis, shown in zip(axes, (rows[~alone], last), strict=True):
        expect_lines(axis, dict(iter(shown.groupby("label"))), "depth", "log", 1)
        assert set(axis.get_xticks()) == set(shown["depth"])  # where there are points


DRAWN = {"inversion_depth", "inversion_curves", "class_images", "patch_filters"}


@pytest.mark.parametrize(
    ("models", "others"),
    [
        (MODELS[:2], set()),
        (MODELS[2:7], {"inversion_orders"}),
    ],
)
def test_figures_of_what_there_is(
    models: list[list[str]], others: set[str], params: Params, tmp_path: Path
) -> None:
    made = make(tmp_path / "arrays", models, images=1, channels=3)
    figures = Kept(made, params)
    captions = figures.draw(made.rows, made.classes)
    assert {*figures.pages, *figures.drawn} == DRAWN | others
    assert len(captions) == len(DRAWN | others)


def test_a_page_says_where_its_pictures_stand(params: Params, full: Made, tmp_path: Path) -> None:
    """Cut along the edges that the file names, every part has the grey of its own picture."""
    size = params.paper_figures.model_copy(update={"dpi": 200})
    figures = InversionFigures(Figures(tmp_path, size, []), Gallery(full.folder), full.about)
    greys = np.arange(40, 220, 20).reshape(3, 3)
    table = [("row", [(np.full((1, 2, 2), grey / 255), "text") for grey in line]) for line in greys]
    figures.draw_pictures("page", table, ["", "first\nlayer", "all"])
    with Image.open(tmp_path / "page.png") as image:
        grid = json.loads(image.info[GRID])
        pixels = np.asarray(image.convert("L"))
    assert grid["heads"] == ["", "first layer", "all"]
    tops = np.round(np.array(grid["rows"]) * len(pixels)).astype(int)
    lefts = np.round(np.array(grid["columns"]) * pixels.shape[1]).astype(int)
    for i, j in np.ndindex(greys.shape):
        part = pixels[tops[i] : tops[i + 1], lefts[j] : lefts[j + 1]]
        for grey in greys.flat:
            assert ((abs(part.astype(int) - grey) < 2).sum() > 90) == (grey == greys[i, j])
