"""Tables and figures of multi-exit ViT: every cell and drawn number by another way."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.exits.figures import POLICIES, average_exits, draw_exits
from papers.exits.tables import (
    FORMS,
    LABELS,
    STRATEGIES,
    Form,
    exit_numbers,
    exit_table,
    write_exit_tables,
)
from pipeline.config.params import Params
from pipeline.report.evidence import Evidence
from tests.papers.claim_suite import chosen, made_up
from tests.papers.drawn import DrawnFigures, error_bars, expect_line
from tests.papers.exits import test_claims

FIGURES = {"exits_tradeoff", "exits_counting", "exits_orders", "exits_dynamic"}
FINAL = {"branch": "final"}
OURS = ("ours, vit_micro", "end-to-end", "MLP-EE")


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


def results(exits: pd.DataFrame, dynamic: pd.DataFrame) -> Evidence:
    """Results with these rows, on whatever data the others were made."""
    evidence = made_up({"exits": exits, "exits_dynamic": dynamic})
    about = {"keep": 9, "counting": {"most": 3}}
    evidence.read = lambda name: about  # type: ignore[method-assign]
    return evidence


def select(rows: pd.DataFrame, **where: Any) -> pd.DataFrame:
    return rows[chosen(rows, where)]


def table(exits: pd.DataFrame, number: int = 0) -> pd.DataFrame:
    cells = exit_table(exit_numbers(exits, FORMS[number]), FORMS[number])
    return cells.set_index(["source", "strategy", "branch"])


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_published_figures_have_every_branch_and_exit(form: Form) -> None:
    """The first and the last one were read in the paper's text."""
    figures = list(form.published.values())
    assert all(list(branches) == list(LABELS) for branches in figures)
    assert {len(row) for branches in figures for row in branches.values()} == {len(form.exits)}
    corners = figures[0]["mlp"][0], figures[-1]["resmlp"][-1]
    assert corners == ((94.90, 11.36) if form.is_first else (87.21, 11.09))


@pytest.mark.parametrize("number", [0, 1])
def test_our_cells_are_means_over_the_seeds(exits: pd.DataFrame, number: int) -> None:
    form, cells = FORMS[number], table(exits, number)
    strategies = {text: name for name, text in STRATEGIES.items()} | {"–": "end_to_end"}
    data = {"fashion_mnist_10k": "fashion_mnist_10k", "counting MAE": "counting"}
    branches = {label: name for name, label in LABELS.items()} | {"without exits": "none"}
    ours = cells.loc[OURS[0]]
    assert len(ours) == len(LABELS) + 1 + len(test_claims.LAYER_WISE)
    for strategy, branch in ours.index:
        placement = "none" if strategy == "–" else "-".join(map(str, form.depths))
        where = {"strategy": strategies[strategy], "architecture": branches[branch]}
        for column, text in ours.loc[strategy, branch].items():
            name, _, exit = str(column).rpartition(" ")
            if not exit.startswith(("Early", "Final")):
                continue
            place = FINAL if exit == "Final" else {"depth": int(exit[6:])}
            where |= {"dataset": data.get(name, name), "placement": placement}
            rows = select(exits, **where, **place)
            values = rows["mae"] if where["dataset"] == "counting" else 100 * rows["accuracy"]
            if len(rows):
                assert text == f"{values.mean():.2f} ± {values.std():.2f}"
            else:
                assert text == ("–" if strategy == "–" and exit != "Final" else "not run")


@pytest.mark.parametrize(
    ("number", "row", "cells"),
    [
        (0, ("end-to-end", "ViT-EE"), {"CIFAR-100 Early@6": "85.23", "multiply-adds (G)": "32.65"}),
        (0, ("–", "without exits"), {"counting MAE Final": "11.07"}),
        (0, ("layer-wise", "CNN-Ignore-EE"), {"CIFAR-10 Early@6": "95.97"}),
        (1, ("end-to-end", "ViT-EE"), {"CIFAR-10 Early@9": "97.25", "multiply-adds (G)": "–"}),
    ],
)
def test_published_cells(
    number: int, row: tuple[str, str], cells: dict[str, str], exits: pd.DataFrame
) -> None:
    assert dict(table(exits, number).loc[("published, ViT-B/16", *row)][list(cells)]) == cells


def test_operations_are_those_up_to_each_early_exit(exits: pd.DataFrame) -> None:
    where = {"strategy": "end_to_end", "architecture": "mlp", "placement": "3-6-9", "seed": 0}
    here = select(exits, **where, dataset="fashion_mnist_10k", branch="mlp")
    flops = here.sort_values("depth")["flops"] / 2e9
    texts = [f"{value:.4g}" for value in flops]
    assert table(exits, 1).loc[OURS]["multiply-adds (G)"] == " / ".join(texts)


def test_tables_are_written(exits: pd.DataFrame, tmp_path: Path) -> None:
    """A data set of the paper has its column there; a cell has no spread over one seed."""
    exits = exits.replace({"dataset": {"fashion_mnist_10k": "cifar100"}})
    captions = write_exit_tables(exits[exits["seed"] == 0], tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    for caption, form in zip(captions.values(), FORMS, strict=True):
        text = (tmp_path / f"{form.name}.md").read_text()
        assert caption in text
        assert "cifar100" not in text.partition("\n")[0]
        assert pd.read_csv(tmp_path / f"{form.name}.csv")["std"].isna().all()
    write_exit_tables(exits.iloc[:0], tmp_path)
    assert pd.read_csv(tmp_path / "exits_table1.csv").empty
    stepless = exits[~exits["strategy"].isin(test_claims.LAYER_WISE)]
    assert set(table(stepless).loc[OURS[0]].index.get_level_values(0)) == {"end-to-end", "–"}


def test_exits_that_most_seeds_find_practical_are_circled(exits: pd.DataFrame) -> None:
    rows = select(exits, strategy="classifier_wise", order="sequential", variant="baseline")
    rows["practical"] = None
    for depth, seeds in ((3, [0, 1]), (4, [0, 1, 2])):
        rows.loc[chosen(rows, {"branch": "vit", "depth": depth, "seed": seeds}), "practical"] = True
    means = average_exits(rows)
    circled = means[means["circled"]]
    assert list(zip(circled["branch"], circled["depth"], strict=True)) == [("vit", 4)]
    assert (average_exits(rows[rows["seed"] == 0])["std"] == 0).all()


def test_numbers_drawn(
    exits: pd.DataFrame, dynamic: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    """Means over the seeds: of exits by cost and depth, and of budgets in multiply-adds."""
    figures = DrawnFigures(tmp_path, params, ["baseline", "ls"])
    draw_exits(figures, results(exits, dynamic))
    rows = select(exits, strategy="classifier_wise").assign(cost=exits["flops"] / 2e6)
    baseline = select(rows, variant="baseline", order="sequential")
    counted = select(rows, variant="counting", order="sequential")
    whole, above, below = figures.drawn["exits_tradeoff"].axes
    first = figures.drawn["exits_counting"].axes[0]
    for branch, label in LABELS.items():
        for axis, panel_rows, y, factor in (
            (whole, baseline, "accuracy", 100),
            (above, baseline[baseline["depth"] <= 6], "accuracy", 100),
            (below, baseline[baseline["depth"] >= 6], "accuracy", 100),
            (first, counted, "mae", 1),
        ):
            line_rows = select(panel_rows, branch=branch)
            expect_line(error_bars(axis)[label].sort_index(), line_rows, "cost", y, factor, 1e-9)
    guesses = [np.asarray(axis.get_lines()[-1].get_ydata())[0] for axis in (whole, first)]
    assert guesses == [10, 1]  # of ten classes; of 0 to 3 objects, whose middle is 1.5
    early = rows[rows["branch"].isin(test_claims.LS_BRANCHES)]
    keys = ["variant", "order", "seed", "depth"]
    means = early.groupby(keys, as_index=False)["accuracy"].mean()
    titles = ("sequential", "arbitrary", "pruned")
    for axis, order in zip(figures.drawn["exits_orders"].axes, titles, strict=True):
        lines = error_bars(axis)
        for variant, label in (("baseline", "baseline"), ("ls", "LS")):
            line_rows = select(means, variant=variant, order=order)
            assert (label in lines) == (len(line_rows) > 0)
            if label in lines:
                expect_line(lines[label], line_rows, "depth", "accuracy", 100, 1e-9)
        assert np.asarray(axis.get_lines()[-1].get_ydata())[0] == 10
    (axis,) = figures.drawn["exits_dynamic"].axes
    for line, policy in zip(axis.get_lines(), POLICIES, strict=False):
        budgets = select(dynamic, variant="baseline", policy=policy)
        seeds = [rows[["budget", "accuracy"]] for _, rows in budgets.groupby("seed")]
        places, accuracies = np.mean(seeds, axis=0).T
        assert np.asarray(line.get_xdata()) == pytest.approx(places / 2e6)
        assert np.asarray(line.get_ydata()) == pytest.approx(100 * accuracies)


CLASSES = FIGURES - {"exits_counting"}


@pytest.mark.parametrize(
    ("left_out", "drawn"),
    [
        ({"variant": ["baseline", "ls", "counting"]}, set()),
        ({"variant": ["baseline", "ls"]}, {"exits_counting"}),
        ({"dataset": ["counting"], "strategy": ["end_to_end", *test_claims.LAYER_WISE]}, CLASSES),
        ({"variant": ["baseline", "counting"], "seed": [1], "branch": ["mlp"]}, CLASSES),
    ],
)
def test_figures_without_rows_are_left_out(
    left_out: dict[str, list],
    drawn: set[str],
    exits: pd.DataFrame,
    dynamic: pd.DataFrame,
    params: Params,
    tmp_path: Path,
) -> None:
    for column, values in left_out.items():
        exits = exits[~exits[column].isin(values)]
        if column in dynamic:
            dynamic = dynamic[~dynamic[column].isin(values)]
    figures = DrawnFigures(tmp_path, params, ["baseline"])
    captions = draw_exits(figures, results(exits, dynamic))
    assert figures.drawn.keys() == drawn
    assert len(captions) == len(drawn)
