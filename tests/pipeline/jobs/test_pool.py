"""Jobs in processes: nothing finished is lost or repeated, whatever is killed."""

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from filelock import FileLock

from pipeline.files import read_json
from pipeline.jobs import pool
from pipeline.jobs.display import Display, describe
from pipeline.jobs.events import ENDED
from pipeline.jobs.job import LOCK, Job, all_locked
from pipeline.jobs.run import run
from tests.conftest import ROOT, Printed, TrainJobs, cases_of, refused, shared
from tests.pipeline.training.test_loop import outcome

CASES = cases_of(__file__)
pytestmark = pytest.mark.usefixtures("own_root")


def test_locks_are_taken_in_one_order(
    train_jobs: TrainJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of the same jobs, in whatever order, never wait for each other."""
    lock = Mock(wraps=FileLock)
    monkeypatch.setattr("pipeline.jobs.job.FileLock", lock)
    todo = train_jobs(0, 1, 2)
    for several in (todo, todo[::-1]):
        lock.reset_mock()
        with all_locked(several):
            taken = [call.args[0] for call in lock.call_args_list]
        assert taken == sorted(job.folder / LOCK for job in todo)


@pytest.mark.parametrize(("memory", "gpu_count", "threads", "workers", "count"), CASES["workers"])
def test_jobs_side_by_side(
    memory: int,
    gpu_count: int,
    threads: int,
    workers: int | None,
    count: int,
    train_jobs: TrainJobs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten jobs on eight cores with 10 bytes."""
    monkeypatch.setattr(pool, "available_cores", lambda: 8)
    monkeypatch.setattr(pool, "memory_limit", lambda: 10)
    todo = [replace(job, memory=memory) for job in train_jobs(*[0] * 10)]
    assert pool.workers_here(todo, gpu_count, threads, workers) == count


@pytest.mark.slow
def test_parallel_jobs_report_and_are_not_repeated(train_jobs: TrainJobs, printed: Printed) -> None:
    todo = train_jobs(0, 1, 2)
    events: list[tuple[str, int]] = []
    run(todo, "cpu", lambda job, event: events.append((job.title, event["epoch"])))
    titles = [job.title for job in todo]
    assert sorted(events) == list(itertools.product(titles, (1, 2, 3)))
    out = printed()
    assert out.count("accuracy sequential") == 9
    assert "\r" not in out
    assert "\x1b" not in out  # plain lines when not in a terminal
    config = read_json(todo[1].folder / "config.json")
    assert config == json.loads(json.dumps(todo[1].config.effective()))
    assert (config["seed"], config["options"]["lr"]) == (1, 0.003)
    assert shared(todo[1]) == shared(todo[0])
    run(train_jobs(0, 1, 2), "cpu", lambda job, event: pytest.fail("ran again"))
    assert printed().count("finished before") == 3


@pytest.mark.slow
def test_a_dead_worker_is_one_line(train_jobs: TrainJobs) -> None:
    (job,) = train_jobs(0, epochs=300)

    def kill(job: Job, event: dict) -> None:
        for process in psutil.Process().children(recursive=True):
            if process.ppid() != os.getpid():  # a worker is a child of the fork server
                process.kill()

    with refused("a worker process died"):
        run([job], "cpu", kill)
    assert (job.folder / "checkpoint.pt").exists()


@pytest.mark.slow
def test_a_failing_job_ends_the_others(train_jobs: TrainJobs) -> None:
    """A user's mistake in one training does not leave the parent waiting for the others."""
    (failing,) = train_jobs(0, lr=1e30)
    (other,) = train_jobs(1, epochs=100_000)
    with refused("the loss is not finite"):
        run([failing, other], "cpu")
    assert_nobody_writes([other.folder])


SCRIPT = """
import pickle, sys
from pathlib import Path
from pipeline.errors import one_line_errors
from pipeline.jobs.run import run
if __name__ == "__main__":
    with one_line_errors():
        run(pickle.loads(Path(sys.argv[1]).read_bytes()), "cpu")
"""


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C reaches what is started here: jobs in the background of a shell ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
def test_killed_training_goes_on_bit_for_bit(
    train_jobs: TrainJobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C and, later, SIGKILL two trainings; the next run ends with the same bits."""
    todo = train_jobs(0, 1, epochs=20, position={"encode": {"dropout": 0.1}})
    (tmp_path / "jobs").write_bytes(pickle.dumps(todo))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "jobs"]
    env = os.environ | {"DVC_ROOT": str(tmp_path / "killed"), "PYTHONPATH": str(ROOT)}
    how: dict[str, Any] = {"cwd": tmp_path, "env": env, "start_new_session": True, "text": True}
    how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # A terminal sends Ctrl-C to all processes
    for number, send, epoch in ((signal.SIGINT, os.killpg, 2), (signal.SIGKILL, os.kill, 5)):
        with subprocess.Popen(command, **how) as killed:
            assert killed.stdout is not None
            assert killed.stderr is not None
            for line in killed.stdout:
                if f"epoch {epoch}/20" in line:
                    send(killed.pid, number)
                    break
            said = killed.stderr.read()
        if number == signal.SIGINT:
            assert killed.returncode == 130
            assert said == "interrupted; what has finished is kept: the same command goes on\n"
        folders = list((tmp_path / "killed/.lsvit/jobs/train").iterdir())
        assert_nobody_writes(folders)  # orphaned workers end by themselves
    assert not any((folder / "done").exists() for folder in folders)
    assert any((folder / "checkpoint.pt").exists() for folder in folders)

    def train(root: Path) -> str:
        monkeypatch.setenv("DVC_ROOT", str(root))
        run([replace(job) for job in todo], "cpu")
        return capsys.readouterr().out

    # The epochs reported before the kill are not repeated
    assert train(tmp_path / "killed").count(": epoch") < 2 * 20 - 4
    assert train(tmp_path / "whole").count(": epoch") == 2 * 20
    outcomes = []
    for name in ("killed", "whole"):
        trained = sorted((tmp_path / name / ".lsvit/jobs/train").iterdir())
        outcomes.append([(folder.name, outcome(folder)) for folder in trained])
    assert outcomes[0] == outcomes[1]


def assert_nobody_writes(folders: list[Path]) -> None:
    """Check that soon no process holds the lock of a job's folder open."""
    deadline = time.monotonic() + 20
    while is_written(folders):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_written(folders: list[Path]) -> bool:
    """Whether a process holds the lock of a job's folder open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink().parent in folders:
                return True
    return False


def test_described_epoch() -> None:
    assert describe({"progress": 1.25}, 3) == "epoch 2/3: 25%"
    assert describe({"progress": 3.0}, 3) == "epoch 3/3: 100%"
    assert describe({"cell": "6 layers kept"}, 3) == "6 layers kept"
    row = {"epoch": 2, "train/class_loss": 0.51234, "validation/arbitrary/accuracy": 0.8}
    row["seconds"] = 1.25
    assert describe(row, 3) == "epoch 2/3  train loss 0.512  arbitrary 0.800  1.2 s"


def test_the_display_says_how_much_of_all_jobs_is_done_and_left(
    printed: Printed, monkeypatch: pytest.MonkeyPatch
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
    first, epoch, cell, only, _, last = printed().splitlines()
    assert "left" not in first
    assert "0 of 3 jobs, 62%, about 0:05:00 left, then profiles" in epoch  # 1 of 6 in a minute
    assert "0 of 3 jobs, 69%, about 0:02:00 left" in cell
    assert "0 of 3 jobs, 69%" in only
    assert "2 of 3 jobs, 85%, about 0:00:30 left" in last
