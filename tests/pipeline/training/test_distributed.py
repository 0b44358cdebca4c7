"""One training in several processes (torchrun, gloo): the same numbers as in one, and nothing lost
when a process dies.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from pipeline.config.sections import Distributed
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.events import Event
from pipeline.jobs.files import HISTORY
from pipeline.jobs.job import TRAIN, Job
from pipeline.jobs.run import run as run_jobs
from pipeline.training import loop as training
from tests.conftest import ROOT, cases_of, refused
from tests.papers.exits.test_frozen import with_exits
from tests.pipeline.training import ranks
from tests.pipeline.training.test_loop import run

CASES = cases_of(__file__)

Config = Callable[..., TrainConfig]
TWO = Distributed(processes=2, nodes=1, endpoint=None, routes="shared")
PREDICT: dict[str, Any] = {"position": {"encode": {}, "predict": {}}}
METRICS: dict[str, dict[str, Any]] = {
    "ls_pred": PREDICT,
    "layerdrop": {"route": {"drop": 0.3}},
    "own": {"seed": 1},
}
LONG: dict[str, Any] = {"epochs": 30}  # long enough to be killed in
pytestmark = pytest.mark.usefixtures("one_thread", "own_root", "in_root")


def jobs(configs: dict[str, TrainConfig], data: Path, function: str = TRAIN) -> list[Job]:
    inputs = {"data": data, "weights": None}
    made = []
    for name, config in configs.items():
        spread = config.model_copy(update={"world_size": TWO.world_size})
        made.append(Job(name, function, spread, inputs, config.options.epochs))
    return made


def metrics_configs(train_config: Config) -> dict[str, TrainConfig]:
    """40 validation images in batches of 12: the last has 4, and one process has two batches, the
    other two.
    """
    make = partial(train_config, epochs=2, validation_batch_size=12)
    configs = {name: make(**setting) for name, setting in METRICS.items()}
    configs["own"] = configs["own"].model_copy(update={"routes": "own"})
    return configs


class Launched(NamedTuple):
    """What one torchrun of two processes did; one of its own would take every test longer to start
    than its jobs take.
    """

    root: Path
    gradients: list[Job]
    metrics: list[Job]
    whole: Job
    events: list[tuple[str, Event]]
    error: str


@pytest.fixture(scope="module")
def launched(
    train_config: Config, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Launched:
    """All jobs that no test disturbs, and at the end one with a user's mistake."""
    configs = {name: train_config(**setting) for name, setting in CASES["settings"].items()}
    without_dropout = partial(with_exits, dropout=0.0)  # of which processes draw their own
    configs["exits"] = without_dropout(train_config(batch_size=31))
    configs["exits, layer by layer"] = without_dropout(train_config(route="sequential"), step=1)
    events: list[tuple[str, Event]] = []
    root = tmp_path_factory.mktemp("launched")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(root))
        patch.chdir(ROOT)
        gradients = jobs(configs, prepared, "tests.pipeline.training.ranks:gradients")
        metrics = jobs(metrics_configs(train_config), prepared)
        whole, diverges = jobs(
            {"whole": train_config(**LONG), "diverges": train_config(lr=1e30)}, prepared
        )
        with pytest.raises(UserError) as error:
            run_jobs(
                [*gradients, *metrics, whole, diverges],
                "cpu",
                lambda job, event: events.append((job.title, event)),
                distributed=TWO,
            )
    return Launched(root, gradients, metrics, whole, events, str(error.value))


@pytest.fixture
def in_launched(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> Launched:
    """The same, and jobs' folders are looked for where it ran."""
    monkeypatch.setenv("DVC_ROOT", str(launched.root))
    return launched


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
def test_gradients_equal_those_of_one_process(
    in_launched: Launched, prepared: Path, tmp_path: Path
) -> None:
    """They are of the same parameters: Adam moves what has a gradient, be it zero."""
    todo = in_launched.gradients
    for job in todo:
        ranks.gradients(job.config, prepared, None, tmp_path, lambda event: None)
        expected = {job.title: torch.load(tmp_path / "gradients_0.pt")}
        for rank in range(2):
            found = {job.title: torch.load(job.folder / f"gradients_{rank}.pt")}
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    dropped = torch.load(todo[2].folder / "gradients_0.pt")
    assert any(f"blocks.{i}." not in " ".join(step) for step in dropped for i in range(4))


@pytest.mark.slow
def test_metrics_equal_those_of_one_process(
    in_launched: Launched, train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    configs, todo = metrics_configs(train_config), in_launched.metrics
    events = [(name, event) for name, event in in_launched.events if name in configs]
    assert [(name, event["epoch"]) for name, event in events] == [
        (name, epoch) for name in configs for epoch in (1, 2)
    ]
    for job in todo:
        assert (job.folder / training.WEIGHTS).exists()
        rows = run(configs[job.title], prepared, tmp_path / job.title)
        of_job = [event for name, event in events if name == job.title]
        for row, event in zip(rows, of_job, strict=True):
            row["seconds"] = event["seconds"]
            is_close = row == pytest.approx(event, rel=2e-3, abs=1e-4)
            assert is_close == (job.title != "own"), (row, event)
    run_jobs(todo, "cpu", lambda job, event: pytest.fail("ran again"), distributed=TWO)


@pytest.mark.slow
def test_a_users_mistake_arrives_as_such(in_launched: Launched) -> None:
    assert "the loss is not finite" in in_launched.error
    assert in_launched.whole.done  # what ran before it is kept


@pytest.mark.slow
def test_a_killed_process_ends_the_job_and_two_machines_go_on(
    launched: Launched,
    train_config: Config,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A process is killed; the rest of the training, on two machines, ends as the one that nobody
    disturbed.
    """
    seen: list[int] = []

    def kill_one(job: Job, event: Event) -> None:
        seen.append(event["epoch"])
        if event["epoch"] == 3:
            children = psutil.Process().children(recursive=True)
            found = [each for each in children if "pipeline.training.torchrun" in each.cmdline()]
            max(found, key=lambda process: process.pid).kill()  # the agent has the lowest

    todo = jobs({"killed": train_config(**LONG)}, prepared)
    with refused(r"a process of the training died .*finished epochs are kept"):
        run_jobs(todo, "cpu", kill_one, distributed=TWO)
    assert (todo[0].folder / "checkpoint.pt").exists()
    first = seen.copy()
    on_two_machines(todo, lambda job, event: seen.append(event["epoch"]), capfd)
    assert seen == [*first, *range(first[-1] + 1, 31)]
    history = (todo[0].folder / HISTORY).read_text()
    monkeypatch.setenv("DVC_ROOT", str(launched.root))
    assert history == (launched.whole.folder / HISTORY).read_text()


def on_two_machines(
    todo: list[Job], on_epoch: Callable[[Job, Event], None], capfd: pytest.CaptureFixture[str]
) -> None:
    """Two of torchrun's agents on this one: the stage's own, and the one that its printed line
    starts.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    many = Distributed(processes=1, nodes=2, endpoint=f"127.0.0.1:{port}", routes="shared")
    others: list[subprocess.Popen] = []

    def join() -> None:
        # The line stands before the agent begins, and is read once: what is written while capfd
        # reads would be lost.
        deadline, agent = time.monotonic() + 120, f"--rdzv-endpoint={many.endpoint}"
        while not any(
            agent in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        found = re.search(
            r"^on each other machine.*?: cd (\S+) && (DVC_ROOT=\S+) uv run python (.*)$",
            capfd.readouterr().out,
            re.M,
        )
        assert found
        name, _, value = found[2].partition("=")
        command = [sys.executable, *shlex.split(found[3])]
        env = os.environ | {name: value}
        others.append(subprocess.Popen(command, cwd=found[1], env=env))

    thread = threading.Thread(target=join)
    thread.start()
    run_jobs(todo, "cpu", on_epoch, distributed=many)
    thread.join()
    assert others[0].wait(60) == 0


def test_routes_of_the_processes(train_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared: the same in every process; own: another in each, the first one's unchanged."""
    shared, own = train_config(), train_config().model_copy(update={"routes": "own"})
    routes = []
    for rank in range(3):
        monkeypatch.setattr(training, "rank_and_world", lambda rank=rank: (rank, 3))
        drawn = [training.draw_route(config, 12, 1, 0) for config in (shared, own)]
        routes.append(drawn)
    of_shared, of_own = zip(*routes, strict=True)
    assert len(set(of_shared)) == 1
    assert len(set(of_own)) == 3
    assert of_shared[0] == of_own[0]
