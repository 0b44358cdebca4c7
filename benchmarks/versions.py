"""Which Pythons, torch and timm the wheel works with: `uv run python benchmarks/versions.py`.

Each line is an environment of its own, made by uv from the package registry and removed again. It
has the wheel and what that declares to need, nothing else. tests/wheel.py runs in it: five families
of models, the Python of README.md and docs/library.md, `lsvit predict`. A Python that this machine
does not have, and uv cannot get, is reported as not tried.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from machine import machine, show, write

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
# numpy is the oldest one that has wheels for the Python.
OLDEST_NUMPY = {"3.11": "1.26.0", "3.12": "1.26.0", "3.13": "2.1.0"}
OLDEST = {"torch": "2.6.0", "timm": "1.0.20"}
PAGES = (ROOT / "README.md", ROOT / "docs" / "library.md")
SECONDS = 3600


def try_versions(python: str, pins: dict[str, str], wheel: Path, cache: Path) -> dict[str, Any]:
    """Install the wheel beside pinned packages, and check it there.

    Args:
        python: the version of Python.
        pins: versions of packages; of the others the newest.
        wheel: the file to install.
        cache: uv's, for what it downloads.

    Returns:
        The versions that were installed and the `result`: "works", or what went wrong.
    """
    row: dict[str, Any] = {"python": python, "torch": "", "timm": "", "numpy": ""}
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        environment = Path(folder) / "environment"
        env = os.environ | {"UV_CACHE_DIR": str(cache / "uv"), "VIRTUAL_ENV": str(environment)}
        needs = [f"{name}=={version}" for name, version in pins.items()]
        made = run(["uv", "venv", "-q", "--python", python, str(environment)], env)
        if made.returncode:
            return row | {"result": "not tried: no such Python here"}
        done = run(["uv", "pip", "install", "-q", str(wheel), *needs], env)
        if done.returncode == 0:
            listed = run(["uv", "pip", "list", "--format", "json"], env).stdout
            versions = {package["name"]: package["version"] for package in json.loads(listed)}
            for name in ("torch", "timm", "numpy"):
                row[name] = versions[name]
            row["python"] = run([str(environment / "bin/python"), "-V"], env).stdout.split()[1]
            row["packages"] = len(versions)
            check = [str(environment / "bin" / "python"), "-I", str(ROOT / "tests" / "wheel.py")]
            done = run([*check, *map(str, PAGES)], env)
        problem = re.sub(r"\s+", " ", done.stderr.strip())[-300:]
        return row | {"result": f"fails: {problem}" if done.returncode else "works"}


def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command, at most SECONDS long."""
    return subprocess.run(
        command,
        cwd=tempfile.gettempdir(),  # out of reach of this project's constraints
        env=env,
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def main() -> None:
    """Try every Python with the oldest and the newest torch and timm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "versions.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        run(["uv", "build", "--wheel", "-q", "-o", str(cache), str(ROOT)], dict(os.environ))
        (wheel,) = cache.glob("*.whl")
        for pins in (OLDEST, {}):
            for python in options.pythons:
                numpy = {"numpy": OLDEST_NUMPY.get(python, "")} if pins else {}
                rows.append(try_versions(python, pins | numpy, wheel, cache))
                print(json.dumps(rows[-1]), flush=True)
    about = machine()
    write(options.out, {"hardware": about["hardware"], "date": about["date"], "tried": rows})
    show("Versions that the wheel was tried with", rows)


if __name__ == "__main__":
    main()
