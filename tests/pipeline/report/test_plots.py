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
from papers.layershuffle.section import ALL, LOGISTIC, MISLED
from pipeline.config.params import Params
from pipeline.report.figures import GREY, Figures
from pipeline.report.results import Results
from pipeline.smoke import copy_repository, environment
from tests.conftest import ROOT
from tests.pipeline.report.conftest import complaints_and_requests

TRAINING, LAYERS = (
    (ROOT / f".dvc/plots/{name}.json").read_text() for name in ("training", "layers")
)
ORDERS = {"training_in_original_order": "sequential", "training_in_arbitrary_order": "arbitrary"}


@pytest.mark.slow
def test_the_page_is_that_of_the_installed_vega() -> None:
    page = (ROOT / PLOTS).read_text()
    assert "vegaEmbed" in page
    assert page == plots_page(page)


def test_colours_are_the_figures(tmp_path: Path, params: Params) -> None:
    """And controls are left out, as in the figures of variants."""
    looks = Figures.of(Results(tmp_path, PAPERS), params).variant_looks
    colours = {variant: look["color"] for variant, look in looks.items()}
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


def test_a_variant_looks_alike_where_others_are_left_out(tmp_path: Path, params: Params) -> None:
    results = Results(tmp_path, PAPERS)
    scale = params.scales[params.cell.scale]
    few = scale.model_copy(update={"variants": dict.fromkeys(("ls_pos", "ls_pred"))})
    fewer = params.model_copy(update={"scales": params.scales | {params.cell.scale: few}})
    assert "ls_pos" not in fewer.all_variants
    looks = Figures.of(results, fewer).variant_looks
    assert looks["layerdrop"] == Figures.of(results, params).variant_looks["layerdrop"]


@pytest.fixture
def charts(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The charts of the page that `dvc plots show` makes in a copy of the repository, by id.

    It leaves no file to track and no error in the browser, and asks for nothing.
    """
    copy = tmp_path / "copy"
    monkeypatch.chdir(ROOT)
    copy_repository(copy)
    monkeypatch.chdir(copy)
    status = ["git", "status", "--porcelain"]
    before = subprocess.check_output(status)
    command = [sys.executable, "-m", "dvc", "plots", "show"]
    subprocess.run(command, env=environment(), check=True)
    assert subprocess.check_output(status) == before
    complaints_and_requests(browser)  # of the tests before
    browser.get((copy / "dvc_plots/index.html").as_uri())
    drawn = ("css selector", ".vega-embed svg.marks")
    WebDriverWait(browser, 30).until(lambda _: len(browser.find_elements(*drawn)) == 3)
    assert complaints_and_requests(browser) == []
    found = browser.find_elements("css selector", ".vega-embed")
    return {chart.get_attribute("id"): chart for chart in found}


def points(chart: Any) -> pd.DataFrame:
    """What a chart's points say of themselves."""
    marks = chart.find_elements("css selector", "g.mark-symbol.role-mark path")
    said = [mark.get_attribute("aria-label").split("; ") for mark in marks]
    return pd.DataFrame([dict(part.split(": ") for part in parts) for parts in said])


@pytest.mark.slow
def test_means_over_seeds_are_drawn_without_a_network(charts: dict[str, Any]) -> None:
    for title, order in ORDERS.items():
        for mark in ("g.mark-line path", "g.mark-area path"):
            assert len(charts[title].find_elements("css selector", mark)) == 5
        for variant, rows in points(charts[title]).groupby("variant"):
            history = pd.read_csv(f"results/finetune/{variant}.csv")
            accuracies = history.groupby("epoch")[f"validation/{order}/accuracy"]
            assert [f"{value:.2%}" for value in accuracies.mean()] == list(rows["mean"])
            deviations = [f"{value:.2%}" for value in accuracies.std()]
            assert deviations == list(rows["standard deviation"])
            assert set(rows["seeds"]) == {str(accuracies.size().max())}
    kept = points(charts["accuracy_with_some_of_the_layers"])
    table = pd.read_csv("results/figure1.csv")
    hidden = [*CONTROLS, "ls_pos" + MISLED, LOGISTIC]
    table = table[~table["variant"].isin(hidden) & table["choose"].isin(["random", ALL])]
    assert sorted(kept["mean"]) == sorted(f"{value:.2%}" for value in table["mean"])
