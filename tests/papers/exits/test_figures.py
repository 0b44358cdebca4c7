"""Tables and figures of multi-exit ViT: cells and drawn numbers by hand, what was not run."""

import itertools
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.exits.figures import average_exits, draw_exits
from papers.exits.tables import (
    FORMS,
    LABELS,
    PUBLISHED,
    exit_numbers,
    exit_table,
    write_exit_tables,
)
from pipeline.config.params import Params
from pipeline.jobs.files import sha256
from pipeline.report.figures import Figures

ABOUT = {"hardware": "a processor", "keep": 3}
FIGURES = {"exits_tradeoff", "exits_counting", "exits_orders", "exits_dynamic"}
LAST = 4  # layers


def exit_row(
    strategy: str, seed: int, branch: str, depth: int, dataset: str = "d", **more: Any
) -> dict[str, Any]:
    """A row of exits.csv: deeper exits are better, and the seeds are 0.02 (counting: 0.2) apart."""
    value = {"accuracy": 0.5 + 0.05 * depth + 0.02 * seed, "ece": 0.01 * depth}
    if dataset == "counting":
        value = {"accuracy": 0.2, "mae": 3 - 0.1 * depth + 0.2 * seed}
    cost = 1_000_000 * depth + (50_000 * list(LABELS).index(branch) if branch in LABELS else 0)
    row = {
        "dataset": dataset,
        "model": "m",
        "variant": "none",
        "strategy": strategy,
        "placement": "none",
        "architecture": "none",
        "seed": seed,
        "order": "sequential",
        "branch": branch,
        "depth": depth,
        "lr": 0.1,
        "epochs": 2.0,
        "accuracy": None,
        "mae": None,
        "ece": None,
        "flops": 2 * cost,
        "latency_ms": depth + 0.1,
        "practical": branch == "mlp",
    }
    return row | value | more


@pytest.fixture(scope="module")
def exits() -> pd.DataFrame:
    """Two seeds, four layers, exits after 1 to 3 (frozen) and after 6 or 3, 6, 9 (trained)."""
    rows = []
    frozen = (
        ("baseline", "d", list(LABELS)),
        ("ls", "d", ["mlp", "vit"]),
        ("counting", "counting", ["mlp", "resmlp"]),
    )
    for (variant, dataset, branches), seed, order in itertools.product(
        frozen, (0, 1), ("sequential", "arbitrary", "pruned")
    ):
        where = {"variant": variant, "order": order, "placement": "all", "architecture": "all"}
        exits = [*itertools.product(branches, range(1, LAST)), ("final", LAST)]
        rows += [
            exit_row("classifier_wise", seed, branch, depth, dataset, **where)
            for branch, depth in exits
        ]
    for strategy, branches in (("end_to_end", ["mlp", "vit"]), ("layer_wise", ["cnn_ignore"])):
        for branch, placement, seed in itertools.product(branches, ("6", "3-6-9"), (0, 1)):
            where = {"placement": placement, "architecture": branch}
            rows += [
                exit_row(strategy, seed, branch, int(depth), **where)
                for depth in placement.split("-")
            ]
            rows.append(exit_row(strategy, seed, "final", 12, **where))
    rows += [
        exit_row("end_to_end", seed, "final", 12, dataset)
        for seed in (0, 1)
        for dataset in ("d", "counting")
    ]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def dynamic() -> pd.DataFrame:
    """Two budgets; the confidence policy exceeds its budget by 2 %."""
    budgets, seeds, policies = (2_000_000, 8_000_000), (0, 1), ("budget", "anytime", "confidence")
    rows = []
    for variant, seed, budget, policy in itertools.product(
        ("baseline", "ls"), seeds, budgets, policies
    ):
        row = {"variant": variant, "seed": seed, "policy": policy, "budget": budget}
        excess = 1.02 if policy == "confidence" else 1
        accuracy = 0.6 + 0.01 * seed + 0.1 * policies.index(policy)
        rows.append(row | {"exits": 2 + seed, "flops": budget * excess, "accuracy": accuracy})
    return pd.DataFrame(rows).assign(dataset="d", model="m")


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
    one = exit_numbers(exits, FORMS[0]).set_index(["dataset", "strategy", "architecture", "exit"])
    cell = one.loc["d", "end_to_end", "vit", "Early@6"]
    assert cell["mean"] == pytest.approx(0.81)
    assert cell["std"] == pytest.approx(np.std([0, 0.02], ddof=1), abs=1e-6)
    assert (cell["n"], cell["metric"]) == (2, "accuracy")
    assert one.loc["counting", "end_to_end", "none", "Final"]["mean"] == pytest.approx(1.9)
    assert set(one.index.get_level_values("exit")) == {
        "Early@6",
        "Final",
    }  # of the other placement nothing
    assert set(exit_numbers(exits, FORMS[1])["exit"]) == {"Early@3", "Early@6", "Early@9", "Final"}


def table(exits: pd.DataFrame, number: int = 0) -> pd.DataFrame:
    return exit_table(exit_numbers(exits, FORMS[number]), FORMS[number]).set_index(
        ["source", "strategy", "branch"]
    )


def test_cells_of_a_table(exits: pd.DataFrame) -> None:
    found = table(exits)
    assert found.loc["ours, m", "end-to-end", "MLP-EE"]["d Early@6"] == "81.00 ± 1.41"
    assert found.loc["ours, m", "end-to-end", "MLP-EE"]["multiply-adds (G)"] == "0.006"
    assert found.loc["ours, m", "end-to-end", "MLP-EE"]["CIFAR-10 Final"] == "not run"
    assert found.loc["ours, m", "end-to-end", "ResMLP-EE"]["d Final"] == "not run"
    assert found.loc["ours, m", "layer-wise", "CNN-Ignore-EE"]["d Early@6"] == "81.00 ± 1.41"
    without = found.loc["ours, m", "–", "without exits"]
    assert list(without[["d Early@6", "d Final", "counting MAE Final"]]) == [
        "–",
        "111.00 ± 1.41",
        "1.90 ± 0.14",
    ]
    published = found.loc["published, ViT-B/16"]
    assert published.loc["end-to-end", "ViT-EE"]["CIFAR-100 Early@6"] == "85.23"
    assert published.loc["end-to-end", "ViT-EE"]["d Final"] == "–"
    assert published.loc["–", "without exits"]["counting MAE Final"] == "11.07"
    assert published.loc["layer-wise", "CNN-Ignore-EE"]["CIFAR-10 Early@6"] == "95.97"
    assert (
        table(exits, 1).loc["ours, m", "end-to-end", "MLP-EE"]["multiply-adds (G)"]
        == "0.003 / 0.006 / 0.009"
    )
    assert ("published, ViT-B/16", "layer-wise", "CNN-Ignore-EE") not in table(exits, 1).index


def test_a_data_set_of_the_paper_has_its_column(exits: pd.DataFrame) -> None:
    found = table(exits.assign(dataset=exits["dataset"].replace("d", "cifar100")))
    assert found.loc["ours, m", "end-to-end", "MLP-EE"]["CIFAR-100 Early@6"] == "81.00 ± 1.41"
    assert not any("cifar100" in column for column in found.columns)


def test_tables_are_written(exits: pd.DataFrame, tmp_path: Path) -> None:
    captions = write_exit_tables(exits.assign(model="vit_x"), tmp_path)
    assert len({path.name for path in tmp_path.iterdir()}) == 6
    for (title, caption), form in zip(captions.items(), FORMS, strict=True):
        assert title.endswith(form.number)
        assert "{" not in caption
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
    alone = exits[(exits["strategy"] == "end_to_end") & exits["placement"].isin(["6"])]
    alone = alone.assign(placement=6)  # as pandas reads such a file
    branch = ("ours, m", "end-to-end", "MLP-EE")
    assert table(alone).loc[branch]["d Early@6"] == "81.00 ± 1.41"
    assert table(alone[alone["seed"] == 0]).loc[branch]["d Early@6"] == "80.00"  # no spread


def test_practical_exits_are_judged_on_the_means(exits: pd.DataFrame) -> None:
    """The later, the better: every depth's cheapest exit is practical; dearer ones are not."""
    frozen = exits[(exits["strategy"] == "classifier_wise") & (exits["order"] == "sequential")]
    for variant, final in (("baseline", 71), ("counting", 2.7)):
        means = average_exits(frozen[frozen["variant"] == variant])
        circled = means[means["circled"]]
        practical = list(zip(circled["branch"], circled["depth"], strict=True))
        assert practical == [("mlp", 1), ("mlp", 2), ("mlp", 3), ("final", 4)]
        assert circled["mean"].iloc[-1] == pytest.approx(final)
    assert average_exits(frozen[frozen["seed"] == 0])["std"].notna().all()


class Kept(Figures):
    """Keeps what it draws instead of writing it."""

    drawn: ClassVar[dict[str, Figure]] = {}

    def save(self, figure: Figure, name: str, **texts: str) -> None:
        self.drawn[name] = figure
        plt.close(figure)


def lines_of(axis: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of lines with error bars, by label."""
    lines = {}
    for container in axis.containers:
        line = container[0]  # type: ignore[index]
        points = list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        lines[str(container.get_label())] = points
    return lines


def test_numbers_drawn(
    exits: pd.DataFrame, dynamic: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    """Means over the seeds: of exits by cost, time and depth, and of budgets in multiply-adds."""
    draw_exits(Kept(tmp_path, params.paper_figures, ["baseline"]), exits, dynamic, ABOUT)
    accuracies = [56, 61, 66]
    by_cost, late, by_time = Kept.drawn["exits_tradeoff"].axes
    mlp = [lines_of(axis)["MLP-EE"] for axis in (by_cost, late, by_time)]
    assert mlp[0] == [pytest.approx(p) for p in zip((1, 2, 3), accuracies, strict=True)]
    assert mlp[1] == mlp[0][1:]
    assert mlp[2] == [pytest.approx(p) for p in zip((1.1, 2.1, 3.1), accuracies, strict=True)]
    circled = [line for line in by_cost.get_lines() if line.get_label() == "practical"]
    assert np.asarray(circled[0].get_ydata()) == pytest.approx(accuracies)
    counted = lines_of(Kept.drawn["exits_counting"].axes[0])["MLP-EE"]
    assert [y for _, y in counted] == pytest.approx([3, 2.9, 2.8])
    panels = Kept.drawn["exits_orders"].axes
    assert len(panels) == 2 * 3
    for axis in panels:
        lines = lines_of(axis)
        assert list(lines) == ["MLP-EE", "ViT-EE", "final exit"]  # those all backbones have
        assert lines["ViT-EE"] == [
            pytest.approx(p) for p in zip((1, 2, 3), accuracies, strict=True)
        ]
        assert lines["final exit"] == [pytest.approx((4, 71))]
    above, below = Kept.drawn["exits_dynamic"].axes
    for number, line in enumerate(above.get_lines()[:3]):
        assert np.asarray(line.get_xdata()) == pytest.approx([1, 4])
        assert np.asarray(line.get_ydata()) == pytest.approx([60.5 + 10 * number] * 2)
    assert lines_of(below)["MLP-EE"] == [pytest.approx((depth, depth)) for depth in (1, 2, 3)]


def test_figures_are_the_same_bytes_again(
    exits: pd.DataFrame, dynamic: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    digests = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        figures = Figures(folder, params.paper_figures, ["baseline"])
        captions = draw_exits(figures, exits, dynamic, ABOUT)
        assert not any("{" in caption for caption in captions.values())
        digests.append({path.name: sha256(path) for path in folder.iterdir()})
    assert set(digests[0]) == {f"{name}.png" for name in FIGURES}
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_out", "drawn"),
    [
        ({"variant": ["baseline", "ls", "counting"]}, set()),
        ({"variant": ["baseline", "ls"]}, {"exits_counting"}),
        (
            {"dataset": ["counting"], "strategy": ["end_to_end", "layer_wise"]},
            FIGURES - {"exits_counting"},
        ),
        (
            {"variant": ["baseline", "counting"], "seed": [1], "branch": ["mlp"]},
            FIGURES - {"exits_counting"},
        ),
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
        dynamic = dynamic[~dynamic[column].isin(values)] if column in dynamic else dynamic
    small = params.paper_figures.model_copy(update={"dpi": 30})
    figures = Figures(tmp_path / "figures", small, ["baseline"])
    captions = draw_exits(figures, exits, dynamic, ABOUT)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == drawn
    assert len(captions) == len(drawn)
    write_exit_tables(exits, tmp_path)
