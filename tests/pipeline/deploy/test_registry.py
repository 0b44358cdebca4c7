"""The registry: a registered model answers what lsvit's own model answers."""

import shutil
from pathlib import Path

import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from PIL import Image
from typer.testing import CliRunner

from lsvit.predict import choose_routes, load, read_image
from lsvit.routed import RoutedModel
from lsvit.routes import Route
from pipeline.files import write_json
from pipeline.tracking.runs import Tracker
from stages.commands import app
from tests.conftest import ROOT, Training, refused
from tests.pipeline.tracking.test_tracking import free_port

pytestmark = pytest.mark.filterwarnings("default")  # mlflow's own dependencies warn


@pytest.fixture(autouse=True)
def default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow notes the store in the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")


def last_line(*words: str) -> str:
    """What `lsvit` prints last."""
    output = CliRunner().invoke(app, list(words), catch_exceptions=False).stdout
    return output.splitlines()[-1]


PIXELS = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1), dtype=np.uint8)


def expected(model: RoutedModel, route: Route) -> torch.Tensor:
    """The model's own logits, of the images as files."""
    data = load("exports/bars_pico_ls_seed_1").data
    inputs = []
    for image in PIXELS:
        Image.fromarray(image[..., 0]).save("image.png")
        inputs.append(read_image(Path("image.png"), data))
    with torch.no_grad():
        return model(torch.stack(inputs), route)


@pytest.mark.slow
def test_a_registered_model_answers(trained: Training, tmp_path: Path) -> None:
    """As MLflow loads it: with nothing but the registry, along the route that it is asked for."""
    model, folder = trained("ls", seed=1), Path("outs/finetune/ls/seed_1")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    write_json(folder / "history.json", [{"epoch": 1.0, "loss": 0.5}])
    write_json(folder / "final.json", {"arbitrary/accuracy": 0.5})
    tracker = Tracker("layershuffle/bars/pico/minutes", tmp_path)
    tracker.training(folder.parent)
    line = last_line("export", "ls", "--seed", "1", "--register")
    assert line == "models:/bars_pico@ls: registered"

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    version = client.get_model_version_by_alias("bars_pico", "ls")
    assert client.get_run(version.run_id or "").info.run_name == "ls seed 1"
    assert version.tags | {"variant": "ls", "seed": "1", "scale": "minutes"} == version.tags

    shutil.rmtree(folder.parent)
    served = mlflow.pyfunc.load_model("models:/bars_pico@ls")
    inputs = PIXELS.astype(np.float32)
    for order, keep in (("sequential", 4), ("arbitrary", 4), ("arbitrary", 2)):
        (route,) = choose_routes(model, order, keep, 1, 3)
        found = served.predict(inputs, {"order": order, "keep": keep, "seed": 3})
        logits = expected(model, route)
        assert np.allclose(found["logits"], logits, atol=1e-5)
        assert np.allclose(found["probabilities"], logits.softmax(1), atol=1e-5)
        assert found["class"] == [found["classes"][i] for i in logits.argmax(1)]
    assert found["classes"][1] == "Trouser"
    in_order = {"order": "sequential", "keep": 4, "seed": 0}
    assert served.predict(inputs) == served.predict(inputs, in_order)
    with pytest.raises(MlflowException, match="keep: found 5, accepted: 1 to 4"):
        served.predict(inputs, {"keep": 5})
    with pytest.raises(MlflowException, match=r"pixels: found 0\.0 to .*, accepted: whole numbers"):
        served.predict(inputs / 255)

    trained("ls", seed=0)  # not tracked
    line = last_line("export", "ls", "--name", "mine", "--register")
    assert line == "models:/mine@ls: registered"
    assert client.get_model_version_by_alias("mine", "ls").run_id is None


def test_what_cannot_be_registered(trained: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    trained()
    with refused(r"^/.*/mlflow\.db: not found, .* `lsvit track sync` makes"):
        last_line("export", "ls", "--register")
    with refused(r"^--name: found 'mine', accepted with --register alone"):
        last_line("export", "ls", "--name", "mine")
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with refused(rf"^MLflow at {url} does not register 'bars_pico': "):
        last_line("export", "ls", "--register")
