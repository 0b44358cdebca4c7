"""How much memory is free for this process, in a container and beside other workers."""

import math
import os
from pathlib import Path

import psutil

from pipeline.jobs.processes import WORKERS

# Files of a group that has a limit, by version: the limit, what is used, of that files' pages.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def free_for_worker() -> int:
    """This worker's share, in bytes, of the memory that the machine or the container has free."""
    free = min(psutil.virtual_memory().available, free_in_groups())
    return int(free) // int(os.environ.get(WORKERS, "1"))


def free_in_groups(
    membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")
) -> float:
    """Bytes up to the tightest memory limit of this process' control groups; inf without one.

    Args:
        membership: the list of groups: "0::path" of version 2, "number:memory:path" of version 1.
        mount: of version 2; version 1's groups lie in its folder `memory`.
    """
    free = math.inf
    lines = membership.read_text().splitlines() if membership.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        top, names = mount, VERSION_2
        if controllers:
            top, names = mount / "memory", VERSION_1
        if controllers and "memory" not in controllers.split(","):
            continue
        # A limit holds for all groups below. In a container the path may be the host's.
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(top):
                free = min(free, _free_in_group(folder, *names))
    return free


def _free_in_group(folder: Path, limit_name: str, used_name: str, cache_name: str) -> float:
    limit = folder / limit_name
    if not limit.is_file() or limit.read_text().strip() == "max":
        return math.inf
    statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    droppable = int(statistics.get(cache_name, 0))
    used = int((folder / used_name).read_text()) - droppable
    return max(int(limit.read_text()) - used, 0)
