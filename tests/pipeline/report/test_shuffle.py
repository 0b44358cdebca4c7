"""The report's live models: a browser computes what torch does, layers move by pointer and keys."""

import base64
import json
import shutil
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import lsvit
from papers import PAPERS
from papers.layershuffle.compute.live import write_live_models
from papers.layershuffle.compute.plan import Evaluations
from pipeline.config.load import parse
from pipeline.config.params import Params
from pipeline.files import read_json, write_json
from tests.conftest import ROOT
from tests.pipeline.report.conftest import (
    complaints_and_requests,
    copy_results,
    open_page,
    resize,
    write_report,
)

RELEASED = {"baseline": "baseline_micro", "ls": "ls_micro"}
ORDER = list(range(12))


@pytest.fixture(scope="module")
def run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder like the repository's in which seed 0 is that of the released models."""
    folder = tmp_path_factory.mktemp("run")
    for place, name in (("baseline", "baseline_micro"), ("finetune/ls", "ls_micro")):
        weights = folder / "outs" / place / "seed_0/weights.safetensors"
        weights.parent.mkdir(parents=True)
        shutil.copy(ROOT / "lsvit/released" / name / "model.safetensors", weights)
    (folder / "outs/prepare_data").symlink_to(prepared)
    with chdir(folder):
        yield folder


def written(params: Params, path: str = "seeds", value: Any = (0,)) -> dict[str, Any]:
    """What stage prune-eval leaves, in the folder of :func:`run`, where params.yaml is changed."""
    values = json.loads(params.model_dump_json())
    *above, key = path.split(".")
    changed = values
    for name in above:
        changed = changed[name]
    changed[key] = value
    write_json(Path("params.yaml"), values)
    plan = Evaluations(parse("params.yaml", papers=PAPERS))
    write_live_models(plan, Path("shuffle.json"))
    return read_json(Path("shuffle.json"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model", "vit_b16"),
        ("variants", {}),
        ("variants.ls.layers", 6),
        ("models.vit_micro.kwargs.act_layer", "relu"),
        ("models.vit_micro.kwargs.img_size", 56),
    ],
)
def test_other_models_are_not_shown(run: Path, params: Params, path: str, value: Any) -> None:
    assert written(params, path, value) == {}


def test_a_model_with_more_parts_is_not_shown(run: Path, params: Params) -> None:
    file = run / "outs/finetune/ls/seed_0/weights.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"blocks.0.norm1.bias", b"blocks.0.gamma.bias"))
    assert written(params) == {}
    file.write_bytes(whole)
    assert written(params)["labels"] == list(range(10))


@pytest.fixture(scope="module")
def live(run: Path, params: Params) -> dict[str, Any]:
    """What the page shows, a class of it with a name that would end a script."""
    found = written(params)
    found["classes"][3] = "</script><script>alert(1)"
    return found


@pytest.fixture(scope="module")
def page(live: dict[str, Any], params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report with it."""
    folder = copy_results(tmp_path_factory.mktemp("report"))
    write_json(folder / "shuffle.json", live)
    return write_report(folder, folder, params)


@pytest.fixture
def opened(browser: Any, page: Path) -> Iterator[Any]:
    """The page on a phone."""
    resize(browser, 360, 780, mobile=True)
    yield from open_page(browser, page)


def layers(opened: Any) -> list[Any]:
    return opened.find_elements("css selector", ".layers button")


def order(opened: Any) -> list[int]:
    """The layers that run, counted from 0."""
    shown = opened.find_elements("css selector", ".layers button:not(.out)")
    return [int(button.text) - 1 for button in shown]


def moved(layer: int, place: int) -> list[int]:
    """The original order with one layer at another place."""
    others = [other for other in ORDER if other != layer]
    return [*others[:place], layer, *others[place:]]


@pytest.mark.slow
def test_a_browser_computes_what_torch_does(opened: Any, live: dict[str, Any]) -> None:
    images = load(base64.b64decode(live["weights"]))["images"][:, None].float() / 255
    images = (images - live["mean"][0]) / live["std"][0]
    compute = "return arguments[1].map((_, i) => shuffle.logits(arguments[0], i, arguments[2]))"
    for variant, name in RELEASED.items():
        model, *_ = lsvit.load(name)
        for route in (ORDER, ORDER[::-1], ORDER[::2], [7], [5, 5, 1]):
            with torch.inference_mode():
                expected = model(images, route=tuple(route))
            found = opened.execute_script(compute, variant, live["labels"], route)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
            if route != ORDER:
                continue
            share = expected.softmax(1)[0, 0]  # the first picture's first class, as at the start
            cell = opened.find_element("css selector", f'.answers [data-model="{variant}"] span')
            assert cell.text == f"{100 * share:.0f} %"
            right = (expected.argmax(1) == torch.tensor(live["labels"])).sum()
            card = opened.find_element("css selector", f'.verdicts [data-model="{variant}"]')
            assert f"{right} of 10 pictures" in card.text
            verdict = "right" if expected[0].argmax() == 0 else "wrong"
            assert card.get_attribute("class") == verdict
    assert complaints_and_requests(opened) == []


@pytest.mark.slow
def test_layers_move_by_keyboard(opened: Any) -> None:
    opened.execute_script("arguments[0].focus()", layers(opened)[2])
    said = opened.find_element("css selector", "#shuffle [role=status]")
    for key, expected, words in (
        (Keys.ARROW_RIGHT, moved(2, 3), "Layer 3 moved to place 4."),
        (Keys.ARROW_LEFT, ORDER, "Layer 3 moved to place 3."),
        (Keys.ARROW_UP, moved(2, 1), "Layer 3 moved to place 2."),
        (Keys.DELETE, [0, 1, *ORDER[3:]], "Layer 3 left out."),
        (Keys.SPACE, moved(2, 1), "Layer 3 put back."),
        (Keys.SPACE, [0, 1, *ORDER[3:]], "Layer 3 left out."),
        (Keys.ENTER, moved(2, 1), "Layer 3 put back."),
        (Keys.ARROW_LEFT, moved(2, 0), "Layer 3 moved to place 1."),
        (Keys.ARROW_LEFT, moved(2, 0), "Layer 3 moved to place 1."),  # it is the first
    ):
        opened.switch_to.active_element.send_keys(key)
        assert order(opened) == expected
        assert opened.switch_to.active_element.text == "3"
        text = said.get_attribute("textContent")
        assert text.startswith(words)
        assert "LayerShuffle says" in text
    assert opened.switch_to.active_element.get_attribute("aria-label").startswith("Layer 3, ")


@pytest.mark.slow
def test_layers_move_by_mouse_and_finger(opened: Any) -> None:
    """To the place where they are let go, while the page stays. A click leaves one out."""
    first, eighth = layers(opened)[0], layers(opened)[7]  # of another row
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", first)
    ActionChains(opened).drag_and_drop(first, eighth).perform()
    assert order(opened) == moved(0, 7)
    first.click()
    assert order(opened) == [layer for layer in moved(0, 7) if layer != 1]
    opened.find_element("css selector", "[data-order=original]").click()
    height = opened.execute_script("return scrollY")
    centre = "const r = arguments[0].getBoundingClientRect(); return {x: r.x + 20, y: r.y + 20}"
    points = [opened.execute_script(centre, button) for button in (eighth, first)]
    for kind, touched in (("touchStart", points[:1]), ("touchMove", points[1:]), ("touchEnd", [])):
        event = {"type": kind, "touchPoints": touched}
        opened.execute_cdp_cmd("Input.dispatchTouchEvent", event)
    assert order(opened) == moved(7, 0)
    assert not opened.find_elements("css selector", ".lifted")
    assert opened.execute_script("return scrollY") == height
    assert opened.execute_script("return document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_orders_and_pictures(opened: Any) -> None:
    orders = {"reversed": ORDER[::-1], "second": ORDER[::2], "original": ORDER}
    for name, expected in orders.items():
        opened.find_element("css selector", f"[data-order={name}]").click()
        assert order(opened) == expected
    opened.find_element("css selector", "[data-order=random]").click()
    assert sorted(order(opened)) == ORDER
    opened.find_elements("css selector", ".pictures button")[3].click()
    chosen = opened.find_element("css selector", ".pictures [aria-pressed=true]")
    assert chosen.get_attribute("aria-label").startswith("</script><script>alert(1): Usual")
    assert opened.find_element("css selector", ".answers .true th").text.startswith("</script>")
