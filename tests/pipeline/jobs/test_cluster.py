"""Jobs on a real Ray cluster of two nodes: the same bytes as here, whatever dies."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.sections import Distributed
from pipeline.jobs.job import DONE, LOCK, Job
from pipeline.jobs.run import run
from tests.conftest import ROOT, TrainJobs, refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_root")]
TWO = Distributed(processes=2, nodes=1, endpoint=None, routes="own")
SETTINGS = {  # of Ray
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the first three are read when Ray is imported
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # what others take of the memory would kill workers
    "RAY_enable_worker_prestart": "0",  # no process but those that jobs need
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # by default 15: the tests beside them would leave them no time
    "RAY_health_check_period_ms": "500",  # by default 3000: a killed node is one after 5 of them
}
NODE: dict[str, Any] = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "memory": 2 * 2**30}
LARGE = NODE | {"num_cpus": 2}
HEAD = {**NODE, "include_dashboard": False, "no_monitor": True}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Nodes of one core and of two, as `ray start` makes them, on 127.0.0.1 alone."""
    patch = pytest.MonkeyPatch()
    for name, value in SETTINGS.items():
        patch.setenv(name, value)
    ray = pytest.importorskip("ray", reason="Ray is not installed: uv sync --extra cluster")
    from ray.cluster_utils import Cluster

    try:
        made = Cluster(initialize_head=True, head_node_args=HEAD)
        made.add_node(**LARGE)
    except Exception as error:
        pytest.skip(f"Ray starts no cluster on this machine: {error}")
    patch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()
    patch.undo()


def files(job: Job) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in job.folder.iterdir()
        if file.name not in (DONE, LOCK)  # which has times
    }


def run_here(
    todo: list[Job], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, bytes]]:
    """What jobs leave that the local engine runs in a repository of its own."""
    monkeypatch.setenv("DVC_ROOT", str(folder / "here"))
    run(todo, "cpu", distributed=TWO)
    left = [files(job) for job in todo]
    monkeypatch.setenv("DVC_ROOT", str(folder))
    return left


def with_two_processes(todo: list[Job]) -> list[Job]:
    """The same, the last one trained by two processes together."""
    *others, last = todo
    config = last.config.model_copy(update={"world_size": 2, "routes": "own"})
    return [*others, replace(last, config=config)]


def die(*_: object, **__: object) -> None:
    os._exit(1)


def test_the_same_bytes_as_here_and_found_by_the_local_engine(
    cluster: Any,
    train_jobs: TrainJobs,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Inputs may be relative to the driver's folder. One training is of two processes."""
    monkeypatch.chdir(prepared.parent)
    todo = with_two_processes(train_jobs(0, 1, data=Path(prepared.name)))
    seen: list[tuple[str, int]] = []

    def note(job: Job, event: dict) -> None:
        seen.append((job.title, event["epoch"]))

    run(todo, "cpu", note, distributed=TWO, engine="ray")
    titles = [job.title for job in todo]
    assert sorted(seen) == list(itertools.product(titles, (1, 2, 3)))
    assert capsys.readouterr().out.count("on node ") == 4  # where, and on what
    assert not list(tmp_path.glob(".lsvit/ray-*"))
    local = run_here(with_two_processes(train_jobs(0, 1)), tmp_path, monkeypatch)
    assert [files(job) for job in todo] == local
    again = with_two_processes(train_jobs(0, 1))
    run(again, "cpu", lambda job, event: pytest.fail("ran again"), distributed=TWO)
    assert capsys.readouterr().out.count("finished before") == 2


SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
from pipeline.jobs.run import run

def end(job, event):
    if event["epoch"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)

run(pickle.loads(Path(sys.argv[1]).read_bytes()), "cpu", end, engine="ray")
"""


def test_the_driver_is_killed_and_then_a_node(
    cluster: Any,
    train_jobs: TrainJobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What has finished stays: the next run repeats none of it.

    It runs on the only node with room for it, which is killed in mid-training; another, which
    comes later, goes on from the last epoch, to the same bytes.
    """
    epochs = 90  # some seconds, so that the node is killed before the last one
    todo = train_jobs(0, epochs=epochs)
    (tmp_path / "jobs").write_bytes(pickle.dumps(todo))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", "jobs"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=env)
    assert done.returncode == -signal.SIGKILL
    assert (todo[0].folder / "checkpoint.pt").exists()
    (node,) = cluster.worker_nodes
    seen: list[int] = []

    def kill(job: Job, event: dict) -> None:
        seen.append(event["epoch"])
        if len(seen) == 1:
            cluster.remove_node(node, allow_graceful=False)
            cluster.add_node(**LARGE)

    run(todo, "cpu", kill, threads=2, engine="ray")
    assert "lost its worker, goes on elsewhere" in capsys.readouterr().out
    assert seen[0] > 3
    assert seen == sorted(set(seen))  # no epoch was repeated
    assert seen[-1] == epochs
    local = run_here(train_jobs(0, epochs=epochs), tmp_path, monkeypatch)
    assert [files(todo[0])] == local


def test_mistakes_are_one_line(
    cluster: Any, train_jobs: TrainJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the job, workers that always die, nodes too small, of other code or without the folder,
    a wrong address, no Ray."""
    import ray

    def run_there(*jobs: Job, **options: Any) -> None:
        run(list(jobs), "cpu", engine="ray", **options)

    first, second, third = train_jobs(0, 1, 2)
    with refused("the loss is not finite"):
        run_there(*train_jobs(0, lr=1e30))
    too_small = "needs 99 CPUs, 0 GPUs, 1.0 GiB, found nodes with 1 CPUs, 0 GPUs"
    with refused(f"^test seed 0: .* {too_small}"):
        run_there(first, threads=99)
    dies = "its worker died 4 times without finishing an epoch, the last time"
    with refused(f"^test seed 0: {dies}"):
        run_there(replace(first, function="tests.pipeline.jobs.test_cluster:die"))
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryDirectory", lambda **_: nullcontext("/elsewhere"))
        with refused(r"^test seed 1: node \S+ \S+ does not see /elsewhere;"):
            run_there(second)
    monkeypatch.setattr("pipeline.jobs.job.code_digest", lambda *modules: "of other code")
    with refused(r"^test seed 1: node \S+ 127.0.0.1 has other code or libraries than"):
        run_there(replace(second))
    ray.shutdown()
    for address in ("127.0.0.1:1", "nowhere"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with refused(f"^RAY_ADDRESS: found '{address}', which does not answer"):
            run_there(third)
    monkeypatch.setattr("pipeline.jobs.address.find_spec", lambda name: None)
    with refused(r"^params.yaml: engine: found 'ray', accepted here: local"):
        run_there(third)
