"""Inherited variables neither stop a stage nor change what it computes; caches need no home."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

# A function of the standard library stands for those of umap, whose import compiles for seconds.
LOOK = """
import json, os, shlex, stages
import matplotlib, numba
compiled = numba.njit(shlex.quote)
compiled.enable_caching()
cache = compiled.stats.cache_path
print(json.dumps({"backend": matplotlib.get_backend(), "numba": cache, "set": dict(os.environ)}))
"""
INHERITED = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_NUM_THREADS": "0",
    "TIMM_USE_NAFLEXVIT": "true",
    "CUBLAS_WORKSPACE_CONFIG": ":0:0",
    "GIT_DIR": "/nowhere",
    "OMP_PROC_BIND": "true",
    "MLFLOW_EXPERIMENT_ID": "99",
}
CACHES = ("XDG_CACHE_HOME", "MPLCONFIGDIR", "NUMBA_CACHE_DIR")


def look(folder: Path, **variables: str) -> dict[str, Any]:
    """What a stage's process sees that starts in this folder."""
    kept = {name: value for name, value in os.environ.items() if name not in CACHES}
    env = kept | {"PYTHONPATH": str(ROOT), "DVC_ROOT": str(folder)} | variables
    command = [sys.executable, "-c", LOOK]
    told = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


@pytest.mark.slow
def test_inherited_variables_and_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")  # no folder: nobody can write into it
    seen = look(tmp_path, **INHERITED, HOME=str(tmp_path / "home"))
    assert INHERITED.keys().isdisjoint(seen["set"])
    assert seen["backend"].lower() == "agg"
    for folder in (seen["numba"], *(seen["set"][name] for name in CACHES)):
        assert Path(folder).is_relative_to(tmp_path / ".lsvit" / "cache")


@pytest.mark.slow
def test_a_home_that_can_be_written_keeps_its_caches(tmp_path: Path) -> None:
    assert not {*CACHES} & look(tmp_path, HOME=str(tmp_path))["set"].keys()
