"""Tables: right numbers with the published rows beside them; the grid of several cells."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from dvc.repo import Repo
from typer.testing import CliRunner

from papers.layershuffle.compute.rows import protocol_rows, table_metrics
from papers.layershuffle.grid import collect, write
from papers.layershuffle.tables import (
    TABLE1,
    WAY,
    compare_protocols,
    differences,
    floors_table,
    others_table,
    paper_table,
    table1,
    write_protocols,
    write_statistics,
)
from pipeline.errors import UserError
from pipeline.report.evaluations import summarise
from stages import commands
from tests.conftest import cases_of
from tests.papers.conftest import VARIANTS

CASES = cases_of(__file__)


def test_spreads_are_kept_apart(rows: pd.DataFrame) -> None:
    """A pass with an order an image gives the mean, single orders the spread."""
    pruned = rows[(rows["variant"] == "ls") & (rows["keep"] == 6) & (rows["order"] == "sequential")]
    one_pass = pruned.groupby("seed").head(1)
    one_pass = one_pass.assign(route="mixed", routes=1000, images=1000, accuracy=0.7)
    cells = summarise(pd.concat([rows, one_pass])).set_index(["variant", "order", "keep"])
    cell = cells.loc["ls", "arbitrary", 6]
    assert (cell["n"], cell["orders"]) == (5, 20)
    assert cell["std"] == pytest.approx(np.std([0, 0.01, 0.02, 0.03, 0.04], ddof=1), rel=0.02)
    std_orders = pytest.approx(np.std(np.arange(20) * 0.001, ddof=1), rel=0.05)
    assert cell["std_orders"] == std_orders
    assert cell["se_images"] == pytest.approx(0.4 / np.sqrt(200))
    assert cell["low"] == pytest.approx(cell["mean"] - 2.776 * cell["std"] / np.sqrt(5), abs=1e-5)
    assert np.isnan(cells.loc["ls", "sequential", 12]["std_orders"])  # one order has no spread
    assert cells.loc["refit_3", "arbitrary", 3]["full"]
    cell = cells.loc["ls", "sequential", 6]
    assert (cell["mean"], cell["std_orders"]) == (pytest.approx(0.7), std_orders)
    numbers = cell[["orders", "images", "spread_orders"]]
    assert numbers.tolist() == [924, 1000, 20]  # of the 1,000 orders drawn, 924 exist


def test_differences_are_paired(rows: pd.DataFrame, tmp_path: Path) -> None:
    """All variants are 0.1 above the baseline for every seed: the seeds' spread drops out."""
    rows = rows[rows["variant"] != "refit_3"]
    better = rows["accuracy"] + 0.1
    rows = rows.assign(accuracy=rows["accuracy"].where(rows["variant"] == "baseline", better))
    table = differences(rows).set_index(["order", "minus", "variant"])
    difference = table.loc["arbitrary", "baseline", "ls"]
    assert difference["mean"] == pytest.approx(0.1, abs=1e-3)
    assert difference["std"] < 2e-4
    assert difference["n"] == 5
    assert difference["low"] < difference["mean"] < difference["high"]
    assert table.loc["arbitrary", "ls", "layerdrop"]["mean"] == pytest.approx(0, abs=1e-3)
    assert ("arbitrary", "ls", "baseline") not in table.index
    write_statistics(summarise(rows), rows, tmp_path)
    assert len(pd.read_csv(tmp_path / "differences.csv")) == len(table)
    assert f"{100 * difference['mean']:+.2f}" in (tmp_path / "statistics.md").read_text()


def test_protocols_are_compared_seed_by_seed(rows: pd.DataFrame, tmp_path: Path) -> None:
    worse = rows["accuracy"] - 0.01
    heldout = rows.assign(accuracy=rows["accuracy"].where(rows["variant"] != "ls", worse))
    epochs = {}
    for variant in VARIANTS:
        for seed in range(5):
            epochs["paper", variant, seed] = 3
            epochs["heldout", variant, seed] = 2 if variant == "ls" and seed < 2 else 3
    table = protocol_rows({"paper": rows, "heldout": heldout}, epochs)
    texts, worst = compare_protocols(table)
    compared = pd.DataFrame(texts).set_index(["order", "variant"])
    assert compared.loc["arbitrary", "LS"]["heldout - paper"] == "-1.00"
    assert compared.loc["arbitrary", "LS"]["seeds with another epoch"] == "2 of 5"
    assert compared.loc["arbitrary", "baseline"]["heldout - paper"] == "+0.00"
    assert worst == pytest.approx(0.01)
    write_protocols(table, tmp_path)
    assert "1.00 points" in (tmp_path / "protocols.md").read_text()


def test_table1(rows: pd.DataFrame) -> None:
    """Accuracies and how far they are on the way from chance to the baseline, ours and published.

    Variants that are not the paper's have a table of their own. One seed has no spread.
    """
    table = table1(summarise(rows), 0.1)
    assert list(table.columns) == [*TABLE1, WAY]
    paper = paper_table(table)
    for place, cells in CASES["table 1"].items():
        assert paper.iloc[place].tolist() == cells
    assert others_table(table).to_numpy().tolist() == CASES["others"]
    one_seed = summarise(rows[rows["seed"] == 0])
    assert "±" not in paper_table(table1(one_seed, 0.1))["LS"][0]


def test_a_floor_that_is_as_good_is_said(rows: pd.DataFrame) -> None:
    """The regression is 5 points below the baseline for every seed, refit-3 equal to it."""
    full = rows[(rows["variant"] == "baseline") & (rows["keep"] == 12)]
    full = full[full["order"] == "sequential"]
    regression = full.assign(variant="logistic_regression", keep=0)
    regression["accuracy"] -= 0.05
    three = full.assign(variant="refit_3", keep=3)
    rows = pd.concat([rows[rows["variant"] != "refit_3"], regression, three])
    assert floors_table(rows).to_numpy().tolist() == CASES["floors"]
    one_seed = floors_table(rows[rows["seed"] == 0])
    assert set(one_seed["can be judged"]) == {"open: one seed has no interval"}
    paired = differences(rows)
    of_regression = paired[paired["variant"] == "logistic_regression"]
    assert set(of_regression["order"]) == {"sequential"}
    assert "baseline" in set(of_regression["minus"])


def test_metrics_for_dvc(rows: pd.DataFrame) -> None:
    metrics = table_metrics(rows)
    assert set(metrics) == set(VARIANTS)
    own = rows.query("variant == 'ls' and order == 'sequential' and keep == 12")["accuracy"]
    assert metrics["ls"]["sequential"] == pytest.approx(own.mean(), abs=1e-6)
    assert metrics["ls_pred"]["position_accuracy"] == 0.6


def test_grid_in_the_papers_form(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Two data sets by two models, one at two scales, some not run, and a cell of the paper."""
    one = table1(summarise(rows), 0.1)
    tables = []
    for dataset, model, scale, n in CASES["cells"]:
        tables.append(one.assign(dataset=dataset, model=model, scale=scale, n=n, source="e"))
    grid = write(pd.concat(tables, ignore_index=True), tmp_path)
    arbitrary = grid[grid["order"] == "arbitrary"].set_index(["data", "model", "scale", "source"])
    assert arbitrary.index.is_unique
    ls = one.query("variant == 'ls' and order == 'arbitrary'")
    ours = f"{100 * ls['mean'].item():.2f} ±"
    for key, text in CASES["grid"]:
        assert arbitrary.loc[tuple(key), "LS"].startswith(text or ours), key
    assert "imagenet" not in set(grid["data"])  # under the paper's name alone
    assert {file.name for file in tmp_path.iterdir()} == {"grid.csv", "grid.md", "grid.tex"}


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty git repository as the working folder."""
    monkeypatch.chdir(tmp_path)
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "a")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "a@localhost")
    subprocess.run(["git", "init", "-q"], check=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "dvc.yaml").touch()
    return tmp_path


def commit() -> str:
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "commit", "-qm", "one"], check=True)
    return subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip()


def test_cells_are_collected_from_experiments(rows: pd.DataFrame, clone: Path) -> None:
    """The workspace counts first, then the most seeds, each scale apart. No table is no cell."""
    one = table1(summarise(rows), 0.1)
    table = clone / "results/table1.csv"
    ledger = clone / "results/claims.json"
    ledger.write_text("{}")
    revisions = {"empty": commit()}
    for name, model, n, scale in CASES["experiments"]:
        one.assign(model=model, n=n).to_csv(table, index=False)
        ledger.write_text(json.dumps({"scale": scale} if scale else {}))
        revisions[name] = commit()
    table.unlink()
    assert collect({}).empty
    one.assign(model="y", n=1).to_csv(table, index=False)
    ledger.write_text(json.dumps({"scale": "minutes"}))
    cells = collect(revisions)[["model", "scale", "source"]].drop_duplicates()
    assert sorted(cells.to_numpy().tolist()) == CASES["collected"]


@pytest.mark.slow
def test_without_experiments_the_grid_stays(rows: pd.DataFrame, clone: Path) -> None:
    Repo.init().close()
    table1(summarise(rows), 0.1).to_csv("results/table1.csv", index=False)
    grid = clone / "results/grid.md"
    grid.write_text("collected elsewhere")
    commit()
    done = CliRunner().invoke(commands.app, ["grid"])
    assert isinstance(done.exception, UserError)
    assert grid.read_text() == "collected elsewhere"
    with Repo() as repo:
        repo.experiments.save(name="one")
    assert CliRunner().invoke(commands.app, ["grid"], catch_exceptions=False).exit_code == 0
    assert "ours (workspace), n = 5" in grid.read_text()


def test_a_wrong_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    table = tmp_path / "results/table1.csv"
    table.write_text("dataset,mean\nd,0.")
    with pytest.raises(UserError, match=r"results/table1\.csv of workspace: .*last row is torn"):
        collect({})
    table.write_text("dataset,model,order,variant,accuracy\n")
    done = CliRunner().invoke(commands.app, ["table", str(table)])
    assert "found no column 'mean'" in str(done.exception)
