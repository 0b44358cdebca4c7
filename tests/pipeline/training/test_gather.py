"""What stages keep of trainings: the same bytes for the same work, whatever it is called and
whenever it was done.
"""

import re
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def jobs(train_jobs: TrainJobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Job]]:
    """Two seeds of a variant named "first_name", trained."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(tmp_path_factory.mktemp("root")))
        jobs = anew(train_jobs(0, 1, epochs=1), "first_name")
        train(jobs)
        yield jobs


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
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gathered again, also under another title and with a later key; trained again elsewhere."""
    first = kept(jobs, tmp_path / "first")
    each = {CONFIG, FINAL, HISTORY, WEIGHTS, "execution.txt"}
    assert first.keys() == {TABLE, *(f"seed_{seed}/{name}" for seed in (0, 1) for name in each)}
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


def test_what_is_kept_holds_no_key_no_title_and_no_time(jobs: list[Job], tmp_path: Path) -> None:
    for name, content in kept(jobs, tmp_path).items():
        for word in (*(job.key for job in jobs), "first_name", str(jobs[0].folder.parent)):
            assert word.encode() not in content, (name, word)
        if not name.endswith("safetensors"):
            assert not re.search(rb"seconds|20\d\d-\d\d|\d\d:\d\d", content), name
    header = (tmp_path / TABLE).read_text().splitlines()[0].split(",")
    assert header[:2] == ["seed", "epoch"]
    assert read_json(tmp_path / "seed_1" / CONFIG)["seed"] == 1
