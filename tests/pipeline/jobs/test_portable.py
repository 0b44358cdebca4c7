"""Libraries use AVX2 and nothing beyond in a stage, unless params.yaml or the user says so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.jobs import portable
from pipeline.jobs.portable import NUMPY_VARIABLE, VARIABLES, cpu_flags, variables

NAMES = {*VARIABLES, NUMPY_VARIABLE}
LOOK = """
import json, stages
import numpy, torch
from numba.core.registry import cpu_target
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__
from pipeline.jobs.portable import describe_exceptions
from threadpoolctl import threadpool_info
import scipy.linalg
blas = {each["architecture"] for each in threadpool_info() if each["internal_api"] == "openblas"}
print(json.dumps({
    "torch": torch.backends.cpu.get_cpu_capability(),
    "numpy": [name for name in __cpu_dispatch__ if __cpu_features__[name]],
    "numba": list(cpu_target.target_context.codegen().magic_tuple()[1:]),
    "openblas": sorted(blas),
    "said": describe_exceptions(),
}))
"""
needs_avx2 = pytest.mark.skipif("avx2" not in cpu_flags(), reason="no AVX2")


def look(folder: Path, **own: str) -> dict[str, Any]:
    """What libraries use in a stage's process that starts in this folder."""
    root = Path(__file__).parents[3]
    kept = {name: value for name, value in os.environ.items() if name not in NAMES}
    env = kept | {"PYTHONPATH": str(root)} | own
    command = [sys.executable, "-W", "error::ImportWarning", "-c", LOOK]
    told = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


@pytest.mark.slow
@needs_avx2
def test_libraries_use_avx2_alone(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("portable: true\n")
    assert look(tmp_path) == {
        "torch": "AVX2",
        "numpy": ["X86_V3"],
        "numba": ["haswell", "+avx2"],
        "openblas": ["Haswell"],
        "said": [],
    }


@pytest.mark.slow
@needs_avx2
def test_what_the_user_sets_stays_and_is_said(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("portable: true\n")
    seen = look(tmp_path, ATEN_CPU_CAPABILITY="default")
    assert seen["torch"] == "DEFAULT"
    (line,) = seen["said"]
    assert "ATEN_CPU_CAPABILITY=default" in line


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
