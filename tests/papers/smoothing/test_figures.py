"""Tables and figures of over-smoothing: cells and lines by another way, what was not run."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lsvit.routes import ORDERS
from papers.smoothing.figures import LOOKS, MEASURES, draw_smoothing
from papers.smoothing.tables import (
    TABLE1,
    ablation_table,
    drop_path_table,
    losses_table,
    match_depths,
    recipe_table,
    smoothing_numbers,
    write_smoothing_tables,
)
from pipeline.config.params import Params
from tests.conftest import cases_of
from tests.papers.claim_suite import chosen
from tests.papers.drawn import DrawnFigures, by_label, expect_lines
from tests.papers.smoothing.test_claims import TestSmoothing

CASES = cases_of(__file__)
BEST = "contrastive+mixing"
VARIANTS = ["baseline", "ls", "ls_contrastive"]
RECIPE = {"repeats": 1, "erasing": 0.0, "drop_path": 0.1}
ABOUT = {"images": 500, "epochs": 2, "training_images": 900, "kwargs": {}, "recipe": RECIPE}


@pytest.fixture
def rows() -> pd.DataFrame:
    """Every table's rows; seeds differ."""
    rows = TestSmoothing.made()["smoothing"].assign(dataset="made_up", model="vit_micro")
    for column in ("accuracy", "patch_cosine", "attention_std"):
        rows[column] += 0.01 * rows["seed"] ** 2
    return rows


@pytest.fixture
def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return smoothing_numbers(rows)


def cell(rows: pd.DataFrame, losses: str = "none", depth: int = 12, **keys: Any) -> str:
    """A training's accuracy from its rows of the last layer: "mean ± std"."""
    where = {"training": "scratch", "changed": "none", "talking_heads": False}
    where |= {"losses": losses, "num_layers": depth, "layer": depth} | keys
    values = 100 * rows[chosen(rows, where)]["accuracy"]
    return f"{values.mean():.2f} ± {values.std():.2f}"


def test_cells_of_table_1(rows: pd.DataFrame, numbers: pd.DataFrame) -> None:
    """The source's rows, then our own sums; another depth has a column."""
    table = losses_table(numbers)
    assert list(table.columns[-4:-2]) == ["here, 12 layers", "here, 24 layers"]
    names = ("cosine", "contrastive", "mixing")
    for losses, row in zip(TABLE1, table.to_numpy(), strict=False):
        assert [mark == "yes" for mark in row[:3]] == [name in losses for name in names]
        expected = [f"{TABLE1[losses]:.1f}", cell(rows, losses), cell(rows, losses, 24)]
        assert list(row[3:6]) == expected
    assert list(table.iloc[7, :5]) == ["–", "cosines", "–", "–", cell(rows, "contrastive_cosines")]
    last = rows[(rows["layer"] == 12) & (rows["training"] == "scratch")]
    cosine = last[(last["losses"] == "cosine") & (last["num_layers"] == 12)]["patch_cosine"]
    text = f"{cosine.mean():.2f} ± {cosine.std():.2f}"
    assert table.loc[1, "patch cosine, 12 layers"] == text


def test_cells_of_table_3(rows: pd.DataFrame, numbers: pd.DataFrame) -> None:
    """Of two rows that differ in epochs ours is the first; other depths are named."""
    table = ablation_table(numbers)
    mixing = ["224", "12", "–", "yes", "–", "300", "82.4", cell(rows, "mixing")]
    assert list(table.iloc[1]) == mixing
    talking = cell(rows, BEST, talking_heads=True)
    deep = cell(rows, BEST, 24, talking_heads=True)
    assert list(table["here"][3:]) == [cell(rows, BEST), talking, "not run", deep]
    other = rows[rows["num_layers"] == 12].copy()
    other[["num_layers", "layer"]] -= 6
    table = ablation_table(smoothing_numbers(other))
    assert list(table["D"][-2:]) == ["12 (here: 6)", "24"]


def test_cells_of_table_5(rows: pd.DataFrame, numbers: pd.DataFrame) -> None:
    """The whole recipe's drop path is no change."""
    expected = []
    for losses, changed in product(("mixing", BEST), ("none", "drop_path_0.5", "drop_path_0.75")):
        expected.append(cell(rows, losses, 24, changed=changed, talking_heads=True))
    table = drop_path_table(numbers, 0.1)
    assert list(table["here"]) == expected
    assert list(table.iloc[3])[:4] == ["yes", "yes", "0.10", "82.0"]
    other = drop_path_table(numbers, 0.75)
    assert list(other["here"][:3]) == ["not run", expected[1], expected[0]]


def test_cells_of_table_4(rows: pd.DataFrame, numbers: pd.DataFrame) -> None:
    table = recipe_table(numbers, BEST).set_index("Model")
    for name, published, keys in (
        ("Standard", ["81.7", "82.9"], {}),
        ("- Drop Path", ["3.4", "80.4"], {"changed": "without_drop_path"}),
        ("+ Depth (24 Layer)", ["77.3", "83.3"], {"depth": 24}),
    ):
        ours = [cell(rows, losses, **keys) for losses in ("none", BEST)]  # type: ignore[arg-type]
        assert list(table.loc[name]) == [*published, *ours]
    assert list(table.loc["- CutMix"]) == ["–", "–", "not run", "not run"]
    other = recipe_table(numbers, "cosine").iloc[0]
    assert other["here Ours"] == cell(rows, "cosine")
    only_12 = numbers[numbers["num_layers"] == 12]
    assert match_depths(only_12) == {12: 12, 24: None}
    assert recipe_table(only_12, BEST)["here DEIT"][5] == "not run"
    shallow = numbers.assign(num_layers=numbers["num_layers"] // 6)
    assert recipe_table(shallow, BEST)["Model"][5] == "+ Depth (24 Layer, here: 4)"


def test_tables_are_written(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Numbers that the table shows as csv; its texts with the caption as md and tex."""
    captions = write_smoothing_tables(rows, tmp_path, BEST, ABOUT)
    lengths = {1: 32, 3: 11, 4: 12, 5: 7}
    for (number, length), caption in zip(lengths.items(), captions.values(), strict=True):
        name = f"smoothing_table{number}"
        assert caption in (tmp_path / f"{name}.md").read_text()
        assert "vit\\_micro" in (tmp_path / f"{name}.tex").read_text()
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) == length


def test_what_was_not_run_is_said(rows: pd.DataFrame, tmp_path: Path) -> None:
    for some in (rows.iloc[:0], rows[rows["training"] != "scratch"]):
        write_smoothing_tables(some, tmp_path, BEST, ABOUT)
        assert pd.read_csv(tmp_path / "smoothing_table1.csv").empty
        numbers = smoothing_numbers(some)
        tables = [losses_table(numbers), ablation_table(numbers), recipe_table(numbers, BEST)]
        for table in (*tables, drop_path_table(numbers, 0.1)):
            ours = [column for column in table if "here" in column or "cosine, " in column]
            assert set(table[ours].to_numpy().flat) == {"not run"}
    alone = rows[(rows["seed"] == 0) & (rows["losses"] == "none")]
    texts = list(losses_table(smoothing_numbers(alone))["here, 12 layers"])
    assert texts == [cell(alone).partition(" ")[0]] + 6 * ["not run"]  # one seed has no spread


@pytest.fixture
def figures(params: Params, tmp_path: Path) -> DrawnFigures:
    return DrawnFigures(tmp_path, params, VARIANTS)


def test_lines_are_means_over_the_seeds(rows: pd.DataFrame, figures: DrawnFigures) -> None:
    """A panel a depth with a line a sum of losses and one of random initialisations."""
    draw_smoothing(figures, rows, ABOUT)
    plain = rows[(rows["changed"] == "none") & ~rows["talking_heads"]]
    plain = plain[plain["training"].isin(["scratch", "untrained"])]
    plain.loc[plain["training"] == "untrained", "losses"] = "untrained"
    labels = {losses: look["label"] for losses, look in LOOKS.items()}
    for measure, (panel, depth) in product(MEASURES, enumerate((12, 24))):
        models = plain[plain["num_layers"] == depth].dropna(subset=measure.column)
        axis = figures.drawn[measure.figure].axes[panel]
        expect_lines(axis, by_label(models, "losses", labels), "layer", measure.column, 1)


def test_lines_of_orders(rows: pd.DataFrame, figures: DrawnFigures) -> None:
    draw_smoothing(figures, rows, ABOUT)
    for axis, measure in zip(figures.drawn["smoothing_orders"].axes, MEASURES, strict=True):
        variants = {}
        for variant, order in product(VARIANTS, ORDERS):
            lines = rows[chosen(rows, {"training": variant, "order": order})]
            variants[f"{figures.label(variant)}, {order}"] = lines.dropna(subset=measure.column)
        expect_lines(axis, variants, "layer", measure.column, 1)


@pytest.mark.parametrize(("kept", "drawn"), CASES["kept"])
def test_figures_without_rows_are_left_out(
    kept: dict[str, list], drawn: list[str], rows: pd.DataFrame, figures: DrawnFigures
) -> None:
    for column, values in kept.items():
        if column == "attention_std":
            rows = rows.assign(attention_std=np.nan)
        else:
            rows = rows[rows[column].isin(values)]
    captions = draw_smoothing(figures, rows, ABOUT)
    assert sorted(figures.drawn) == drawn
    assert len(captions) == len(drawn)
