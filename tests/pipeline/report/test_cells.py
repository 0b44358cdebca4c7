"""Cells committed beside the default's results: what they say follows from their files."""

import json
from pathlib import Path

import pytest

from papers import PAPERS
from pipeline.report.ledger import Evidence, judge, markdown
from tests.conftest import ROOT

CELLS = sorted((ROOT / "results" / "cells").glob("*/"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", CELLS, ids=lambda folder: folder.name)
def test_a_cell_is_what_its_files_give(folder: Path) -> None:
    """Its name, ledger and page; with which command, on what, and for how long it was run stands beside them."""
    cell = json.loads((folder / "cell.json").read_text())
    assert folder.name.startswith(f"{cell['dataset']}_{cell['model']}_{cell['scale']}")
    found = json.loads((folder / "claims.json").read_text())
    assert found == judge(Evidence(folder, PAPERS))
    assert (folder / "claims.md").read_text() == markdown(found)
    about = (folder / "README.md").read_text()
    assert "uv run dvc" in about
    assert "cores" in about
