"""Tables and figures of over-smoothing: cells and lines by another way, what was not run."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from papers.smoothing.figures import draw
from papers.smoothing.tables import (
    ablation_table,
    drop_path_table,
    losses_table,
    match_depths,
    recipe_table,
    smoothing_numbers,
    write,
)
from pipeline.config.params import Params
from tests.conftest import cases_of
from tests.papers.claim_suite import results_in
from tests.papers.drawn import DrawnFigures, expect_case
from tests.papers.smoothing import test_claims

CASES = cases_of(__file__)
BEST = "contrastive+mixing"
RECIPE = {"repeats": 1, "erasing": 0.0, "drop_path": 0.1}
ABOUT = {"images": 500, "epochs": 2, "training_images": 900, "kwargs": {}, "recipe": RECIPE}


@pytest.fixture
def rows() -> pd.DataFrame:
    """Every table's rows; seeds differ."""
    rows = test_claims.TestSmoothing.made()["smoothing"].assign(
        dataset="made_up", model="vit_micro"
    )
    for column in ("accuracy", "patch_cosine", "attention_std"):
        rows[column] += 0.01 * rows["seed"] ** 2
    return rows


@pytest.fixture
def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return smoothing_numbers(rows)


TABLES: dict[int, Callable[..., pd.DataFrame]] = {
    1: losses_table,
    3: ablation_table,
    4: lambda numbers: recipe_table(numbers, BEST),
    5: lambda numbers: drop_path_table(numbers, 0.1),
}


@pytest.mark.parametrize("number", TABLES)
def test_cells(number: int, numbers: pd.DataFrame) -> None:
    """Of Table 3's two rows that differ in epochs ours is the first."""
    assert TABLES[number](numbers).to_numpy().tolist() == CASES["tables"][number]


def test_other_depths(numbers: pd.DataFrame) -> None:
    """Another depth than the source's is named, and one more has columns of its own."""
    depths = [f"{name}, {depth} layers" for name in ("here", "patch cosine") for depth in (12, 24)]
    assert list(losses_table(numbers).columns[-4:]) == depths
    shallow = numbers.assign(num_layers=numbers["num_layers"] // 6)
    assert recipe_table(shallow, BEST)["Model"][5] == "+ Depth (24 Layer, here: 4)"
    only_12 = numbers[numbers["num_layers"] == 12]
    assert match_depths(only_12) == {12: 12, 24: None}
    assert recipe_table(only_12, BEST)["here DEIT"][5] == "not run"
    halved = ablation_table(only_12.assign(num_layers=6))
    assert list(halved["D"][-2:]) == ["12 (here: 6)", "24"]


def test_other_sections(numbers: pd.DataFrame) -> None:
    """The losses that count as the source's are the section's; its own drop path is no change."""
    cosine = recipe_table(numbers, "cosine")
    assert cosine["here Ours"][0] == losses_table(numbers)["here, 12 layers"][1]
    known, other = (drop_path_table(numbers, rate)["here"] for rate in (0.1, 0.75))
    assert list(other[:3]) == ["not run", known[1], known[0]]


def test_tables_are_written(rows: pd.DataFrame, params: Params, tmp_path: Path) -> None:
    """Numbers that the table shows as csv; its texts with the caption as md and tex."""
    captions = write(results_in(tmp_path, {"smoothing": rows}, ABOUT), params)
    lengths = {1: 32, 3: 11, 4: 12, 5: 7}
    for (number, length), caption in zip(lengths.items(), captions.values(), strict=True):
        name = f"smoothing_table{number}"
        assert caption in (tmp_path / f"{name}.md").read_text()
        assert "vit\\_micro" in (tmp_path / f"{name}.tex").read_text()
        assert len(pd.read_csv(tmp_path / f"{name}.csv")) == length


def test_what_was_not_run_is_said(rows: pd.DataFrame, params: Params, tmp_path: Path) -> None:
    assert smoothing_numbers(rows[rows["training"] != "scratch"]).empty
    nothing = rows.iloc[:0]
    write(results_in(tmp_path, {"smoothing": nothing}, ABOUT), params)
    assert pd.read_csv(tmp_path / "smoothing_table1.csv").empty
    for make_table in TABLES.values():
        table = make_table(smoothing_numbers(nothing))
        ours = [column for column in table if "here" in column or "cosine, " in column]
        assert set(table[ours].to_numpy().flat) == {"not run"}
    alone = rows[(rows["seed"] == 0) & (rows["losses"] == "none")]
    texts = list(losses_table(smoothing_numbers(alone))["here, 12 layers"])
    assert texts == ["60.00"] + 6 * ["not run"]  # one seed has no spread


def test_lines(rows: pd.DataFrame, figures: DrawnFigures) -> None:
    figures.draw(draw, {"smoothing": rows}, ABOUT)
    for case in CASES["lines"]:
        expect_case(figures, rows, case)


@pytest.mark.parametrize(("kept", "drawn"), CASES["kept"])
def test_figures_without_rows_are_left_out(
    kept: dict[str, list], drawn: list[str], rows: pd.DataFrame, figures: DrawnFigures
) -> None:
    for column, values in kept.items():
        if column == "attention_std":
            rows = rows.assign(attention_std=np.nan)
        else:
            rows = rows[rows[column].isin(values)]
    captions = figures.draw(draw, {"smoothing": rows}, ABOUT)
    assert sorted(figures.drawn) == drawn
    assert len(captions) == len(drawn)
