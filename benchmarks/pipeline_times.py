"""How long what users run takes: `python benchmarks/pipeline_times.py [smoke repro tests ...]` ->
pipeline.json (which: default all).

Each in a clone of the committed state with this environment, on a machine that does nothing else,
beside the time of a plain `import torch, timm`, so that the figures carry to other machines. Short
commands three times, the median is kept. A run of the pipeline
is taken apart stage by stage: the seconds of DVC itself, of the stage's command, of it until the
first job reports, and the share of the cores that was idle meanwhile (of the whole machine, from
/proc/stat).
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import machine, show, write

from pipeline.smoke import PRESETS

FILE = Path(__file__).with_name("pipeline.json")
ROOT = Path(__file__).parents[1]
REPETITIONS = 3
SHIM = """#!/bin/sh
sed -n 1p /proc/stat >> "$TIMES"; date +"begin %s.%N $*" >> "$TIMES"
{python} "$@"; code=$?
sed -n 1p /proc/stat >> "$TIMES"; date +"end %s.%N $*" >> "$TIMES"
exit $code
"""


def seconds(command: list[str], folder: Path, **environment: str) -> float:
    """Of a command that succeeds."""
    begin = time.perf_counter()
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return time.perf_counter() - begin


def median(measure: Callable[[], float]) -> float:
    """Of three."""
    return statistics.median(measure() for _ in range(REPETITIONS))


def clone(folder: Path) -> Path:
    """The committed state, as a new user has it."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def pipeline(folder: Path, command: list[str]) -> tuple[float, list[dict[str, Any]]]:
    """A run of all stages: its seconds, and a row a stage."""
    times = folder.parent / f"{folder.name}.times"
    tools = folder.parent / f"{folder.name}.bin"
    tools.mkdir()
    (tools / "python").write_text(SHIM.format(python=sys.executable), "utf-8")
    (tools / "python").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "TIMES": str(times),
        "PYTHONUNBUFFERED": "1",
    }
    begin, first = time.time(), dict[str, float]()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        stage = ""
        for line in process.stdout:
            if found := re.match(r"> python -m stages\.(.+)", line):
                stage = found[1].strip()
            elif re.match(r"\[ *[\d.]+ s\]", line):
                first.setdefault(stage, time.time())
    if process.returncode:
        sys.exit(f"{' '.join(command)} failed in {folder}")
    end, rows, before = time.time(), [], begin
    lines = times.read_text("utf-8").splitlines()
    for i in range(0, len(lines), 4):
        (busy, idle), (busy_after, idle_after) = (cpu(lines[i + j]) for j in (0, 2))
        start, stop = (float(lines[i + j].split()[1]) for j in (1, 3))
        name = lines[i + 1].split(" stages.")[1]
        rows.append(
            {
                "stage": name,
                "dvc_before_s": start - before,
                "command_s": stop - start,
                "until_first_job_s": first[name] - start if name in first else None,
                "idle": (idle_after - idle) / max(1, busy_after + idle_after - busy - idle),
            }
        )
        before = stop
    rows.append(
        {
            "stage": "(after the last)",
            "dvc_before_s": end - before,
            "command_s": 0.0,
            "until_first_job_s": None,
            "idle": None,
        }
    )
    return end - begin, rows


def cpu(line: str) -> tuple[int, int]:
    """Ticks that the machine was busy and idle."""
    ticks = [int(value) for value in line.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], ticks[3] + ticks[4]


def main() -> None:
    """Measure what is asked for; the rest of the file stays."""
    asked = sys.argv[1:] or ["smoke", "repro", "tests"]
    known = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    plain = [sys.executable, "-c", "import torch, timm"]
    beside = median(lambda: seconds(plain, ROOT))
    found: dict[str, Any] = {
        "machine": machine(),
        "repetitions": REPETITIONS,
        "import_torch_timm_s": dict.fromkeys(asked, beside),
    }
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        fresh = clone(place / "fresh")
        dvc = [sys.executable, "-m", "dvc", "repro"]
        found["allow_missing_s"] = median(lambda: seconds([*dvc, "--allow-missing"], fresh))
        if "smoke" in asked:
            found["smoke_s"] = median(
                lambda: seconds([sys.executable, "-m", "stages.commands", "smoke"], fresh)
            )
            presets = [f"-S{preset}" for preset in PRESETS]
            found["smoke"] = pipeline(
                clone(place / "tiny"),
                [sys.executable, "-m", "dvc", "exp", "run", "--pull", *presets],
            )[1]
        if "repro" in asked:
            total, rows = pipeline(whole := clone(place / "whole"), [*dvc, "--pull"])
            found |= {"repro_s": total, "repro": rows}
            found["nothing_to_do_s"] = median(lambda: seconds(dvc, whole))
            stage = [sys.executable, "-m", "stages.painters"]
            seconds(stage, whole)
            found["finished_stage_s"] = median(lambda: seconds(stage, whole))
        if "tests" in asked:
            found["tests_s"] = seconds([sys.executable, "-m", "pytest"], clone(place / "tests"))
    found["import_torch_timm_s"] = (
        known.get("import_torch_timm_s", {}) | found["import_torch_timm_s"]
    )
    write(FILE, known | found)
    for name in ("smoke", "repro"):
        if name in found:
            show(f"{name}: {found[f'{name}_s']:.0f} s", found[name])
    show(
        "seconds",
        [
            {"import_torch_timm_s": beside}
            | {name: value for name, value in found.items() if isinstance(value, float)}
        ],
    )


if __name__ == "__main__":
    main()
