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


@pytest.fixture
def jobs(train_jobs: TrainJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, Job]:
    """Two seeds of a variant named "first_name"."""
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "root"))
    jobs = train_jobs(0, 1, epochs=1)
    return {seed: renamed(job, "first_name") for seed, job in enumerate(jobs)}


def renamed(job: Job, title: str) -> Job:
    """The job of a variant with another name."""
    config = job.config.model_copy(update={"title": title})
    return replace(job, title=f"{title} seed", config=config)


def train(jobs: dict[int, Job]) -> None:
    """Run the unfinished ones, here."""
    for job in jobs.values():
        if not job.done:
            job.begin()
            call(job, lambda event: None)
            job.finish()


def content(folder: Path) -> dict[str, bytes]:
    """Every file by its path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_same_work_leaves_the_same_bytes(
    jobs: dict[int, Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathered again, and trained again in another place, under another title."""
    train(jobs)
    gather_trainings(jobs, tmp_path / "first")
    kept = content(tmp_path / "first")
    each = {CONFIG, FINAL, HISTORY, WEIGHTS, "execution.txt"}
    assert kept.keys() == {TABLE, *(f"seed_{seed}/{name}" for seed in jobs for name in each)}
    assert kept["seed_0/weights.safetensors"] != kept["seed_1/weights.safetensors"]
    gather_trainings(jobs, tmp_path / "again")
    assert content(tmp_path / "again") == kept

    others = {seed: renamed(job, "second_name") for seed, job in jobs.items()}
    assert all(job.done for job in others.values())
    gather_trainings(others, tmp_path / "renamed")
    assert content(tmp_path / "renamed") == kept

    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "another root"))
    others = {seed: renamed(job, "second_name") for seed, job in jobs.items()}
    assert not any(job.done for job in others.values())
    train(others)
    gather_trainings(others, tmp_path / "trained again")
    assert content(tmp_path / "trained again") == kept


def test_what_is_kept_holds_no_key_no_title_and_no_time(
    jobs: dict[int, Job], tmp_path: Path
) -> None:
    train(jobs)
    gather_trainings(jobs, tmp_path / "out")
    for name, kept in content(tmp_path / "out").items():
        for seed, job in jobs.items():
            assert job.key.encode() not in kept, (name, seed)
        assert b"first_name" not in kept, name
        assert str(tmp_path).encode() not in kept, name
        if not name.endswith("safetensors"):
            assert not re.search(rb"seconds|20\d\d-\d\d|\d\d:\d\d", kept), name
    header = (tmp_path / "out" / TABLE).read_text().splitlines()[0].split(",")
    assert header[:2] == ["seed", "epoch"]
    assert read_json(tmp_path / "out" / "seed_1" / CONFIG)["seed"] == 1


class LaterConfig(TrainConfig):
    """Has a key that trainings knew nothing of."""

    later: Annotated[int, Added(3)] = 3


def test_a_later_key_changes_nothing_that_was_kept(jobs: dict[int, Job], tmp_path: Path) -> None:
    train(jobs)
    gather_trainings(jobs, tmp_path / "before")
    later = {
        seed: replace(job, config=LaterConfig(**job.config.model_dump()))
        for seed, job in jobs.items()
    }
    assert all(job.done for job in later.values())
    gather_trainings(later, tmp_path / "after")
    assert content(tmp_path / "after") == content(tmp_path / "before")
