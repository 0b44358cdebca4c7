"""What stages keep of trainings: the same bytes for the same work, whatever it is called and
whenever it was done.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pytest

from pipeline.config.types import Added
from pipeline.files import read_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import CONFIG, FINAL, HISTORY, TABLE, WEIGHTS
from pipeline.jobs.job import Job, call
from pipeline.training.gather import gather_trainings
from tests.conftest import TrainJobs


class LaterConfig(TrainConfig):
    """Has a key that trainings knew nothing of."""

    later: Annotated[int, Added(3)] = 3


def anew(jobs: list[Job], title: str, kind: type[TrainConfig] = TrainConfig) -> list[Job]:
    """The jobs of a variant with another name."""
    made = []
    for job in jobs:
        config = kind(**job.config.model_dump() | {"title": title})
        made.append(replace(job, title=f"{title} seed", config=config))
    return made


def train(jobs: list[Job]) -> None:
    """Run them here."""
    for job in jobs:
        job.begin()
        call(job, lambda event: None)
        job.finish()


def kept(jobs: list[Job], folder: Path) -> dict[str, bytes]:
    """Every file that is kept of them, by its path."""
    gather_trainings(dict(enumerate(jobs)), folder)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_same_work_leaves_the_same_bytes(
    train_jobs: TrainJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathered again, also under another title and with a later key; trained again elsewhere.

    So they hold no title, no folder and no time, and no key either.
    """
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "root"))
    jobs = anew(train_jobs(0, 1, epochs=1), "first_name")
    train(jobs)
    first = kept(jobs, tmp_path / "first")
    each = {CONFIG, FINAL, HISTORY, WEIGHTS, "execution.txt"}
    assert first.keys() == {TABLE, *(f"seed_{seed}/{name}" for seed in (0, 1) for name in each)}
    for name, content in first.items():
        assert not any(job.key.encode() in content for job in jobs), name
        if not name.endswith("safetensors"):
            assert not re.search(rb"seconds|20\d\d-\d\d|\d\d:\d\d", content), name
    assert first[TABLE].startswith(b"seed,epoch,")
    assert read_json(tmp_path / "first/seed_1" / CONFIG)["seed"] == 1
    assert first["seed_0/weights.safetensors"] != first["seed_1/weights.safetensors"]
    assert kept(jobs, tmp_path / "again") == first
    for kind in (TrainConfig, LaterConfig):
        others = anew(jobs, "second_name", kind)
        assert all(job.done for job in others)
        assert kept(others, tmp_path / kind.__name__) == first

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "another root"))
    others = anew(jobs, "second_name")
    assert not any(job.done for job in others)
    train(others)
    assert kept(others, tmp_path / "trained again") == first
