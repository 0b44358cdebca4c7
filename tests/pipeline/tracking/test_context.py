"""Where a run was made is noted beside the jobs: whole or not at all, and never a reason to stop."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.tracking import runs as tracking
from pipeline.tracking.runs import Tracker

TAGS = {"mlflow.source.git.commit": "abc", "git.dirty": "false"}


class Store:
    """Stands in for an MLflow client."""

    def __init__(self) -> None:
        self.runs: list[dict[str, str]] = []

    def search_runs(self, *_: object, **__: object) -> list[Any]:
        return []

    def create_run(
        self, experiment: str, start: int | None, tags: dict[str, str], run_name: str
    ) -> Any:
        self.runs.append(tags)
        return SimpleNamespace(
            info=SimpleNamespace(run_id=str(len(self.runs))),
            data=SimpleNamespace(params={"given": "1"}),
        )

    def get_metric_history(self, *_: object) -> list[Any]:
        return []

    def get_run(self, *_: object) -> Any:
        return SimpleNamespace(info=SimpleNamespace(status="RUNNING"), inputs=None)

    def update_run(self, *_: object) -> None:
        pass

    def log_batch(self, *_: object, **__: object) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """The client of every tracker."""
    found = Store()
    monkeypatch.setattr(Tracker, "client", lambda self: found)
    monkeypatch.setattr(tracking, "context_tags", lambda: dict(TAGS))
    return found


@pytest.fixture
def tracker(store: Store, tmp_path: Path) -> Tracker:
    return Tracker("bars/pico", tmp_path)


def note(root: Path) -> Path:
    """The file of the run with key "key"."""
    return root / ".lsvit" / "context" / "key.json"


def test_it_is_noted_once(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracker._context("key")["tags"] == TAGS == json.loads(note(tmp_path).read_text())["tags"]
    monkeypatch.setattr(tracking, "context_tags", lambda: pytest.fail("asked again"))
    assert tracker._context("key")["tags"] == TAGS


@pytest.mark.parametrize("left", ["", '{"mlflow.source.git.commit": "a', "\x00" * 20])
def test_what_an_interrupted_write_left_is_written_anew(
    tracker: Tracker, tmp_path: Path, left: str
) -> None:
    note(tmp_path).parent.mkdir(parents=True)
    note(tmp_path).write_text(left)
    assert tracker._context("key")["tags"] == TAGS
    assert json.loads(note(tmp_path).read_text())["tags"] == TAGS


@pytest.mark.slow
@pytest.mark.parametrize("left", ["", "{"])
def test_an_epoch_is_logged_all_the_same(
    tracker: Tracker, store: Store, tmp_path: Path, left: str
) -> None:
    """Every note of the run and of its parent is broken."""
    record = {"seed": 0, "options": {"lr": 0.1}, "apart": ["seed"]}
    tracker.epoch("ls", record, {"epoch": 1, "loss": 0.5, "seconds": 2.0})
    notes = list(note(tmp_path).parent.iterdir())
    assert [path.suffix for path in notes] == [".json"] * 2
    for path in notes:
        path.write_text(left)
    again = Tracker("bars/pico", tmp_path)
    again.epoch("ls", record, {"epoch": 2, "loss": 0.4, "seconds": 2.0})
    assert not again.failed
    assert [tags["git.dirty"] for tags in store.runs] == ["false"] * 4
    assert [json.loads(path.read_text())["tags"] for path in notes] == [TAGS] * 2


def test_a_context_that_cannot_be_had_stops_nothing(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No git here, or a full disk: one warning."""

    def fail() -> dict[str, str]:
        raise OSError("No space left on device")

    monkeypatch.setattr(tracking, "context_tags", fail)
    for epoch in (1, 2):
        tracker.epoch(
            "ls", {"seed": 0, "apart": ["seed"], "key": "key"}, {"epoch": epoch, "loss": 0.5}
        )
    assert tracker.failed
    assert capsys.readouterr().err.count("warning: MLflow") == 1


def test_a_kill_leaves_no_half_of_it(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def killed(self: Path, text: str) -> int:
        write(self, text[: len(text) // 2])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            tracker._context("key")
    assert not note(tmp_path).exists()
    assert tracker._context("key")["tags"] == TAGS
    assert [path.name for path in note(tmp_path).parent.glob("*.json")] == ["key.json"]
