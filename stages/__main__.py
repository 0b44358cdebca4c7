"""`python -m stages NAME`: run a stage, started fast. `python -m stages.NAME` runs it as a process of its own."""

import sys
from importlib.util import find_spec
from pathlib import Path

from pipeline.errors import UserError, one_line_errors

if __name__ == "__main__":
    with one_line_errors():
        known = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
        if len(sys.argv) < 2 or sys.argv[1] not in known:
            raise UserError(f"usage: python -m stages NAME, accepted: {', '.join(known)}")
        if not find_spec("torch"):  # `dvc` called by its path runs the first `python` of PATH
            raise UserError(
                f"{sys.executable}: has no torch, accepted: the environment's Python, as under `uv run dvc repro`"
            )
        from pipeline.jobs.server import run

        sys.exit(run(sys.argv[1], sys.argv[2:]))
