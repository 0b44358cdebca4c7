"""Tables and figures: right numbers, the published rows beside them, the same bytes from the same results."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dvc.repo import Repo
from typer.testing import CliRunner

from papers.layershuffle.compute.analysis import (
    analysis_numbers,
    contribution_numbers,
    project,
    told_positions,
)
from papers.layershuffle.compute.rows import protocol_rows, summarise_analysis, table_metrics
from papers.layershuffle.diagrams import first_routes
from papers.layershuffle.figures import LayerShuffleFigures
from papers.layershuffle.grid import collect, paper_form, write
from papers.layershuffle.tables import (
    PUBLISHED,
    TABLE1,
    compare_protocols,
    differences,
    paper_table,
    table1,
    table_caption,
    write_protocols,
    write_statistics,
    write_table1,
)
from pipeline.config.params import Params
from pipeline.config.sections import Finetune
from pipeline.errors import UserError
from pipeline.jobs.files import sha256
from pipeline.report.evaluations import summarise
from pipeline.training.loop import draw_route
from stages import commands as cli

VARIANTS = ["baseline", "ls", "ls_pos", "ls_pred", "layerdrop", "refit_3"]


@pytest.fixture
def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for variant in VARIANTS:
        for seed in range(5):
            for keep in [3] if variant == "refit_3" else [3, 6, 12]:
                for order in ("sequential", "arbitrary"):
                    count = (
                        1
                        if order == "sequential" and keep == 12
                        else 6
                        if variant == "refit_3"
                        else 20
                    )
                    for route in range(count):
                        accuracy = 0.5 + 0.01 * seed + 0.001 * route + 0.0001 * rng.random()
                        rows.append(
                            (
                                "d",
                                "m",
                                variant,
                                seed,
                                keep,
                                order,
                                str(route),
                                1,
                                200,
                                accuracy,
                                1.0,
                                0.6 if variant == "ls_pred" else None,
                                0.4,
                            )
                        )
    names = [
        "dataset",
        "model",
        "variant",
        "seed",
        "keep",
        "order",
        "route",
        "routes",
        "images",
        "accuracy",
        "loss",
        "position_accuracy",
        "std_images",
    ]
    return pd.DataFrame(rows, columns=names)


def test_spreads_are_kept_apart(rows: pd.DataFrame) -> None:
    cells = summarise(rows).set_index(["variant", "order", "keep"])
    cell = cells.loc["ls", "arbitrary", 6]
    assert cell["n"] == 5
    assert cell["orders"] == 20
    assert cell["std"] == pytest.approx(np.std([0, 0.01, 0.02, 0.03, 0.04], ddof=1), rel=0.02)
    assert cell["std_orders"] == pytest.approx(np.std(np.arange(20) * 0.001, ddof=1), rel=0.05)
    assert cell["se_images"] == pytest.approx(0.4 / np.sqrt(200))
    assert cell["low"] == pytest.approx(cell["mean"] - 2.776 * cell["std"] / np.sqrt(5), abs=1e-5)
    assert np.isnan(cells.loc["ls", "sequential", 12]["std_orders"])  # one order has no spread
    assert cells.loc["refit_3", "arbitrary", 3]["full"]


def test_a_pass_with_an_order_an_image_gives_the_mean_and_single_orders_the_spread(
    rows: pd.DataFrame,
) -> None:
    pruned = rows[(rows["variant"] == "ls") & (rows["keep"] == 6) & (rows["order"] == "sequential")]
    passes = (
        pruned.groupby("seed")
        .head(1)
        .assign(route="1000 routes, one a sample", routes=1000, images=1000, accuracy=0.7)
    )
    cell = (
        summarise(pd.concat([rows, passes]))
        .set_index(["variant", "order", "keep"])
        .loc["ls", "sequential", 6]
    )
    assert cell["mean"] == pytest.approx(0.7)
    assert cell["orders"] == 924  # of the 1,000 drawn, so many exist
    assert cell["images"] == 1000
    assert cell["spread_orders"] == 20
    assert cell["std_orders"] == pytest.approx(np.std(np.arange(20) * 0.001, ddof=1), rel=0.05)


def test_differences_are_paired(rows: pd.DataFrame) -> None:
    """Every variant is 0.1 above the baseline for every seed: the seeds' own spread of 0.016 is not in the difference."""
    better = rows.assign(
        accuracy=rows["accuracy"].where(rows["variant"] == "baseline", rows["accuracy"] + 0.1)
    )
    table = differences(better[better["variant"] != "refit_3"]).set_index(
        ["order", "minus", "variant"]
    )
    found = table.loc["arbitrary", "baseline", "ls"]
    assert found["mean"] == pytest.approx(0.1, abs=1e-3)
    assert found["std"] < 2e-4
    assert found["n"] == 5
    assert found["low"] < found["mean"] < found["high"]
    assert table.loc["arbitrary", "ls", "layerdrop"]["mean"] == pytest.approx(0, abs=1e-3)
    assert ("arbitrary", "ls", "baseline") not in table.index  # already there, the other way round


def test_protocols_are_compared_seed_by_seed(rows: pd.DataFrame, tmp_path: Path) -> None:
    heldout = rows.assign(accuracy=rows["accuracy"] - 0.01 * (rows["variant"] == "ls"))
    epochs = {
        (p, v, s): 3 - (p == "heldout" and v == "ls" and s < 2)
        for p in ("paper", "heldout")
        for v in VARIANTS
        for s in range(5)
    }
    table = protocol_rows({"paper": rows, "heldout": heldout}, epochs)
    assert list(table.columns) == [
        "protocol",
        "variant",
        "seed",
        "epoch",
        "sequential",
        "arbitrary",
    ]
    compared = compare_protocols(table).set_index(["order", "variant"])
    assert compared.loc["arbitrary", "ls"]["difference"] == pytest.approx(-0.01)
    assert compared.loc["arbitrary", "ls"]["other_epoch"] == 2
    assert compared.loc["arbitrary", "baseline"]["difference"] == 0
    write_protocols(table, tmp_path)
    assert (
        "The largest difference of a row is 1.00 points" in (tmp_path / "protocols.md").read_text()
    )
    write_protocols(table[table["protocol"] == "paper"], tmp_path)
    assert "No images were held out" in (tmp_path / "protocols.md").read_text()


def test_statistics_page(rows: pd.DataFrame, tmp_path: Path) -> None:
    write_statistics(summarise(rows), rows, tmp_path)
    page = (tmp_path / "statistics.md").read_text()
    assert "95 % Student's t over seeds" in page
    assert "LS - baseline" in page
    assert not re.search(r"\bp *[<=]", page)  # five seeds: no significance
    assert set(pd.read_csv(tmp_path / "differences.csv")["minus"]) == {"baseline", "ls"}


def test_grid_in_the_papers_form(rows: pd.DataFrame, tmp_path: Path) -> None:
    """Two data sets by two models, one at two scales, combinations missing; one of the paper's cells run, also at another scale."""
    one = table1(summarise(rows))
    cells = [
        ("a", "x", "minutes", 5),
        ("a", "x", "hours", 4),
        ("a", "y", "minutes", 3),
        ("b", "x", "minutes", 5),
        ("imagenet", "vit_b16", "published", 5),
    ]
    table = pd.concat(
        [one.assign(dataset=d, model=m, scale=s, n=n, source="e") for d, m, s, n in cells],
        ignore_index=True,
    )
    grid = write(table, tmp_path)

    def row(data: str, model: str, source: str) -> pd.DataFrame:
        return grid[
            (grid["data"] == data)
            & (grid["model"] == model)
            & (grid["source"] == source)
            & (grid["order"] == "arbitrary")
        ]

    assert "±" in row("a", "y", "ours (e), n = 3")["LS"].item()
    assert [row("a", "x", f"ours (e), n = {n}")["scale"].item() for n in (5, 4)] == [
        "minutes",
        "hours",
    ]
    assert row("b", "x", "ours")["scale"].item() == "hours"
    assert set(row("b", "y", "ours").iloc[0, 5:]) == {"not run"}
    assert row("ImageNet", "ViT-B/16", "published")["LS"].item() == "62.77 ± 0.41"
    assert "±" in row("ImageNet", "ViT-B/16", "ours (e), n = 5")["LS"].item()
    assert set(row("CIFAR-100", "DeiT-B dist.", "ours").iloc[0, 5:]) == {"not run"}
    assert set(grid.loc[grid["source"] == "published", "scale"]) == {"published"}
    assert "imagenet" not in set(grid["data"])  # under the paper's name alone
    small = paper_form(table.replace({"scale": {"published": "minutes"}}))
    assert (
        "±"
        in small.loc[(small["data"] == "imagenet") & (small["model"] == "vit_b16"), "LS"].iloc[0]
    )
    assert set(small.loc[small["data"] == "ImageNet", "source"]) == {"published", "ours"}
    assert "not run" in (tmp_path / "grid.md").read_text()
    assert "not run" in (tmp_path / "grid.tex").read_text()


def test_cells_are_collected_from_experiments(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workspace first, then the most seeds, at every scale apart; a revision without a table is passed over."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run([*git, "init", "-q"], check=True)
    revisions = {}
    one = table1(summarise(rows))
    ledger = Path("results/claims.json")
    kept = [
        ("few", "x", 2, "minutes"),
        ("many", "x", 9, "minutes"),
        ("mine", "y", 9, "minutes"),
        ("wide", "y", 5, "hours"),
    ]
    for name, model, n, scale in (*kept, ("old", "y", 9, None), ("none", "", 0, None)):
        if name == "none":
            (tmp_path / "results" / "table1.csv").unlink()
        else:
            one.assign(model=model, n=n).to_csv("results/table1.csv", index=False)
            ledger.write_text(json.dumps({"scale": scale} if scale else {}))
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", name], check=True)
        revisions[name] = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    assert collect({}).empty
    one.assign(model="y", n=1).to_csv("results/table1.csv", index=False)
    ledger.write_text(json.dumps({"scale": "minutes"}))
    found = collect(revisions)
    sources = {
        ("y", "minutes"): "workspace",
        ("x", "minutes"): "many",
        ("y", "hours"): "wide",
        ("y", "–"): "old",
    }
    assert (
        dict(zip(zip(found["model"], found["scale"], strict=True), found["source"], strict=True))
        == sources
    )
    assert len(found) == len(sources) * len(one)


@pytest.mark.slow
def test_without_experiments_the_grid_stays(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a fresh clone, whose own table is no grid; with an experiment it is written."""
    monkeypatch.chdir(tmp_path)
    for name, text in {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@localhost"}.items():
        monkeypatch.setenv(name, text)
        monkeypatch.setenv(name.replace("AUTHOR", "COMMITTER"), text)
    subprocess.run(["git", "init", "-q"], check=True)
    Repo.init().close()
    (tmp_path / "results").mkdir()
    table1(summarise(rows)).to_csv("results/table1.csv", index=False)
    (tmp_path / "dvc.yaml").touch()
    (grid := tmp_path / "results/grid.md").write_text("collected elsewhere")
    subprocess.run(["git", "add", "-A"], check=True)
    subprocess.run(["git", "commit", "-qm", "a clone"], check=True)
    done = CliRunner().invoke(cli.app, ["grid"])
    assert isinstance(done.exception, UserError)
    assert "no experiments to collect" in str(done.exception)
    assert grid.read_text() == "collected elsewhere"
    with Repo() as repo:
        repo.experiments.save(name="one")
    assert CliRunner().invoke(cli.app, ["grid"], catch_exceptions=False).exit_code == 0
    assert "ours (workspace), n = 5" in grid.read_text()


def test_a_torn_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/table1.csv").write_text("dataset,mean\nd,0.")
    with pytest.raises(
        UserError,
        match=r"results/table1\.csv of workspace: cannot be read \(ValueError: its last row is torn",
    ):
        collect({})
    (tmp_path / "results/claims.json").write_text("{")
    with pytest.raises(UserError, match=r"results/claims\.json of workspace: cannot be read"):
        collect({})


def test_another_table_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "prune_eval.csv").write_text("dataset,model,order,variant,accuracy\n")
    done = CliRunner().invoke(cli.app, ["table", str(file)])
    assert (
        str(done.exception)
        == f"{file}: found no column 'mean', accepted: a table1.csv of the pipeline"
    )


def test_table1(rows: pd.DataFrame, tmp_path: Path) -> None:
    cells = summarise(rows)
    write_table1(cells, tmp_path)
    table = pd.read_csv(tmp_path / "table1.csv")
    assert list(table.columns) == TABLE1
    assert len(table) == 2 * len(VARIANTS)
    assert (table["n"] == 5).all()
    assert table["mean"].between(0, 1).all()
    expected = rows.query("variant == 'ls' and order == 'arbitrary' and keep == 12")[
        "accuracy"
    ].mean()
    assert table.query("variant == 'ls' and order == 'arbitrary'")["mean"].item() == pytest.approx(
        expected, abs=1e-6
    )
    text = (tmp_path / "table1.md").read_text()
    for published in PUBLISHED.values():
        for mean, std in published:
            assert f"{mean:.2f} ± {std:.2f}" in text
    assert "20 random orders (refit-3: all 6 there are)" in text
    assert "60.00 % of cases" in text
    latex = (tmp_path / "table1.tex").read_text()
    assert "62.77 $\\pm$ 0.41" in latex
    assert "±" not in latex


def test_metrics_for_dvc(rows: pd.DataFrame) -> None:
    metrics = table_metrics(rows)
    assert set(metrics) == set(VARIANTS)
    assert set(metrics["ls"]) == {"sequential", "arbitrary"}
    assert metrics["ls_pred"]["position_accuracy"] == 0.6


def test_one_seed_has_no_spread(rows: pd.DataFrame) -> None:
    cells = summarise(rows[rows["seed"] == 0])
    assert paper_table(table1(cells))["LS"][0].count("±") == 0
    assert "over 1 seed," in table_caption(cells)


@pytest.mark.slow
def test_figures_are_the_same_bytes_again(
    rows: pd.DataFrame, params: Params, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    positions = np.argsort(rng.random((300, 4)), axis=1)
    arrays = {
        "plane": rng.random((300, 2)),
        "positions": positions,
        "norms": 1 + rng.random((300, 4)),
    }
    history = pd.DataFrame({"seed": [0, 0, 1, 1], "epoch": [1, 2, 1, 2]})
    for order in ("sequential", "arbitrary"):
        history[f"validation/{order}/accuracy"] = [0.2, 0.4, 0.3, 0.5]
    kinds = (
        ("swap 3", 3, 4),
        ("fix_first 0", 2.9, 4),
        ("fix_first 1", 1.4, 4),
        ("fix_first 4", 0, 4),
        ("skip 1", 0, 3),
    )
    sampled = [
        (v, s, *kind, 50, 0.3 + 0.01 * s) for v in VARIANTS for s in range(2) for kind in kinds
    ]
    samplers = pd.DataFrame(
        sampled, columns=["variant", "seed", "sampler", "distance", "length", "images", "accuracy"]
    )
    digests, captions = [], []
    for folder in (tmp_path / "a", tmp_path / "b"):
        every = params.paper_figures.model_copy(update={"formats": ["png", "pdf", "svg"]})
        figures = LayerShuffleFigures(folder, every, VARIANTS)
        captions.append(
            [
                figures.pruning(summarise(rows), "sequential", "figure_1b"),
                figures.pruning(summarise(rows), "arbitrary", "figure_1c"),
                figures.umap(arrays, 2, "figure_4a", "x"),
                figures.ridges(arrays, "figure_4c", "x"),
                figures.training_curves(dict.fromkeys(VARIANTS, history), "training_curves"),
                figures.disorder(samplers, ["baseline", "ls"], 10, "distance"),
                figures.first_layers(samplers, 10, "first_layers"),
            ]
        )
        digests.append({path.name: sha256(path) for path in folder.iterdir()})
    assert len(digests[0]) == 3 * 7
    assert digests[0] == digests[1]
    assert captions[0] == captions[1]
    assert "Mean over 5 seeds" in captions[0][1]
    assert "20 random routes" in captions[0][1]
    assert "k = 3: 6" in captions[0][1]
    assert "layer 3 (counted from 1)" in captions[0][2]
    assert "n = 1 model" in captions[0][3]
    assert "(6 swaps of neighbours)" in captions[0][5]
    assert "2 seeds, 50 images" in captions[0][6]


def test_position_r2_tells_order_from_noise() -> None:
    from sklearn.metrics import r2_score

    rng = np.random.default_rng(0)
    positions = np.sort(
        rng.integers(0, 12, 600)
    )  # as they come they would be told from others alone
    line = np.stack([positions + rng.normal(size=600), rng.normal(size=600)], axis=1)
    assert r2_score(positions, told_positions(line, positions)) > 0.7
    assert r2_score(positions, told_positions(positions[:, None], positions)) == 1
    assert r2_score(positions, told_positions(rng.normal(size=(600, 2)), positions)) < 0.1


def test_errors_of_the_analysis_are_those_of_other_images() -> None:
    """The bootstrap's standard error against the spread of the number over 60 draws of as many images; ratio of two spreads."""

    def drawn(i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(i)
        positions = np.argsort(rng.random((300, 6)), axis=1)
        norms = 2 - 0.1 * np.abs(positions - np.arange(6)) + rng.normal(size=(300, 6))
        return rng.normal(size=(300, 2)), positions, norms

    error = analysis_numbers(*drawn(0), layer=2)["distance_spearman"]["error"]
    spread = np.std(
        [contribution_numbers(*drawn(i)[1:])["distance_spearman"] for i in range(60)], ddof=1
    )
    assert 0.6 < error / spread < 1.6


def test_contribution_numbers_know_the_papers_claim() -> None:
    rng = np.random.default_rng(0)
    positions = np.argsort(rng.random((500, 12)), axis=1)
    distance = np.abs(positions - np.arange(12))
    noise = 0.1 * rng.random((500, 12))
    claimed = contribution_numbers(positions, 2 - distance / 12 + noise)
    assert claimed["distance_spearman"] < -0.8
    assert claimed["near_far_ratio"] > 1.3
    assert claimed["slope_late_minus_early"] > 1
    flat = contribution_numbers(positions, 1 + noise)
    assert abs(flat["distance_spearman"]) < 0.1
    assert flat["near_far_ratio"] == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("layers", "quarter"), [(8, 2), (4, 1), (3, 1)])
def test_contribution_numbers_are_those_of_their_definition(layers: int, quarter: int) -> None:
    from scipy.stats import spearmanr

    rng = np.random.default_rng(1)
    positions, norms = np.argsort(rng.random((80, layers)), axis=1), rng.random((80, layers))
    away = np.abs(positions - np.arange(layers))
    found = contribution_numbers(positions, norms)
    assert found["distance_spearman"] == pytest.approx(
        np.mean([spearmanr(away[:, i], norms[:, i]).statistic for i in range(layers)])
    )
    slopes = [spearmanr(positions[:, i], norms[:, i]).statistic for i in range(layers)]
    assert found["slope_late_minus_early"] == pytest.approx(
        np.mean(slopes[-quarter:]) - np.mean(slopes[:quarter])
    )
    relative = norms / norms.mean(axis=0)
    assert found["near_far_ratio"] == pytest.approx(
        relative[away < 2].mean() / relative[away >= layers // 2].mean()
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what umap misses
def test_the_plane_depends_on_its_options_alone(params: Params) -> None:
    vectors, options = (
        np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32),
        params.analysis,
    )
    plane = project(vectors, options)
    assert np.array_equal(project(vectors, options), plane)
    for other in ({"seed": 1}, {"min_dist": 0.9}, {"neighbors": 5}):
        assert not np.allclose(project(vectors, options.model_copy(update=other)), plane)


def test_analysis_summary(params: Params) -> None:
    found = {("pretrained", 0): 0.2, ("ls", 0): 0.5, ("ls", 1): 0.7}
    numbers = {
        key: {"position_r2": {"value": value, "error": value / 10}} for key, value in found.items()
    }
    models = summarise_analysis(numbers, params.analysis)["models"]
    assert models["pretrained"]["position_r2"] == {
        "mean": 0.2,
        "std": None,
        "n": 1,
        "seeds": {"0": 0.2},
        "errors": {"0": 0.02},
    }
    assert models["ls"]["position_r2"]["seeds"] == {"0": 0.5, "1": 0.7}
    assert (models["ls"]["position_r2"]["mean"], models["ls"]["position_r2"]["std"]) == (
        0.6,
        0.141421,
    )


@pytest.mark.parametrize(
    ("variant", "per"),
    [
        ("ls", "latin"),
        ("ls", "sample"),
        ("ls", "batch"),
        ("layerdrop", "batch"),
        ("baseline", "batch"),
    ],
)
def test_the_routes_shown_are_those_trained(variant: str, per: str, params: Params) -> None:
    """As the training loop draws them, step by step, or the first of the first step's."""
    changed = params.model_copy(
        update={
            "variants": params.variants
            | {"ls": params.variants["ls"].model_copy(update={"per": per})}
        }
    )
    options, seed = changed.resolve(Finetune, variant), 3
    config: Any = SimpleNamespace(
        variant=changed.all_variants[variant],
        seed=seed,
        per=options.per,
        routes="shared",
        options=options,
    )
    what, shown = first_routes(changed, variant, 12, seed)
    drawn: Any = [draw_route(config, 12, 1, step) for step in range(len(shown))]
    if per == "batch":
        drawn = [routes.steps for routes in drawn]
    else:
        drawn = drawn[0].rows(options.batch_size)[: len(shown)]
    assert [list(map(int, route)) for route in drawn] == shown
    assert what == {"latin": "group of the batch", "sample": "image", "batch": "step"}[per]
