"""Which jobs torchrun spreads over processes, in stage exits as in all others."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from papers.exits.compute.plan import Plan
from papers.exits.section import Exits
from pipeline.config.params import Params
from pipeline.config.sections import Distributed
from pipeline.jobs import run as running
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.events import ENDED, Event
from pipeline.jobs.job import TRAIN, Job

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
    functions = [
        TRAIN,
        "pipeline.training.loop:fetch",
        TRAIN,
        "papers.exits.compute.frozen:train_branches",
    ]
    sizes = {TRAIN: 2}
    return [
        Job(f"job {i}", f, config.model_copy(update={"seed": i, "world_size": sizes.get(f, 1)}))
        for i, f in enumerate(functions)
    ]


def test_trainings_are_spread_and_all_else_runs_side_by_side(
    train_config: Config, runs: list[tuple[str, list[str]]]
) -> None:
    jobs = mixed(train_config())
    seen: list[tuple[str, Any]] = []
    running.run(
        jobs, "cpu", lambda job, event: seen.append((job.title, event["epoch"])), distributed=TWO
    )
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


@pytest.fixture
def stage(params: Params, prepared: Path, tmp_path: Path) -> Callable[..., Plan]:
    """A factory of plans of stage exits, with small files in the place of weights."""
    for name in ("pretrain/seed_0/weights", "baseline/seed_0/weights"):
        (file := tmp_path / "outs" / f"{name}.safetensors").parent.mkdir(parents=True)
        file.write_text(name)

    def make(distributed: Distributed) -> Plan:
        options = {
            "variants": {"baseline": ["mlp"]},
            "strategies": ["classifier_wise", "end_to_end"],
            "seeds": 1,
            "branches": ["mlp"],
            "placements": [[1]],
            "counting_strategies": [],
        }
        update: dict[str, Any] = {
            "distributed": distributed,
            "scale": "published",
            "exits": Exits.model_validate(params.exits.model_dump() | options),
        }
        preset = params.models[params.model].model_copy(update={"exits": {}})
        return Plan(
            params.model_copy(update=update | {"models": params.models | {params.model: preset}}),
            prepared,
        )

    return make


@pytest.mark.parametrize(("distributed", "identity"), [(ONE, (1, "shared")), (TWO, (2, "own"))])
def test_trainings_with_exits_know_how_many_processes_they_have(
    stage: Callable[..., Plan], prepared: Path, distributed: Distributed, identity: tuple[int, str]
) -> None:
    """End to end, layer-wise, the control. Their keys differ from one process's."""
    plan = stage(distributed)
    found = plan.control()
    for strategy in ("end_to_end", "layer_wise"):
        found += plan.at_placements(strategy, ["mlp"])
    jobs = [job for each in found for job in each.jobs]
    assert {
        (job.config.world_size, job.config.routes)
        for job in jobs
        if isinstance(job.config, TrainConfig)
    } == {identity}
    assert len(jobs) == len([job for job in jobs if isinstance(job.config, TrainConfig)]) > 2
    if distributed is TWO:
        alone = {job.key for each in stage(ONE).control() for job in each.jobs}
        assert not alone & {job.key for job in jobs}
