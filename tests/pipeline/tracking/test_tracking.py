"""MLflow: a real server, a local store, an outage, and the replay from files."""

import json
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
from PIL import Image

from pipeline.declared import declared_stages
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.job import Job
from pipeline.jobs.pool import run
from pipeline.tracking import runs as tracking
from pipeline.tracking.runs import Tracker
from pipeline.tracking.sync import sync
from pipeline.training.gather import gather_trainings
from tests.conftest import ROOT
from tests.test_corrupt import DAMAGES

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.filterwarnings("default")  # mlflow's own dependencies warn


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[int], Path]:
    """A store that two processes opened at once when there was none, and how they ended."""
    folder = tmp_path_factory.mktemp("fresh")
    code = (
        f"from pathlib import Path; from pipeline.tracking.runs import Tracker\n"
        f"tracker = Tracker('e', Path({str(folder)!r})); tracker._guard(tracker.client); exit(tracker.failed)"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
    return [process.wait(120) for process in started], folder / tracking.DATABASE


@pytest.fixture(scope="module")
def server(
    fresh: tuple[list[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A real `mlflow server` on the loopback interface, without the processes of the jobs that it can run."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    shutil.copy(fresh[1], folder / "server.db")  # making a store takes ten seconds
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    log = (folder / "log").open("w")
    env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.3)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, 15)
    process.wait(20)
    log.close()


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, train_config: Config, prepared: Path
) -> Path:
    """A root with one finished variant of two seeds, and results."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_ROOT", str(folder))
        jobs = jobs_for(train_config, prepared)
        run(jobs, "cpu")
        gather_trainings({job.config.seed: job for job in jobs}, Path("outs/finetune/test"))  # type: ignore[attr-defined]
    shutil.copy(ROOT / "dvc.yaml", folder)  # says which results are whose
    (folder / "results").mkdir()
    (folder / "results/cell.json").write_text(
        json.dumps({"dataset": "bars", "model": "pico", "scale": "smoke"})
    )
    (folder / "outs/params").mkdir()
    (folder / "outs/params/model.json").write_text(json.dumps(["pico", "smoke", {}]))
    (folder / "results/metrics.json").write_text(
        json.dumps({"test": {"arbitrary": {"accuracy": 0.5}}})
    )
    (folder / "results/prune_eval.csv").write_text("a\n1\n")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in which a stage runs."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("DVC_STAGE", "finetune-variants")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def local(workspace: Path, fresh: tuple[list[int], Path]) -> str:
    """The workspace's own store, a new one."""
    shutil.copy(fresh[1], workspace)
    return f"sqlite:///{workspace}/{tracking.DATABASE}"


def jobs_for(train_config: Config, prepared: Path) -> list[Job]:
    configs = [train_config(seed=seed) for seed in (0, 1)]
    return [
        Job(
            f"test seed {c.seed}",
            "pipeline.training.loop:train",
            c,
            {"data": prepared, "weights": None},
            3,
        )
        for c in configs
    ]


def client_of(uri: str) -> "MlflowClient":
    """Imported where it is used: it takes a second."""
    from mlflow import MlflowClient

    return MlflowClient(uri)


def runs(uri: str, scale: str = "smoke") -> dict[str, "Run"]:
    client = client_of(uri)
    names = {f"layershuffle/bars/pico/{scale}", f"stages/bars/pico/{scale}"}
    experiments = [each.experiment_id for each in client.search_experiments() if each.name in names]
    return {run.info.run_name or "": run for run in client.search_runs(experiments)}


def check_store(uri: str) -> None:
    found, client = runs(uri), client_of(uri)
    assert set(found) == {"test", "test seed 0", "test seed 1", "prune-eval"}
    child, parent = found["test seed 0"], found["test"]
    assert child.info.status == parent.info.status == "FINISHED"
    assert child.data.tags["mlflow.parentRunId"] == parent.info.run_id
    for tag in ("mlflow.source.git.commit", "mlflow.source.git.branch", "git.dirty"):
        assert tag in child.data.tags
    assert child.data.tags["mlflow.user"]
    assert child.data.tags["mlflow.source.name"]
    assert (child.data.tags["kind"], parent.data.tags["kind"], child.data.tags["paper"]) == (
        "training",
        "variant",
        "layershuffle",
    )
    stages = {name: run.data.tags["stage"] for name, run in found.items()}
    assert stages == {
        name: "prune-eval" if name == "prune-eval" else "finetune-variants" for name in found
    }
    assert "its seeds lie below" in parent.data.tags["mlflow.note.content"]
    assert (
        "layershuffle"
        in client.get_experiment(child.info.experiment_id).tags["mlflow.note.content"]
    )
    assert child.inputs
    (read,) = child.inputs.dataset_inputs
    assert (read.dataset.name, read.tags[0].value) == (child.data.params["dataset"], "training")
    assert child.data.params["data_sha256"].startswith(read.dataset.digest)
    (model,) = client.search_logged_models(
        [child.info.experiment_id], f"source_run_id = '{child.info.run_id}'"
    )
    assert (model.name, str(model.status)) == ("test_seed_0", "READY")
    assert {metric.key for metric in model.metrics or ()} == {
        name for name in child.data.metrics if name.startswith("final/")
    }
    assert child.data.params["options.lr"] == "0.003"
    assert child.data.params["seed"] == "0"
    curve = client.get_metric_history(child.info.run_id, "validation/arbitrary/accuracy")
    assert [metric.step for metric in curve] == [1, 2, 3]
    history = json.loads(Path("outs/finetune/test/seed_0/history.json").read_text())
    assert [metric.value for metric in curve] == pytest.approx(
        [row["validation/arbitrary/accuracy"] for row in history]
    )
    names = {file.path for file in client.list_artifacts(child.info.run_id)}
    assert names == {
        "config.json",
        "history.json",
        "final.json",
        "weights.safetensors",
        "execution.txt",
    }
    assert child.data.tags["execution"].endswith("fp32 (auto: width 16 is below 768)")
    values = [
        found[f"test seed {seed}"].data.metrics["final/arbitrary/accuracy"] for seed in (0, 1)
    ]
    assert parent.data.metrics["n"] == 2
    assert parent.data.metrics["mean/arbitrary/accuracy"] == pytest.approx(sum(values) / 2)
    assert parent.data.metrics["std/arbitrary/accuracy"] == pytest.approx(
        abs(values[0] - values[1]) / 2**0.5
    )
    assert found["prune-eval"].data.metrics == {"test/arbitrary/accuracy": 0.5}
    assert {file.path for file in client.list_artifacts(found["prune-eval"].info.run_id)} == {
        "cell.json",
        "metrics.json",
        "prune_eval.csv",
    }


def log_everything(jobs: list[Job]) -> Tracker:
    """What the stages do: rows as they come, the finished variant, the results."""
    tracker = Tracker("layershuffle/bars/pico/smoke", Path(os.environ["DVC_ROOT"]))
    for job in jobs:
        tracker.epoch(
            "test", job.record(), json.loads((job.folder / "history.json").read_text())[0]
        )
    tracker.training(Path("outs/finetune/test"))
    stages = Tracker("stages/bars/pico/smoke", Path(os.environ["DVC_ROOT"]))
    stages.failed = tracker.failed
    for stage in declared_stages():
        stages.results(stage)
    tracker.recorded += stages.recorded
    return tracker


@pytest.mark.slow
def test_local_store(workspace: Path, local: str, train_config: Config, prepared: Path) -> None:
    """Also from another folder: the store lies at DVC_ROOT, artifacts too; logging twice changes nothing."""
    first = log_everything(jobs_for(train_config, prepared))
    assert not first.failed
    check_store(local)
    assert (workspace / "mlartifacts" / "layershuffle-bars-pico-smoke").is_dir()
    assert log_everything(jobs_for(train_config, prepared)).recorded == 0
    check_store(local)
    assert sync() == 0
    Path("outs/params/model.json").write_text(json.dumps(["pico", "hours", {}]))
    assert sync() == 2  # the results are of the other scale still
    assert set(runs(local, "hours")) == {"test", "test seed 0", "test seed 1"}
    check_store(local)


@pytest.mark.slow
def test_images_stand_over_steps(workspace: Path, local: str) -> None:
    """Of inversion, by the number of first layers, once; none where they are not checked out."""
    folder, key = Path("outs/inversion/arrays"), "vit trained adam"
    Path("results/inversion.csv").write_text("point\n")
    Tracker("e", workspace).results("inversion")
    folder.mkdir(parents=True)
    names = ["kind", "dataset", "model", "family", "weights", "edit", "order", "optimiser"]
    values = ["inversion", "bars", "pico", "vit", "trained", "none", "sequential", "adam"]
    own = dict(zip(names, values, strict=True)) | {"file": "000.npz", "seed": 0}
    (folder / "index.json").write_text(json.dumps([own, own | {"edit": "without mlp"}]))
    points = ["patch_embed", "first 1", "first 4", "layer 3"]
    found = np.linspace(-0.5, 1.5, 4).astype(np.float16)[:, None, None, None, None] * np.ones(
        (1, 2, 1, 4, 4), np.float16
    )
    np.savez(
        folder / "000.npz",
        originals=np.ones((2, 1, 4, 4), np.float32),
        points=np.array(points),
        found=found,
    )
    Path("results/inversion.csv").write_text("point\nfirst 1\n")
    for _ in range(2):
        tracker = Tracker("e", workspace)
        tracker.results("inversion")
        assert not tracker.failed
    client = client_of(local)
    experiment = client.get_experiment_by_name("e")
    assert experiment
    without, run = sorted(
        client.search_runs([experiment.experiment_id]), key=lambda each: each.info.start_time
    )
    assert not client.list_artifacts(without.info.run_id, "images")
    paths = [each.path for each in client.list_artifacts(run.info.run_id, "images")]
    logged = {tuple(path.split("+")[:3:2]): path for path in paths if path.endswith(".png")}
    assert len([path for path in paths if path.endswith(".png")]) == 3
    assert set(logged) == {(f"images/{key}", step) for step in ("0", "1", "4")}
    import mlflow

    last = np.asarray(
        Image.open(
            mlflow.artifacts.download_artifacts(
                run_id=run.info.run_id, artifact_path=logged[f"images/{key}", "4"]
            )
        )
    )
    assert last.shape == (4, 8)
    assert (int(last[0, 0]), int(last[0, -1])) == (255, round(255 * float(found[2, 0, 0, 0, 0])))


@pytest.mark.slow
def test_what_several_stages_log_at_once_stands_once(
    workspace: Path, local: str, train_config: Config, prepared: Path
) -> None:
    """As those of experiments do that want the same trainings."""
    jobs, fork = jobs_for(train_config, prepared), multiprocessing.get_context("fork")

    def log() -> None:
        sys.exit(log_everything(jobs).failed)

    stages = [fork.Process(target=log) for _ in range(3)]
    for stage in stages:
        stage.start()
    for stage in stages:
        stage.join()
    assert [stage.exitcode for stage in stages] == [0, 0, 0]
    client = client_of(local)
    names = [
        run.info.run_name
        for each in client.search_experiments()
        for run in client.search_runs([each.experiment_id])
    ]
    assert sorted(names, key=str) == ["prune-eval", "test", "test seed 0", "test seed 1"]
    check_store(local)


@pytest.mark.slow
def test_trackers_of_a_process_take_turns(workspace: Path, local: str) -> None:
    """Two threads that import mlflow at once find halves of it: none begins while another is at work."""
    client_of(local)  # imported now, what is noted next takes no time
    first, second = (Tracker(name, workspace) for name in ("e", "f"))
    begun, go = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go.wait(60)

    threads = [threading.Thread(target=first._guarded, args=(work,))]
    record = {
        "dataset": "bars",
        "data_sha256": "0" * 64,
        "seed": 0,
        "options": {"epochs": 3},
        "apart": ["seed"],
    }
    threads.append(threading.Thread(target=second.epoch, args=("test", record, {"epoch": 1})))
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    time.sleep(1.5)
    noted = workspace / ".lsvit" / "context"
    assert not noted.exists()
    go.set()
    for thread in threads:
        thread.join()
    assert noted.exists()
    assert not second.failed


@pytest.mark.slow
def test_two_that_follow_one_training_log_its_epochs_once(
    workspace: Path, local: str, train_config: Config, prepared: Path
) -> None:
    """What either has seen of the curve may have grown since, by the other."""
    job, _ = jobs_for(train_config, prepared)
    rows = json.loads((job.folder / "history.json").read_text())
    first, second = (Tracker("layershuffle/bars/pico/smoke", workspace) for _ in range(2))
    for tracker, row in zip(
        (first, second, first, second), (rows[0], rows[0], rows[1], rows[1]), strict=True
    ):
        tracker.epoch("test", job.record(), row)
    for tracker in (first, second):
        tracker.training(Path("outs/finetune/test"))
    assert not first.failed
    assert not second.failed
    client, run = client_of(local), runs(local)["test seed 0"]
    for name in ("epoch", "validation/arbitrary/accuracy"):
        assert [metric.step for metric in client.get_metric_history(run.info.run_id, name)] == [
            1,
            2,
            3,
        ]


@pytest.mark.slow
def test_the_machine_is_watched_where_mlflow_is_told_to(
    workspace: Path,
    local: str,
    train_config: Config,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, _ = jobs_for(train_config, prepared)
    rows = json.loads((job.folder / "history.json").read_text())
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    tracker = Tracker("layershuffle/bars/pico/smoke", workspace)
    tracker.epoch("test", job.record(), rows[0])
    (watching,) = (
        thread for thread in threading.enumerate() if thread.name == "SystemMetricsMonitor"
    )
    deadline = time.monotonic() + 60
    while (
        "system/system_memory_usage_percentage" not in runs(local)["test seed 0"].data.metrics
        and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    for row in rows[1:]:
        tracker.epoch("test", job.record(), row)
    assert not watching.is_alive()  # after the last epoch
    tracker.training(Path("outs/finetune/test"))
    watched, other = (runs(local)[f"test seed {seed}"].data.metrics for seed in range(2))
    assert not tracker.failed
    assert 0 < watched["system/system_memory_usage_percentage"] <= 100
    assert not any(name.startswith("system/") for name in other)


@pytest.mark.slow
def test_times_are_those_of_the_epochs(
    workspace: Path,
    local: str,
    fresh: tuple[list[int], Path],
    train_config: Config,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a store with an outage after the first epoch, and in a new one that is filled later."""
    shutil.copy(fresh[1], workspace / "new.db")
    (job, _), began = jobs_for(train_config, prepared), 1_700_000_000.0
    rows = json.loads((job.folder / "history.json").read_text())
    for epoch, row in enumerate(rows, 1):
        monkeypatch.setattr(time, "time", lambda epoch=epoch: began + 10 * epoch)
        tracker = Tracker("layershuffle/bars/pico/smoke", workspace)
        tracker.failed = epoch > 1
        tracker.epoch("test", job.record(), row | {"seconds": 10.0})
    monkeypatch.undo()
    monkeypatch.chdir(workspace)
    for store in (local, f"sqlite:///{workspace}/new.db"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
        sync()
        run = runs(store)["test seed 0"]
        assert (run.info.start_time, run.info.end_time) == (began * 1000, (began + 30) * 1000)
        curve = client_of(store).get_metric_history(run.info.run_id, "epoch")
        assert [metric.timestamp for metric in curve] == [
            (began + 10 * epoch) * 1000 for epoch in (1, 2, 3)
        ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status"), [(UserError("no memory"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_training_that_is_stopped(
    workspace: Path,
    local: str,
    train_config: Config,
    prepared: Path,
    error: BaseException,
    status: str,
) -> None:
    """It is marked so, runs again when it goes on, and is finished in the end."""
    job, _ = jobs_for(train_config, prepared)
    rows = json.loads((job.folder / "history.json").read_text())
    first, second = (Tracker("layershuffle/bars/pico/smoke", workspace) for _ in range(2))
    first.epoch("test", job.record(), rows[0])
    assert runs(local)["test seed 0"].info.status == "RUNNING"
    first.stopped(error)
    assert runs(local)["test seed 0"].info.status == status
    second.epoch("test", job.record(), rows[1])
    assert runs(local)["test seed 0"].info.status == "RUNNING"
    second.training(Path("outs/finetune/test"))
    assert runs(local)["test seed 0"].info.status == "FINISHED"
    second.stopped(error)
    assert runs(local)["test seed 0"].info.status == "FINISHED"


TRAIN = """
import pickle, sys
from pathlib import Path
from types import SimpleNamespace
from pipeline.jobs.stage import Stage
from pipeline.tracking.runs import Tracker

stage = Stage.__new__(Stage)  # without a repository's parameters
stage.params = SimpleNamespace(device="cpu", distributed=None, engine="local")
stage.tracker = Tracker("layershuffle/bars/pico/smoke", Path())
stage.train(pickle.loads(Path("jobs").read_bytes()), 1)
"""


@pytest.mark.slow
def test_a_stage_that_is_terminated(
    workspace: Path, local: str, train_config: Config, prepared: Path
) -> None:
    """A real process: its trainings end as KILLED, itself by the signal, its workers with it."""
    config = train_config(epochs=100_000)
    job = Job(
        "long seed 0",
        "pipeline.training.loop:train",
        config,
        {"data": prepared, "weights": None},
        100_000,
    )
    (workspace / "jobs").write_bytes(pickle.dumps([job]))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN], cwd=workspace, env=environment, stdout=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 120
        while (
            not (under_way := [run for run in runs(local).values() if "epoch" in run.data.metrics])
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)
        assert [run.info.status for run in under_way] == ["RUNNING"]
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert runs(local)[under_way[0].info.run_name or ""].info.status == "KILLED"
    assert psutil.wait_procs(children, timeout=20)[1] == []


def test_a_server_that_does_not_answer_holds_up_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, never = threading.Event(), threading.Event()

    def ask(*_: object) -> None:
        asked.set()
        never.wait()

    monkeypatch.setattr(Tracker, "client", lambda self: SimpleNamespace(set_terminated=ask))
    monkeypatch.setattr(tracking, "PATIENCE", 0.1)
    tracker = Tracker("layershuffle/bars/pico/smoke", tmp_path)
    tracker._running["a run"] = lambda: None
    tracker.stopped(KeyboardInterrupt())
    assert asked.wait(60)
    assert not never.is_set()
    never.set()


@pytest.mark.slow
def test_watching_ends_with_the_last_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a failure elsewhere is none of its own; of a training that ended early, before the run is said to be finished."""
    said: list[str] = []
    runs = {
        name: SimpleNamespace(info=SimpleNamespace(status="RUNNING")) for name in ("whole", "early")
    }
    client = SimpleNamespace(
        get_run=runs.get,
        update_run=lambda *_: None,
        log_batch=lambda *_, **__: None,
        set_terminated=lambda name, status="FINISHED", **_: said.append(f"{name} {status}"),
    )
    monkeypatch.setattr(Tracker, "client", lambda self: client)
    monkeypatch.setattr(Tracker, "_training_run", lambda self, title, record: (title, {}))
    monkeypatch.setattr(Tracker, "_rows", lambda *_: None)
    monkeypatch.setattr(
        tracking, "watch", lambda run_id, uri: lambda: said.append(f"{run_id} unwatched")
    )
    tracker = Tracker("layershuffle/bars/pico/smoke", tmp_path)
    for name, epochs in (("whole", 2), ("early", 1)):
        for epoch in range(1, epochs + 1):
            tracker._epoch(name, {"options": {"epochs": 2}}, {"epoch": epoch})
    tracker._finish("early", [], {})
    tracker.stopped(UserError("another training failed"))
    assert said == ["whole unwatched", "early unwatched", "early FINISHED"]


@pytest.mark.slow
def test_what_a_variants_page_says(
    workspace: Path, local: str, train_config: Config, prepared: Path
) -> None:
    """What it is and the command that made it; the claims that read it, in place of those of before."""
    log_everything(jobs_for(train_config, prepared))
    tracker = Tracker("layershuffle/bars/pico/smoke", workspace)
    for verdict in ("undecided", "holds"):
        tracker.note(Path("outs/finetune/test"), f"- {verdict}: a claim")
    note = runs(local)["test"].data.tags["mlflow.note.content"]
    for words in (
        "`test`: its seeds lie below",
        "`uv run dvc repro --pull finetune-variants`",
        "- holds: a claim",
    ):
        assert words in note
    assert "undecided" not in note
    tracker.note(Path("outs/finetune/nothing"), "- holds: a claim")
    assert not tracker.failed


@pytest.mark.slow
def test_real_server(
    workspace: Path,
    train_config: Config,
    prepared: Path,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert not log_everything(jobs_for(train_config, prepared)).failed
    check_store(server)
    assert not (workspace / "mlflow.db").exists()


@pytest.mark.slow
def test_store_that_is_down(
    local: str,
    train_config: Config,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One warning, no error, little waiting; the files fill a store later."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    start = time.monotonic()
    assert log_everything(jobs_for(train_config, prepared)).failed
    assert time.monotonic() - start < 30
    err = capsys.readouterr().err
    assert err.count("warning: MLflow") == 1
    assert "lsvit track sync" in err
    with pytest.raises(UserError, match="cannot be filled"):
        sync()
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert sync() == 3
    check_store(local)


@pytest.mark.slow
def test_store_that_dies_during_a_training(
    workspace: Path,
    local: str,
    train_config: Config,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tracker = Tracker("layershuffle/bars/pico/smoke", workspace)
    jobs = jobs_for(train_config, prepared)
    rows = json.loads((jobs[0].folder / "history.json").read_text())
    tracker.epoch("test", jobs[0].record(), rows[0])
    assert not tracker.failed
    monkeypatch.setattr(
        "mlflow.MlflowClient.log_batch",
        lambda *_, **__: (_ for _ in ()).throw(ConnectionError("gone")),
    )
    tracker.epoch("test", jobs[0].record(), rows[1])
    tracker.epoch("test", jobs[0].record(), rows[2])
    assert capsys.readouterr().err.count("warning: MLflow") == 1
    monkeypatch.undo()
    monkeypatch.chdir(workspace)
    sync()  # fills the epochs that are missing, keeps the one that is there
    assert (
        len(client_of(local).get_metric_history(runs(local)["test seed 0"].info.run_id, "epoch"))
        == 3
    )


def test_nothing_to_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no finished training found"):
        sync()
    (training := tmp_path / "outs/finetune/ls/seed_0").mkdir(parents=True)
    (training / "config.json").write_text("{}")
    with pytest.raises(UserError, match="or no outs/params/"):  # nothing says at what scale
        sync()


@pytest.mark.slow
def test_fresh_store_opened_by_two_processes_at_once(fresh: tuple[list[int], Path]) -> None:
    """Migration of a fresh sqlite store by two processes breaks it; the lock keeps them apart."""
    codes, store = fresh
    assert codes == [0, 0]
    assert client_of(f"sqlite:///{store}").get_experiment_by_name("e")


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        "cut at 0.02",
        "cut at 0.5",
        "flip 0",
        "replaced by text",
        "folder",
        "link to itself",
        "zeros",
    ],
)
def test_a_damaged_store_is_one_line(
    workspace: Path,
    fresh: tuple[list[int], Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    """A flipped bit may lie where nothing is kept; what links to itself is taken for no store, and one is made."""
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # of 10, which take 100 s
    content = fresh[1].read_bytes()
    DAMAGES[damage](workspace / tracking.DATABASE, content, content, random.Random(damage))
    tracker = Tracker("e", workspace)
    tracker.results("prune-eval")
    said = capsys.readouterr().err
    assert tracker.failed or damage.startswith(("flip", "link"))
    assert (said.count("\n"), said.startswith("warning: MLflow at")) == (
        (1, True) if tracker.failed else (0, False)
    )
    if tracker.failed:
        with pytest.raises(UserError, match=r"^MLflow at .* cannot be filled$"):
            sync(workspace)
