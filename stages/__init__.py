"""What DVC runs: a script a stage. Started by another Python, each ends in one line."""

import sys
from importlib.util import find_spec

NEEDED = ("psutil", "pydantic", "torch", "typer", "yaml")  # of the environment; a few tell
missing = [name for name in NEEDED if find_spec(name) is None]
if missing:
    print(
        f"error: found {sys.executable}, which has no {missing[0]}; "
        "accepted: the environment of uv.lock, as in `uv run dvc repro`",
        file=sys.stderr,
    )
    raise SystemExit(2)

from pathlib import Path  # noqa: E402 (first what tells a wrong Python)

code = Path("stages", "__init__.py")
is_clone = code.is_file() and Path("lsvit", "cli.py").is_file()
if is_clone and not code.samefile(__file__):  # as in the copy of `dvc exp run --temp`
    print(
        f"error: found the code of {Path(__file__).parents[1]}, accepted: that of {Path.cwd()}; "
        "unset PYTHONSAFEPATH, start Python without -P, and commands by `uv run`",
        file=sys.stderr,
    )
    raise SystemExit(2)

from pipeline.errors import one_line_errors  # noqa: E402
from pipeline.jobs.environment import prepare_environment  # noqa: E402
from pipeline.jobs.portable import read_portable, use_portable_kernels, use_utf8  # noqa: E402

use_utf8()
use_portable_kernels(read_portable(Path("params.yaml")))
with one_line_errors():
    prepare_environment()
