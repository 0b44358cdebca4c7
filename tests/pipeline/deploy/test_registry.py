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

from lsvit.routed import RoutedModel
from lsvit.routes import Route
from pipeline.deploy.predict import choose_routes, open_weights, read_image
from pipeline.errors import UserError
from pipeline.tracking.runs import Tracker
from stages.commands import app
from tests.conftest import ROOT, Training
from tests.pipeline.tracking.test_tracking import free_port

pytestmark = pytest.mark.filterwarnings("default")  # mlflow's own dependencies warn
CELL = "layershuffle/bars/pico/minutes"
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(autouse=True)
def default_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow notes the store in the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")


def lsvit(*words: str) -> str:
    return CliRunner().invoke(app, list(words), catch_exceptions=False).stdout


def pixels(n: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 28, 28, 1), dtype=np.uint8)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Ask]]:
    """Starts a server of a registered model, and gives what asks it: inputs and params to the answer's status and JSON."""
    started: list[subprocess.Popen] = []

    def start(model: str) -> Ask:
        port = free_port()
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "models",
            "serve",
            "-m",
            model,
            "--env-manager",
            "local",
            "--port",
            str(port),
        ]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where MLflow finds uvicorn
        env = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "PATH": path}
        with (tmp_path / "log").open("w") as log:
            started.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
            )
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 120
        while time.monotonic() < deadline and started[-1].poll() is None:
            try:
                urllib.request.urlopen(f"{url}/ping", timeout=5).close()
                break
            except OSError:
                time.sleep(0.3)

        def ask(inputs: np.ndarray, **params: Any) -> tuple[int, Any]:
            body = json.dumps({"inputs": inputs.tolist(), "params": params}).encode()
            request = urllib.request.Request(
                f"{url}/invocations", body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.status, json.load(answer)["predictions"]
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)

        return ask

    yield start
    for process in started:
        os.killpg(process.pid, 15)
        process.wait(20)


def expected(model: RoutedModel, route: Route) -> torch.Tensor:
    """The model's own logits, of the images as files."""
    data, inputs = open_weights("exports/bars_pico_ls_seed_1").data, []
    for image in pixels():
        Image.fromarray(image[..., 0]).save("image.png")
        inputs.append(read_image(Path("image.png"), data))
    with torch.no_grad():
        return model(torch.stack(inputs), route)


@pytest.mark.slow
def test_a_registered_model_is_served(
    trained: Training, tmp_path: Path, serve: Callable[[str], Ask]
) -> None:
    model, folder = trained("ls", seed=1), Path("outs/finetune/ls/seed_1")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    (folder / "history.json").write_text(json.dumps([{"epoch": 1.0, "loss": 0.5}]))
    (folder / "final.json").write_text(json.dumps({"arbitrary/accuracy": 0.5}))
    tracker = Tracker(CELL, tmp_path)
    tracker.training(folder.parent)
    assert not tracker.failed
    assert (
        lsvit("export", "ls", "--seed", "1", "--register").splitlines()[-1]
        == "models:/bars_pico@ls: registered"
    )

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    version = client.get_model_version_by_alias("bars_pico", "ls")
    run = client.get_run(version.run_id or "")
    assert (run.info.run_name, run.info.status) == ("ls seed 1", "FINISHED")
    assert (version.tags["variant"], version.tags["seed"], version.tags["scale"]) == (
        "ls",
        "1",
        "minutes",
    )
    Path("dvc.yaml").unlink()
    shutil.rmtree(folder.parent)
    ask = serve("models:/bars_pico@ls")  # with nothing but the registry
    routes = {
        order: choose_routes(model, order, None, 1, 3)[0]
        for order in ("sequential", "arbitrary", "reversed")
    }
    assert len(set(routes.values())) == 3
    for order, route in routes.items():
        status, found = ask(pixels(), order=order, seed=3)
        own = expected(model, route)
        assert status == 200
        assert torch.allclose(torch.tensor(found["logits"]), own, atol=1e-5)
        assert torch.allclose(torch.tensor(found["probabilities"]), own.softmax(1), atol=1e-5)
        assert found["class"] == [found["classes"][i] for i in own.argmax(1)]
        assert found["classes"][1] == "Trouser"
    kept = choose_routes(model, "arbitrary", 2, 1, 5)[0]
    assert torch.allclose(
        torch.tensor(ask(pixels(), order="arbitrary", keep=2, seed=5)[1]["logits"]),
        expected(model, kept),
        atol=1e-5,
    )
    assert ask(pixels()) == ask(pixels(), order="sequential", keep=4, seed=0)
    status, error = ask(pixels() / 255)
    assert (status, error["message"].splitlines()[-1]) == (
        400,
        "Error: inputs: found 0.372549, accepted: pixels, whole numbers from 0 to 255",
    )
    for params, said in (
        ({"order": "backwards"}, "order: found 'backwards', accepted: sequential, arbitrary"),
        ({"seed": -1}, "seed: found -1, accepted: 0 or more"),
        (
            {"order": "arbitrary", "keep": 5},
            "keep: found 5, accepted: 1 to 4, the layers of the model",
        ),
    ):
        status, error = ask(pixels(), **params)
        assert (status, said in error["message"].splitlines()[-1]) == (400, True)

    trained("ls", seed=0)  # not tracked
    assert (
        lsvit("export", "ls", "--name", "mine", "--register").splitlines()[-1]
        == "models:/mine@ls: registered"
    )
    assert client.get_model_version_by_alias("mine", "ls").run_id is None
    with pytest.raises(UserError, match=r"does not register 'a/b': .*cannot contain"):
        lsvit("export", "ls", "--register", "--name", "a/b")


def test_what_cannot_be_registered(
    trained: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained()
    with pytest.raises(
        UserError,
        match=r"^/.*/mlflow\.db: not found, no MLflow store to register in; `lsvit track sync` makes it",
    ):
        lsvit("export", "ls", "--register")
    with pytest.raises(UserError, match=r"^--name: found 'mine', accepted with --register alone"):
        lsvit("export", "ls", "--name", "mine")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(
        UserError, match=r"^MLflow at http://127\.0\.0\.1:\d+ does not register 'bars_pico': "
    ) as error:
        lsvit("export", "ls", "--register")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "mlflow.db").exists()
