"""Tables and figures of multi-exit ViT: cells and drawn numbers by hand, what was not run."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.exits.figures import POLICIES, average_exits, draw_exits
from papers.exits.tables import (
    FORMS,
    LABELS,
    PUBLISHED,
    exit_numbers,
    exit_table,
    write_exit_tables,
)
from pipeline.config.params import Params
from tests.papers.drawn import DrawnFigures, error_bars

ABOUT = {"hardware": "a processor", "keep": 3}
FIGURES = {"exits_tradeoff", "exits_counting", "exits_orders", "exits_dynamic"}


def exit_rows(
    strategy: str, exits: Iterable[tuple[str, int]], dataset: str = "d", **where: Any
) -> pd.DataFrame:
    """Rows of exits.csv: deeper exits are better, the seeds are 0.02 (counting: 0.2) apart."""
    places = [(*exit, seed) for exit in exits for seed in (0, 1)]
    rows = pd.DataFrame(places, columns=["branch", "depth", "seed"])
    seed, depth = rows["seed"], rows["depth"]
    dearer = rows["branch"].map({branch: i for i, branch in enumerate(LABELS)}).fillna(0)
    values: dict[str, Any] = {"accuracy": 0.5 + 0.05 * depth + 0.02 * seed, "mae": np.nan}
    if dataset == "counting":
        values = {"accuracy": 0.2, "mae": 3 - 0.1 * depth + 0.2 * seed}
    about = {"model": "m", "variant": "none", "placement": "none", "architecture": "none"}
    about |= {"order": "sequential"} | where
    return rows.assign(
        dataset=dataset,
        strategy=strategy,
        ece=0.01 * depth,
        flops=2_000_000 * depth + 100_000 * dearer,
        latency_ms=depth + 0.1,
        practical=rows["branch"] == "mlp",
        **values,
        **about,
    )


@pytest.fixture(scope="module")
def exits() -> pd.DataFrame:
    """Two seeds, four layers, exits after 1 to 3 (frozen) and after 6 or 3, 6, 9 (trained)."""
    tables = []
    backbones = {"baseline": list(LABELS), "ls": ["mlp", "vit"], "counting": ["mlp", "resmlp"]}
    for variant, branches in backbones.items():
        data = "counting" if variant == "counting" else "d"
        places = [*itertools.product(branches, (1, 2, 3)), ("final", 4)]
        for order in ("sequential", "arbitrary", "pruned"):
            where = {"variant": variant, "order": order}
            tables.append(exit_rows("classifier_wise", places, data, **where))
    trained = [("end_to_end", "mlp"), ("end_to_end", "vit"), ("layer_wise", "cnn_ignore")]
    for (strategy, branch), placement in itertools.product(trained, ("6", "3-6-9")):
        places = [(branch, int(depth)) for depth in placement.split("-")] + [("final", 12)]
        where = {"placement": placement, "architecture": branch}
        tables.append(exit_rows(strategy, places, **where))
    for data in ("d", "counting"):
        tables.append(exit_rows("end_to_end", [("final", 12)], data))
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="module")
def dynamic() -> pd.DataFrame:
    """Two budgets; the confidence policy exceeds its budget by 2 %."""
    columns = ["variant", "seed", "budget", "policy"]
    values = (("baseline", "ls"), (0, 1), (2_000_000, 8_000_000), POLICIES)
    rows = pd.DataFrame(itertools.product(*values), columns=columns)
    excess = rows["policy"].map({"confidence": 1.02}).fillna(1)
    accuracy = rows["policy"].map({"budget": 0.6, "anytime": 0.7, "confidence": 0.8})
    return rows.assign(
        exits=2 + rows["seed"],
        flops=rows["budget"] * excess,
        accuracy=accuracy + 0.01 * rows["seed"],
    )


def test_published_figures_are_those_of_the_paper() -> None:
    """Read by hand in the paper's text: the first and last rows of both tables, some between."""
    first, second = (form.published for form in FORMS)
    assert list(first["cifar10"].values())[::6] == [[94.90, 96.73], [95.44, 97.35]]
    assert first["fashion_mnist"]["vit"] == [94.39, 94.84]
    assert list(first["counting"].values())[::6] == [[11.04, 10.72], [16.99, 11.36]]
    assert second["cifar10"]["mlp"] == [87.21, 94.48, 95.64, 96.19]
    assert second["cifar100"]["cnn_project"] == [64.26, 78.63, 84.47, 86.19]
    assert [figures["resmlp"][-1] for figures in second.values()] == [96.86, 87.85, 11.09]
    assert list(PUBLISHED["without_exits"].values()) == [98.31, 91.24, 95.00, 11.07]
    operations = [28.04, 28.10, 28.10, 28.16, 32.65, 31.11, 31.02]
    assert list(PUBLISHED["multiply_adds"].values()) == operations
    for form in FORMS:
        for figures in form.published.values():
            assert list(figures) == list(LABELS)
            assert {len(row) for row in figures.values()} == {len(form.exits)}


def test_numbers_are_means_over_the_seeds(exits: pd.DataFrame) -> None:
    numbers = exit_numbers(exits, FORMS[0])
    numbers = numbers.set_index(["dataset", "strategy", "architecture", "exit"])
    cell = numbers.loc["d", "end_to_end", "vit", "Early@6"]
    assert cell["mean"] == pytest.approx(0.81)
    assert cell["std"] == pytest.approx(np.std([0, 0.02], ddof=1), abs=1e-6)
    assert (cell["n"], cell["metric"]) == (2, "accuracy")
    assert numbers.loc["counting", "end_to_end", "none", "Final"]["mean"] == pytest.approx(1.9)
    for form in FORMS:
        assert set(exit_numbers(exits, form)["exit"]) == set(form.exits)


def table(exits: pd.DataFrame, number: int = 0) -> pd.DataFrame:
    cells = exit_table(exit_numbers(exits, FORMS[number]), FORMS[number])
    return cells.set_index(["source", "strategy", "branch"])


OURS = ("ours, m", "end-to-end", "MLP-EE")
PAPERS_OWN = "published, ViT-B/16"


@pytest.mark.parametrize(
    ("number", "row", "cells"),
    [
        (0, OURS, {"d Early@6": "81.00 ± 1.41", "multiply-adds (G)": "0.006"}),
        (0, OURS, {"CIFAR-10 Final": "not run"}),
        (0, ("ours, m", "end-to-end", "ResMLP-EE"), {"d Final": "not run"}),
        (0, ("ours, m", "layer-wise", "CNN-Ignore-EE"), {"d Early@6": "81.00 ± 1.41"}),
        (
            0,
            ("ours, m", "–", "without exits"),
            {"d Early@6": "–", "d Final": "111.00 ± 1.41", "counting MAE Final": "1.90 ± 0.14"},
        ),
        (
            0,
            (PAPERS_OWN, "end-to-end", "ViT-EE"),
            {"CIFAR-100 Early@6": "85.23", "d Final": "–", "multiply-adds (G)": "32.65"},
        ),
        (0, (PAPERS_OWN, "–", "without exits"), {"counting MAE Final": "11.07"}),
        (0, (PAPERS_OWN, "layer-wise", "CNN-Ignore-EE"), {"CIFAR-10 Early@6": "95.97"}),
        (1, OURS, {"multiply-adds (G)": "0.003 / 0.006 / 0.009"}),
        (1, (PAPERS_OWN, "end-to-end", "ViT-EE"), {"multiply-adds (G)": "–"}),
    ],
)
def test_cells_of_a_table(
    number: int, row: tuple[str, str, str], cells: dict[str, str], exits: pd.DataFrame
) -> None:
    assert dict(table(exits, number).loc[row][list(cells)]) == cells


def test_a_data_set_of_the_paper_has_its_column(exits: pd.DataFrame) -> None:
    cells = table(exits.replace({"dataset": {"d": "cifar100"}}))
    assert cells.loc[OURS]["CIFAR-100 Early@6"] == "81.00 ± 1.41"
    assert not any("cifar100" in column for column in cells.columns)


def test_tables_are_written(exits: pd.DataFrame, tmp_path: Path) -> None:
    captions = write_exit_tables(exits.assign(model="vit_x"), tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    for caption, form in zip(captions.values(), FORMS, strict=True):
        assert caption in (tmp_path / f"{form.name}.md").read_text()
        assert "81.00 $\\pm$ 1.41" in (tmp_path / f"{form.name}.tex").read_text()
        numbers = pd.read_csv(tmp_path / f"{form.name}.csv")
        assert numbers["mean"].tolist() == exit_numbers(exits, form)["mean"].tolist()


def test_what_was_not_run_is_said(exits: pd.DataFrame, tmp_path: Path) -> None:
    write_exit_tables(exits.iloc[:0], tmp_path)
    assert pd.read_csv(tmp_path / "exits_table1.csv").empty
    assert set(table(exits.iloc[:0]).loc["ours", "end-to-end", "ViT-EE"][:-1]) == {"not run"}
    stepless = exits[exits["strategy"] != "layer_wise"]
    assert ("ours, m", "layer-wise", "CNN-Ignore-EE") not in table(stepless).index
    alone = exits[(exits["placement"] == "6") & (exits["seed"] == 0)]
    alone = alone.assign(placement=6)  # as pandas reads such a file
    assert table(alone).loc[OURS]["d Early@6"] == "80.00"  # no spread


def test_practical_exits_are_judged_on_the_means(exits: pd.DataFrame) -> None:
    """The later, the better: every depth's cheapest exit is practical; dearer ones are not."""
    frozen = exits[(exits["strategy"] == "classifier_wise") & (exits["order"] == "sequential")]
    for variant, final in (("baseline", 70 + 1), ("counting", 2.6 + 0.1)):
        means = average_exits(frozen[frozen["variant"] == variant])
        circled = means[means["circled"]]
        assert circled["branch"].tolist() == ["mlp", "mlp", "mlp", "final"]
        assert circled["depth"].tolist() == [1, 2, 3, 4]
        assert circled["mean"].iloc[-1] == pytest.approx(final)
    one_seed = frozen[(frozen["seed"] == 0) & (frozen["variant"] == "baseline")]
    assert (average_exits(one_seed)["std"] == 0).all()


def test_numbers_drawn(
    exits: pd.DataFrame, dynamic: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    """Means over the seeds: of exits by cost, time and depth, and of budgets in multiply-adds."""
    figures = DrawnFigures(tmp_path, params, ["baseline"])
    draw_exits(figures, exits, dynamic, ABOUT)
    depths = np.array([1, 2, 3])
    accuracies = np.array([56, 61, 66])
    by_cost, late, by_time = figures.drawn["exits_tradeoff"].axes
    for axis, places in ((by_cost, depths), (late, depths[1:]), (by_time, depths + 0.1)):
        line = error_bars(axis)["MLP-EE"]
        assert line.index.to_numpy() == pytest.approx(places)
        assert line["mean"].to_numpy() == pytest.approx(accuracies[-len(places) :])
        assert line["std"].to_numpy() == pytest.approx(np.sqrt(2))
    (circled,) = [line for line in by_cost.get_lines() if line.get_label() == "practical"]
    assert np.asarray(circled.get_ydata()) == pytest.approx(accuracies)
    counted = error_bars(figures.drawn["exits_counting"].axes[0])["MLP-EE"]
    assert counted["mean"].to_numpy() == pytest.approx([3, 2.9, 2.8])
    panels = figures.drawn["exits_orders"].axes
    assert len(panels) == 2 * 3
    for axis in panels:
        lines = error_bars(axis)
        assert list(lines) == ["MLP-EE", "ViT-EE", "final exit"]  # those all backbones have
        assert lines["ViT-EE"]["mean"].to_dict() == pytest.approx({1: 56, 2: 61, 3: 66})
        assert lines["final exit"]["mean"].to_dict() == pytest.approx({4: 71})
    above, below = figures.drawn["exits_dynamic"].axes
    for line, mean in zip(above.get_lines(), (60.5, 70.5, 80.5), strict=False):
        assert np.asarray(line.get_xdata()) == pytest.approx([1, 4])
        assert np.asarray(line.get_ydata()) == pytest.approx([mean, mean])
    assert error_bars(above)["final exit"]["mean"].to_dict() == pytest.approx({4: 71})
    assert error_bars(below)["MLP-EE"]["mean"].to_dict() == pytest.approx({1: 1, 2: 2, 3: 3})


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
