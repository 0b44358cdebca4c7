"""The README says what the repository holds."""

import io
import re
import subprocess

import pandas as pd

from tests.conftest import ROOT


def committed(path: str) -> str:
    """The committed file: a user's own run may have changed results/ in the working tree."""
    return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_table_is_the_committed_one() -> None:
    shown = re.search(r"<!-- table1.*?-->\n(.*?)<!-- /table1 -->", committed("README.md"), re.S)
    assert shown
    assert shown[1].strip() == committed("results/table1.md").strip()


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


def test_files_named_exist() -> None:
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path
