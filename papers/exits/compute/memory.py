"""How much memory is free for this process, in a container and beside other workers."""

import math
import os
from pathlib import Path

import psutil

from pipeline.jobs.processes import WORKERS


def free_for_worker() -> int:
    """This worker's share, in bytes, of the memory that the machine or the container has free."""
    free = min(psutil.virtual_memory().available, free_in_groups())
    return int(free) // int(os.environ.get(WORKERS, "1"))


def free_in_groups(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float:
    """Bytes up to the tightest memory limit of this process' control groups; inf without one.

    Args:
        membership: the list of groups, of which version 2's is the line "0::path".
        mount: of version 2.
    """
    free = math.inf
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for line in lines:
        if not line.startswith("0::"):
            continue
        # A limit holds for all groups below. In a container the path may be the host's.
        group = mount / line.removeprefix("0::").lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                free = min(free, _free_in_group(folder))
    return free


def _free_in_group(folder: Path) -> float:
    limit = folder / "memory.max"
    if not limit.is_file() or limit.read_text().strip() == "max":
        return math.inf
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    droppable = int(statistics.get("inactive_file", 0))
    used = int((folder / "memory.current").read_text()) - droppable
    return max(int(limit.read_text()) - used, 0)
