"""How much memory is free for this process, in a container and beside other workers."""

import math
import os
from pathlib import Path
from typing import NamedTuple

import psutil

WORKERS = "LSVIT_WORKERS"  # set in a worker: how many of them run side by side


class ControlFiles(NamedTuple):
    """Names of a control group's files: its limit, its use, and the part of that it can drop."""

    limit: str
    used: str
    cache: str  # key of memory.stat


VERSION_1 = ControlFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
VERSION_2 = ControlFiles("memory.max", "memory.current", "inactive_file")


def free_for_worker() -> int:
    """This worker's share, in bytes, of the memory that the machine or the container has free."""
    free = min(psutil.virtual_memory().available, free_in_groups())
    return int(free) // int(os.environ.get(WORKERS, "1"))


def free_in_groups(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float:
    """Bytes up to the tightest memory limit of this process' control groups; inf without one.

    Args:
        membership: the list of groups, lines "number:controllers:path"; of version 2 "0::path".
        mount: of version 2, and the parent folder of version 1's mounts.
    """
    free = math.inf
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, files = mount, VERSION_2
        elif "memory" in controllers.split(","):
            top, files = mount / "memory", VERSION_1
        else:
            continue
        # A limit holds for all groups below. In a container the path may be the host's.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                free = min(free, _free_in_group(folder, files))
    return free


def _free_in_group(folder: Path, files: ControlFiles) -> float:
    limit = folder / files.limit
    if not limit.is_file() or limit.read_text().strip() == "max":
        return math.inf
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    used = int((folder / files.used).read_text()) - int(statistics.get(files.cache, 0))
    return max(int(limit.read_text()) - used, 0)
