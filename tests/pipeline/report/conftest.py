"""A real browser, and results to be changed."""

import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from papers import PAPERS
from pipeline.config.paper import Paper
from pipeline.config.params import Params
from pipeline.report.page import Report
from pipeline.report.results import Results
from tests.conftest import ROOT


def copy_results(folder: Path) -> Path:
    """A copy of the committed results, to be changed."""
    ignored = shutil.ignore_patterns("cells", "report.html")
    return Path(shutil.copytree(ROOT / "results", folder / "results", ignore=ignored))


def write_report(
    folder: Path, results: Path, params: Params, papers: tuple[Paper, ...] = PAPERS
) -> Path:
    """Write the report of results into a folder."""
    file = folder / "report.html"
    with chdir(ROOT):
        file.write_text(Report(Results(results, papers), params).html())
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium and its driver, where both are installed."""
    if not (binary := shutil.which("chromium")) or not (driver := shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ["headless=new", "no-sandbox", "disable-dev-shm-usage", "window-size=1100,900"]:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield found
    found.quit()


def resize(browser: Any, width: int, height: int = 900, mobile: bool = False) -> None:
    """Give the page another size, until the browser is cleared."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def open_page(browser: Any, page: Path) -> Iterator[Any]:
    """Open a page from its beginning. Its size is the browser's own again in the end."""
    browser.get("about:blank")
    browser.get(page.as_uri())
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def complaints_and_requests(browser: Any) -> list[str]:
    """Warnings and errors since the browser was last asked, and requests for what is no file."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    entries = browser.get_log("browser")
    said = [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]
    return said + [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
