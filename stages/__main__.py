"""`python -m stages NAME`: run a stage, started fast. `python -m stages.NAME` runs it as a process of its own."""

import sys
from importlib.util import find_spec
from pathlib import Path

from lsvit.jobs.server import run

if __name__ == "__main__":
    known = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"error: usage: python -m stages NAME, accepted: {', '.join(known)}")
    if not find_spec("torch"):  # DVC by its own path finds another `python` than its own
        sys.exit(f"error: {sys.executable}: has no torch, accepted: the environment's Python, as under `uv run dvc repro`")
    sys.exit(run(sys.argv[1], sys.argv[2:]))
