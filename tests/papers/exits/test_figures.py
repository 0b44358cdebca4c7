"""Tables and figures of multi-exit ViT: every cell and drawn number by another way."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.exits.figures import POLICIES, average_exits, draw
from papers.exits.tables import FORMS, exit_numbers, exit_table, write
from pipeline.config.params import Params
from tests.conftest import cases_of
from tests.papers.claim_suite import chosen, results_in
from tests.papers.drawn import DrawnFigures, expect_case
from tests.papers.exits import test_claims

CASES = cases_of(__file__)
ABOUT = {"keep": 9, "counting": {"most": 3}}


@pytest.fixture
def exits() -> pd.DataFrame:
    """The rows that claims are tested on, with other noise in every seed."""
    rows = test_claims.exits().assign(model="vit_micro")
    rng = np.random.default_rng(0)
    rows["accuracy"] += 0.02 * rng.random(len(rows))
    rows["mae"] += 0.1 * rng.random(len(rows))
    return rows


@pytest.fixture
def dynamic() -> pd.DataFrame:
    rows = test_claims.dynamic().assign(exits=3)
    rows["accuracy"] += 0.02 * np.random.default_rng(1).random(len(rows))
    return rows


def select(rows: pd.DataFrame, **where: Any) -> pd.DataFrame:
    return rows[chosen(rows, where)]


def table(exits: pd.DataFrame, number: int = 0) -> pd.DataFrame:
    cells = exit_table(exit_numbers(exits, FORMS[number]), FORMS[number])
    return cells.set_index(["source", "strategy", "branch"])


def test_cells() -> None:
    """Ours of the rows that claims are tested on, with other accuracies; and published ones."""
    rows = test_claims.exits().assign(model="vit_micro")
    rows["accuracy"] += 0.01 * rows["seed"]
    tables = [table(rows, number) for number in (0, 1)]
    for cells, expected in zip(tables, CASES["tables"], strict=True):
        assert cells.loc["ours, vit_micro"].reset_index().to_numpy().tolist() == expected
    for number, row, cells in CASES["cells"]:
        assert dict(tables[number].loc[tuple(row)][list(cells)]) == cells


def test_tables_are_written(exits: pd.DataFrame, params: Params, tmp_path: Path) -> None:
    """A data set of the paper has its column there; a cell has no spread over one seed."""
    exits = exits.replace({"dataset": {"fashion_mnist_10k": "cifar100"}})
    captions = write(results_in(tmp_path, {"exits": exits[exits["seed"] == 0]}, ABOUT), params)
    assert len(list(tmp_path.iterdir())) == 6
    for caption, form in zip(captions.values(), FORMS, strict=True):
        text = (tmp_path / f"{form.name}.md").read_text()
        assert caption in text
        assert "cifar100" not in text.partition("\n")[0]
        assert pd.read_csv(tmp_path / f"{form.name}.csv")["std"].isna().all()
    write(results_in(tmp_path, {"exits": exits.iloc[:0]}, ABOUT), params)
    assert pd.read_csv(tmp_path / "exits_table1.csv").empty
    stepless = exits[~exits["strategy"].isin(test_claims.LAYER_WISE)]
    ours = table(stepless).loc["ours, vit_micro"]
    assert set(ours.index.get_level_values(0)) == {"end-to-end", "–"}


def test_exits_that_most_seeds_find_practical_are_circled(exits: pd.DataFrame) -> None:
    rows = select(exits, strategy="classifier_wise", order="sequential", variant="baseline")
    rows["practical"] = None
    for depth, seeds in ((3, [0, 1]), (4, [0, 1, 2])):
        rows.loc[chosen(rows, {"branch": "vit", "depth": depth, "seed": seeds}), "practical"] = True
    means = average_exits(rows)
    circled = means[means["circled"]]
    assert list(zip(circled["branch"], circled["depth"], strict=True)) == [("vit", 4)]
    assert (average_exits(rows[rows["seed"] == 0])["std"] == 0).all()


def test_lines(exits: pd.DataFrame, dynamic: pd.DataFrame, figures: DrawnFigures) -> None:
    """By cost, and by depth the means over the branches that all models have.

    Of budgets in multiply-adds, and of their accuracies, means over the seeds.
    """
    figures.draw(draw, {"exits": exits, "exits_dynamic": dynamic}, ABOUT)
    common = select(exits, strategy="classifier_wise", branch=test_claims.LS_BRANCHES)
    keys = ["variant", "order", "seed", "depth"]
    means = common.groupby(keys, as_index=False)["accuracy"].mean().assign(strategy="means")
    rows = pd.concat([exits.assign(cost=exits["flops"] / 2e6), means])
    for case in CASES["lines"]:
        expect_case(figures, rows, case)
    (axis,) = figures.drawn["exits_dynamic"].axes
    for line, policy in zip(axis.get_lines(), POLICIES, strict=False):
        budgets = select(dynamic, variant="baseline", policy=policy)
        seeds = [rows[["budget", "accuracy"]] for _, rows in budgets.groupby("seed")]
        places, accuracies = np.mean(seeds, axis=0).T
        assert np.asarray(line.get_xdata()) == pytest.approx(places / 2e6)
        assert np.asarray(line.get_ydata()) == pytest.approx(100 * accuracies)


@pytest.mark.parametrize(("left_out", "expected"), CASES["left out"])
def test_figures_without_rows_are_left_out(
    left_out: dict[str, list],
    expected: list[str],
    exits: pd.DataFrame,
    dynamic: pd.DataFrame,
    figures: DrawnFigures,
) -> None:
    for column, values in left_out.items():
        exits = exits[~exits[column].isin(values)]
        if column in dynamic:
            dynamic = dynamic[~dynamic[column].isin(values)]
    captions = figures.draw(draw, {"exits": exits, "exits_dynamic": dynamic}, ABOUT)
    assert sorted(figures.drawn) == expected
    assert len(captions) == len(expected)
