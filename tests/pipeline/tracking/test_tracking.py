"""MLflow: a real server, a local store, an outage, and the replay from files."""

import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import psutil
import pytest

from papers import PAPERS
from pipeline.errors import UserError
from pipeline.files import read_json, write_json
from pipeline.jobs.job import Job
from pipeline.jobs.run import run
from pipeline.tracking import store
from pipeline.tracking.runs import Tracker, summarise
from pipeline.tracking.store import DATABASE
from pipeline.tracking.sync import sync
from pipeline.training.gather import gather_trainings
from tests.conftest import ROOT, Printed, TrainJobs, cases_of, refused
from tests.test_corrupt import damage_file

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

pytestmark = pytest.mark.filterwarnings("default")  # mlflow's own dependencies warn
CASES = cases_of(__file__)
CELL = "layershuffle/bars/pico/smoke"
VARIANT = Path("outs/finetune/test")


def sync_in_a_process() -> "subprocess.CompletedProcess[str]":
    """MLflow keeps in memory where the artifacts of a store are."""
    command = [sys.executable, "-m", "stages.commands", "track", "sync"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "DVC_ROOT": str(Path.cwd())}
    return subprocess.run(command, env=env, capture_output=True, encoding="utf-8")


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that two processes opened at once when there was none."""
    folder = tmp_path_factory.mktemp("fresh")
    code = f"""if True:
        import sys, threading
        from pathlib import Path
        from pipeline.tracking.runs import Tracker
        tracker = Tracker('e', Path({str(folder)!r}))
        assert 'mlflow' not in sys.modules and threading.active_count() == 1
        tracker.client
    """
    started = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) for _ in range(2)]
    assert [process.wait(120) for process in started] == [0, 0]
    return folder / DATABASE


@pytest.fixture(scope="module")
def server(fresh: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real `mlflow server` on the loopback interface."""
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    shutil.copy(fresh, folder / "server.db")  # making a store takes ten seconds
    options = f"--host 127.0.0.1 --port {port} --workers 1 --artifacts-destination artifacts"
    store = f"--backend-store-uri sqlite:///{folder}/server.db"
    command = [sys.executable, *f"-m mlflow server {options} {store}".split()]
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
def finished(tmp_path_factory: pytest.TempPathFactory, train_jobs: TrainJobs) -> Path:
    """A root with one finished variant of two seeds, and results."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DVC_ROOT", str(folder))
        jobs = train_jobs(0, 1)
        run(jobs, "cpu")
        gather_trainings(dict(enumerate(jobs)), VARIANT)
    shutil.copy(ROOT / "dvc.yaml", folder)  # says which results are whose
    (folder / "results").mkdir()
    cell = {"dataset": "bars", "model": "pico", "scale": "smoke"}
    write_json(folder / "results/cell.json", cell)
    (folder / "outs/params").mkdir()
    write_json(folder / "outs/params/model.json", ["pico", "smoke", {}])
    write_json(folder / "results/metrics.json", {"test": {"arbitrary": {"accuracy": 0.5}}})
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
def local(workspace: Path, fresh: Path) -> str:
    """The workspace's own store, a new one."""
    shutil.copy(fresh, workspace)
    return f"sqlite:///{workspace}/{DATABASE}"


@pytest.fixture
def jobs(workspace: Path, train_jobs: TrainJobs) -> list[Job]:
    """The trainings that have finished there."""
    return train_jobs(0, 1)


@pytest.fixture
def warned(capsys: pytest.CaptureFixture[str]) -> Printed:
    """What was warned of since this was called last."""
    return lambda: capsys.readouterr().err


def history_of(job: Job) -> list[dict[str, float]]:
    return read_json(job.folder / "history.json", list)


def client_of(uri: str) -> "MlflowClient":
    """Imported where it is used: it takes a second."""
    from mlflow import MlflowClient

    return MlflowClient(uri)


def runs(uri: str, scale: str = "smoke") -> dict[str, "Run"]:
    client = client_of(uri)
    names = {f"layershuffle/bars/pico/{scale}", f"stages/bars/pico/{scale}"}
    experiments = [each.experiment_id for each in client.search_experiments() if each.name in names]
    found = client.search_runs(experiments)
    by_name = {run.info.run_name or "": run for run in found}
    assert len(by_name) == len(found)  # each stands once
    return by_name


def check_store(uri: str, live: bool = True) -> None:
    """One run a training below its variant's, with parameters, curves, files and a summary."""
    found = runs(uri)
    client = client_of(uri)
    assert set(found) == {"test", "test seed 0", "test seed 1", "prune-eval"}
    child = found["test seed 0"]
    parent = found["test"]
    tags = child.data.tags
    assert child.info.status == parent.info.status == "FINISHED"
    assert tags["mlflow.parentRunId"] == parent.info.run_id
    assert (tags["kind"], parent.data.tags["kind"]) == ("training", "variant")
    assert (tags["paper"], tags["stage"]) == ("layershuffle", "finetune-variants")
    assert tags["execution"] == "CPU, fp32 (auto: width 16 is below 768)"
    if live:
        assert {"mlflow.user", "mlflow.source.git.commit", "git.dirty", "processor"} <= set(tags)
    else:
        assert tags["synced"] == "true"
        assert "mlflow.source.git.commit" not in tags
    assert child.inputs
    (read,) = child.inputs.dataset_inputs
    assert (read.dataset.name, read.tags[0].value) == (child.data.params["dataset"], "training")
    assert child.data.params["data_sha256"].startswith(read.dataset.digest)
    assert child.data.params["options.lr"] == "0.003"
    curve = client.get_metric_history(child.info.run_id, "validation/arbitrary/accuracy")
    history = read_json(VARIANT / "seed_0/history.json", list)
    expected = [(row["epoch"], row["validation/arbitrary/accuracy"]) for row in history]
    assert [(metric.step, metric.value) for metric in curve] == expected
    names = {file.path for file in client.list_artifacts(child.info.run_id)}
    assert names == {file.name for file in (VARIANT / "seed_0").iterdir()}
    finals = [read_json(VARIANT / f"seed_{seed}/final.json") for seed in (0, 1)]
    summary = {key: parent.data.metrics[key] for key in summarise(finals)}
    assert summary == pytest.approx(summarise(finals))
    assert child.data.metrics.items() >= {f"final/{k}": v for k, v in finals[0].items()}.items()
    results = found["prune-eval"]
    assert results.data.metrics == {"test/arbitrary/accuracy": 0.5}
    files = {file.path for file in client.list_artifacts(results.info.run_id)}
    assert files == {"cell.json", "metrics.json", "prune_eval.csv"}


def log_everything(jobs: list[Job]) -> list[Tracker]:
    """Log what stages log: rows as they come, the finished variant, the results."""
    root = Path(os.environ["DVC_ROOT"])
    tracker = Tracker(CELL, root)
    for job in jobs:
        tracker.epoch("test", job.record(), history_of(job)[0])
    tracker.training(VARIANT)
    results = Tracker("stages/bars/pico/smoke", root)
    results.failed = tracker.failed
    results.results("prune-eval")
    return [tracker, results]


def test_a_summary_is_the_mean_and_the_deviation_over_seeds() -> None:
    assert summarise([{"a": 1.0}, {"a": 3.0}]) == {"n": 2, "mean/a": 2, "std/a": 2**0.5}
    assert summarise([{"a": 1.0}]) == {"n": 1, "mean/a": 1, "std/a": 0}


@pytest.mark.slow
def test_local_store(workspace: Path, local: str, jobs: list[Job]) -> None:
    """The store and its artifacts lie at DVC_ROOT. Logging twice changes nothing."""
    assert not any(tracker.failed for tracker in log_everything(jobs))
    check_store(local)
    assert (workspace / "mlartifacts" / "layershuffle-bars-pico-smoke").is_dir()
    assert not any(tracker.recorded for tracker in log_everything(jobs))
    check_store(local)
    write_json(Path("outs/params/model.json"), ["pico", "hours", {}])
    assert sync(PAPERS) == 2  # the results are of the other scale still
    assert set(runs(local, "hours")) == {"test", "test seed 0", "test seed 1"}
    check_store(local)


@pytest.mark.slow
def test_what_several_stages_log_at_once_stands_once(
    workspace: Path, local: str, jobs: list[Job]
) -> None:
    """Two experiments may want the same trainings."""
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=log_everything, args=(jobs,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    client = client_of(local)
    experiments = [each.experiment_id for each in client.search_experiments()]
    names = [run.info.run_name or "" for run in client.search_runs(experiments)]
    assert sorted(names) == ["prune-eval", "test", "test seed 0", "test seed 1"]
    check_store(local)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "status"), [(UserError("no memory"), "FAILED"), (KeyboardInterrupt(), "KILLED")]
)
def test_a_training_that_is_stopped(
    workspace: Path,
    local: str,
    jobs: list[Job],
    error: BaseException,
    status: str,
) -> None:
    """It is marked so, runs again when it goes on, and is finished in the end."""
    job = jobs[0]
    rows = history_of(job)
    first, second = (Tracker(CELL, workspace) for _ in range(2))
    seen = []
    for step in (
        lambda: first.epoch("test", job.record(), rows[0]),
        lambda: first.stopped(error),
        lambda: second.epoch("test", job.record(), rows[1]),
        lambda: second.training(VARIANT),
        lambda: second.stopped(error),
    ):
        step()
        seen.append(runs(local)["test seed 0"].info.status)
    assert seen == ["RUNNING", status, "RUNNING", "FINISHED", "FINISHED"]


TRAIN = """
import pickle
from pathlib import Path
from types import SimpleNamespace
from pipeline.config.params import Cell
from pipeline.jobs.stage import Stage
from pipeline.tracking.runs import Tracker

stage = Stage.__new__(Stage)  # without a repository's parameters
cell = Cell("bars", "pico", "smoke")
stage.params = SimpleNamespace(
    device="cpu", distributed=None, engine="local", workers=None, cell=cell
)
stage.of = "layershuffle"
stage.tracker = Tracker("layershuffle/bars/pico/smoke", Path())
stage._trackers = {stage.tracker.experiment: stage.tracker}
stage.train(pickle.loads(Path("jobs").read_bytes()), 1)
"""


@pytest.mark.slow
def test_a_stage_that_is_terminated(workspace: Path, local: str, train_jobs: TrainJobs) -> None:
    """A real process: its trainings end as KILLED, itself by the signal, its workers with it."""
    (workspace / "jobs").write_bytes(pickle.dumps(train_jobs(0, epochs=100_000)))
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


@pytest.mark.slow
def test_real_server(
    workspace: Path,
    jobs: list[Job],
    server: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    assert not any(tracker.failed for tracker in log_everything(jobs))
    check_store(server)
    assert not (workspace / "mlflow.db").exists()


@pytest.mark.slow
def test_store_that_is_down(
    jobs: list[Job], monkeypatch: pytest.MonkeyPatch, warned: Printed
) -> None:
    """One warning, no error, little waiting."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    assert log_everything(jobs)[0].failed
    said = warned()
    assert said.count("warning: MLflow") == 1
    assert "lsvit track sync" in said
    with refused("cannot be filled"):
        sync(PAPERS)


@pytest.mark.slow
def test_store_that_dies_during_a_training(
    workspace: Path,
    local: str,
    jobs: list[Job],
    monkeypatch: pytest.MonkeyPatch,
    warned: Printed,
) -> None:
    """One warning. A sync fills the epochs that are missing and keeps the one that is there."""
    job = jobs[0]
    tracker = Tracker(CELL, workspace)
    first, *others = history_of(job)
    tracker.epoch("test", job.record(), first)
    with monkeypatch.context() as patch:
        gone = Mock(side_effect=ConnectionError("gone"))
        patch.setattr("mlflow.MlflowClient.log_batch", gone)
        for row in others:
            tracker.epoch("test", job.record(), row)
    assert warned().count("warning: MLflow") == 1
    sync(PAPERS)
    run_id = runs(local)["test seed 0"].info.run_id
    epochs = client_of(local).get_metric_history(run_id, "epoch")
    assert [epoch.step for epoch in epochs] == [1, 2, 3]


def test_nothing_to_sync(here: Path) -> None:
    with refused("no finished training found"):
        sync(PAPERS)
    (here / "outs/finetune/ls/seed_0").mkdir(parents=True)
    (here / "outs/finetune/ls/seed_0/config.json").write_text("{}")
    with refused("or no outs/params/"):  # nothing says at what scale
        sync(PAPERS)


@pytest.mark.slow
def test_fresh_store_opened_by_two_processes_at_once(fresh: Path) -> None:
    """Migration of a fresh sqlite store by two processes breaks it; the lock keeps them apart."""
    assert client_of(f"sqlite:///{fresh}").get_experiment_by_name("e")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut at 0.5", "folder", "link to itself", "zeros"])
def test_a_damaged_store_is_one_line(
    workspace: Path,
    fresh: Path,
    warned: Printed,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
) -> None:
    """A link to itself is taken for no store, and one is made."""
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # of 10, which take 100 s
    shutil.copy(fresh, workspace)
    damage_file(workspace / DATABASE, damage)
    tracker = Tracker("e", workspace)
    tracker.results("prune-eval")
    said = warned()
    assert tracker.failed == (damage != "link to itself")
    assert said.count("\n") == said.count("warning: MLflow at") == tracker.failed
    if tracker.failed:
        with refused(r"^MLflow at .* cannot be filled$"):
            sync(PAPERS)
        assert "track sync" not in warned()  # what fails is no cure of itself


@pytest.mark.slow
def test_a_store_of_a_newer_mlflow_is_one_line(
    workspace: Path, local: str, warned: Printed
) -> None:
    with closing(sqlite3.connect(workspace / DATABASE)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = 'later'")
    Tracker("e", workspace).results("prune-eval")
    said = warned()
    assert f"of a newer MLflow than {version('mlflow')}; move {workspace / DATABASE} away" in said
    assert (said.count("\n"), "db upgrade" in said) == (1, False)


@pytest.mark.slow
def test_a_moved_store_of_an_older_mlflow_is_followed(workspace: Path) -> None:
    """It lacks tables that MLflow adds when it opens it."""
    import alembic.command
    import alembic.config
    import mlflow
    import sqlalchemy
    from mlflow.store.tracking.dbmodels.initial_models import Base

    uri = f"sqlite:///{workspace / DATABASE}"
    Base.metadata.create_all(sqlalchemy.create_engine(uri))
    config = alembic.config.Config()
    migrations = Path(mlflow.__file__).parent / "store/db_migrations"
    config.set_main_option("script_location", str(migrations))
    config.set_main_option("sqlalchemy.url", uri)
    alembic.command.upgrade(config, "0584bdc529eb")  # of MLflow 2
    old = "file:///gone/mlartifacts/e"
    with closing(sqlite3.connect(workspace / DATABASE)) as connection, connection:
        connection.execute(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage) "
            f"VALUES ('e', '{old}', 'active')"
        )
    tracker = Tracker("e", workspace)
    tracker.results("prune-eval")
    assert not tracker.failed
    experiment = client_of(uri).get_experiment_by_name("e")
    assert experiment
    assert experiment.artifact_location == (workspace / "mlartifacts" / "e").resolve().as_uri()


@pytest.mark.parametrize(("address", "expected"), CASES["relative"])
def test_relative_addresses_begin_at_the_repository(
    address: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, address)
    assert store.store_uri(Path("/root")) == expected.replace("~", str(Path.home()))


@pytest.mark.slow
@pytest.mark.parametrize(("address", "hint"), CASES["refused"])
def test_addresses_that_cannot_log_are_refused_with_the_whole_reason(
    address: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(store.VARIABLE, address)
    with refused(f"^{store.VARIABLE}: found .*{hint}.*accepted: sqlite"):
        store.check_store(tmp_path)


@pytest.mark.parametrize(("address", "shown"), CASES["passwords"])
def test_messages_have_no_passwords(address: str, shown: str) -> None:
    assert store.describe(ConnectionError(f"at '{address}'")) == f"ConnectionError: at '{shown}'"


@pytest.mark.slow
def test_a_store_that_was_moved_and_deleted_from_is_healed(
    workspace: Path,
    local: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the command, a process: MLflow keeps a run's place as long as it is loaded."""
    (workspace / "results/exits.csv").write_text("\n")  # of a paper that is left out
    (workspace / "results/exits.json").write_text("{}\n")
    assert sync(PAPERS) == 3
    found = runs(local)
    client = client_of(local)
    client.delete_run(found["test seed 0"].info.run_id)
    client.delete_experiment(found["prune-eval"].info.experiment_id)
    moved = tmp_path_factory.mktemp("moved") / "an other%20place?"
    workspace.rename(moved)
    monkeypatch.chdir(moved)
    gone = found["test seed 1"].info.run_id
    shutil.rmtree(next(moved.glob(f"mlartifacts/*/{gone}")))
    done = sync_in_a_process()
    assert done.stdout.splitlines()[-1] == "1 runs added"
    assert done.stderr.count("\n") == done.stderr.count("restored") == 2
    uri = store.store_uri(moved)
    assert client_of(uri).list_artifacts(gone)
    check_store(uri, live=False)
    assert sync(PAPERS) == 0
    assert not workspace.exists()


@pytest.mark.slow
def test_a_store_that_was_copied_without_artifacts_leaves_those_of_the_original(
    workspace: Path,
    local: str,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    printed: Printed,
) -> None:
    assert sync(PAPERS) == 3
    copy = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns(store.ARTIFACTS)
    shutil.copytree(workspace, copy, dirs_exist_ok=True, ignore=ignored)
    originals = sorted((workspace / store.ARTIFACTS).rglob("*"))
    printed()  # of the fixture's store, which was moved
    store.connect(copy, 1)
    said = printed()
    assert f"no longer in {workspace / store.ARTIFACTS}, another clone's" in said
    assert said.count("\n") == 1
    monkeypatch.chdir(copy)
    assert sync_in_a_process().stdout.splitlines()[-1] == "3 runs added"
    assert sorted((workspace / store.ARTIFACTS).rglob("*")) == originals
    check_store(store.store_uri(copy), live=False)
