"""The wheel, installed where only what it declares is there."""

import shutil
import subprocess
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT


def needed(name: str) -> set[str]:
    """The name of an installed distribution, and those of all that it declares to need."""
    names = {name}
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            names |= needed(requirement.name)
    return names


def link(package: Distribution, folder: Path) -> None:
    """Show a distribution's files in another environment's folder of packages."""
    for top in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
        place = folder / top
        if top != "__pycache__" and not place.exists():
            place.symlink_to(Path(str(package.locate_file(top))))


@pytest.mark.slow
def test_the_wheel_needs_what_it_declares(tmp_path: Path) -> None:
    """Both pages' Python runs with torch, timm, numpy and their needs alone; predict answers."""
    uv = shutil.which("uv")
    assert uv, "uv builds the wheel"
    subprocess.run([uv, "build", "--wheel", "-q", "-o", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "empty")
    python = tmp_path / "empty" / "bin" / "python"
    subprocess.run([uv, "pip", "install", "-q", "--no-deps", "--python", python, wheel], check=True)
    (packages,) = (tmp_path / "empty" / "lib").glob("python*/site-packages")
    for name in needed("torch") | needed("timm") | needed("numpy"):
        link(distribution(name), packages)
    pages = [ROOT / "README.md", ROOT / "docs" / "library.md"]
    done = subprocess.run(
        [python, "-I", ROOT / "tests" / "wheel.py", *pages],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "the wheel works" in done.stdout
