"""`python -m stages NAME`: run a stage, started fast. `python -m stages.NAME` runs it as a process of its own."""

import sys
from pathlib import Path

from lsvit.jobs.server import run

if __name__ == "__main__":
    known = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"error: usage: python -m stages NAME, accepted: {', '.join(known)}")
    sys.exit(run(sys.argv[1], sys.argv[2:]))
