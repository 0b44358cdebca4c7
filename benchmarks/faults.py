"""Kill anything, any time.

Smoke runs whose processes get signals at random moments, and are started again until they end.

    uv run python benchmarks/faults.py [--faults 100] [--minutes 60] [--seed 0] [--ways repro ...]

writes benchmarks/faults.json.

Every way runs once undisturbed. Then, in fresh copies of the repository, random processes of the
run (DVC, its shell, the stage, its workers; in `served` MLflow's server, in `queue` the worker of
DVC's queue, in `ray` those of two Ray nodes) get SIGKILL, SIGTERM, SIGINT, or SIGSTOP for a while.
In the way `memory` a process can have no more memory for a while than it has; in `disk`, for root
alone, the disk below the repository is filled, runs out of inodes or becomes read-only, until the
run has ended. What each copy has in the end must be what the undisturbed one has: see `compare`,
else this ends with 1. The draws follow from the seed, not the moments at which processes meet them.
"""

import argparse
import csv
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from dvc.utils.hydra import apply_overrides
from machine import machine, show, write
from mlflow import MlflowClient
from voluptuous import Invalid, Schema

from pipeline.smoke import PRESETS, copy_repository, environment

MARK = "LSVIT_FAULTS"  # a variable by which the processes of a run are known
EVERY = 6.0  # seconds between signals, on average
STOPPED = 3.0  # seconds that SIGSTOP lasts at most
ORPHANED = 10.0  # seconds after which nothing may be left of a run that was killed
LAST = 60.0  # the same at the end of a round, for what was stopped
FULL = 30.0  # seconds that a disk is full at most: a run that writes nothing meanwhile goes on
ROUND = 25  # faults of one run: what is killed every few seconds comes to no end
STUCK = 900.0  # seconds without an end: the run hangs
SIGNALS = {
    signal.SIGKILL: 4,
    signal.SIGTERM: 2,
    signal.SIGINT: 2,
    signal.SIGSTOP: 2,
}  # and how often
WAYS = ("repro", "served", "queue", "ray", "memory", "disk")
TARGETS = "benchmarks.fault_targets"
KINDS = {  # words of a command -> what that process is; the first that fits
    "targets cluster": "Ray's starter",
    "gcs_server": "Ray's head",
    "raylet/raylet": "Ray's node",
    "ray::IDLE": "Ray's other",
    "Agent": "Ray's other",
    "ray::": "Ray's worker",
    "/ray/": "Ray's other",
    "targets queue": "queue's command",
    "queue-worker": "queue's worker",
    "mlflow": "MLflow's server",
    "forkserver": "fork server or worker",
    "resource_tracker": "resource tracker",
    "sh -c": "shell",
    "-m stages": "stage",
    "dvc": "DVC",
}
SERVERS = {
    "MLflow's server",
    "Ray's starter",
    "Ray's head",
    "Ray's node",
    "Ray's other",
}  # start again where they ended
WRONG = ("orphans", "wrong", "still there", "tracebacks")  # what should be empty of every round
# In them names are drawn, or are hashes of paths or of measured times.
CACHES = (
    "copy/.dvc/",
    "copy/.git/",
    "copy/.lsvit/context/",
    "copy/mlartifacts/",
    "artifacts/",
    "tmp/db_init_lock-",
    "ray/",
)


class State(NamedTuple):
    """What a run has in the end: rows by table, names of files, and counts of MLflow's runs."""

    results: dict[str, list[dict[str, str]]]
    files: set[str]
    tracked: Counter  # of experiment, name, status


class Run:
    """The pipeline at scale smoke in a copy of the repository, tracked by a store or a server."""

    def __init__(self, folder: Path, way: str, *stages: str) -> None:
        self.folder, self.way, served = folder / "copy", way, way == "served"
        repro = "dvc", "repro", "--pull", *stages  # all stages if none is named
        self.repro, self.driver = repro, (TARGETS, "queue", *stages) if way == "queue" else repro
        if way == "disk":
            self.folder.mkdir()
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", "size=4g,nr_inodes=100k", "tmpfs", self.folder],
                check=True,
            )
        copy_repository(self.folder)
        apply_overrides(
            self.folder / "params.yaml", [*PRESETS, *(["engine=ray"] if way == "ray" else [])]
        )
        (temporary := folder / "tmp").mkdir()
        self.env = environment() | {MARK: str(folder), "TMPDIR": str(temporary)}
        self.store = folder / "served.db" if served else self.folder / "mlflow.db"
        self.port = free_port() if way in ("served", "ray") else None
        if way == "ray":
            self.env |= {
                "RAY_ADDRESS": f"127.0.0.1:{self.port}",
                "RAY_TMPDIR": str(folder),
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            }
        if served:
            MlflowClient(
                f"sqlite:///{self.store}"
            ).search_experiments()  # a server killed while it makes its store never starts again
            self.env["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        """Start MLflow's server, or the Ray nodes, where they should run and do not."""
        here = {kind(process): process for process in self.processes()} if self.port else {}
        if self.way == "ray" and "Ray's starter" not in here:  # which ends with the first node
            for process in self.processes():
                if kind(process) in SERVERS:
                    process.kill()
            self.start(TARGETS, "cluster", str(self.port))
        if self.way == "served" and "MLflow's server" not in here:
            options = [
                "--backend-store-uri",
                f"sqlite:///{self.store}",
                "--default-artifact-root",
                str(self.store.parent / "artifacts"),
            ]
            self.start(
                "mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--workers",
                "1",
                *options,
            )

    def mend(self) -> bool:
        """DVC does not write its lock files at once: a kill at that moment leaves half of one.

        Do then what its user would: take the committed dvc.lock, remove .dvc/tmp/rwlock.
        Returns whether that was so.
        """
        lock, held = self.folder / "dvc.lock", self.folder / ".dvc/tmp/rwlock"
        try:
            for file, schema in ((lock, COMPILED_LOCKFILE_SCHEMA), (held, Schema(dict))):
                if file.exists():
                    schema(yaml.load(file.read_text("utf-8"), yaml.CSafeLoader))
        except (yaml.YAMLError, Invalid):
            subprocess.run(["git", "checkout", "-q", "dvc.lock"], cwd=self.folder, check=True)
            held.unlink(missing_ok=True)
            return True
        return False

    def start(self, module: str, *arguments: str) -> subprocess.Popen:
        """A command of the run, in a session of its own; what it prints goes to a log."""
        with open(self.folder.parent / "log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def processes(self) -> list[psutil.Process]:
        """All that live, also those that nobody waits for."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    process.environ().get(MARK) == self.env[MARK]
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def until_gone(self, seconds: float, but: set[str]) -> tuple[float, list[str]]:
        """Wait for the end of all processes `but` those of these kinds, at most so many seconds.

        Returns seconds and what is left.
        """
        start = time.monotonic()
        while left := [name for name in map(kind, self.processes()) if name not in but]:
            if time.monotonic() - start > seconds:
                return seconds, left
            time.sleep(0.1)
        return time.monotonic() - start, []

    def end(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            with suppress(psutil.Error):
                process.kill()
        if self.way == "disk":
            subprocess.run(["umount", "--lazy", self.folder], check=True)

    def finish(self) -> None:
        """The pipeline to its end, undisturbed; what a store missed is logged.

        Ends this process where that fails.
        """
        self.mend()
        self.serve()
        for command in dict.fromkeys(
            (self.driver, self.repro, ("stages.commands", "track", "sync"))
        ):
            if code := self.start(*command).wait(STUCK):
                log = (self.folder.parent / "log").read_text("utf-8")
                sys.exit(f"{' '.join(command)}: {code}\n{log[-5000:]}")

    def results(self) -> dict[str, list[dict[str, str]]]:
        """All tables, but for columns of measured times."""
        found = {}
        for file in sorted((self.folder / "results").glob("**/*.csv")):
            rows = list(csv.DictReader(file.read_text("utf-8").splitlines()))
            found[str(file.relative_to(self.folder))] = rows
        return found

    def files(self) -> set[str]:
        """What lies in the copy and its temporary folder, but for caches."""
        names = (
            str(path.relative_to(self.folder.parent))
            for path in self.folder.parent.rglob("*")
            if path.is_file()
        )
        return {name for name in names if not name.startswith(CACHES) and "__pycache__" not in name}

    def state(self) -> State:
        """What it has."""
        query = (
            "SELECT experiments.name, runs.name, runs.status "
            "FROM runs JOIN experiments USING (experiment_id)"
        )
        with closing(sqlite3.connect(self.store)) as database:
            return State(self.results(), self.files(), Counter(database.execute(query).fetchall()))


def free_port() -> int:
    """Of this machine alone."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def kind(process: psutil.Process) -> str:
    """What a process of a run is; an empty word where it has ended."""
    with suppress(psutil.Error, ProcessLookupError):
        command = " ".join(process.cmdline())
        for words, name in KINDS.items():
            if words in command:
                return name
        return process.name()
    return ""


def strike(run: Run, draw: random.Random, driver: subprocess.Popen) -> dict[str, str] | None:
    """Strike a process of a random kind: a random signal, or no more memory for a while.

    Returns None if there is no process.
    """
    found: dict[str, list[psutil.Process]] = {}
    for process in run.processes():
        found.setdefault(kind(process), []).append(process)
    found.pop("", None)
    if not found:
        return None
    name = draw.choice(sorted(found))
    process, (number,) = (
        draw.choice(found[name]),
        draw.choices(list(SIGNALS), list(SIGNALS.values())),
    )
    if run.way == "memory":
        with suppress(psutil.Error):
            process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms, psutil.RLIM_INFINITY))
            time.sleep(draw.uniform(0, STOPPED))
            process.rlimit(psutil.RLIMIT_AS, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
        return {"process": name, "signal": "no more memory"}
    with suppress(psutil.Error):
        process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(draw.uniform(0, STOPPED))
            process.send_signal(signal.SIGCONT)
    return {"process": name, "signal": number.name}


def fill(run: Run, draw: random.Random, driver: subprocess.Popen) -> dict[str, str] | None:
    """Leave a run no room until it has ended, or for a while. Returns None if the disk cannot."""
    filler, how = run.folder / "filler", draw.choice(("full", "no inodes", "read-only"))
    remount = ["mount", "-o", "remount,ro", str(run.folder)]
    if (
        how == "read-only"
        and subprocess.run(remount, stderr=subprocess.DEVNULL, check=False).returncode
    ):
        return None  # a file is open
    if how != "read-only":
        filler.mkdir()
        room = os.statvfs(run.folder)
        with suppress(OSError), open(filler / "bytes", "wb") as file:
            if how == "full":
                os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_frsize)
            for i in range(room.f_favail if how == "no inodes" else 0):
                (filler / str(i)).touch()
    with suppress(subprocess.TimeoutExpired):
        driver.wait(FULL)
    if how == "read-only":
        subprocess.run(["mount", "-o", "remount,rw", run.folder], check=True)
    shutil.rmtree(filler, ignore_errors=True)
    return {"process": "(disk)", "signal": how}


def disturb(run: Run, draw: random.Random, most: int, deadline: float) -> dict[str, Any]:
    """Start the pipeline again and again, under signals until there were `most` or time is over.

    Returns what happened.
    """
    struck: list[dict[str, str]] = []
    orphans: list[str] = []
    starts, slowest, torn = 0, 0.0, 0
    ended, began = False, time.monotonic()
    while not ended and len(struck) < most and time.monotonic() < deadline:
        torn += run.mend()
        run.serve()
        driver, starts, since = run.start(*run.driver), starts + 1, time.monotonic()
        while driver.poll() is None:
            if len(struck) >= most or time.monotonic() > deadline:
                driver.wait(STUCK)
                break
            with suppress(subprocess.TimeoutExpired):
                driver.wait(draw.expovariate(1 / EVERY))
                break
            if blow := (fill if run.way == "disk" else strike)(run, draw, driver):
                struck.append(blow)
                print(
                    f"{time.monotonic() - began:6.0f} s  {blow['signal']} to {blow['process']}",
                    flush=True,
                )
            run.serve()
            assert time.monotonic() - since < STUCK, (
                f"hangs: {[process.cmdline() for process in run.processes()]}"
            )
        ended = driver.returncode == 0
        if run.way != "queue":  # whose work goes on without whoever waits for it
            seconds, left = run.until_gone(ORPHANED, {"", *SERVERS})
            slowest, orphans = max(slowest, seconds), orphans + left
    return {
        "struck": struck,
        "starts": starts,
        "seconds": time.monotonic() - began,
        "gone after": slowest,
        "torn": torn,
        "orphans": orphans,
    }


def compare(run: Run, whole: State) -> list[str]:
    """How a disturbed run differs in the end from an undisturbed one, a line a difference."""
    mine = run.state()
    both = sorted(mine.results.keys() | whole.results.keys())
    wrong = [
        f"{name} differs" for name in both if mine.results.get(name) != whole.results.get(name)
    ]
    wrong += [f"{name} is left" for name in sorted(mine.files - whole.files)]
    wrong += [f"{name} is missing" for name in sorted(whole.files - mine.files)]
    wrong += [
        f"MLflow has {row}, {count} times more"
        for row, count in (mine.tracked - whole.tracked).items()
    ]
    wrong += [
        f"MLflow lacks {row}, {count} times"
        for row, count in (whole.tracked - mine.tracked).items()
    ]
    done = subprocess.run(
        [sys.executable, "-m", *run.repro],
        cwd=run.folder,
        env=run.env,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return wrong + (
        []
        if done.returncode == 0 and "Running stage" not in done.stdout
        else ["dvc repro finds something to do"]
    )


def main() -> None:
    """Rounds, the ways in turn, until there were enough signals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["repro", "served"])
    parser.add_argument(
        "--stages", nargs="*", default=[], help="run no others than these and what they need"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    draw, deadline = random.Random(options.seed), time.monotonic() + 60 * options.minutes
    whole: dict[str, State] = {}
    rounds: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        left = options.faults
        while left > 0 and time.monotonic() < deadline:
            way = options.ways[len(rounds) % len(options.ways)]
            if way not in whole:
                (place := Path(folder, f"{way}_whole")).mkdir()
                run = Run(place, way, *options.stages)
                run.finish()
                whole[way] = run.state()
                run.end()
            (place := Path(folder, str(len(rounds)))).mkdir()
            run = Run(place, way, *options.stages)
            try:
                done = disturb(run, draw, min(left, ROUND), deadline)
                run.finish()
                done["wrong"] = compare(run, whole[way])
                _, done["still there"] = run.until_gone(LAST, {"", *SERVERS})
                done["tracebacks"] = re.findall(
                    "Traceback.*", (place / "log").read_text("utf-8") if way == "disk" else "", re.S
                )
            finally:
                run.end()
            left -= len(done["struck"])
            rounds.append({"way": way, "faults": len(done["struck"]), **done})
            print(
                {name: value for name, value in rounds[-1].items() if name != "struck"}, flush=True
            )
    blows = Counter(
        (blow["process"], blow["signal"]) for each in rounds for blow in each.pop("struck")
    )
    found = any(each[name] for each in rounds for name in WRONG)
    names = sorted({what for _, what in blows})
    table = [
        {"process": process} | {name: blows[process, name] for name in names}
        for process in sorted({process for process, _ in blows})
    ]
    if table:  # on a slow machine the time may be over before one
        show("Faults by what met them", table)
    about = {"machine": machine(), "seed": options.seed, "faults": blows.total()}
    counted = [each | {name: len(each[name]) for name in WRONG} for each in rounds]
    write(options.out, about | {"rounds": counted, "by process": table})
    if found:
        sys.exit(f"not as an undisturbed run: see {', '.join(WRONG)} above")


if __name__ == "__main__":
    main()
