"""Which jobs torchrun spreads over processes, in stage exits as in all others."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.params import Params
from pipeline.config.sections import Distributed
from pipeline.jobs import run as running
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.events import ENDED, Event
from pipeline.jobs.job import TRAIN, Job
from tests.pipeline.jobs.listing import leave, listed

Config = Callable[..., TrainConfig]
TWO = Distributed(processes=2, nodes=1, endpoint=None, routes="own")
ONE = Distributed(processes=1, nodes=1, endpoint=None, routes="own")
pytestmark = pytest.mark.usefixtures("own_root", "here")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """Who got which functions to run, in order: ("pool" or "torchrun", names). Nothing is run.

    Of each job an epoch is reported that has its number.
    """
    found: list[tuple[str, list[str]]] = []

    def spy(name: str) -> Callable[..., Iterator[tuple[int, Event]]]:
        def events(jobs: Sequence[Job], *_: object) -> Iterator[tuple[int, Event]]:
            found.append((name, [job.function.split(":")[1] for job in jobs]))
            for i, job in enumerate(jobs):
                yield i, {"epoch": int(job.title.split()[1]), "seconds": 0.0}
                yield i, ENDED

        return events

    monkeypatch.setattr(running, "pool", spy("pool"))
    monkeypatch.setattr(running, "spread", spy("torchrun"))
    return found


def mixed(config: TrainConfig) -> list[Job]:
    """Two trainings with what only one process can run between and behind them."""
    fetch, branches = "pipeline.training.loop:fetch", "papers.exits.compute.frozen:train_branches"
    jobs = []
    for i, function in enumerate([TRAIN, fetch, TRAIN, branches]):
        changes = {"seed": i, "world_size": 2 if function == TRAIN else 1}
        jobs.append(Job(f"job {i}", function, config.model_copy(update=changes)))
    return jobs


def test_trainings_are_spread_and_all_else_runs_side_by_side(
    train_config: Config, runs: list[tuple[str, list[str]]]
) -> None:
    jobs = mixed(train_config())
    seen: list[tuple[str, int]] = []

    def note(job: Job, event: Event) -> None:
        seen.append((job.title, event["epoch"]))

    running.run(jobs, "cpu", note, distributed=TWO)
    assert seen == [("job 1", 1), ("job 3", 3), ("job 0", 0), ("job 2", 2)]
    assert runs == [("pool", ["fetch", "train_branches"]), ("torchrun", ["train", "train"])]
    for alone in (None, ONE):
        runs.clear()
        running.run(jobs, "cpu", distributed=alone)
        assert runs == [("pool", ["train", "fetch", "train", "train_branches"])]
    runs.clear()
    running.run(jobs[1::2], "cpu", distributed=TWO)
    running.run(jobs[::2], "cpu", distributed=TWO)
    running.run([], "cpu", distributed=TWO)
    assert runs == [("pool", ["fetch", "train_branches"]), ("torchrun", ["train", "train"])]


TRAININGS = ("pretrain", "finetune", "exits", "smoothing", "inversion trainings")


def test_all_trainings_know_how_many_processes_they_have(params: Params, here: Path) -> None:
    """Those of exits too: end to end, layer-wise, the control. Keys differ from one process's."""
    leave(params, here)
    keys = []
    for distributed, identity in ((ONE, (1, "shared")), (TWO, (2, "own"))):
        found = listed(params.model_copy(update={"distributed": distributed}))
        jobs = [job for kind in TRAININGS for job in found[kind].values()]
        configs: list[Any] = [job.config for job in jobs]
        assert {(config.world_size, config.routes) for config in configs} == {identity}
        keys.append({job.key for job in jobs})
    assert keys[0].isdisjoint(keys[1])
