"""The machine that figures are measured on, and how they are written and shown."""

import json
import os
import platform
import re
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine(gpu: str = "") -> dict[str, Any]:
    """GPU, if one was measured, else processor as Linux names it.

    Cores this process may use, versions, date.
    """
    cores = len(os.sched_getaffinity(0))
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.M)
    return {
        "hardware": gpu or f"{found[1] if found else platform.machine()}, {cores} cores",
        "cores": cores,
        "python": platform.python_version(),
        "torch": version("torch"),
        "timm": version("timm"),
        "date": date.today().isoformat(),
    }


def write(path: Path, content: Any) -> None:
    """Write JSON, numbers to four significant digits."""
    path.write_text(json.dumps(_rounded(content), indent=1) + "\n", "utf-8")
    print(f"written to {path}")


def write_entry(path: Path, entry: dict[str, Any]) -> None:
    """Write a list of one entry a machine, this machine's anew."""
    known = json.loads(path.read_text("utf-8")) if path.exists() else []
    hardware = entry["machine"]["hardware"]
    write(path, [*(old for old in known if old["machine"]["hardware"] != hardware), entry])


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows of equal keys as a table."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(*rows[0], title=title, box=SIMPLE_HEAD, title_justify="left")
    for row in rows:
        table.add_row(*map(str, _rounded(list(row.values()))))
    Console(width=None if Console().is_terminal else 180).print(table)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
