"""Tables and figures of over-smoothing: cells and lines by hand, what was not run."""

from itertools import product
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from papers.smoothing.figures import LOSSES, MEASURES, choose_looks, draw_smoothing
from papers.smoothing.tables import (
    TABLE1,
    ablation_table,
    losses_table,
    match_depths,
    recipe_table,
    smoothing_numbers,
    write_smoothing_tables,
)
from pipeline.config.params import Params
from pipeline.report.figures import Figures

BEST = "contrastive+mixing"
VARIANTS = ["baseline", "ls", "ls_contrastive"]
ORDERS = ["sequential", "arbitrary"]
STRENGTH = {"none": 0, "cosine": 0.35, "contrastive": 0.25, "mixing": 0.2}  # against similarity
RECIPE = {"repeats": 1, "erasing": 0.0, "drop_path": 0.1}
ABOUT = {"images": 500, "epochs": 2, "training_images": 900, "kwargs": {}, "recipe": RECIPE}


def model_rows(
    training: str, losses: str, seed: int, num_layers: int = 12, **more: Any
) -> pd.DataFrame:
    """Rows of one model: patches become alike, less so with losses; seeds are 0.02 apart."""
    against = sum(STRENGTH[name] for name in losses.split("+"))
    layer = np.arange(num_layers + 1)
    rows = pd.DataFrame({"layer": layer}).assign(
        dataset="d",
        model="vit_x",
        training=training,
        losses=losses,
        removed="none",
        talking_heads=False,
        num_layers=num_layers,
        order="sequential",
        seed=seed,
        accuracy=0.7 + against / 10 + 0.02 * seed,
        patch_cosine=0.3 + (0.6 - against) * layer / num_layers + 0.02 * seed,
        attention_std=np.where(layer > 0, 0.1 + against + 0.01 * layer + 0.02 * seed, np.nan),
    )
    return rows.assign(**more)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Three seeds of everything, two of random initialisations."""
    models = []
    for seed in range(3):
        for depth, losses in product((12, 24), TABLE1):
            models.append(model_rows("scratch", losses, seed, depth))
        for removed, losses in product(("repeats", "erasing", "mixup"), ("none", BEST)):
            models.append(model_rows("scratch", losses, seed, removed=removed))
        models.append(model_rows("scratch", "none", seed, removed="drop_path", accuracy=0.1))
        accuracy = 0.8 + 0.02 * seed
        models.append(model_rows("scratch", BEST, seed, talking_heads=True, accuracy=accuracy))
        for variant, order in product(VARIANTS, ORDERS):
            accuracy = 0.1 * len(variant + order) / 3 + 0.01 * seed
            models.append(model_rows(variant, "none", seed, order=order, accuracy=accuracy))
    for seed, depth in product(range(2), (12, 24)):
        models.append(model_rows("untrained", "none", seed, depth, accuracy=np.nan))
    return pd.concat(models, ignore_index=True)


@pytest.fixture
def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return smoothing_numbers(rows)


def test_numbers_are_those_of_the_last_layer(numbers: pd.DataFrame) -> None:
    """Seeds 0.02 apart: mean that of the middle one, standard deviation 0.02."""
    keys = ["num_layers", "losses", "removed", "talking_heads", "metric"]
    found = numbers.set_index(keys).sort_index()[["mean", "std", "n"]]
    for depth, losses, cosine, accuracy in (
        (12, "none", 0.92, 0.72),
        (24, "cosine", 0.57, 0.755),
        (24, BEST, 0.47, 0.765),
    ):
        plain = found.loc[depth, losses, "none", False]
        assert plain.loc["patch_cosine"].tolist() == pytest.approx([cosine, 0.02, 3])
        assert plain.loc["accuracy"].tolist() == pytest.approx([accuracy, 0.02, 3])
    assert found.index.is_unique
    assert len(found) == 2 * (2 * 7 + 7 + 1)  # no variant, nothing untrained


def test_cells_of_table_1(rows: pd.DataFrame, numbers: pd.DataFrame) -> None:
    """The source's rows, then our own sums; another depth has a column."""
    table = losses_table(numbers)
    marks = ["Cosine Reg", "Patch Contrastive", "Patch Mixing"]
    for losses, row in zip(TABLE1, table[marks].to_numpy(), strict=True):
        names = ("cosine", "contrastive", "mixing")
        assert [mark == "yes" for mark in row] == [name in losses for name in names]
    assert list(table["published, 12 layers"]) == [f"{value:.1f}" for value in TABLE1.values()]
    assert list(table.iloc[0, 4:]) == ["72.00 ± 2.00"] * 2 + ["0.92 ± 0.02"] * 2
    assert table.loc[1, "here, 24 layers"] == "75.50 ± 2.00"
    own = model_rows("scratch", "cosine+contrastive+mixing", 0, 6)
    table = losses_table(smoothing_numbers(pd.concat([rows[rows["num_layers"] == 12], own])))
    assert list(table.iloc[7]) == ["yes", "yes", "yes", "–", "78.00", "not run", "0.10", "not run"]
    assert table.loc[0, "here, 6 layers"] == "not run"


def test_cells_of_table_3(rows: pd.DataFrame, numbers: pd.DataFrame) -> None:
    """Of two rows that differ in epochs ours is the first; other depths are named."""
    table = ablation_table(numbers)
    assert list(table.iloc[1]) == ["224", "12", "–", "yes", "–", "300", "82.4", "74.00 ± 2.00"]
    assert list(table["here"][3:]) == ["76.50 ± 2.00", "82.00 ± 2.00", "not run", "not run"]
    other = rows[rows["num_layers"] == 12].copy()
    other["num_layers"] -= 6
    other["layer"] -= 6
    other.loc[other["talking_heads"], "losses"] = "cosine"
    table = ablation_table(smoothing_numbers(other))
    last = ["–", "– (here: 6)", "yes", "–", "–", "yes", "–", "–", "82.00 ± 2.00"]
    assert list(table.iloc[-1]) == last
    assert list(table["D"][-3:-1]) == ["12 (here: 6)", "24"]
    assert table.iloc[4]["here"] == "not run"


def test_cells_of_table_4(numbers: pd.DataFrame) -> None:
    ours = ["72.00 ± 2.00", "76.50 ± 2.00"]
    table = recipe_table(numbers, BEST).set_index("Model")
    assert list(table.loc["Standard"]) == ["81.7", "82.9", *ours]
    assert list(table.loc["- Drop Path"]) == ["3.4", "80.4", "10.00 ± 0.00", "not run"]
    assert list(table.loc["+ Depth (24 Layer)"]) == ["77.3", "83.3", *ours]
    other = recipe_table(numbers, "cosine").set_index("Model")["here Ours"]
    assert list(other[["Standard", "- Mixup"]]) == ["75.50 ± 2.00", "not run"]
    assert match_depths(numbers) == {12: 12, 24: 24}
    only_12 = numbers[numbers["num_layers"] == 12]
    assert match_depths(only_12) == {12: 12, 24: None}
    assert recipe_table(only_12, BEST).iloc[-1]["here DEIT"] == "not run"
    shallow = numbers.assign(num_layers=numbers["num_layers"] // 6)
    last = ["+ Depth (24 Layer, here: 4)", "77.3", "83.3", *ours]
    assert list(recipe_table(shallow, BEST).iloc[-1]) == last


def test_tables_are_written(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Numbers that the table shows as csv; its texts with the caption as md and tex."""
    captions = write_smoothing_tables(rows, tmp_path, BEST, ABOUT)
    lengths = {1: 28, 3: 5, 4: 11}
    for (number, length), caption in zip(lengths.items(), captions.values(), strict=True):
        name = f"smoothing_table{number}"
        assert "{" not in caption
        assert caption in (tmp_path / f"{name}.md").read_text()
        assert "vit\\_x" in (tmp_path / f"{name}.tex").read_text()
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) == length


def test_what_was_not_run_is_said(rows: pd.DataFrame, tmp_path: Path) -> None:
    for some in (rows.iloc[:0], rows[rows["training"] != "scratch"]):
        write_smoothing_tables(some, tmp_path, BEST, ABOUT)
        assert pd.read_csv(tmp_path / "smoothing_table1.csv").empty
        numbers = smoothing_numbers(some)
        for table in (losses_table(numbers), ablation_table(numbers), recipe_table(numbers, BEST)):
            ours = [column for column in table if "here" in column or "cosine, " in column]
            assert set(table[ours].to_numpy().flat) == {"not run"}
    alone = rows[(rows["seed"] == 0) & (rows["losses"] == "none")]
    table = losses_table(smoothing_numbers(alone))
    assert list(table["here, 12 layers"]) == ["70.00"] + 6 * ["not run"]  # one seed has no spread


class Kept(Figures):
    """Figures that are kept rather than saved."""

    def save(self, figure: Figure, name: str, **texts: str) -> None:
        drawn = self.__dict__.setdefault("drawn", {})
        drawn[name] = figure
        plt.close(figure)


@pytest.fixture
def figures(params: Params, tmp_path: Path) -> Any:
    return Kept(tmp_path, params.paper_figures, VARIANTS)


def test_lines_are_means_over_the_seeds(rows: pd.DataFrame, figures: Any) -> None:
    """A panel a depth with a line a sum of losses and one of random initialisations; accuracies."""
    captions = draw_smoothing(figures, rows, ABOUT)
    assert not any("{" in caption for caption in captions.values())
    plain = rows[(rows["removed"] == "none") & ~rows["talking_heads"]]
    lines = [("scratch", losses) for losses in LOSSES] + [("untrained", "none")]
    for measure, (panel, depth) in product(MEASURES, enumerate((12, 24))):
        axis = figures.drawn[measure.figure].axes[panel]
        for (training, losses), container in zip(lines, axis.containers, strict=True):
            model = plain[(plain["training"] == training) & (plain["losses"] == losses)]
            model = model[model["num_layers"] == depth].dropna(subset=measure.column)
            seeds = model.groupby("layer")[measure.column]
            line, _, bars = container
            assert list(line.get_xdata()) == list(seeds.mean().index)
            assert list(line.get_ydata()) == pytest.approx(list(seeds.mean()))
            low, high = np.array(bars[0].get_segments())[:, :, 1].T
            start, step = line.get_markevery()
            assert list(high - low) == pytest.approx(list(2 * seeds.std())[start::step])
    last = rows[rows["layer"] == rows["num_layers"]]
    accuracies = last.groupby(["training", "order"])["accuracy"].mean()
    points = figures.drawn["smoothing_orders"].axes[-1].containers
    assert len(points) == 2 * len(VARIANTS)
    for line, *_ in points:
        order = "arbitrary" if line.get_markerfacecolor() == "white" else "sequential"
        variant = VARIANTS[int(line.get_ydata()[0])]
        assert line.get_xdata()[0] == pytest.approx(100 * accuracies[variant, order])


DEPTHS = {"smoothing_cosine", "smoothing_attention"}


@pytest.mark.parametrize(
    ("kept", "drawn"),
    [
        ({"training": ["scratch", "untrained"]}, DEPTHS),
        ({"training": VARIANTS}, {"smoothing_orders"}),
        ({"training": ["untrained"]}, set()),
        ({"removed": ["mixup"]}, set()),
        ({"seed": [1], "losses": ["none"], "order": ["sequential"]}, DEPTHS | {"smoothing_orders"}),
        ({"attention_std": [np.nan]}, {"smoothing_cosine", "smoothing_orders"}),
    ],
)
def test_figures_without_rows_are_left_out(
    kept: dict[str, list], drawn: set[str], rows: pd.DataFrame, figures: Any
) -> None:
    for column, values in kept.items():
        if column == "attention_std":
            rows = rows.assign(attention_std=np.nan)
        else:
            rows = rows[rows[column].isin(values)]
    captions = draw_smoothing(figures, rows, ABOUT)
    assert set(vars(figures).get("drawn", {})) == drawn
    assert len(captions) == len(drawn)


def test_colours_are_told_apart(params: Params, tmp_path: Path) -> None:
    """A variant keeps its colour unless one has none: all are then coloured anew."""
    for known in (["other", *VARIANTS], ["other", "ls"]):
        figures = Figures(tmp_path, params.paper_figures, known)
        colours = {v: look["color"] for v, look in choose_looks(figures, VARIANTS).items()}
        assert len(set(colours.values())) == len(VARIANTS)
        if len(known) > 2:
            assert colours == {variant: figures.colours[variant] for variant in VARIANTS}
