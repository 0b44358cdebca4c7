"""The registry: a real `mlflow models serve` answers what lsvit's own model answers."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from PIL import Image
from typer.testing import CliRunner

from lsvit.predict import choose_routes, open_weights, read_image
from lsvit.routed import RoutedModel
from lsvit.routes import Route
from pipeline.errors import UserError
from pipeline.tracking.runs import Tracker
from stages.commands import app
from tests.conftest import ROOT, Training
from tests.pipeline.tracking.test_tracking import free_port

pytestmark = pytest.mark.filterwarnings("default")  # mlflow's own dependencies warn
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(autouse=True)
def default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow notes the store in the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")


def last_line(*words: str) -> str:
    """What `lsvit` prints last."""
    output = CliRunner().invoke(app, list(words), catch_exceptions=False).stdout
    return output.splitlines()[-1]


def pixels(n: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 28, 28, 1), dtype=np.uint8)


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Asks a server of `models:/bars_pico@ls`, started at the first question: (status, answer)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    started: list[subprocess.Popen] = []

    def start() -> None:
        command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/bars_pico@ls"]
        command += ["--env-manager", "local", "--port", str(port)]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where MLflow finds uvicorn
        env = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "PATH": path}
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, start_new_session=True
            )
        started.append(process)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/ping", timeout=5).close()
                return
            except OSError:
                time.sleep(0.3)

    def ask(**params: Any) -> tuple[int, Any]:
        if not started:
            start()
        body = json.dumps({"inputs": pixels().tolist(), "params": params}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/invocations", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)["predictions"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    yield ask
    for process in started:
        os.killpg(process.pid, 15)
        process.wait(20)


def expected(model: RoutedModel, route: Route) -> torch.Tensor:
    """The model's own logits, of the images as files."""
    data = open_weights("exports/bars_pico_ls_seed_1").data
    inputs = []
    for image in pixels():
        Image.fromarray(image[..., 0]).save("image.png")
        inputs.append(read_image(Path("image.png"), data))
    with torch.no_grad():
        return model(torch.stack(inputs), route)


@pytest.mark.slow
def test_a_registered_model_is_served(trained: Training, tmp_path: Path, ask: Ask) -> None:
    model, folder = trained("ls", seed=1), Path("outs/finetune/ls/seed_1")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    (folder / "history.json").write_text(json.dumps([{"epoch": 1.0, "loss": 0.5}]))
    (folder / "final.json").write_text(json.dumps({"arbitrary/accuracy": 0.5}))
    tracker = Tracker("layershuffle/bars/pico/minutes", tmp_path)
    tracker.training(folder.parent)
    assert not tracker.failed
    line = last_line("export", "ls", "--seed", "1", "--register")
    assert line == "models:/bars_pico@ls: registered"

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    version = client.get_model_version_by_alias("bars_pico", "ls")
    run = client.get_run(version.run_id or "")
    assert (run.info.run_name, run.info.status) == ("ls seed 1", "FINISHED")
    tags = {"variant": "ls", "seed": "1", "scale": "minutes"}
    assert tags.items() <= version.tags.items()

    Path("dvc.yaml").unlink()
    shutil.rmtree(folder.parent)  # the server has nothing but the registry
    for order, keep in (("sequential", 4), ("arbitrary", 4), ("reversed", 4), ("arbitrary", 2)):
        kept = None if keep == 4 else keep
        (route,) = choose_routes(model, order, kept, 1, 3)
        status, found = ask(order=order, keep=keep, seed=3)
        logits = expected(model, route)
        assert status == 200
        assert torch.allclose(torch.tensor(found["logits"]), logits, atol=1e-5)
        assert torch.allclose(torch.tensor(found["probabilities"]), logits.softmax(1), atol=1e-5)
        assert found["class"] == [found["classes"][i] for i in logits.argmax(1)]
    assert found["classes"][1] == "Trouser"
    assert ask() == ask(order="sequential", keep=4, seed=0)
    for params, reason in (
        ({"order": "backwards"}, "order: found 'backwards', accepted: sequential, arbitrary"),
        ({"keep": 5}, "keep: found 5, accepted: 1 to 4, the layers of the model"),
    ):
        status, error = ask(**params)
        assert status == 400
        assert reason in error["message"].splitlines()[-1]

    trained("ls", seed=0)  # not tracked
    line = last_line("export", "ls", "--name", "mine", "--register")
    assert line == "models:/mine@ls: registered"
    assert client.get_model_version_by_alias("mine", "ls").run_id is None
    with pytest.raises(UserError, match=r"does not register 'a/b': .*cannot contain"):
        last_line("export", "ls", "--register", "--name", "a/b")


def test_what_cannot_be_registered(
    trained: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    with pytest.raises(UserError, match=r"^/.*/mlflow\.db: not found, .* `lsvit track sync` makes"):
        last_line("export", "ls", "--register")
    with pytest.raises(UserError, match=r"^--name: found 'mine', accepted with --register alone"):
        last_line("export", "ls", "--name", "mine")
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    reason = rf"^MLflow at {url} does not register 'bars_pico': "
    with pytest.raises(UserError, match=reason) as error:
        last_line("export", "ls", "--register")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "mlflow.db").exists()
