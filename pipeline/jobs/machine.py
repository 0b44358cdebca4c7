"""What this machine lets a process use: cores, memory, GPUs, a temporary folder. No torch here."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

from pipeline.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
# In /dev where there may be a GPU: NVIDIA's driver, of Windows below Linux, of Jetson; AMD's.
GPU_FILES = ("nvidia*", "dxg", "nvhost-gpu", "nvmap", "kfd")
ASK_TORCH = """
import json, warnings, torch
count, has_bf16 = 0, False
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    try:
        for i in range(torch.cuda.device_count()):
            torch.ones(1, device=f"cuda:{i}").add(1).item()  # an old driver fails here
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        count = torch.cuda.device_count()
        why = [str(warning.message) for warning in said]
    except Exception as error:
        why = [str(error) or type(error).__name__]
print(json.dumps([count, count > 0 and has_bf16, " ".join(why)]))
"""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 (files there get random names)
SOCKET_NAME = 34  # characters that multiprocessing and torch add to the temporary folder
LONGEST_SOCKET = 107 if sys.platform == "linux" else 103  # characters of a socket's path


# ---- cores and memory -------------------------------------------------------------------------


def seen_cores() -> int:
    """Cores that libraries see: those that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # absent on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_cores() -> int:
    """Cores that this process may use: the smaller of those it sees and its CPU quota.

    A quota is that of its control group or of a group around it, rounded up, as joblib does.
    """
    cores = seen_cores()
    for folder in group_folders("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            if numbers := _read_numbers(folder, *names):
                quota, period = numbers
                cores = min(cores, math.ceil(quota / period))
    return cores


def memory_limit() -> int:
    """Bytes that this process may use at most: the machine's, or what its control groups allow."""
    limits: list[float] = [psutil.virtual_memory().total]
    for folder in group_folders("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += _read_numbers(folder, name)
    return int(min(limits))


def group_folders(controller: str, root: Path = Path("/")) -> list[Path]:
    """Folders of the control groups that this process is in, version 1 and 2, from the inside out.

    A container may see its own group alone, in the place of the outermost: some are not there.
    """
    folders: list[Path] = []
    with suppress(OSError):  # no Linux
        for line in (root / "proc/self/cgroup").read_text("utf-8").splitlines():
            _, names, path = line.split(":", 2)  # no names: version 2
            if controller in names.split(",") or not names:
                mount = root / "sys/fs/cgroup" / (controller if names else "")
                group = mount / path.lstrip("/")
                folders += [group, *group.parents[: len(group.relative_to(mount).parts)]]
    return folders


def _read_numbers(folder: Path, *names: str) -> list[float]:
    """The positive numbers in some files; none where one is absent or says "max" or -1."""
    with suppress(OSError, ValueError):
        text = " ".join((folder / name).read_text("utf-8") for name in names)
        numbers = [float(word) for word in text.split()]
        return numbers if min(numbers) > 0 else []
    return []


# ---- GPUs -------------------------------------------------------------------------------------


class Gpus(NamedTuple):
    """What torch can use of this machine's GPUs."""

    count: int  # type: ignore[assignment]  # not the count of a tuple
    has_bf16: bool
    why: str  # there are none, or fewer than the driver has; "" if torch does not say


def gpus() -> Gpus:
    """Ask torch for its GPUs, in a short process, once, and only where there may be any."""
    return _ask(os.environ.get(VISIBLE))


@cache
def _ask(visible: str | None) -> Gpus:
    is_hidden = visible is not None and _names(visible) == []
    files = any(any(Path("/dev").glob(pattern)) for pattern in GPU_FILES)
    if is_hidden or not (files or shutil.which("nvidia-smi")):
        return Gpus(0, False, "")
    command = [sys.executable, "-c", ASK_TORCH]
    asked = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    try:
        return Gpus(*json.loads(asked.stdout))
    except ValueError:  # torch crashed
        lines = asked.stderr.strip().splitlines()
        return Gpus(0, False, lines[-1] if lines else f"exit code {asked.returncode}")


def _names(visible: str) -> list[str]:
    """GPUs that CUDA looks for: those before the first -1 or empty name."""
    names: list[str] = []
    for name in map(str.strip, visible.split(",")):
        if name in ("", "-1"):
            break
        names.append(name)
    return names


def gpu_variable(slot: int | None) -> str:
    """The variable's value for the worker in a slot, which has one GPU, or none."""
    if slot is None:
        return ""
    visible = os.environ.get(VISIBLE)
    return str(slot) if visible is None else _names(visible)[slot]


def describe_gpus() -> list[str]:
    """A line if the driver lists more GPUs than torch can use, and no variable hides them."""
    visible = os.environ.get(VISIBLE)
    listed = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if shutil.which("nvidia-smi"):
        with suppress(OSError, subprocess.TimeoutExpired):  # a broken driver may hang
            command = ["nvidia-smi", "-L"]
            told = subprocess.run(
                command, capture_output=True, encoding="utf-8", check=False, timeout=30
            )
            listed = max(listed, len(re.findall(r"^GPU \d+:", told.stdout, re.M)))
    wanted = listed if visible is None else len(_names(visible))
    found = gpus()
    if not listed or found.count >= wanted:
        return []
    reasons = [] if visible is None else [f"{VISIBLE}={visible}"]
    reasons += [" ".join(found.why.split())] if found.why else []
    reason = f" ({'; '.join(reasons)})" if reasons else ""
    then = "" if found.count else "; `device: auto` takes the CPU"
    return [f"the driver lists {listed} GPU(s), torch can use {found.count}{reason}{then}"]


# ---- a temporary folder -----------------------------------------------------------------------


def use_short_temporary_folder(socket_name: int = SOCKET_NAME, variable: str = "TMPDIR") -> None:
    """Set a variable to a folder for sockets, if the temporary one is too long or unusable.

    Args:
        socket_name: characters that are added to it.
        variable: that names the folder.

    Raises:
        UserError: no folder can be written, or none with a short enough path.
    """
    longest = LONGEST_SOCKET - socket_name
    folders = list(SHORT_FOLDERS)
    with suppress(FileNotFoundError):
        folders.insert(0, tempfile.gettempdir())  # not TMPDIR where that cannot be written
    for folder in folders:
        if len(os.fsencode(folder)) <= longest:
            with suppress(OSError), tempfile.TemporaryFile(dir=folder):
                os.environ[variable] = folder
                tempfile.tempdir = None
                return
    raise UserError(
        f"TMPDIR: found {os.environ.get('TMPDIR')!r}, accepted: a folder that can be written, with "
        f"a path of at most {longest} characters"
    )
