"""Jobs in processes: nothing finished is lost or repeated, whatever is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

from pipeline.errors import UserError
from pipeline.jobs import pool
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.display import Display, describe
from pipeline.jobs.events import ENDED
from pipeline.jobs.files import HISTORY, WEIGHTS, sha256
from pipeline.jobs.job import LOCK, Job, all_locked
from pipeline.jobs.run import run
from tests.conftest import ROOT, shared

Config = Callable[..., TrainConfig]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))


def jobs(train_config: Config, prepared: Path, seeds: list[int], **options: object) -> list[Job]:
    configs = [train_config(seed=seed, **options) for seed in seeds]
    return [
        Job(
            f"test seed {c.seed}",
            "pipeline.training.loop:train",
            c,
            {"data": prepared, "weights": None},
            c.options.epochs,
        )
        for c in configs
    ]


def test_locks_are_taken_in_one_order(
    train_config: Config, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of the same jobs, in whatever order, never wait for each other."""
    taken: list[Path] = []

    def noted(path: Path) -> FileLock:
        taken.append(path)
        return FileLock(path)

    monkeypatch.setattr("pipeline.jobs.job.FileLock", noted)
    todo = jobs(train_config, prepared, [0, 1, 2])
    for several in (todo, todo[::-1]):
        taken.clear()
        with all_locked(several):
            assert taken == sorted(job.folder / LOCK for job in todo)


@pytest.mark.parametrize(
    ("memory", "gpu_count", "threads", "workers", "count"),
    [
        (0, 0, 1, None, 8),
        (0, 0, 3, None, 2),
        (0, 0, 16, None, 1),
        (0, 0, 1, 3, 3),
        (0, 2, 1, None, 2),
        (0, 2, 1, 1, 1),
        (0, 2, 1, 5, 2),
        (3, 0, 1, None, 2),
        (30, 0, 1, 4, 1),
    ],
)
def test_jobs_side_by_side(
    memory: int,
    gpu_count: int,
    threads: int,
    workers: int | None,
    count: int,
    train_config: Config,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten jobs on eight cores with 10 bytes."""
    monkeypatch.setattr(pool, "available_cores", lambda: 8)
    monkeypatch.setattr(pool, "memory_limit", lambda: 10)
    todo = [replace(job, memory=memory) for job in jobs(train_config, prepared, [0] * 10)]
    assert pool.workers_here(todo, gpu_count, threads, workers) == count


@pytest.mark.slow
def test_parallel_jobs_report_and_are_not_repeated(
    train_config: Config, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    todo = jobs(train_config, prepared, [0, 1, 2])
    events: list[tuple[str, int]] = []
    run(todo, "cpu", lambda job, event: events.append((job.title, event["epoch"])))
    assert sorted(events) == [
        (f"test seed {seed}", epoch) for seed in range(3) for epoch in (1, 2, 3)
    ]
    out = capsys.readouterr().out
    assert out.count("accuracy sequential") == 9
    assert "\r" not in out
    assert "\x1b" not in out  # plain lines when not in a terminal
    config = json.loads((todo[1].folder / "config.json").read_text())
    assert config == json.loads(json.dumps(todo[1].config.effective()))
    assert (config["seed"], config["options"]["lr"]) == (1, 0.003)
    assert shared(todo[1]) == shared(todo[0])
    stamps = [(job.folder / WEIGHTS).stat().st_mtime_ns for job in todo]
    run(jobs(train_config, prepared, [0, 1, 2]), "cpu", lambda job, event: pytest.fail("ran again"))
    assert [(job.folder / WEIGHTS).stat().st_mtime_ns for job in todo] == stamps
    assert capsys.readouterr().out.count("finished before") == 3


@pytest.mark.slow
def test_a_dead_worker_is_one_line(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    todo = jobs(train_config, prepared, [0], epochs=300)

    def kill(job: Job, event: dict) -> None:
        for process in psutil.Process().children(recursive=True):
            if process.ppid() != os.getpid():  # a worker is a child of the fork server
                process.kill()

    with pytest.raises(UserError, match="a worker process died"):
        run(todo, "cpu", kill)
    assert (todo[0].folder / "checkpoint.pt").exists()


@pytest.mark.slow
def test_a_failing_job_ends_the_others(train_config: Config, prepared: Path) -> None:
    """A user's mistake in one training does not leave the parent waiting for the others."""
    todo = [
        *jobs(train_config, prepared, [0], lr=1e30),
        *jobs(train_config, prepared, [1], epochs=100_000),
    ]
    with pytest.raises(UserError, match="the loss is not finite"):
        run(todo, "cpu")
    deadline = time.monotonic() + 10
    while _writers([todo[1].folder]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _writers([todo[1].folder])


SCRIPT = """
import sys
from pathlib import Path
from pipeline.errors import one_line_errors
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.job import TRAIN, Job
from pipeline.jobs.run import run
config, data = TrainConfig.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
if __name__ == "__main__":
    configs = [config.model_copy(update={"seed": seed}) for seed in (0, 1)]
    inputs = {"data": data, "weights": None}
    jobs = [Job(f"seed {c.seed}", TRAIN, c, inputs, c.options.epochs) for c in configs]
    with one_line_errors():
        run(jobs, "cpu")
"""


@pytest.mark.slow
def test_killed_training_goes_on_bit_for_bit(
    train_config: Config,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C and, later, SIGKILL two trainings; the next run ends with the same bits."""
    options: dict[str, Any] = {"epochs": 20, "position": {"encode": {"dropout": 0.1}}}
    (tmp_path / "config.json").write_text(train_config(**options).model_dump_json())
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        str(tmp_path / "script.py"),
        str(tmp_path / "config.json"),
        str(prepared),
    ]
    env = os.environ | {"DVC_ROOT": str(tmp_path / "killed"), "PYTHONPATH": str(ROOT)}
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # jobs in the background of a shell ignore it
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    for number, send, epoch in (
        (signal.SIGINT, os.killpg, 2),
        (signal.SIGKILL, os.kill, 5),
    ):  # a terminal's goes to all processes
        with subprocess.Popen(command, env=env, start_new_session=True, **piped) as killed:
            assert killed.stdout is not None
            assert killed.stderr is not None
            for line in killed.stdout:
                if f"epoch {epoch}/20" in line:
                    send(killed.pid, number)
                    break
            said = killed.stderr.read()
        if number == signal.SIGINT:
            assert (killed.returncode, said) == (
                130,
                "interrupted; what has finished is kept: the same command goes on\n",
            )
        folders = list((tmp_path / "killed" / ".lsvit" / "jobs" / "train").iterdir())
        deadline = time.monotonic() + 20
        while (
            _writers(folders) and time.monotonic() < deadline
        ):  # orphaned workers end by themselves
            time.sleep(0.1)
        assert not _writers(folders)
    signal.signal(signal.SIGINT, before)
    assert not any((folder / "done").exists() for folder in folders)
    checkpoints = [folder / "checkpoint.pt" for folder in folders]
    assert any(path.exists() for path in checkpoints)

    def train(root: Path) -> str:
        monkeypatch.setenv("DVC_ROOT", str(root))
        run(jobs(train_config, prepared, [0, 1], **options), "cpu")
        return capsys.readouterr().out

    out = train(tmp_path / "killed")
    assert (
        out.count(": epoch") < 2 * 20 - 4
    )  # at least the epochs reported before the kill were not repeated
    assert train(tmp_path / "whole").count(": epoch") == 2 * 20
    wholes = list((tmp_path / "whole" / ".lsvit" / "jobs" / "train").iterdir())
    assert {folder.name for folder in wholes} == {folder.name for folder in folders}
    for folder in wholes:
        other = tmp_path / "killed" / ".lsvit" / "jobs" / "train" / folder.name
        assert (other / HISTORY).read_text() == (folder / HISTORY).read_text()
        assert sha256(other / WEIGHTS) == sha256(folder / WEIGHTS)


def _writers(folders: list[Path]) -> list[str]:
    """Processes that hold the lock of a job's folder open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = str(link.readlink())
        except OSError:
            continue
        found += [target for folder in folders if target.startswith(str(folder))]
    return found


def test_described_epoch() -> None:
    assert describe({"progress": 1.25}, 3) == "epoch 2/3: 25%"
    assert describe({"progress": 3.0}, 3) == "epoch 3/3: 100%"
    assert describe({"cell": "6 layers kept"}, 3) == "6 layers kept"
    row = {
        "epoch": 2,
        "train/class_loss": 0.51234,
        "validation/arbitrary/accuracy": 0.8,
        "seconds": 1.25,
    }
    assert describe(row, 3) == "epoch 2/3  train loss 0.512  arbitrary 0.800  1.2 s"


def test_the_display_says_how_much_of_all_jobs_is_done_and_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that goes on from epoch 8 of 10 does not make the rest look fast."""
    display = Display([("long", 10), ("short", 2), ("single", 1)], then="profiles")
    with display:
        display.show(0, {"text": "runs on CPU"})
        now = display.start + 60
        display.first = display.start
        monkeypatch.setattr(time, "monotonic", lambda: now)
        display.show(0, {"epoch": 8, "seconds": 1.0})
        display.show(1, {"cell": "a"})
        display.show(2, {"cell": "its only part, after which it goes on"})
        for i in (1, 2):
            display.show(i, ENDED)
    first, epoch, cell, only, _, last = capsys.readouterr().out.splitlines()
    assert "left" not in first
    assert "0 of 3 jobs, 62%, about 0:05:00 left, then profiles" in epoch  # 1 of 6 in a minute
    assert "0 of 3 jobs, 69%, about 0:02:00 left" in cell
    assert "0 of 3 jobs, 69%" in only
    assert "2 of 3 jobs, 85%, about 0:00:30 left" in last
