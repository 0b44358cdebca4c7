"""Tables and figures of multi-exit ViT: every cell and drawn number by another way."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.exits.compute.budgets import practical
from papers.exits.figures import POLICIES, average_exits, draw_exits
from papers.exits.tables import (
    FORMS,
    LABELS,
    Form,
    exit_numbers,
    exit_table,
    write_exit_tables,
)
from pipeline.config.params import Params
from tests.papers.claim_suite import chosen, committed
from tests.papers.drawn import DrawnFigures, error_bars, expect_line

ABOUT = {"hardware": "a processor", "keep": 3}
FIGURES = {"exits_tradeoff", "exits_counting", "exits_orders", "exits_dynamic"}
FINAL = {"branch": "final"}
OURS = ("ours, vit_micro", "end-to-end", "MLP-EE")


@pytest.fixture
def exits() -> pd.DataFrame:
    return committed().table("exits")


@pytest.fixture
def dynamic() -> pd.DataFrame:
    return committed().table("exits_dynamic")


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
    strategies = {"end-to-end": "end_to_end", "layer-wise": "layer_wise", "–": "end_to_end"}
    data = {"fashion_mnist_10k": "fashion_mnist_10k", "counting MAE": "counting"}
    branches = {label: name for name, label in LABELS.items()} | {"without exits": "none"}
    ours = cells.loc[OURS[0]]
    assert len(ours) == len(LABELS) + 2
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
    flops = select(exits, **where, branch="mlp").sort_values("depth")["flops"] / 2e9
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
    stepless = exits[exits["strategy"] != "layer_wise"]
    assert ("layer-wise", "CNN-Ignore-EE") not in table(stepless).loc[OURS[0]].index


@pytest.mark.parametrize("variant", ["baseline", "counting"])
def test_practical_exits_are_judged_on_the_means(exits: pd.DataFrame, variant: str) -> None:
    rows = select(exits, strategy="classifier_wise", order="sequential", variant=variant)
    means = average_exits(rows)
    score = -means["mean"] if variant == "counting" else means["mean"]
    expected = practical(means["cost"].to_numpy(), score.to_numpy())
    assert means["circled"].tolist() == expected.tolist()
    assert (average_exits(rows[rows["seed"] == 0])["std"] == 0).all()


def test_numbers_drawn(
    exits: pd.DataFrame, dynamic: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    """Means over the seeds: of exits by cost, time and depth, and of budgets in multiply-adds."""
    figures = DrawnFigures(tmp_path, params, ["baseline", "ls"])
    draw_exits(figures, exits, dynamic, ABOUT)
    rows = select(exits, strategy="classifier_wise").assign(cost=exits["flops"] / 2e6)
    baseline = select(rows, variant="baseline", order="sequential")
    counted = select(rows, variant="counting", order="sequential")
    late = baseline[baseline["depth"] >= 6]
    above, middle, below = figures.drawn["exits_tradeoff"].axes
    first = figures.drawn["exits_counting"].axes[0]
    for branch, label in LABELS.items():
        for axis, panel_rows, x, y, factor in (
            (above, baseline, "cost", "accuracy", 100),
            (middle, late, "cost", "accuracy", 100),
            (below, baseline, "latency_ms", "accuracy", 100),
            (first, counted, "cost", "mae", 1),
        ):
            line_rows = select(panel_rows, branch=branch)
            expect_line(error_bars(axis)[label].sort_index(), line_rows, x, y, factor)
    panels = iter(figures.drawn["exits_orders"].axes)
    for variant in ("baseline", "ls"):
        for order in ("sequential", "arbitrary", "pruned"):
            lines = error_bars(next(panels))
            assert list(lines) == ["MLP-EE", "CNN-Ignore-EE", "ViT-EE", "final exit"]  # of all
            for branch, label in (("vit", "ViT-EE"), ("final", "final exit")):
                line_rows = select(rows, variant=variant, order=order, branch=branch)
                expect_line(lines[label], line_rows, "depth", "accuracy", 100)
    above, below = figures.drawn["exits_dynamic"].axes
    for line, policy in zip(above.get_lines(), POLICIES, strict=False):
        budgets = select(dynamic, variant="baseline", policy=policy)
        seeds = [rows[["budget", "accuracy"]] for _, rows in budgets.groupby("seed")]
        places, accuracies = np.mean(seeds, axis=0).T
        assert np.asarray(line.get_xdata()) == pytest.approx(places / 2e6)
        assert np.asarray(line.get_ydata()) == pytest.approx(100 * accuracies)
    expect_line(error_bars(below)["MLP-EE"], select(baseline, branch="mlp"), "depth", "ece", 100)


CLASSES = FIGURES - {"exits_counting"}


@pytest.mark.parametrize(
    ("left_out", "drawn"),
    [
        ({"variant": ["baseline", "ls", "counting"]}, set()),
        ({"variant": ["baseline", "ls"]}, {"exits_counting"}),
        ({"dataset": ["counting"], "strategy": ["end_to_end", "layer_wise"]}, CLASSES),
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
    captions = draw_exits(figures, exits, dynamic, ABOUT)
    assert figures.drawn.keys() == drawn
    assert len(captions) == len(drawn)
