"""DVC's plots: the templates in .dvc/plots/ and the page .dvc/plots.html in a real browser."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from selenium.webdriver.support.wait import WebDriverWait

from docs.fill import PLOTS
from docs.reference import plots_page
from papers import PAPERS
from papers.layershuffle.labels import CONTROLS
from pipeline.config.load import load
from pipeline.report.figures import GREY, Figures
from pipeline.report.results import Results
from pipeline.smoke import copy_repository, environment
from tests.conftest import ROOT
from tests.pipeline.report.conftest import complaints_and_requests

TRAINING, LAYERS = (
    (ROOT / f".dvc/plots/{name}.json").read_text() for name in ("training", "layers")
)
ORDERS = {"training_in_original_order": "sequential", "training_in_arbitrary_order": "arbitrary"}
BETTER = 0.95


@pytest.mark.slow
def test_the_page_is_that_of_the_installed_vega() -> None:
    page = (ROOT / PLOTS).read_text()
    assert "vegaEmbed" in page
    assert page == plots_page(page)


def test_colours_are_the_figures(tmp_path: Path) -> None:
    """And controls are left out, as in the figures of variants."""
    params = load(ROOT / "params.yaml", papers=PAPERS)
    colours = Figures.of(Results(tmp_path, PAPERS), params).colours
    layers, training = (
        dict(zip(scale["domain"], scale["range"], strict=False))
        for scale in (
            json.loads(LAYERS)["spec"]["encoding"]["color"]["scale"],
            json.loads(TRAINING)["encoding"]["color"]["scale"],
        )
    )
    assert (colours | {"refit_k": GREY}).items() <= layers.items()
    assert training.items() <= layers.items()
    left_out = re.search(r"!test\(/(.*?)/", LAYERS)
    assert left_out
    assert {v for v in [*colours, *CONTROLS] if re.search(left_out[1], v)} == set(CONTROLS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, with the last epochs of LS better than committed."""
    folder = tmp_path_factory.mktemp("plots") / "copy"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        copy_repository(folder)
    file = folder / "results/finetune/ls.csv"
    rows = pd.read_csv(file)
    rows.loc[rows["epoch"] == rows["epoch"].max(), "validation/sequential/accuracy"] = BETTER
    rows.to_csv(file, index=False)
    return folder


def open_plots(browser: Any, copy: Path, *command: str) -> dict[str, Any]:
    """The charts of the page that `dvc plots` makes, by id.

    It leaves no file to track and no error in the browser, and asks for nothing.
    """
    before = subprocess.run(
        ["git", "status", "--porcelain"], cwd=copy, capture_output=True, text=True, check=True
    ).stdout
    done = subprocess.run(
        [sys.executable, "-m", "dvc", "plots", *command],
        cwd=copy,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        subprocess.run(
            ["git", "status", "--porcelain"], cwd=copy, capture_output=True, text=True, check=True
        ).stdout
        == before
    )
    complaints_and_requests(browser)  # of the tests before
    browser.get((copy / "dvc_plots/index.html").as_uri())
    WebDriverWait(browser, 30).until(
        lambda _: len(browser.find_elements("css selector", ".vega-embed svg.marks")) == 3
    )
    assert complaints_and_requests(browser) == []
    return {
        chart.get_attribute("id"): chart
        for chart in browser.find_elements("css selector", ".vega-embed")
    }


def points(chart: Any) -> pd.DataFrame:
    """What a chart's points say of themselves."""
    said = [
        each.get_attribute("aria-label")
        for each in chart.find_elements("css selector", "g.mark-symbol.role-mark path")
    ]
    return pd.DataFrame([dict(part.split(": ") for part in each.split("; ")) for each in said])


def lines(chart: Any) -> list[tuple[str, str]]:
    """Colour and dashes of a chart's lines."""
    found = chart.find_elements("css selector", "g.mark-line path")
    return [
        (line.get_attribute("stroke"), line.get_attribute("stroke-dasharray")) for line in found
    ]


@pytest.mark.slow
def test_means_over_seeds_are_drawn_without_a_network(browser: Any, copy: Path) -> None:
    charts = open_plots(browser, copy, "show")
    for title, order in ORDERS.items():
        shown = points(charts[title])
        assert (
            len(lines(charts[title]))
            == len(charts[title].find_elements("css selector", "g.mark-area path"))
            == 5
        )
        for variant, rows in shown.groupby("variant"):
            history = pd.read_csv(copy / f"results/finetune/{variant}.csv").groupby("epoch")[
                f"validation/{order}/accuracy"
            ]
            assert [f"{value:.2%}" for value in history.mean()] == list(rows["mean"])
            assert [f"{value:.2%}" for value in history.std()] == list(rows["standard deviation"])
            assert set(rows["seeds"]) == {str(history.size().max())}
    kept = points(charts["accuracy_with_some_of_the_layers"])
    table = pd.read_csv(copy / "results/figure1.csv")
    table = table[~table["variant"].isin(CONTROLS)]
    assert sorted(kept["mean"]) == sorted(f"{value:.2%}" for value in table["mean"])
