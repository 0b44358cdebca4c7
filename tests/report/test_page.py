"""The report: every number is the file's, the same bytes for the same files, and it works in a real browser without a network."""

import html
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lsvit.report.page import Report
from lsvit.report.results import Results
from lsvit.report.why import number
from tests.conftest import ALL_CLAIMS, ROOT

pytestmark = pytest.mark.slow
UNTIL_DRAWN = (
    "const [chart, done] = arguments; (function look() { chart.querySelector('svg path[d]') ? done(true) : setTimeout(look, 20) })()"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The report of the committed results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        file = tmp_path_factory.mktemp("report") / "report.html"
        file.write_text(Report(Results(Path("results"))).html())
        yield file


def test_every_number_is_the_files(page: Path) -> None:
    """And names a stage that writes it."""
    text = page.read_text()
    found = re.findall(r'<data value="([^"]*)" data-from="([^"]*)"[^>]*>([^<]*)</data>', text)
    assert len(found) == text.count("<data ") > 300
    files = set(re.findall(r'data-file="([^"]*)"', text))
    for value, words, shown in found:
        file, *rest = shlex.split(html.unescape(words))
        assert file in files
        assert value == shown == number((file, *rest), lambda name: (ROOT / name).read_text())


def test_table_1_is_table_1(page: Path) -> None:
    """By another way than the report's own."""
    table = pd.read_csv(ROOT / "results/table1.csv")
    shown = page.read_text().partition('id="layershuffle"')[2].partition("</table>")[0]
    assert re.findall(r">(\d+\.\d\d)</data>", shown) == [
        f"{100 * value:.2f}"
        for _, rows in table.groupby("variant", sort=False)
        for row in rows.itertuples()
        for value in (row.mean, row.std)
    ]


def test_the_committed_page_is_that_of_the_committed_results(page: Path) -> None:
    assert (ROOT / "results/report.html").read_text() == page.read_text()


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    """Numbers alone, and charts that are valid JSON."""
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("cells", "report.html"))
    for name in ("table1.csv", "figure1.csv", "exits_table1.csv", "exits_table2.csv", "smoothing_table1.csv"):
        rows = pd.read_csv(tmp_path / "results" / name)
        rows.assign(std=None).to_csv(tmp_path / "results" / name, index=False)
    text = Report(Results(tmp_path / "results")).html()
    assert ">nan</data>" not in text
    for spec in re.findall(r'<script type="application/json">(.*?)</script>', text):
        json.loads(spec, parse_constant=lambda name: pytest.fail(name))


def test_it_is_one_small_file_that_asks_for_nothing(page: Path) -> None:
    """And is the same bytes again."""
    text = page.read_text()
    assert len(text.encode()) < 3_000_000
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text)
    assert text == Report(Results(Path("results"))).html()
    assert all(f'id="claim-{claim.id}"' in text for claim in ALL_CLAIMS)


def test_a_changed_result_changes_it(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("cells", "report.html"))
    table = tmp_path / "results/table1.csv"
    table.write_text(re.sub(r"(sequential,ls,)0\.\d+", r"\g<1>0.1234", table.read_text()))
    assert ">12.34</data>" in Report(Results(tmp_path / "results")).html()
    assert ">12.34</data>" not in page.read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium and its driver, where both are installed."""
    if not (binary := shutil.which("chromium")) or not (driver := shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1100,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    """The report in it, from its beginning."""
    browser.get("about:blank")
    browser.get(page.as_uri())
    return browser


def test_charts_are_drawn_without_an_error_or_a_request(opened: Any) -> None:
    """At 390 pixels too, where nothing is wider than the page."""
    for width in (1100, 390):
        opened.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        )
        opened.refresh()
        charts = opened.find_elements("css selector", ".chart")
        assert len(charts) > 8
        for chart in charts:
            opened.execute_script("arguments[0].scrollIntoView()", chart)
            assert opened.execute_async_script(UNTIL_DRAWN, chart)
            marks = chart.find_elements("css selector", "g.mark-line path, g.mark-symbol path")
            assert len(marks) > 5
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert not [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"]
    events = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert not [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_filters_links_and_the_way_back(opened: Any) -> None:
    def count() -> str:
        return opened.find_element("id", "count").text

    def shown() -> list[str]:
        return [each.get_attribute("id") for each in opened.find_elements("css selector", "details.claim:not([hidden])")]

    ledger = json.loads((ROOT / "results/claims.json").read_text())["claims"]
    assert count() == f"{len(ledger)} of {len(ledger)}"
    holding = [f"claim-{entry['id']}" for entry in ledger if entry["verdict"] == "holds"]
    opened.execute_script("const s = document.getElementById('verdict'); s.value = 'holds'; s.dispatchEvent(new Event('input'))")
    assert shown() == holding
    opened.find_element("id", "search").send_keys("latin.arbitrary")
    assert shown() == ["claim-latin.arbitrary"]
    opened.execute_script("location.hash = '#claim-latin.spread'")
    target = opened.find_element("id", "claim-latin.spread")
    assert target.get_attribute("open")
    assert count() == f"{len(ledger)} of {len(ledger)}"
    opened.execute_script("arguments[0].focus()", first := opened.find_element("css selector", "#layershuffle data"))
    first.send_keys("\n")
    dialog = opened.find_element("id", "back")
    assert dialog.is_displayed()
    assert "results/table1.csv" in dialog.text
    assert "paper-figures" in dialog.text
    dialog.find_element("tag name", "button").click()
    assert not dialog.is_displayed()
