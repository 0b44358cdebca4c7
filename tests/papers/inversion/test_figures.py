"""Tables and figures of inversion: numbers by hand, names, what every picture is of, what was not run, the same bytes again."""

import json
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from papers.inversion.compute.ratios import with_ratios
from papers.inversion.compute.rows import CLASS_COLUMNS, CLASS_KEYS, COLUMNS, KEYS
from papers.inversion.figures import InversionFigures, _short, filter_grid
from papers.inversion.gallery import Gallery, neighbours
from papers.inversion.tables import (
    inversion_numbers,
    name_model,
    name_point,
    verdict_table,
    write_inversion_table,
)
from pipeline.config.params import Params
from pipeline.config.sections import PaperFigures
from pipeline.errors import UserError
from pipeline.jobs.files import sha256
from pipeline.report.charts import GRID

MODEL = "vit_micro"
POINTS = {
    "patch_embed": 0,
    "first 1": 1,
    "first 3": 3,
    "layer 0": 1,
    "layer 2": 1,
}  # with the layers executed
STEPS, SIDE, CLASSES = np.array([0, 5, 10]), 6, ["bag", "coat", "t-shirt/top"]
PAGES = {"inversion_depth", "inversion_curves", "class_images", "patch_filters"}
ABOUT: dict[str, Any] = {
    "sigma": 0.0625,
    "shifts": 8,
    "met": 0.015,
    "epochs": 2,
    "training_images": 900,
    "families": ["vit", "mixer"],
    "trained_here": ["vit", "mixer"],
    "optimisers": {"adam": {"steps": 10}, "gd": {"steps": 20}},
    "class_images": {"steps": 30, "blur": 2.5, "jitter_after": 7},
}

# ---- numbers and tables -----------------------------------------------------------------------------------------------


def row(**own: Any) -> dict[str, Any]:
    """A row of inversion.csv: of the first layer, met exactly as nearly as the yardstick."""
    return {
        "dataset": "d_10k",
        "model": MODEL,
        "family": "vit",
        "weights": "trained",
        "edit": "none",
        "order": "sequential",
        "optimiser": "adam",
        "seed": 0,
        "point": "first 1",
        "depth": 1,
        "image": 0,
        "lr": 0.1,
        "embedding_distance": 2.0,
        "yardstick": 2.0,
        "input_distance": 4.0,
        "input_yardstick": 4.0,
        "token_distance": 5.0,
        "token_yardstick": 5.0,
        "pixel_correlation": 0.5,
        "num_layers": 3,
        "overcomplete": False,
        "verdict": "non-unique",
    } | own


def test_ratios_are_relative_to_each_ones_yardstick() -> None:
    rows = pd.DataFrame(
        [row(embedding_distance=1.0), row(yardstick=8.0, input_distance=1.0, token_distance=15.0)]
    )
    found = with_ratios(rows)
    assert found["embedding_ratio"].tolist() == [0.5, 0.25]
    assert found["input_ratio"].tolist() == [1, 0.25]
    assert found["token_ratio"].tolist() == [1, 3]
    assert found[COLUMNS].equals(rows)


def test_numbers_are_means_of_the_seeds_means() -> None:
    """By hand. Seed 0 has ratios 0.5 and 1.5, seed 1 one of 3: mean 2, not that of the rows; deviation of 1 and 3: sqrt(2)."""
    rows = [
        row(embedding_distance=1.0, pixel_correlation=0.25, verdict="invertible here"),
        row(embedding_distance=3.0, image=1, pixel_correlation=0.75),
        row(embedding_distance=6.0, seed=1, pixel_correlation=0.9, input_distance=12.0),
        row(point="layer 0", verdict="invertible here"),
        row(weights="untrained", embedding_distance=8.0),
        row(edit="without mlp"),
        row(order="arbitrary"),
        row(optimiser="gd"),
        row(family="mixer"),
    ]
    found = inversion_numbers(pd.DataFrame(rows))
    keys = ["family", "weights", "edit", "order", "optimiser", "point"]
    assert found[keys].to_numpy().tolist() == [
        ["vit", "trained", "none", "sequential", "adam", "first 1"],
        ["vit", "trained", "none", "sequential", "adam", "layer 0"],
        ["vit", "untrained", "none", "sequential", "adam", "first 1"],
        ["vit", "trained", "without mlp", "sequential", "adam", "first 1"],
        ["vit", "trained", "none", "arbitrary", "adam", "first 1"],
        ["vit", "trained", "none", "sequential", "gd", "first 1"],
        ["mixer", "trained", "none", "sequential", "adam", "first 1"],
    ]
    first = found.iloc[0]
    assert first["embedding_ratio"] == 2.0
    assert first["embedding_ratio_std"] == round(math.sqrt(2), 6)
    assert [first["input_ratio"], first["input_ratio_std"]] == [2.0, round(math.sqrt(2), 6)]
    assert [first["pixel_correlation"], first["pixel_correlation_std"]] == [
        0.7,
        round(0.4 / math.sqrt(2), 6),
    ]
    assert first[["verdict", "count", "n", "seeds"]].tolist() == ["non-unique", 2, 3, 2]
    alone = found.iloc[1]
    assert alone[["verdict", "count", "n", "seeds"]].tolist() == ["invertible here", 1, 1, 1]
    assert alone[["embedding_ratio_std", "input_ratio_std", "pixel_correlation_std"]].isna().all()
    assert found["embedding_ratio"].tolist()[1:] == [1, 4, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("patch_embed", "patch embedding"),
        ("first 1", "first layer"),
        ("first 4", "first 4 layers"),
        ("first 12", "first 12 layers"),
        ("layer 0", "layer 1 alone"),
        ("layer 11", "layer 12 alone"),
    ],
)
def test_names_of_points(point: str, expected: str) -> None:
    assert name_point(point) == expected


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (("trained", "none", "sequential"), "trained"),
        (("ls", "none", "sequential"), "LS"),
        (("ls", "none", "arbitrary"), "LS, arbitrary order"),
        (("my_variant", "none", "arbitrary"), "my-variant, arbitrary order"),
        (("trained", "without attention", "sequential"), "trained, without attention"),
        (
            ("untrained", "without residuals+mlp", "sequential"),
            "untrained, without residuals and mlp",
        ),
        (
            ("untrained", "with patch_embed", "sequential"),
            "untrained, with trained patch embedding",
        ),
        (
            ("untrained", "with patch_embed+pos_embed+norm1", "sequential"),
            "untrained, with trained patch embedding and position embedding and first norm",
        ),
    ],
)
def test_names_of_models(model: tuple[str, str, str], expected: str) -> None:
    assert name_model(*model) == expected


TABLE = [
    row(embedding_distance=0.1234, input_distance=5.0, pixel_correlation=0.98765),
    row(
        embedding_distance=0.1234,
        input_distance=5.0,
        pixel_correlation=0.98765,
        seed=1,
        verdict="invertible here",
    ),
    row(embedding_distance=0.1234, input_distance=5.0, pixel_correlation=0.98765, seed=1, image=1),
    row(edit="without mlp"),
    row(family=MODEL, weights="ls", order="arbitrary", optimiser="gd", point="patch_embed"),
    row(family="mixer", optimiser="my_own", point="layer 2"),
]


def test_the_table_of_verdicts() -> None:
    """Of every model, in words."""
    table = verdict_table(inversion_numbers(pd.DataFrame(TABLE)))
    assert list(table.columns) == [
        "model",
        "weights",
        "point",
        "optimiser",
        "embedding / yardstick",
        "input / yardstick",
        "tokens / yardstick",
        "pixel correlation",
        "verdict",
    ]
    assert table.to_numpy().tolist() == [
        [
            "vit",
            "trained",
            "first layer",
            "Adam",
            "0.062",
            "1.25",
            "1.00",
            "0.988",
            "non-unique (2/3)",
        ],
        [
            "vit",
            "trained, without mlp",
            "first layer",
            "Adam",
            "1.000",
            "1.00",
            "1.00",
            "0.500",
            "non-unique (1/1)",
        ],
        [
            MODEL,
            "LS, arbitrary order",
            "patch embedding",
            "gradient descent",
            "1.000",
            "1.00",
            "1.00",
            "0.500",
            "non-unique (1/1)",
        ],
        [
            "mixer",
            "trained",
            "layer 3 alone",
            "my_own",
            "1.000",
            "1.00",
            "1.00",
            "0.500",
            "non-unique (1/1)",
        ],
    ]


def test_the_table_is_written(tmp_path: Path) -> None:
    captions = write_inversion_table(pd.DataFrame(TABLE), tmp_path, ABOUT)
    assert {path.name for path in tmp_path.iterdir()} == {
        f"inversion_table.{kind}" for kind in ("csv", "md", "tex")
    }
    assert list(captions) == ["Inversion, table"]
    caption = captions["Inversion, table"]
    assert "noise of standard deviation 0.0625, 8 draws" in caption
    assert "2 validation images and 1 or 2 seeds" in caption
    assert (
        "non-unique: exactly (below 0.015 of the yardstick), by an input farther than that"
        in caption
    )
    assert "approximately non-invertible: neither" in caption
    assert caption.endswith("Data d_10k.")
    text = (tmp_path / "inversion_table.md").read_text()
    assert text.endswith(f"\n\n{caption}\n")
    assert "trained, without mlp" in text
    assert len([line for line in text.split("\n") if line.startswith("|")]) == 2 + 4
    table = pd.read_csv(tmp_path / "inversion_table.csv", keep_default_na=False, na_values=[""])
    assert table["edit"].tolist() == ["none", "without mlp", "none", "none"]
    pd.testing.assert_frame_equal(table, inversion_numbers(pd.DataFrame(TABLE)), check_dtype=False)
    latex = (tmp_path / "inversion_table.tex").read_text()
    assert "vit\\_micro" in latex
    assert "my\\_own" in latex
    assert "label{tab:inversion}" in latex
    assert "trained, without mlp" in latex


def test_latex_has_no_bare_underscore(tmp_path: Path) -> None:
    """The data set's name is in the caption."""
    write_inversion_table(pd.DataFrame(TABLE), tmp_path, ABOUT)
    latex = (tmp_path / "inversion_table.tex").read_text()
    assert "Data d\\_10k." in latex
    assert latex.count("_") == latex.count("\\_")


@pytest.mark.parametrize(
    ("seeds", "text"),
    [((0,), "1 validation images and 1 seed."), ((0, 1), "1 validation images and 2 seeds.")],
)
def test_the_caption_counts_seeds(seeds: Sequence[int], text: str, tmp_path: Path) -> None:
    rows = pd.DataFrame([row(seed=seed) for seed in seeds])
    assert text in write_inversion_table(rows, tmp_path, ABOUT)["Inversion, table"]


def test_nan_is_no_edit(tmp_path: Path) -> None:
    """Rows as read from a file: "none" is a word there."""
    pd.DataFrame(TABLE).to_csv(tmp_path / "inversion.csv", index=False)
    rows = pd.read_csv(tmp_path / "inversion.csv")
    assert inversion_numbers(rows)["edit"].tolist() == ["none", "without mlp", "none", "none"]


# ---- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters_are_tiles(channels: int) -> None:
    """Three channels are colours; of others every channel is a tile. Each from 0 to 1, white lines between, white where none is left."""
    filters = np.random.default_rng(channels).normal(3, 5, (7, channels, 4, 5)).astype(np.float32)
    tiles = (
        [filters[i] for i in range(7)]
        if channels == 3
        else [filters[i, c : c + 1] for i in range(7) for c in range(channels)]
    )
    across = {1: 3, 3: 3, 4: 6}[channels]
    down = {1: 3, 3: 3, 4: 5}[channels]
    grid = filter_grid(filters)
    assert grid.shape == (3 if channels == 3 else 1, 5 * down + 1, 6 * across + 1)
    expected = np.ones_like(grid)
    for place, tile in enumerate(tiles):
        least, most = tile.min(), tile.max()
        for channel in range(len(tile)):
            for y in range(4):
                for x in range(5):
                    value = (tile[channel, y, x] - least) / (most - least)
                    expected[
                        channel, 1 + 5 * (place // across) + y, 1 + 6 * (place % across) + x
                    ] = value
    np.testing.assert_allclose(grid, expected, atol=1e-6)
    assert (grid[:, ::5] == 1).all()
    assert (grid[:, :, ::6] == 1).all()


def test_a_filter_of_one_value_is_drawn() -> None:
    assert filter_grid(np.full((1, 1, 2, 2), 3.0)).tolist() == [
        [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1], [1, 1, 1, 1]]
    ]


def test_neighbouring_weights() -> None:
    """A gradient of 8 along x: 1 along y, and along x the mean of i (i + 1) over that of i², i from -3.5: 3.75 / 5.25."""
    gradient = np.broadcast_to(np.arange(8.0), (3, 1, 8, 8))
    assert neighbours(gradient) == pytest.approx((1 + 3.75 / 5.25) / 2)
    assert neighbours(gradient.swapaxes(2, 3) * -0.01 + 4) == pytest.approx(
        (1 + 3.75 / 5.25) / 2
    )  # direction and scale do not count
    levels = np.array([10.0, -20.0, 3.0])[:, None, None, None]
    assert neighbours(gradient + levels) == pytest.approx(
        (1 + 3.75 / 5.25) / 2
    )  # each filter less its own mean
    board = (-1.0) ** np.add.outer(np.arange(8), np.arange(8))
    assert neighbours(board[None, None] + 7) == pytest.approx(-1)
    stripes = np.broadcast_to((-1.0) ** np.arange(8), (2, 3, 8, 8))
    assert neighbours(stripes) == pytest.approx(0)  # 1 along y, -1 along x
    noise = np.random.default_rng(0).standard_normal((400, 3, 8, 8))
    assert abs(neighbours(noise)) < 0.03
    assert (
        neighbours(np.concatenate([100 * gradient, noise[:, :1]])) > 0.8
    )  # over all filters, the strong ones most


# ---- figures ----------------------------------------------------------------------------------------------------------


class Made(NamedTuple):
    """What stage inversion leaves."""

    gallery: Gallery
    rows: pd.DataFrame
    classes: pd.DataFrame
    about: dict[str, Any]


Specified = tuple[str, str, str, str, str]  # family, weights, edit, order, optimiser


def value(number: int, point: str, image: int) -> float:
    """What makes a found input, and its correlation with the original, that of one model, point and image: 0.xyz."""
    return round((100 * image + 10 * list(POINTS).index(point) + number % 10) / 1000, 3)


def numbers(correlation: float) -> str:
    """What stands below a found input of this correlation: also both ratios, which depend on it."""
    ratios = [
        f"{ratio:.2f}".lstrip("0") if ratio >= 0.01 else "<.01"
        for ratio in (0.5 + correlation, 3 * correlation)
    ]
    return f"{correlation:.2f}\n{' | '.join(ratios)}"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "<.01"),
        (0.0099, "<.01"),
        (0.01, ".01"),
        (0.994, ".99"),
        (0.996, "1.0"),
        (9.94, "9.9"),
        (9.96, "10"),
        (25.3, "25"),
    ],
)
def test_ratios_in_few_characters(ratio: float, text: str) -> None:
    assert _short(ratio) == text


def specified(
    families: Sequence[str], variants: Sequence[str], edits: bool, optimisers: Sequence[str]
) -> list[Specified]:
    """The models of a stage, in its order."""
    plain = [(family, weights) for family in families for weights in ("trained", "untrained")]
    found = [(*each, "none", "sequential", name) for name in optimisers[1:] for each in plain[:2]]
    found += [(*each, "none", "sequential", optimisers[0]) for each in plain]
    refined = ["untrained", *variants] if variants else []
    found += [
        (MODEL, name, "none", order, optimisers[0])
        for name in refined
        for order in ("sequential", "arbitrary")
    ]
    if edits:
        found += [(*each, "without norms", "sequential", optimisers[0]) for each in plain]
        found += [("vit", "trained", "without residuals+mlp", "sequential", optimisers[0])]
        found += [
            ("vit", "untrained", f"with {parts}", "sequential", optimisers[0])
            for parts in ("patch_embed", "patch_embed+norm1")
        ]
    return found


def make(
    folder: Path,
    families: Sequence[str] = ("vit", "mixer"),
    variants: Sequence[str] = ("baseline", "ls"),
    edits: bool = True,
    seeds: int = 2,
    channels: int = 1,
    judged: Callable[[str], bool] = lambda family: True,
    own: Sequence[str] = (),
    optimisers: Sequence[str] = ("adam", "gd"),
    images: int = 2,
    filters: int | None = None,
    kept: Sequence[str] = tuple(POINTS),
) -> Made:
    """Rows, arrays and class images in the stage's form; of `own` families there is one seed."""
    rows, classes = [], []
    index: list[dict[str, Any]] = []
    draw = np.random.default_rng(0)
    folder.mkdir()
    for number, (family, weights, edit, order, optimiser) in enumerate(
        specified(families, variants, edits, optimisers)
    ):
        points = [
            point
            for point in kept
            if not (point.startswith("layer") and (edit != "none" or order == "arbitrary"))
        ]
        for seed in range(1 if family in own else seeds):
            keys = dict(
                zip(
                    KEYS,
                    ("d_10k", MODEL, family, weights, edit, order, optimiser, seed),
                    strict=True,
                )
            )
            found = np.zeros((len(points), images, channels, SIDE, SIDE), np.float16)
            for p, point in enumerate(points):
                for image in range(images):
                    found[p, image] = value(number, point, image)
                    token, own_value = (
                        (1 + number) * (1 + POINTS[point]) * (1 + seed),
                        value(number, point, image),
                    )
                    rows.append(
                        row(
                            **keys,
                            point=point,
                            depth=POINTS[point],
                            image=image,
                            pixel_correlation=own_value,
                            embedding_distance=2 * (0.5 + own_value),
                            input_distance=4 * (3 * own_value),
                            token_distance=5.0 * token,
                        )
                    )
            curve = np.stack(
                [
                    np.full((images, 3), p + 1.0) + np.arange(images)[:, None]
                    for p in range(len(points))
                ]
            )
            np.savez(
                folder / f"{len(index)}.npz",
                originals=draw.random((images, channels, SIDE, SIDE)),
                points=np.array(points),
                steps=STEPS,
                found=found,
                embedding=curve,
                input=10 * curve,
                filters=np.random.default_rng([len(family), len(weights), seed]).normal(
                    size=(5, filters or channels, 3, 3)
                ),
            )
            index.append({"file": f"{len(index)}.npz", "kind": "inversion"} | keys)
    trained = [(family, "trained") for family in families] + [(MODEL, name) for name in variants]
    for family, weights in trained:
        for seed in range(1 if family in own else seeds):
            keys = dict(
                zip(
                    KEYS,
                    ("d_10k", MODEL, family, weights, "none", "sequential", "", seed),
                    strict=True,
                )
            )
            for c, name in enumerate(CLASSES):
                judge = (
                    {"judge_probability": 0.1 * c + 0.01, "judge_sees": "bag"}
                    if judged(family)
                    else {}
                )
                classes.append(
                    {key: keys[key] for key in CLASS_KEYS}
                    | {"class": name, "probability": 0.9 - 0.1 * c}
                    | judge
                )
            pictures = draw.normal(size=(len(CLASSES), channels, SIDE, SIDE)).astype(np.float16)
            np.savez(folder / f"{len(index)}.npz", images=pictures, classes=np.array(CLASSES))
            index.append({"file": f"{len(index)}.npz", "kind": "class_images"} | keys)
    (folder / "index.json").write_text(json.dumps(index))
    about = ABOUT | {
        "families": list(families),
        "trained_here": [name for name in families if name not in own],
        "optimisers": {name: ABOUT["optimisers"][name] for name in optimisers},
    }
    table = pd.DataFrame(rows)[COLUMNS]
    return Made(Gallery(folder), table, pd.DataFrame(classes, columns=CLASS_COLUMNS), about)


Page = tuple[
    list[tuple[str, list[tuple[np.ndarray | None, str]]]], list[str]
]  # rows of pictures with their titles; heads


class Kept(InversionFigures):
    """Keeps what it draws in place of writing it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pages: dict[str, Page] = {}
        self.drawn: dict[str, Figure] = {}

    def _pictures(self, name: str, table: Sequence[Any], heads: Sequence[str]) -> None:
        self.pages[name] = [(title, list(pictures)) for title, pictures in table], list(heads)

    def _save(self, figure: Figure, name: str, **texts: str) -> None:
        self.drawn[name] = figure
        plt.close(figure)


@pytest.fixture(scope="module")
def small(params: Params) -> PaperFigures:
    return params.paper_figures.model_copy(update={"dpi": 30})


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two families, two variants, edits, two seeds."""
    return make(tmp_path_factory.mktemp("inversion") / "arrays")


@pytest.fixture
def keep(small: PaperFigures, tmp_path: Path) -> Callable[[Made], Kept]:
    return lambda made: Kept(
        tmp_path / "figures", small, ["baseline", "ls"], made.gallery, made.about, ["vit", MODEL]
    )


def told(page: Page, line: int) -> list[str]:
    """The texts of a row of pictures."""
    return [text for _, text in page[0][line][1]]


def levels(page: Page, line: int) -> list[float | None]:
    """The grey of the found inputs in a row, which are of one value; None where there is no picture. Without originals."""
    return [
        None if picture is None else round(float(picture.mean()), 3)
        for picture, text in page[0][line][1]
        if text != "original"
    ]


HEADS = ["patch\nembedding", "first\nlayer", "first 3\nlayers", "layer 1\nalone", "layer 3\nalone"]


def test_pictures_by_depth(full: Made, keep: Callable[[Made], Kept]) -> None:
    """A row a model: the first image, then the inputs found for it, of the first seed, with their correlations."""
    figures = keep(full)
    caption = figures.depths(full.rows)
    page = figures.pages["inversion_depth"]
    lines, heads = page
    models = ["vit\ntrained", "vit\nuntrained", "mixer\ntrained", "mixer\nuntrained"]
    assert [title for title, _ in lines] == models
    assert heads == ["", *HEADS]
    for line, number in enumerate((2, 3, 4, 5)):  # the first two are of the other optimiser
        expected = [value(number, point, 0) for point in POINTS]
        assert told(page, line) == ["original", *map(numbers, expected)]
        assert levels(page, line) == pytest.approx(expected, abs=1e-3)
    trained = full.gallery.find(family="mixer", weights="trained", edit="none", optimiser="adam")[
        0
    ][1]
    np.testing.assert_array_equal(lines[2][1][0][0], trained["originals"][0])
    assert "Adam, 10 steps from noise" in caption
    assert (
        "pixel correlation with the original; distance of the outputs | of the inputs, relative to those of a slightly"
        in caption
    )
    assert caption.endswith(
        "Seed 0; d_10k (model vit_micro); vit, mixer: trained by the stage, 2 epochs of 900 images."
    )


def test_arrays_without_their_list_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"index.json: .*dvc"):
        Gallery(tmp_path)


def test_every_models_first_seed(full: Made) -> None:
    """In the order of the index, whatever others have; a seed that is asked for is that one."""
    gallery = Gallery(full.gallery.folder)
    gallery.index = gallery.index[
        ~((gallery.index["family"] == "mixer") & (gallery.index["seed"] == 0))
    ]
    for kind in ("inversion", "class_images"):
        first = {(keys["family"], keys["seed"]) for keys, _ in gallery.find(kind)}
        assert first == {("vit", 0), ("mixer", 1), (MODEL, 0)}
        assert {keys["seed"] for keys, _ in gallery.find(kind, seed=1)} == {1}
    assert gallery.find(family="mixer", seed=0) == []
    gallery.index = gallery.index.sort_values("seed", ascending=False, kind="stable")
    assert {keys["seed"] for keys, _ in gallery.find()} == {1}
    assert len(gallery.find()) == len(full.gallery.find())


def test_pictures_of_one_image(keep: Callable[[Made], Kept], tmp_path: Path) -> None:
    made = make(tmp_path / "arrays", images=1)
    figures = keep(made)
    figures.draw_inversion(made.rows, made.classes)
    assert [len(pictures) for _, pictures in figures.pages["inversion_transplant"][0]] == [4] * 4
    assert len(figures.pages["inversion_transplant"][1]) == 4


def test_pictures_of_ablations(full: Made, keep: Callable[[Made], Kept]) -> None:
    """A row a family and edit, trained beside untrained; empty where a model was not inverted."""
    figures = keep(full)
    caption = figures.ablation(full.rows)
    page = figures.pages["inversion_ablation"]
    lines, heads = page
    assert [title for title, _ in lines] == [
        "vit\nas it is",
        "vit\nwithout norms",
        "vit\nwithout residuals,\nmlp",
        "mixer\nas it is",
        "mixer\nwithout norms",
    ]
    assert heads == [
        "",
        *(f"{weights}\n{head}" for weights in ("trained", "untrained") for head in HEADS[1:3]),
    ]
    names = [
        each[:3] for each in specified(("vit", "mixer"), ("baseline", "ls"), True, ("adam", "gd"))
    ]
    models = [
        ("vit", "none"),
        ("vit", "without norms"),
        ("vit", "without residuals+mlp"),
        ("mixer", "none"),
        ("mixer", "without norms"),
    ]
    for line, (family, edit) in enumerate(models):
        expected: list[float | None] = []
        for weights in ("trained", "untrained"):
            key = (family, weights, edit)
            number = (
                max(i for i, name in enumerate(names) if name == key) if key in names else None
            )  # the first ones are of plain descent
            expected += [
                None if number is None else value(number, point, 0)
                for point in ("first 1", "first 3")
            ]
        assert levels(page, line) == pytest.approx(expected, abs=1e-3)
        assert told(page, line) == [
            "original",
            *("" if v is None else numbers(v) for v in expected),
        ]
    assert levels(page, 2)[2:] == [None, None]
    assert "Adam, 10 steps from noise" in caption
    assert caption.endswith(
        "Seed 0; d_10k (model vit_micro); vit, mixer: trained by the stage, 2 epochs of 900 images."
    )


def test_pictures_of_transplants(full: Made, keep: Callable[[Made], Kept]) -> None:
    """Between the untrained and the trained model, two images beside each other."""
    figures = keep(full)
    caption = figures.transplants(full.rows)
    page = figures.pages["inversion_transplant"]
    lines, heads = page
    assert [title for title, _ in lines] == [
        "vit, untrained",
        "vit, trained\npatch_embed",
        "vit, trained\npatch_embed +\nnorm1",
        "vit, trained",
    ]
    assert heads == ["", *HEADS[:3]] * 2
    names = specified(("vit", "mixer"), ("baseline", "ls"), True, ("adam", "gd"))
    for line, (weights, edit) in enumerate(
        [
            ("untrained", "none"),
            ("untrained", "with patch_embed"),
            ("untrained", "with patch_embed+norm1"),
            ("trained", "none"),
        ]
    ):
        number = names.index(("vit", weights, edit, "sequential", "adam"))
        expected = [value(number, point, image) for image in range(2) for point in list(POINTS)[:3]]
        assert levels(page, line) == pytest.approx(expected, abs=1e-3)
        assert told(page, line) == [
            "original",
            *map(numbers, expected[:3]),
            "original",
            *map(numbers, expected[3:]),
        ]
    assert caption.endswith(
        "Seed 0; d_10k (model vit_micro); vit: trained by the stage, 2 epochs of 900 images."
    )


def test_pages_whose_families_differ_in_depth(full: Made, keep: Callable[[Made], Kept]) -> None:
    """Every picture stands under the head of its point, also where a family has other numbers of layers."""
    other, points = full.rows.copy(), {"first 3": "first 2"}
    mixer = other["family"] == "mixer"
    other.loc[mixer, "point"] = other.loc[mixer, "point"].replace(points)
    figures = keep(full)
    find = full.gallery.find

    def found(
        kind: str = "inversion", **keys: Any
    ) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        own = find(kind, **keys)
        return [
            (
                k,
                a | {"points": np.array([points.get(str(p), str(p)) for p in a["points"]])}
                if k["family"] == "mixer"
                else a,
            )
            for k, a in own
        ]

    figures.gallery = Gallery(full.gallery.folder)
    figures.gallery.find = found  # type: ignore[method-assign]
    figures.ablation(other)
    lines, heads = figures.pages["inversion_ablation"]
    texts = [
        {
            head: text
            for head, (_, text) in zip(heads, pictures, strict=False)
            if text not in ("", "original")
        }
        for _, pictures in lines
    ]
    vit, mixers = texts[0], texts[3]
    assert vit["trained\nfirst 3\nlayers"] == numbers(value(2, "first 3", 0))
    assert mixers["trained\nfirst 2\nlayers"] == numbers(value(4, "first 3", 0))


def test_curves_of_the_first_family(full: Made, keep: Callable[[Made], Kept]) -> None:
    """A column a model and optimiser; thin lines of images, thick ones their mean; the yardstick dashed."""
    figures = keep(full)
    caption = figures.curves()
    axes = np.array(figures.drawn["inversion_curves"].axes).reshape(2, -1)
    assert [axis.get_title() for axis in axes[0]] == [
        "vit, trained\nAdam",
        "vit, untrained\nAdam",
        "vit, trained\ngradient descent",
        "vit, untrained\ngradient descent",
    ]
    for level, factor in enumerate((1, 10)):
        for axis in axes[level]:
            lines = axis.get_lines()
            assert len(lines) == 3 * (2 + 1) + 1  # no layers alone
            for p in range(3):
                first, second, mean = lines[3 * p : 3 * p + 3]
                assert first.get_ydata().tolist() == [factor * (p + 1)] * 3
                assert second.get_ydata().tolist() == [factor * (p + 2)] * 3
                assert mean.get_ydata().tolist() == [factor * (p + 1.5)] * 3
                assert mean.get_xdata().tolist() == STEPS.tolist()
                assert first.get_color() is not None
                assert mean.get_linewidth() > first.get_linewidth()
            assert set(lines[-1].get_ydata()) == {1}
            assert axis.get_yscale() == "log"
    legend = figures.drawn["inversion_curves"].legends[0]
    assert [text.get_text() for text in legend.get_texts()] == [
        "patch embedding",
        "first layer",
        "first 3 layers",
    ]
    assert "sigma 0.0625, mean of 8" in caption
    assert "Seed 0; d_10k (model vit_micro); vit: trained by the stage" in caption


def test_class_images_page(full: Made, keep: Callable[[Made], Kept]) -> None:
    """A row a model, of the first seed, with what another training of it says."""
    figures = keep(full)
    caption = figures.class_images(full.classes)
    page = figures.pages["class_images"]
    lines, heads = page
    assert [title for title, _ in lines] == [
        "vit\ntrained",
        "mixer\ntrained",
        f"{MODEL}\nbaseline",
        f"{MODEL}\nLS",
    ]
    assert heads == ["bag", "coat", "t-shirt/\ntop"]
    for line in range(4):
        assert told(page, line) == ["0.01", "0.11", "0.21"]
    stretched = np.stack([picture for picture, _ in lines[1][1] if picture is not None])
    images = full.gallery.find("class_images", family="mixer")[0][1]["images"].astype(np.float32)
    expected = [(image - image.min()) / (image.max() - image.min()) for image in images]
    np.testing.assert_allclose(stretched, expected, atol=1e-6)
    assert "30 steps from noise" in caption
    assert "from sigma 2.5, random crops after 7 steps" in caption
    assert "the probability that another training of the same model gives the class" in caption
    assert caption.endswith(
        "Seed 0; d_10k (model vit_micro); vit, mixer: trained by the stage, 2 epochs of 900 images."
    )


def test_class_images_without_a_judge(keep: Callable[[Made], Kept], tmp_path: Path) -> None:
    made = make(tmp_path / "arrays", seeds=1, judged=lambda family: False)
    figures = keep(made)
    caption = figures.class_images(made.classes)
    assert [told(figures.pages["class_images"], line) for line in range(4)] == [
        ["(0.90)", "(0.80)", "(0.70)"]
    ] * 4
    assert "in brackets, where there is no other, that the model itself gives" in caption


def test_class_images_of_which_some_have_a_judge(
    keep: Callable[[Made], Kept], tmp_path: Path
) -> None:
    """The chosen model's starting weights are there once, its variants once a seed: no number is missing."""
    made = make(
        tmp_path / "arrays", families=("vit",), own=("vit",), judged=lambda family: family == MODEL
    )
    figures = keep(made)
    figures.class_images(made.classes)
    texts = [told(figures.pages["class_images"], line) for line in range(3)]
    assert texts == [["(0.90)", "(0.80)", "(0.70)"], *[["0.01", "0.11", "0.21"]] * 2]


def test_many_classes_are_cut(full: Made, keep: Callable[[Made], Kept], tmp_path: Path) -> None:
    """Ten are shown; their numbers are those of their own rows."""
    made = make(tmp_path / "arrays", families=("vit",), variants=(), edits=False, seeds=1)
    names = [f"class {c}" for c in range(12)]
    entry = made.gallery.index[made.gallery.index["kind"] == "class_images"].iloc[0]
    np.savez(
        made.gallery.folder / entry["file"],
        images=np.random.default_rng(0).random((12, 1, 4, 4)),
        classes=np.array(names),
    )
    classes = pd.DataFrame(
        [
            made.classes.iloc[0].to_dict() | {"class": n, "judge_probability": c / 100}
            for c, n in enumerate(names)
        ]
    )
    figures = keep(made)
    figures.class_images(classes)
    page = figures.pages["class_images"]
    assert page[1] == [f"class\n{c}" for c in range(10)]
    assert told(page, 0) == [f"{c / 100:.2f}" for c in range(10)]


def test_filters_untrained_beside_trained(full: Made, keep: Callable[[Made], Kept]) -> None:
    """Of a variant's family the first variant; and the change, where the trained weights began as the untrained ones."""
    figures = keep(full)
    caption = figures.filters()
    axes = figures.drawn["patch_filters"].axes
    pairs = [
        (family, weights)
        for family, trained in (("vit", "trained"), ("mixer", "trained"), (MODEL, "baseline"))
        for weights in ("untrained", trained)
    ]
    assert len(axes) == 9
    assert [bool(axis.images) for axis in axes[6:]] == [True, False, True]
    vit = {
        w: full.gallery.find(family="vit", weights=w, edit="none", optimiser="adam")[0][1][
            "filters"
        ]
        for w in ("untrained", "trained")
    }
    change = vit["trained"] - vit["untrained"]
    assert axes[6].get_title() == f"vit, change: {neighbours(change):.2f}"
    np.testing.assert_allclose(
        np.asarray(axes[6].images[0].get_array()), filter_grid(change)[0], atol=1e-6
    )
    for i, (family, weights) in enumerate(pairs):
        axis = axes[3 * (i % 2) + i // 2]  # untrained above
        filters = full.gallery.find(family=family, weights=weights, edit="none", optimiser="adam")[
            0
        ][1]["filters"]
        number = neighbours(filters)
        assert axis.get_title() == f"{family}, {weights}: {number:.2f}"
        np.testing.assert_allclose(
            np.asarray(axis.images[0].get_array()), filter_grid(filters)[0], atol=1e-6
        )
    assert "correlation of weights one pixel apart" in caption
    assert "d_10k (model vit_micro)" in caption


def test_many_filters_are_cut(keep: Callable[[Made], Kept], tmp_path: Path) -> None:
    """64 are shown; the number below is one of all."""
    made = make(tmp_path / "arrays", families=("vit",), variants=(), edits=False, seeds=1)
    smooth, rough = (
        np.broadcast_to(np.arange(3.0), (64, 1, 3, 3)),
        100 * np.random.default_rng(0).normal(size=(6, 1, 3, 3)),
    )
    filters = np.concatenate([smooth, rough])
    for file in made.gallery.index.loc[made.gallery.index["kind"] == "inversion", "file"]:
        with np.load(made.gallery.folder / file) as arrays:
            own = dict(arrays) | {"filters": filters}
        np.savez(made.gallery.folder / file, **own)
    figures = keep(made)
    figures.scratch = []  # nothing changed
    caption = figures.filters()
    axis = figures.drawn["patch_filters"].axes[0]
    np.testing.assert_allclose(
        np.asarray(axis.images[0].get_array()), filter_grid(filters[:64])[0], atol=1e-6
    )
    assert axis.get_title() == f"vit, untrained: {neighbours(filters):.2f}"
    assert f"{neighbours(filters):.2f}" != f"{neighbours(smooth):.2f}"
    assert "(the first 64)" in caption


def test_filters_caption_names_the_seed(full: Made, keep: Callable[[Made], Kept]) -> None:
    assert "Seed 0" in keep(full).filters()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_filters_of_any_number_of_channels(
    channels: int, keep: Callable[[Made], Kept], tmp_path: Path
) -> None:
    made = make(
        tmp_path / "arrays", families=("vit",), variants=(), edits=False, seeds=1, filters=channels
    )
    figures = keep(made)
    figures.filters()
    shown = figures.drawn["patch_filters"].axes[0].images[0].get_array()
    assert shown is not None
    assert shown.shape == {1: (9, 13), 3: (9, 13, 3), 4: (17, 21)}[channels]


def test_orders_are_means_over_the_seeds(full: Made, keep: Callable[[Made], Kept]) -> None:
    """Geometric ones. By hand: ratios of a model are (1 + number) (1 + depth) (1 + seed), those of two seeds 1 and 2 times a number."""
    figures = keep(full)
    own = full.rows[full.rows["family"] == MODEL]
    caption = figures.orders(own)
    left, right = figures.drawn["inversion_orders"].axes
    models = [
        (name, order)
        for name in ("untrained", "baseline", "ls")
        for order in ("sequential", "arbitrary")
    ]
    names = specified(("vit", "mixer"), ("baseline", "ls"), True, ("adam", "gd"))
    assert len(left.containers) == len(models)
    assert len(right.containers) == 3  # layers alone: in original order
    for container, (name, order) in zip(left.containers, models, strict=True):
        middle = (
            math.sqrt(2)
            * (1 + names.index((MODEL, name, "none", order, "adam")))
            * np.array([1, 2, 4])
        )
        line, _, bars = container  # type: ignore[misc]
        assert line.get_xdata().tolist() == [0, 1, 3]
        assert line.get_ydata().astype(float) == pytest.approx(middle)
        spread = math.exp(math.log(2) / math.sqrt(2))  # of log 1 and log 2
        low, high = np.array(bars[0].get_segments())[:, :, 1].T
        assert low == pytest.approx(middle / spread)
        assert high == pytest.approx(middle * spread)
        assert line.get_linestyle() == {"sequential": "-", "arbitrary": "--"}[order]
        assert line.get_color() == ("#777777" if name == "untrained" else figures.colours[name])
    for container, (name, _) in zip(right.containers, models[::2], strict=True):
        line = container[0]  # type: ignore[index]
        assert line.get_xdata().tolist() == [1, 3]  # counted from 1
        number = names.index((MODEL, name, "none", "sequential", "adam"))
        assert line.get_ydata().astype(float) == pytest.approx(
            [2 * math.sqrt(2) * (1 + number)] * 2
        )
    assert left.get_yscale() == right.get_yscale() == "log"
    assert sorted(left.get_xticks().tolist()) == [0, 1, 3]  # where there are points
    assert sorted(right.get_xticks().tolist()) == [1, 3]
    assert "Geometric mean over 2 seeds" in caption
    assert "for each of 2 images" in caption
    assert "Adam, 10 steps from noise. d_10k (model vit_micro)." in caption


def test_the_legend_of_orders(full: Made, keep: Callable[[Made], Kept]) -> None:
    figures = keep(full)
    figures.orders(full.rows[full.rows["family"] == MODEL])
    texts = [text.get_text() for text in figures.drawn["inversion_orders"].legends[0].get_texts()]
    assert texts == [
        f"{name}, {order}"
        for name in ("untrained", "baseline", "LS")
        for order in ("sequential", "arbitrary")
    ]


def test_orders_are_of_models_as_they_are(keep: Callable[[Made], Kept], tmp_path: Path) -> None:
    """Where the chosen model is a family too, its edits are no part of its lines."""
    made = make(tmp_path / "arrays")
    as_family = made.rows.assign(family=made.rows["family"].replace("vit", MODEL))
    expected, found = keep(made), keep(made)
    expected.orders(as_family[(as_family["family"] == MODEL) & (as_family["edit"] == "none")])
    found.orders(as_family[as_family["family"] == MODEL])
    for a, b in zip(
        found.drawn["inversion_orders"].axes, expected.drawn["inversion_orders"].axes, strict=True
    ):
        for line, same in zip(a.get_lines(), b.get_lines(), strict=True):
            assert np.asarray(line.get_ydata()) == pytest.approx(np.asarray(same.get_ydata()))


ALL = PAGES | {"inversion_ablation", "inversion_transplant", "inversion_orders"}
TITLES = [
    "Inversion, depth",
    "Inversion, curves",
    "Inversion, ablation",
    "Inversion, transplant",
    "Class images",
    "Patch-embedding filters",
    "Inversion, orders",
]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One family, one image in colours, few points: quickly drawn."""
    few: Any = {
        "families": ("vit",),
        "variants": ("ls",),
        "optimisers": ("adam",),
        "kept": ("first 1", "layer 0"),
    }
    return make(tmp_path_factory.mktemp("few") / "arrays", images=1, channels=3, **few)


@pytest.mark.slow
def test_figures_are_the_same_bytes_again(few: Made, small: PaperFigures, tmp_path: Path) -> None:
    digests, captions = [], []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figures = InversionFigures(
            folder, small, ["baseline", "ls"], Gallery(few.gallery.folder), few.about, ["vit"]
        )
        captions.append(figures.draw_inversion(few.rows, few.classes))
        digests.append({path.name: sha256(path) for path in folder.iterdir()})
    assert set(digests[0]) == {f"{name}.png" for name in ALL}
    assert digests[0] == digests[1]
    assert captions[0] == captions[1]
    assert list(captions[0]) == TITLES
    assert len(set(digests[0].values())) == len(ALL)


def test_a_page_of_pictures(few: Made, small: PaperFigures, tmp_path: Path) -> None:
    """Grey of one channel and of the mean of four, colours of three; as they are, at most white; empty where there is none."""

    class Drawn(InversionFigures):
        def _save(self, figure: Figure, name: str, **texts: str) -> None:
            self.kept = figure
            plt.close(figure)

    figures = Drawn(tmp_path / "figures", small, ["ls"], few.gallery, few.about, [])
    grey, colour = (
        np.full((1, 2, 2), 0.25, np.float16),
        np.random.default_rng(0).random((3, 2, 2)).astype(np.float16),
    )
    four = np.array([-1.0, 0.5, 1, 3])[:, None, None] * np.ones((4, 2, 2))
    table: list[tuple[str, list[tuple[np.ndarray | None, str]]]]
    table = [
        ("one\nfirst", [(grey, "original"), (colour, "0.50")]),
        ("two", [(None, ""), (four, "0.75")]),
        ("three", [(grey, "alone")]),
    ]
    figures._pictures("page", table, ["", "head"])
    axes = np.array(figures.kept.axes).reshape(3, 2)
    assert [[len(axis.images) for axis in line] for line in axes] == [[1, 1], [0, 1], [1, 0]]
    assert not any(axis.axison for axis in axes.flat)
    assert [axis.get_title() for axis in axes[0]] == ["", "head"]
    texts = [[text.get_text() for text in axis.texts] for axis in axes.flat]
    assert texts == [
        ["one\nfirst", "original"],
        ["0.50"],
        ["two", ""],
        ["0.75"],
        ["three", "alone"],
        [],
    ]
    shown = {place: axes[place].images[0] for place in ((0, 0), (0, 1), (1, 1))}
    assert {
        (image.norm.vmin, image.norm.vmax, image.get_cmap().name) for image in shown.values()
    } == {(0, 1, "gray")}
    assert np.asarray(shown[0, 0].get_array()).tolist() == [[0.25] * 2] * 2
    np.testing.assert_array_equal(
        np.asarray(shown[0, 1].get_array()), colour.transpose(1, 2, 0).astype(np.float32)
    )
    assert np.asarray(shown[1, 1].get_array()).tolist() == [[(0 + 0.5 + 1 + 1) / 4] * 2] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "drawn"),
    [
        ({"seeds": 2}, ALL),
        ({"judged": lambda family: False}, ALL),
        ({"channels": 3}, ALL),
        ({"variants": ()}, ALL - {"inversion_orders"}),
        ({"edits": False}, PAGES | {"inversion_orders"}),
        (
            {
                "edits": False,
                "variants": (),
                "families": ("vit",),
                "own": ("vit",),
                "optimisers": ("gd",),
            },
            PAGES,
        ),
    ],
    ids=["two seeds", "no judge", "colours", "no variants", "no edits", "the chosen model alone"],
)
def test_figures_of_what_there_is(
    options: dict[str, Any], drawn: set[str], keep: Callable[[Made], Kept], tmp_path: Path
) -> None:
    made = make(tmp_path / "arrays", **{"seeds": 1, "images": 1} | options)
    figures = keep(made)
    captions = figures.draw_inversion(made.rows, made.classes)
    assert {*figures.pages, *figures.drawn} == drawn
    assert len(captions) == len(drawn)
    assert set(captions) <= set(TITLES)
    assert ("trained by the stage" in captions["Inversion, depth"]) == ("own" not in options)
    for title in set(captions) - {"Inversion, orders", "Patch-embedding filters", "Class images"}:
        assert "Seed 0; d_10k (model vit_micro)" in captions[title]
    for title in set(captions) - {"Inversion, curves", "Patch-embedding filters", "Class images"}:
        assert (
            "gradient descent, 20 steps"
            if "gd" in options.get("optimisers", ())
            else "Adam, 10 steps"
        ) in captions[title]
    if "Inversion, orders" in captions:
        assert (
            f"mean over {'2 seeds' if options.get('seeds') == 2 else '1 seed'}; bars"
            in captions["Inversion, orders"]
        )


def test_captions_say_what_trained_the_models(full: Made, keep: Callable[[Made], Kept]) -> None:
    """One epoch, all images; gradient descent, if that comes first."""
    about = full.about | {
        "epochs": 1,
        "training_images": None,
        "optimisers": {"gd": {"steps": 20}},
        "trained_here": ["vit"],
    }
    rows = full.rows.assign(optimiser="gd")
    caption = keep(full._replace(about=about)).depths(rows[full.rows["optimiser"] == "gd"])
    assert "gradient descent, 20 steps from noise" in caption
    assert caption.endswith("vit: trained by the stage, 1 epoch of all training images.")


def test_a_page_says_where_its_pictures_stand(few: Made, params: Params, tmp_path: Path) -> None:
    """Cut along the edges that the file names, every part has the grey of its own picture and of no other."""
    size = params.paper_figures.model_copy(update={"dpi": 200})
    figures = InversionFigures(tmp_path / "figures", size, ["ls"], few.gallery, few.about, [])
    table: list[tuple[str, list[tuple[np.ndarray | None, str]]]]
    table = [
        (
            f"row {i}",
            [(np.full((1, 2, 2), (40 + 60 * i + 20 * j) / 255), "text\n| below") for j in range(3)],
        )
        for i in range(3)
    ]
    table[1][1][1] = (None, "")
    figures._pictures("page", table, ["", "first\nlayer", "first 2\nlayers"])
    with Image.open(tmp_path / "figures/page.png") as image:
        grid, pixels = json.loads(image.info[GRID]), np.asarray(image.convert("L"))
    height, width = pixels.shape
    assert grid["heads"] == ["", "first layer", "first 2 layers"]
    for i, (top, bottom) in enumerate(pairwise(grid["rows"])):
        for j, (left, right) in enumerate(pairwise(grid["columns"])):
            part = pixels[
                round(top * height) : round(bottom * height),
                round(left * width) : round(right * width),
            ]
            greys, counts = np.unique(part, return_counts=True)
            found = {
                round(int(grey), -1)
                for grey, count in zip(greys, counts, strict=True)
                if count > 90 and grey < 255
            }
            assert found == (set() if (i, j) == (1, 1) else {40 + 60 * i + 20 * j})
