"""Bytes of results are compared on another kind of processor, and nowhere else."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.report import digests
from tests.conftest import ROOT


@pytest.fixture
def processor(here: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """That of a repository with two result files, whose bytes an AMD processor is noted for."""
    for name in ("results", "benchmarks"):
        (here / name).mkdir()
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, name)
    for name in ("painters.csv", "nodes.csv"):
        Path("results", name).write_text(name)
    kind = Mock(return_value="AMD")
    monkeypatch.setattr(digests, "cpu_kind", kind)
    digests.record()
    return kind


def test_the_same_bytes_are_said_and_noted(processor: Mock) -> None:
    processor.return_value = "Intel"
    (line,) = digests.compare()
    assert "Intel" in line
    assert "AMD" in line
    assert digests.record()["made on"] == ["AMD", "Intel"]
    processor.return_value = "Arm"
    Path("params.yaml").write_text("")
    assert digests.compare() == []  # a run of other parameters is not compared


def test_other_bytes_are_said_a_line_a_file(processor: Mock) -> None:
    Path("results/nodes.csv").write_text("others")
    Path("results/pretrain.csv").write_text("new")
    assert digests.compare() == []  # of the kind that made them: git shows it
    processor.return_value = "Intel"
    first, second = digests.compare()
    assert first.startswith("results/nodes.csv: ")
    assert second.startswith("results/pretrain.csv: ")
    assert digests.record()["made on"] == ["Intel"]


@pytest.mark.usefixtures("in_root")
def test_the_committed_digests_are_those_of_the_committed_results() -> None:
    """`uv run python benchmarks/portable.py` notes them after a run."""
    assert digests.read_json(digests.DIGESTS)["files"] == digests.digests()
