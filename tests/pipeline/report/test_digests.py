"""Bytes of results are compared on another kind of processor, and nowhere else."""

import shutil
from pathlib import Path

import pytest

from pipeline.report import digests
from tests.conftest import ROOT


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two result files, whose bytes an AMD processor is noted for."""
    for name in ("results", "benchmarks"):
        (tmp_path / name).mkdir()
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    for name in ("painters.csv", "nodes.csv"):
        (tmp_path / "results" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    run_on(monkeypatch, "AMD")
    digests.record()
    return tmp_path


def run_on(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let this processor be of another kind."""
    monkeypatch.setattr(digests, "cpu_kind", lambda: kind)


def test_the_same_bytes_are_said_and_noted(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_on(monkeypatch, "Intel")
    (line,) = digests.compare()
    assert "Intel" in line
    assert "AMD" in line
    assert digests.record()["made on"] == ["AMD", "Intel"]


def test_other_bytes_are_said_a_line_a_file(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "results/nodes.csv").write_text("others")
    (repository / "results/pretrain.csv").write_text("new")
    assert digests.compare() == []  # of the kind that made them: git shows it
    run_on(monkeypatch, "Intel")
    first, second = digests.compare()
    assert first.startswith("results/nodes.csv: ")
    assert second.startswith("results/pretrain.csv: ")
    assert digests.record()["made on"] == ["Intel"]


def test_a_run_of_other_parameters_is_not_compared(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "params.yaml").write_text("")
    (repository / "results/nodes.csv").write_text("others")
    run_on(monkeypatch, "Intel")
    assert digests.compare() == []


def test_the_committed_digests_are_those_of_the_committed_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`uv run python benchmarks/portable.py` notes them after a run."""
    monkeypatch.chdir(ROOT)
    assert digests.read_json(digests.DIGESTS)["files"] == digests.digests()
