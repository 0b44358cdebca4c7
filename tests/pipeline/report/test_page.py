"""The report: its numbers are the files', and it works in a real browser without a network."""

import html
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from papers import PAPERS
from pipeline.config.params import Params
from pipeline.files import read_json
from pipeline.report.charts import GRID
from pipeline.report.numbers import number
from tests.conftest import ALL_CLAIMS, ROOT, change_json
from tests.pipeline.report.conftest import (
    complaints_and_requests,
    copy_results,
    open_page,
    resize,
    write_report,
)

pytestmark = pytest.mark.slow
UNTIL_DRAWN = """const [chart, done] = arguments; (function look() {
  chart.querySelector('svg path[d]') ? done(true) : setTimeout(look, 20) })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """The report of the committed results."""
    return write_report(tmp_path_factory.mktemp("report"), Path("results"), params)


def test_every_number_is_the_files(page: Path) -> None:
    """And names a stage that writes it."""
    text = page.read_text()
    found = re.findall(r'<data value="([^"]*)" data-from="([^"]*)"[^>]*>([^<]*)</data>', text)
    assert len(found) == text.count("<data ") > 300
    files = set(re.findall(r'data-file="([^"]*)"', text))
    for value, words, shown in found:
        file, *rest = shlex.split(html.unescape(words))
        assert file in files
        assert (
            value == shown == number((file, *rest), lambda name: (ROOT / name).read_text(), PAPERS)
        )


def test_the_committed_page_is_that_of_the_committed_results(page: Path) -> None:
    """The same bytes, made by another process: one small file that asks for nothing."""
    text = page.read_text()
    assert (ROOT / "results/report.html").read_text() == text
    assert len(text.encode()) < 5_000_000
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text)


def test_a_claim_has_the_sentence_of_its_source(page: Path) -> None:
    text = page.read_text()
    for claim in ALL_CLAIMS:
        details = text.partition(f'id="claim-{claim.id}"')[2].partition("</details>")[0]
        assert details, claim.id
        quotes = [claim.quote] if claim.quote else []
        assert re.findall(r"<q>(.*?)</q>", html.unescape(details)) == quotes


def test_links_of_the_checklists_hold(page: Path) -> None:
    """They lead from the folder of the page to files of the repository."""
    shown = page.read_text().partition('<section id="checklists">')[2].partition("</section>")[0]
    links = re.findall(r'href="([^"#]*)', shown)
    assert len(links) == len(re.findall(r"\]\(", (ROOT / "docs/checklists.md").read_text()))
    assert not [link for link in links if not (ROOT / "results" / link).exists()]


def test_one_seed_has_no_spread(tmp_path: Path, params: Params) -> None:
    """Numbers alone, charts that are valid JSON, and no models where there are none to shuffle."""
    results = copy_results(tmp_path)
    for name in ("table1", "figure1", "exits_table1", "exits_table2", "smoothing_table1"):
        file = results / f"{name}.csv"
        pd.read_csv(file).assign(std=None).to_csv(file, index=False)
    change_json(results / "cell.json", {"seeds": [0]})
    (results / "shuffle.json").write_text("{}")  # as where the model is a large one
    text = write_report(tmp_path, results, params).read_text()
    assert re.search(r'<section id="shuffle">\s*<p[^>]*>[^<]+</p>\s*</section>', text)
    assert "readTensors" not in text
    assert ">nan</data>" not in text
    assert ">1</data> seed," in text
    for spec in re.findall(r'<script type="application/json">(.*?)</script>', text):
        json.loads(spec, parse_constant=lambda name: pytest.fail(name))


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, params: Params) -> Path:
    """Two papers' report of results with a table changed, and the grids of two pictures."""
    results = copy_results(tmp_path_factory.mktemp("changed"))
    table = results / "table1.csv"
    table.write_text(re.sub(r"(sequential,ls,)0\.\d+", r"\g<1>0.1234", table.read_text()))
    named, grid = PngInfo(), PngInfo()
    with Image.open(drawn := results / "figures/class_images.png") as image:
        named.add_text(GRID, image.info[GRID].replace("Trouser", "<!--<script>alert(1)</script>"))
        image.save(drawn, pnginfo=named)
    places = {"columns": [0.25, 0.5, 0.75, 1.0], "rows": [0.2, 0.6, 1.0]}
    grid.add_text(GRID, json.dumps({"heads": ["", "first layer", "first 2 layers"]} | places))
    greys = np.arange(20, dtype=np.uint8).reshape(5, 4) * 10
    pixels = greys.repeat(20, axis=0).repeat(20, axis=1)
    Image.fromarray(pixels).save(results / "figures/inversion_depth.png", pnginfo=grid)
    papers = tuple(paper for paper in PAPERS if paper.name in ("layershuffle", "inversion"))
    return write_report(results, results, params, papers)


def test_a_changed_result_changes_it(page: Path, changed: Path) -> None:
    text = changed.read_text()
    assert ">12.34</data>" in text
    assert ">12.34</data>" not in page.read_text()
    assert "alert(1)" in text
    assert "<script>alert" not in text  # a class's name is a word


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The report in it, from its beginning."""
    yield from open_page(browser, page)


def test_charts_are_drawn_without_a_warning_or_a_request(opened: Any) -> None:
    """Each below the names that it can be switched to. Nothing is wider than the page.

    On a narrow one each number stands beside its verdict, where the head of the table is gone.
    """
    for width, has_head in ((1100, True), (390, False)):
        resize(opened, width)
        opened.refresh()
        charts = opened.find_elements("css selector", ".chart")
        assert len(charts) == len(opened.find_elements("css selector", ".legend + .chart")) > 8
        for chart in charts:
            opened.execute_script("arguments[0].scrollIntoView()", chart)
            opened.execute_async_script(UNTIL_DRAWN, chart)
            marks = chart.find_elements("css selector", "g.mark-line path, g.mark-symbol path")
            assert len(marks) > 5
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
        table = opened.find_element("css selector", "table.stacks")
        box = opened.execute_script("return arguments[0].parentElement", table)
        assert box.get_property("scrollWidth") <= box.get_property("clientWidth")
        assert table.find_element("tag name", "thead").is_displayed() == has_head
    assert complaints_and_requests(opened) == []


def test_names_are_switched_by_keyboard(opened: Any) -> None:
    """The first alone, the second joins it, without both all are shown."""
    legend = opened.find_element("css selector", "#layershuffle .legend")
    chart = opened.execute_script(
        "arguments[0].scrollIntoView(); return arguments[0].nextElementSibling", legend
    )
    opened.execute_async_script(UNTIL_DRAWN, chart)
    buttons = legend.find_elements("tag name", "button")
    shown = """const [chart, done] = arguments;
      chart.drawn.then(({view}) => view.runAsync()).then(() => done(
        [...chart.querySelectorAll('g.mark-line path')]
          .map((line) => line.getAttribute('opacity') === '1')))"""
    assert sum(opened.execute_async_script(shown, chart)) == len(buttons)
    for place, count in ((0, 1), (1, 2), (0, 1), (1, len(buttons))):
        buttons[place].send_keys("\n")
        assert sum(opened.execute_async_script(shown, chart)) == count
    assert {button.get_attribute("aria-pressed") for button in buttons} == {"false"}


def test_filters_links_and_the_way_back(opened: Any) -> None:
    def count() -> str:
        return opened.find_element("id", "count").text

    def shown() -> list[str]:
        claims = opened.find_elements("css selector", "details.claim:not([hidden])")
        return [claim.get_attribute("id") for claim in claims]

    ledger = read_json(ROOT / "results/claims.json")["claims"]
    assert count() == f"{len(ledger)} of {len(ledger)}"
    first = opened.find_element("css selector", "details.claim .badge")
    assert first.text == "does not hold"  # as on the ledger's page
    entries = sorted(ledger, key=lambda entry: entry["own"])  # our own questions come last
    holding = [f"claim-{entry['id']}" for entry in entries if entry["verdict"] == "holds"]
    opened.execute_script(
        "const s = document.getElementById('verdict'); s.value = 'holds';"
        "s.dispatchEvent(new Event('input'))"
    )
    assert shown() == holding
    opened.find_element("id", "search").send_keys("latin.arbitrary")
    assert shown() == ["claim-latin.arbitrary"]
    opened.execute_script("location.hash = '#claim-latin.spread'")
    target = opened.find_element("id", "claim-latin.spread")
    assert target.get_attribute("open")
    assert count() == f"{len(ledger)} of {len(ledger)}"
    opened.find_element("css selector", "#layershuffle td data").send_keys("\n")
    dialog = opened.find_element("id", "back")
    assert dialog.is_displayed()
    assert "results/table1.csv" in dialog.text
    assert "paper-figures" in dialog.text
    dialog.find_element("tag name", "button").click()
    assert not dialog.is_displayed()


def test_pictures_are_enlarged(opened: Any) -> None:
    """A figure to its own size, a claim's picture to the width there is; by keyboard, and back."""
    large = opened.find_element("id", "large")
    opened.execute_script("location.hash = '#claim-s4.1.gain'")
    for chosen, least in (('[id="claim-s4.1.gain"] .zoom', 600), ("#inversion figure .zoom", 1100)):
        opened.find_element("css selector", chosen).send_keys("\n")
        assert large.is_displayed()
        assert large.find_element("css selector", "div > *").size["width"] >= least
        opened.switch_to.active_element.send_keys("\n")  # the button that closes it
        assert not large.is_displayed()


GREYS = """return [...arguments[0].querySelectorAll('canvas')]
  .map((c) => [...c.getContext('2d').getImageData(0, 5, c.width, 1).data])"""


def test_pictures_one_column_at_a_time(browser: Any, changed: Path) -> None:
    """The originals and one more column, a part a row, stepped through by keyboard."""
    browser.get(changed.as_uri())
    steps = browser.find_element("css selector", ".steps")
    slider = steps.find_element("tag name", "input")
    browser.execute_async_script(
        "document.querySelector('#inversion img').decode().then(arguments[0])"
    )
    for head, column in (("first layer", 2), ("first 2 layers", 3)):
        assert steps.find_element("tag name", "output").text == head
        assert slider.get_attribute("aria-valuetext") == head
        rows = [row[::4][10::20] for row in browser.execute_script(GREYS, steps)]
        assert rows == [[10 * (4 * line + place) for place in (0, 1, column)] for line in (1, 3)]
        slider.send_keys("\ue014")  # the arrow to the right
