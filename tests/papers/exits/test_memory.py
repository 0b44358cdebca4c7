"""The memory that is free for a worker: limits of control groups, and a share for each."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from papers.exits.compute import frozen, memory
from papers.exits.compute.memory import free_for_worker, free_in_groups
from pipeline.errors import UserError
from pipeline.jobs.processes import WORKERS


def limit(folder: Path, limit: str, used: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {cache}\n")


def test_the_tightest_limit_counts(tmp_path: Path) -> None:
    """Pages of files can be dropped; a group without a limit, or that is not there, has none."""
    groups, mount = tmp_path / "cgroup", tmp_path / "mount"
    groups.write_text("9:name=systemd:/\n0::/a/b\n")
    assert free_in_groups(groups, mount) == math.inf
    limit(mount / "a" / "b", "1000", 700, cache=200)
    assert free_in_groups(groups, mount) == 500
    limit(mount / "a", "900", 600)
    assert free_in_groups(groups, mount) == 300
    limit(mount, "max", 10**6)
    assert free_in_groups(groups, mount) == 300
    limit(mount / "a", "900", 950)
    assert free_in_groups(groups, mount) == 0
    assert free_in_groups(tmp_path / "none", mount) == math.inf


def test_limits_of_version_1_count(tmp_path: Path) -> None:
    (groups := tmp_path / "cgroup").write_text("3:cpu:/a\n2:memory,hugetlb:/a\n0::/\n")
    (folder := tmp_path / "memory" / "a").mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text("1000\n")
    (folder / "memory.usage_in_bytes").write_text("700\n")
    (folder / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 200\n")
    assert free_in_groups(groups, tmp_path) == 500


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_share_what_is_free(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them together cache a quarter of it."""
    monkeypatch.setenv(WORKERS, str(workers))
    memory_info = SimpleNamespace(available=8_000_000)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: memory_info)
    monkeypatch.setattr(memory, "free_in_groups", lambda: math.inf)
    monkeypatch.setattr(frozen, "token_shape", lambda backbone: Mock(length=10, width=100))
    parts: Any = {name: Mock(rows=range(10)) for name in ("train", "judge", "report")}
    size = (2 + 3) * 10 * 10 * 100 * 4  # of one depth in fp32
    assert free_for_worker() == 8_000_000 // workers
    at_once = frozen.depths_at_once(parts, Mock(), Mock(precision="fp32"))
    assert at_once == 8_000_000 // workers // 4 // size
    monkeypatch.setattr(memory, "free_in_groups", lambda: 2 * size * workers - 1)
    with pytest.raises(UserError, match=r"^exits\.images: "):
        frozen.depths_at_once(parts, Mock(), Mock(precision="fp32"))
