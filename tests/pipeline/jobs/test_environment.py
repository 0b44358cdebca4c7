"""Variables of the environment: inherited ones neither stop a stage nor change what it computes;
libraries use AVX2 and nothing beyond, unless params.yaml or the user says so; caches need no home.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.jobs import portable
from pipeline.jobs.portable import NUMPY_VARIABLE, VARIABLES, cpu_flags, variables
from tests.conftest import ROOT

NAMES = {*VARIABLES, NUMPY_VARIABLE}
# A function of the standard library stands for those of umap, whose import compiles for seconds.
LOOK = """
import json, os, shlex, stages
import matplotlib, numba, numpy, torch
from numba.core.registry import cpu_target
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from pipeline.jobs.portable import describe_exceptions
from threadpoolctl import threadpool_info
import scipy.linalg
blas = {each["architecture"] for each in threadpool_info() if each["internal_api"] == "openblas"}
compiled = numba.njit(shlex.quote)
compiled.enable_caching()
print(json.dumps({
    "kernels": {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "numpy": [name for name in __cpu_dispatch__ if __cpu_features__[name]],
        "numba": list(cpu_target.target_context.codegen().magic_tuple()[1:]),
        "openblas": sorted(blas),
    },
    "said": describe_exceptions(),
    "backend": matplotlib.get_backend(),
    "cache": compiled.stats.cache_path,
    "set": dict(os.environ),
}))
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


def look(folder: Path, **own: str) -> dict[str, Any]:
    """What a stage's process sees and uses that starts in this folder."""
    (folder / "params.yaml").write_text("portable: true\n")
    kept = {name: os.environ[name] for name in os.environ.keys() - NAMES - {*CACHES}}
    env = kept | {"PYTHONPATH": str(ROOT), "DVC_ROOT": str(folder)} | own
    command = [sys.executable, "-W", "error::ImportWarning", "-c", LOOK]
    return json.loads(subprocess.check_output(command, cwd=folder, env=env))


@pytest.mark.slow
def test_inherited_variables_and_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")  # no folder: nobody can write into it
    seen = look(tmp_path, **INHERITED, HOME=str(tmp_path / "home"))
    assert INHERITED.keys().isdisjoint(seen["set"])
    assert seen["backend"].lower() == "agg"
    for folder in (seen["cache"], *(seen["set"][name] for name in CACHES)):
        assert Path(folder).is_relative_to(tmp_path / ".lsvit" / "cache")
    if "avx2" in cpu_flags():
        assert seen["said"] == []
        assert seen["kernels"] == {
            "torch": "AVX2",
            "numpy": ["X86_V3"],
            "numba": ["haswell", "+avx2"],
            "openblas": ["Haswell"],
        }


@pytest.mark.slow
@pytest.mark.skipif("avx2" not in cpu_flags(), reason="no AVX2")
def test_what_the_user_sets_stays_and_is_said(tmp_path: Path) -> None:
    """A home that can be written keeps its caches."""
    seen = look(tmp_path, ATEN_CPU_CAPABILITY="default", HOME=str(tmp_path))
    assert seen["kernels"]["torch"] == "DEFAULT"
    (line,) = seen["said"]
    assert line.startswith("ATEN_CPU_CAPABILITY=default ")
    assert not {*CACHES} & seen["set"].keys()


@pytest.mark.parametrize(("text", "expected"), [("portable: false\n", {}), ("a: [\n", VARIABLES)])
def test_params_yaml_decides(
    text: str, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that cannot be read the stage itself tells."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(portable, "cpu_flags", lambda: {"avx2"})
    (tmp_path / "params.yaml").write_text(text)
    portable.use_portable_kernels(portable.read_portable(tmp_path / "params.yaml"))
    assert {name: os.environ[name] for name in NAMES if name in os.environ} == expected
    for name in expected:  # monkeypatch notes the value to come back to
        monkeypatch.delenv(name)


def test_numpy_is_told_of_what_the_processor_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns of features that are not there."""
    monkeypatch.setattr(portable, "cpu_flags", lambda: {"avx2", "avx512bw"})
    assert variables() == VARIABLES | {NUMPY_VARIABLE: "X86_V4"}
    monkeypatch.setattr(portable, "cpu_flags", lambda: {"neon"})
    assert variables() == {}
    (line,) = portable.describe_exceptions()
    assert "AVX2" in line


def test_bf16_is_not_taken_where_avx2_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the job and by its identity alike."""
    import torch

    from pipeline.jobs import identity
    from pipeline.training import devices

    for capability, expected in (("avx2", False), ("avx512", True)):
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
        monkeypatch.setattr(identity, "cpu_flags", lambda: {"avx512_bf16"})
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
        assert devices.has_bf16(torch.device("cpu")) == expected
        identity.processor.cache_clear()
        assert identity.processor("cpu", "local") == ("cpu", expected)
    identity.processor.cache_clear()
