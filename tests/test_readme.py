"""The README says what the repository holds."""

import re
import subprocess

from tests.conftest import ROOT


def committed(path: str) -> str:
    """The committed file: a user's own run may have changed results/ in the working tree."""
    return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_table_is_the_committed_one() -> None:
    shown = re.search(r"<!-- table1.*?-->\n(.*?)<!-- /table1 -->", committed("README.md"), re.S)
    assert shown
    assert shown[1].strip() == committed("results/table1.md").strip()


def test_files_named_exist() -> None:
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / path).exists(), path
