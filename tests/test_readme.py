"""The README says what the repository holds."""

import io
import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from dvc.utils.hydra import apply_overrides

from lsvit.config.params import load
from tests.conftest import ROOT


def committed(path: str) -> str:
    """The committed file: a user's own run may have changed results/ in the working tree."""
    return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("name", "file"), [("table1", "table1.md"), ("smoothing", "smoothing_table1.md")])
def test_a_table_is_the_committed_one(name: str, file: str) -> None:
    shown = re.search(rf"<!-- {name}.*?-->\n(.*?)<!-- /{name} -->", committed("README.md"), re.S)
    assert shown
    assert shown[1].strip() == committed(f"results/{file}").strip()


def test_claims_are_the_committed_ones() -> None:
    shown = re.search(r"<!-- claims.*?-->\n(.*?)<!-- /claims -->", committed("README.md"), re.S)
    assert shown
    lines = committed("results/claims.md").splitlines()
    assert len(shown[1].splitlines()) > 10
    assert all(line in lines for line in shown[1].splitlines())


def test_the_controls_figures_are_the_committed_ones() -> None:
    """The README's paragraph on the first layers says what samplers.csv holds."""
    samplers = pd.read_csv(io.StringIO(committed("results/samplers.csv")))
    means = 100 * samplers.groupby(["variant", "sampler"])["accuracy"].mean()
    paragraph = re.search(r"\*\*The control.*?\n\n", committed("README.md"), re.S)
    assert paragraph
    for variant, sampler in [*(("baseline", f"fix_first {k}") for k in (0, 1, 2, 12)), ("baseline", "fix_last 1"), ("ls", "fix_first 0")]:
        assert f"{means[variant, sampler]:.1f}" in paragraph[0], (variant, sampler)


@pytest.mark.slow
def test_the_parameters_of_its_commands_are_accepted(tmp_path: Path) -> None:
    """Every `dvc exp run -S ...` of the README leaves a params.yaml that loads."""
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    commands = [shlex.split(line, comments=True) for line in re.findall(r"^    uv run (dvc exp run .*)$", text, re.M)]
    found, unchanged = 0, load(ROOT / "params.yaml")
    for words in commands:
        overrides = [value for flag, value in pairwise(words) if flag == "-S"]
        if overrides and "--queue" not in words:  # those ask for several experiments, of which DVC makes single overrides
            shutil.copy(ROOT / "params.yaml", tmp_path)
            apply_overrides(tmp_path / "params.yaml", overrides)
            assert load(tmp_path / "params.yaml") != unchanged, words
            found += 1
    assert found > 10


def test_files_named_exist() -> None:
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path
