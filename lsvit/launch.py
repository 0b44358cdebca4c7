"""Jobs side by side in worker processes, each resumable in a folder of its own; what they report is shown and passed on.

A job's folder is `.lsvit/jobs/<kind>/<key>` below the real repository (also from a queued experiment's copy). The key is
a hash of the job's configuration, of the lsvit modules its function imports and of the versions of torch and timm: a
finished job is never run again, an unfinished one goes on from what its folder holds.
"""

import ast
import hashlib
import json
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from lsvit.errors import UserError
from lsvit.jobs import RunConfig

DONE = "done"
ENDED: dict = {}  # the last event of a job
NOT_CODE = {"lsvit.params", "lsvit.sections", "lsvit.jobs", "lsvit.errors"}  # what they decide is in a job's configuration
_events: Any = None  # in a worker process: the queue to the parent
Event = dict[str, Any]  # what a job reports: numbers by name


@dataclass(frozen=True)
class Job:
    """`function`, "module:name", is called as name(config, **inputs, folder=..., report=...) in a worker process.

    `config` alone (with the code) decides whether two jobs are the same; `inputs` are paths, which may differ.
    """

    title: str
    function: str
    config: RunConfig
    inputs: Mapping[str, Path | None] = field(default_factory=dict)
    total: int = 1  # reports expected

    @cached_property
    def key(self) -> str:
        """Identity of the job: configuration, code and library versions."""
        return self._key(set())

    @cached_property
    def group(self) -> str:
        """Identity of the job but for its seed: the same for all seeds of a variant."""
        return self._key({"seed"})

    def _key(self, exclude: set[str]) -> str:
        content = self.config.model_dump_json(exclude=exclude) + self.function + code_digest(self.function.split(":")[0])
        return hashlib.sha256(content.encode()).hexdigest()[:20]

    def record(self) -> dict[str, Any]:
        """The resolved configuration with the job's identity, as written beside its results."""
        return {"key": self.key, "group": self.group, **self.config.model_dump(mode="json")}

    @property
    def folder(self) -> Path:
        """Where the job keeps its state and its results."""
        return root() / ".lsvit" / "jobs" / self.function.split(":")[1] / self.key

    @property
    def done(self) -> bool:
        """Finished, in this or an earlier run."""
        return (self.folder / DONE).exists()


def root() -> Path:
    """The real repository: DVC says where it is, also from a queued experiment's temporary copy."""
    return Path(os.environ.get("DVC_ROOT", "."))


def imported_modules(module: str) -> set[str]:
    """The lsvit modules that a module imports, directly or not, itself included (read from the source, nothing is run)."""
    package = Path(__file__).parent
    found: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        path = package.parent / (name.replace(".", "/") + ".py")
        if name in found or not path.exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lsvit":
                todo += [node.module] if node.module != "lsvit" else [f"lsvit.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names if alias.name.startswith("lsvit.")]
    return found


def code_digest(module: str) -> str:
    """A hash of the source that a job runs, and of the libraries' versions."""
    package = Path(__file__).parent
    digest = hashlib.sha256(f"torch {version('torch')} timm {version('timm')}".encode())
    for name in sorted(imported_modules(module) - NOT_CODE):
        digest.update((package.parent / (name.replace(".", "/") + ".py")).read_bytes())
    return digest.hexdigest()


def cuda_devices() -> int:
    """How many NVIDIA GPUs there are; asks the driver, so that the parent process need not import torch."""
    if shutil.which("nvidia-smi") is None:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name not in ("", "-1")])
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.count("GPU ")


def warm_up(module: str) -> None:
    """Start the fork server, which imports torch, timm and the jobs' module once for all workers; the parent never does.

    Called first in a stage, so that these seconds pass while the stage reads its parameters.
    """
    multiprocessing.set_forkserver_preload([module, "timm"])
    forkserver.ensure_running()


def run(jobs: Sequence[Job], device: str = "auto", on_epoch: Callable[[Job, Event], None] | None = None, threads: int = 1) -> None:
    """Run the unfinished jobs in parallel and show their progress: a process a GPU, or per `threads` CPU cores without one.

    `on_epoch` receives every finished epoch's metrics.

    Raises:
        UserError: a job made a user's mistake, or its process died; the finished part of every job is kept.
    """
    todo = [job for job in jobs if not job.done]
    for job in jobs:
        if job.done:
            print(f"{job.title}: finished before, taken from {job.folder.relative_to(root())}", flush=True)
    if not todo:
        return
    gpus = 0 if device == "cpu" else cuda_devices()
    workers = min(len(todo), gpus or max(1, len(os.sched_getaffinity(0)) // threads))
    context = multiprocessing.get_context("forkserver")
    slots, events = context.Queue(), context.Queue()
    for slot in range(workers):
        slots.put(slot if gpus else None)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(slots, events))
    try:
        futures = [pool.submit(_work, job, job.folder.resolve(), i) for i, job in enumerate(todo)]
        running = set(range(len(todo)))
        with _Display(todo) as display:
            while running:
                finished, _ = wait_for(futures, timeout=0.2, return_when=FIRST_EXCEPTION)
                for i, event in _drain(events):
                    display.show(i, event)
                    if event == ENDED:
                        running.remove(i)
                    elif on_epoch and "epoch" in event:
                        on_epoch(todo[i], event)
                _raise_first_error(finished)
    except BaseException:
        for process in list((pool._processes or {}).values()):  # no public way to stop running work
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _drain(events: Any) -> Iterator[tuple[int, Event]]:
    while True:
        try:
            yield events.get(timeout=0.05)
        except queue.Empty:
            return


def _raise_first_error(finished: set[Future]) -> None:
    for future in finished:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise UserError("a worker process died (killed, or out of memory); finished epochs are kept, the next run goes on from there")
        if error is not None:
            raise error


def _start_worker(slots: Any, events: Any) -> None:
    """In a new worker: take a GPU, and die with the parent, whatever ends it."""
    slot = slots.get()
    if slot is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = str(slot) if visible is None else visible.split(",")[slot]
    global _events
    _events = events
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _work(job: Job, folder: Path, index: int) -> None:
    import importlib

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")  # two experiments may want the same job
    try:
        lock.acquire(timeout=1)
    except Timeout:
        _events.put((index, {"text": "waits for another run of the same job"}))
        lock.acquire()
    with lock:
        if not (folder / DONE).exists():
            module, name = job.function.split(":")
            function = getattr(importlib.import_module(module), name)
            function(job.config, **job.inputs, folder=folder, report=lambda event: _events.put((index, event)))
            (folder / "config.json").write_text(json.dumps(job.record(), indent=1) + "\n")
            (folder / DONE).touch()
    _events.put((index, ENDED))


class _Display:
    """Progress of several jobs: bars in a terminal, else a plain line per report."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self.jobs = jobs
        self.start = time.monotonic()
        self.bars = None
        if sys.stdout.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[last]}"),
            )
            self.bars = Progress(*columns)
            self.tasks = [self.bars.add_task(job.title, total=job.total, last="", visible=False) for job in jobs]

    def __enter__(self) -> Self:
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def show(self, index: int, event: Event) -> None:
        """Advance a job's bar, or print its line."""
        job = self.jobs[index]
        text = describe(event, job.total) if event else "done"
        if self.bars:
            done = self.bars.tasks[self.tasks[index]].completed
            completed = event.get("epoch", event.get("progress", done + ("cell" in event))) if event else job.total
            self.bars.update(self.tasks[index], completed=completed, visible=True, last=text)
        else:
            print(f"[{time.monotonic() - self.start:6.1f} s] {job.title}: {text}", flush=True)


def describe(event: Event, total: int) -> str:
    """One line for a reported epoch, a part of one (`progress`, in epochs), a finished `cell`, or a `text`."""
    if "epoch" not in event:
        progress = f"epoch {int(event['progress']) + 1}/{total}: {event['progress'] % 1:.0%}" if "progress" in event else ""
        return progress or str(event.get("cell") or event["text"])
    shown = {
        "train/class_loss": "train loss",
        "validation/sequential/accuracy": "accuracy sequential",
        "validation/arbitrary/accuracy": "arbitrary",
    }
    numbers = [f"{label} {event[name]:.3f}" for name, label in shown.items() if name in event]
    return f"epoch {event['epoch']}/{total}  " + "  ".join([*numbers, f"{event['seconds']:.1f} s"])
