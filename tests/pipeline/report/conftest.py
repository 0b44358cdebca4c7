"""A real browser."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium and its driver, where both are installed."""
    if not (binary := shutil.which("chromium")) or not (driver := shutil.which("chromedriver")):
        pytest.skip("needs chromium and chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1100,900",
    ):
        options.add_argument(argument)
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


def press(browser: Any, button: Any) -> None:
    """Press a button by keyboard."""
    browser.execute_script("arguments[0].focus()", button)
    button.send_keys("\n")


def complaints_and_requests(browser: Any) -> list[str]:
    """Warnings and errors since the browser was last asked, and requests for what is no file."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    said = [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] in ("WARNING", "SEVERE")
    ]
    return said + [url for url in asked if not url.startswith(("file:", "data:", "about:"))]
