"""The files of examples/ run, on few small images, and shuffle the layers in every step."""

import importlib
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

import lsvit
from pipeline.files import read_json
from tests.conftest import ROOT, write_raw

EXAMPLES = ROOT / "examples"
IMAGES = {"train": 300, "validation": 100}
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A few images where an example looks for them."""
    write_raw(tmp_path / "images", IMAGES)
    monkeypatch.syspath_prepend(EXAMPLES)
    return tmp_path / "images"


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[lsvit.Shuffle]:
    """What `lsvit.shuffle` returns to an example."""
    returned: list[lsvit.Shuffle] = []
    shuffle = lsvit.shuffle

    def recorded(*args: Any, **kwargs: Any) -> lsvit.Shuffle:
        returned.append(shuffle(*args, **kwargs))
        return returned[-1]

    monkeypatch.setattr(lsvit, "shuffle", recorded, raising=False)
    return returned


@pytest.mark.parametrize("name", ["plain_loop", "transformers_trainer", "timm_train"])
def test_an_example_trains_in_random_orders(
    name: str, folder: Path, attached: list[lsvit.Shuffle]
) -> None:
    scores = importlib.import_module(name).main(folder, images=IMAGES["train"], epochs=2)
    (shuffle,) = attached
    assert shuffle.step == 6  # 3 batches of 100 images in each of 2 epochs
    whole = [score for score in scores if score.layers == 6]
    assert [score.order for score in whole] == ["sequential", "arbitrary"]
    assert whole[1].orders == 20


def test_the_notebook_runs_and_draws_its_figure(
    folder: Path, attached: list[lsvit.Shuffle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells, for one epoch on few images. The committed outputs are of these cells."""
    monkeypatch.setattr(plt, "show", lambda: None)
    cells = read_json(EXAMPLES / "layershuffle.ipynb")["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    smaller = {"EPOCHS = 15": "EPOCHS = 1", "ORDERS = 10": "ORDERS = 2"}
    smaller["Path(FOLDER)"] = f"Path({str(folder)!r})"
    code = "\n".join(sources)
    for value, small in smaller.items():
        code = code.replace(value, small)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    (shuffle,) = attached
    assert shuffle.step == 3
    assert {score.layers for score in namespace["scores"]["LayerShuffle"]} == {3, 6, 9, 12}
    (axes,) = namespace["figure"].axes
    assert len(axes.containers) == 4  # two models, two kinds of orders
    plt.close(namespace["figure"])
    assert all(cell.get("execution_count", 1) for cell in cells)
