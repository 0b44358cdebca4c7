"""What a machine lets a process use: quotas, memory, GPUs that torch can use, short paths."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from pipeline.jobs import machine
from pipeline.jobs.machine import (
    available_cores,
    describe_gpus,
    gpu_variable,
    gpus,
    group_folders,
    memory_limit,
)
from tests.conftest import ROOT, cases_of

CASES = cases_of(__file__)

GIB = 2**30


@pytest.mark.parametrize(("files", "cores", "gib"), CASES["groups"].values(), ids=CASES["groups"])
def test_limits_of_containers(
    files: dict[str, str],
    cores: int,
    gib: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"proc/self/cgroup": "4:memory:/a/b\n1:cpu,cpuacct:/a/b\n0::/a/b"}
    found |= {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in found.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(machine, "group_folders", lambda name: group_folders(name, tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Mock(total=64 * GIB))
    assert (available_cores(), memory_limit()) == (cores, gib * GIB)


@pytest.mark.parametrize("visible", [None, "NoDevFiles", ""])
def test_gpus_that_torch_cannot_use(
    visible: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver's nvidia-smi lists two."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho 'GPU 1: A (UUID: GPU-2)'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus().count == 0
    lines = describe_gpus()
    assert len(lines) == (visible != "")  # what hides them is meant
    for line in lines:
        assert "lists 2 GPU(s), torch can use 0" in line
        assert visible is None or visible in line


def test_torch_is_asked_once_and_only_where_there_may_be_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = Mock(return_value=Mock(stdout='[2, true, ""]'))
    monkeypatch.setattr(machine.subprocess, "run", ask)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    for patterns, visible, count in (
        ((), "0", 0),
        (("null",), "5,3,-1", 2),
        (("null",), "5,3,-1", 2),
        (("null",), "-1", 0),
    ):
        monkeypatch.setattr(machine, "GPU_FILES", patterns)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        if not patterns:
            machine._ask.cache_clear()
        assert gpus().count == count
    ask.assert_called_once()
    machine._ask.cache_clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 3")
    assert [gpu_variable(slot) for slot in (0, 1, None)] == ["5", "3", ""]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_variable(1) == "1"


@pytest.mark.parametrize("kind", ["long", "absent", "a file"])
def test_sockets_have_a_short_temporary_folder(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    if kind == "long":
        folder.mkdir()
    elif kind == "a file":
        folder.write_text("")
    code = (
        "import multiprocessing, stages\n"
        "from multiprocessing import forkserver\n"
        "forkserver.ensure_running()\n"
        "print('runs')"
    )
    env = os.environ | {"TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True) == "runs\n"
