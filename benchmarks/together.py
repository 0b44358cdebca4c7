"""Several at once in one repository, for hours: what is lost, torn or twice, and what grows.

    uv run python benchmarks/together.py [--minutes 180]     writes benchmarks/together.json

First two `dvc repro` at once, each started again, as its user would, until DVC no longer says that
the other is at work. Then rounds until the time is over: three queued experiments, run by three
workers, that want the same trainings and another simulation each, while `lsvit track sync` and
`lsvit claims` run beside them again and again. All at scale smoke, a seed a round.
"""

import argparse
import io
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from faults import LAST, STUCK, TIMED, Run
from machine import machine, show, write

from pipeline.tracking.runs import KEY

WORKERS = 3
EVERY = 2.0  # seconds between looks
BESIDE = (("track", "sync"), ("claims",))
OWN = (
    "results/nodes",
    "results/report",
    "results/claims",
)  # tables of what each experiment asks for alone
BUSY = ("is busy", "Unable to acquire lock")  # DVC's words where another is at work
WRONG = ("differ", "failed", "twice", "not finished", "left")  # what should be empty of every round
MiB = 2**20


def ask(run: Run, *command: str) -> str:
    """What a command prints. Ends this process where it fails."""
    done = subprocess.run(
        command, cwd=run.folder, env=run.env, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def dvc(run: Run, *command: str) -> str:
    """What DVC prints."""
    return ask(run, sys.executable, "-m", "dvc", *command)


def two_at_once(run: Run) -> dict[str, Any]:
    """Two `dvc repro`, each until it succeeds.

    Starts that were `refused`, each with DVC's own words, and whether one more finds work.
    """
    began, refused, left = (
        time.monotonic(),
        0,
        [run.start("dvc", "repro", "--pull") for _ in range(2)],
    )
    log = run.folder.parent / "log"
    while left:
        time.sleep(1)
        if time.monotonic() - began > STUCK:
            sys.exit(f"two at once hang\n{log.read_text('utf-8')[-5000:]}")
        for process in [each for each in left if each.poll() is not None]:
            left.remove(process)
            if process.returncode:
                refused += 1
                said = log.read_text("utf-8")
                if sum(map(said.count, BUSY)) < refused:
                    sys.exit(
                        f"a start failed, and not because the other was at work\n{said[-5000:]}"
                    )
                left.append(run.start("dvc", "repro", "--pull"))
    return {
        "seconds": time.monotonic() - began,
        "refused": refused,
        "then": "Running stage" in dvc(run, "repro"),
    }


def use(run: Run) -> dict[str, float]:
    """Of all processes: how many, their open files, and memory, in MiB, each page counted once."""
    found = {"processes": 0.0, "open files": 0.0, "memory": 0.0}
    for process in run.processes():
        with suppress(psutil.Error):
            found["memory"] += process.memory_full_info().pss / MiB
            found["open files"] += process.num_fds()
            found["processes"] += 1
    return found


def size(*places: Path) -> float:
    """MiB of files."""
    total = 0
    for place in places:
        for path in place.rglob("*") if place.is_dir() else [place]:
            with suppress(OSError):
                total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return total / MiB


def tables(run: Run, name: str) -> dict[str, pd.DataFrame]:
    """Those of an experiment, but for what is its own and measured times."""
    (ref,) = (
        ref
        for ref in ask(run, "git", "for-each-ref", "refs/exps", "--format=%(refname)").split()
        if ref.endswith(f"/{name}")
    )
    files = [
        file
        for file in ask(run, "git", "ls-tree", "-r", "--name-only", ref, "results").split()
        if file.endswith(".csv")
    ]
    shared = [file for file in files if not file.startswith(OWN)]
    found = {
        file: pd.read_csv(io.StringIO(ask(run, "git", "show", f"{ref}:{file}"))) for file in shared
    }
    return {file: rows.drop(columns=list(TIMED), errors="ignore") for file, rows in found.items()}


def tracked(run: Run) -> Counter:
    """How often MLflow has which run: experiment, name, what it is, status."""
    query = """SELECT experiments.name, runs.name, tags.value, runs.status
               FROM runs JOIN experiments USING (experiment_id)
               LEFT JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = ?"""
    with closing(sqlite3.connect(run.store)) as database:
        return Counter(database.execute(query, [KEY]).fetchall())


def queued(run: Run, number: int) -> dict[str, Any]:
    """A round.

    What it took at most, what failed, what differs, what MLflow has more of than once, and what was
    left.
    """
    names = [f"round-{number}-{i}" for i in range(WORKERS)]
    before, began = tracked(run), time.monotonic()
    for i, name in enumerate(names):
        dvc(
            run, "exp", "run", "--queue", "--name", name, f"-Sseeds=[{number}]", f"-Snodes.seed={i}"
        )
    if run.start("dvc", "queue", "start", "-j", str(WORKERS)).wait(
        STUCK
    ):  # not `dvc`: its workers keep what it prints to open
        sys.exit((run.folder.parent / "log").read_text("utf-8")[-5000:])
    most, commands = (
        dict.fromkeys(("processes", "open files", "memory"), 0.0),
        list[subprocess.Popen](),
    )
    waiting = True
    while waiting:
        if time.monotonic() - began > WORKERS * STUCK:
            sys.exit(f"round {number} hangs\n{dvc(run, 'queue', 'status')}")
        if not commands or commands[-1].poll() is not None:
            commands.append(run.start("stages.commands", *BESIDE[len(commands) % 2]))
        for _ in range(4):
            time.sleep(EVERY)
            most = {name: max(value, most[name]) for name, value in use(run).items()}
        lines = [
            line
            for line in dvc(run, "queue", "status").splitlines()
            if any(name in line for name in names)
        ]
        waiting = any(state in line for line in lines for state in ("Queued", "Running"))
    failed = [" ".join(BESIDE[i % 2]) for i, command in enumerate(commands) if command.wait(STUCK)]
    seconds = time.monotonic() - began
    failed += [line for line in lines if "Failed" in line]
    found = [
        tables(run, name)
        for name in names
        if any(name in line and "Success" in line for line in lines)
    ]
    differ = sorted(
        {
            name
            for each in found[1:]
            for name, rows in each.items()
            if not rows.equals(found[0][name])
        }
    )
    new = tracked(run) - before
    _, left = run.until_gone(LAST, {""})
    return {
        "round": number,
        "seconds": seconds,
        "tables": sum(map(len, found)),
        "differ": differ,
        "commands beside": len(commands),
        "failed": failed,
        "runs": new.total(),
        "twice": [row for row, count in new.items() if count > 1],
        "not finished": [row for row in new if row[-1] != "FINISHED"],
        **{f"most {name}": value for name, value in most.items()},
        "left": left,
        "MiB of the store": size(run.store),
        "of the cache": size(run.folder / ".dvc/cache"),
        "of jobs": size(run.folder / ".lsvit"),
        "of temporary files": size(run.folder.parent / "tmp", run.folder / ".dvc/tmp"),
    }


def main() -> None:
    """Two at once, then rounds until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=180)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    began, rounds, about = time.monotonic(), list[dict[str, Any]](), machine()
    with tempfile.TemporaryDirectory(prefix="together-") as folder:
        run = Run(Path(folder), "repro")
        try:
            both = two_at_once(run)
            print(both, flush=True)
            ask(run, "git", "-c", "commit.gpgsign=false", "commit", "-qam", "smoke")
            while not rounds or time.monotonic() - began < 60 * options.minutes:
                rounds.append(queued(run, len(rounds) + 1))
                print(rounds[-1], flush=True)
                counted = [
                    {
                        name: len(value) if isinstance(value, list) else value
                        for name, value in each.items()
                    }
                    for each in rounds
                ]
                seconds = time.monotonic() - began  # written every round: hours would be lost
                write(
                    options.out,
                    {"machine": about, "seconds": seconds, "two at once": both, "rounds": counted},
                )
        finally:
            run.end()
    show("Rounds", counted)
    if any(each[name] for each in rounds for name in WRONG):
        sys.exit(f"see {', '.join(WRONG)} above")


if __name__ == "__main__":
    main()
