"""Jobs in worker processes, side by side or each spread by torchrun, resumable in folders of their own; what they report is shown.

A job's folder is `.lsvit/jobs/<kind>/<key>` below the real repository (also from a queued experiment's copy). The key is
a hash of the job's configuration, of the lsvit modules its function imports and of the versions of torch and timm: a
finished job is never run again, an unfinished one goes on from what its folder holds.
"""

import ast
import hashlib
import importlib
import json
import multiprocessing
import os
import pickle
import queue
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lsvit.errors import UserError
from lsvit.jobs import RunConfig
from lsvit.processes import die_with_parent, root
from lsvit.progress import ENDED, Display, Event
from lsvit.sections import Distributed

DONE = "done"
JOBS, EVENTS, LOG = "jobs.pickle", "events.jsonl", "log"  # in the folder that a stage and its torchrun share
STAGE_PID = "LSVIT_STAGE_PID"  # environment variable for torchrun's processes
# what these decide is in a job's configuration
NOT_CODE = {"lsvit.params", "lsvit.sections", "lsvit.inversion_sections", "lsvit.presets", "lsvit.jobs", "lsvit.errors"}
Events = Generator[tuple[int, Event], None, None]  # (job's index, event)
_events: Any = None  # in a worker process: the queue to the parent


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
    apart: Any = frozenset({"seed"})  # what of the configuration differs between the jobs of a :attr:`group`

    @cached_property
    def key(self) -> str:
        """Identity of the job: configuration, code and library versions."""
        return self._key(set())

    @cached_property
    def group(self) -> str:
        """Identity of the job but for what sets it apart: the same for all seeds of a variant."""
        return self._key(self.apart)

    def _key(self, exclude: Any) -> str:
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
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:  # in some containers
        return len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return len(re.findall(r"^GPU \d+:", listed, re.M))


def warm_up(module: str) -> None:
    """Start the fork server, which imports torch, timm and the jobs' module once for all workers; the parent never does.

    Called first in a stage, so that these seconds pass while the stage reads its parameters.
    """
    multiprocessing.set_forkserver_preload([module, "timm"])
    forkserver.ensure_running()


def run(
    jobs: Sequence[Job],
    device: str = "auto",
    on_epoch: Callable[[Job, Event], None] | None = None,
    threads: int = 1,
    distributed: Distributed | None = None,
) -> None:
    """Run the unfinished jobs in parallel and show their progress: a process a GPU, or per `threads` CPU cores without one.

    If `distributed` asks for several processes a job, torchrun starts them, and the jobs run one after another. `on_epoch`
    receives every finished epoch's metrics.

    Raises:
        UserError: a job made a user's mistake, or its process died; the finished part of every job is kept.
    """
    todo = [job for job in jobs if not job.done]
    for job in jobs:
        if job.done:
            print(f"{job.title}: finished before, taken from {job.folder.relative_to(root())}", flush=True)
    if not todo:
        return
    events = _torchrun(todo, distributed, threads) if distributed and distributed.world_size > 1 else _pool(todo, device, threads)
    with Display(todo) as display, closing(events):
        for i, event in events:
            display.show(i, event)
            if on_epoch and "epoch" in event:
                on_epoch(todo[i], event)


def _pool(todo: Sequence[Job], device: str, threads: int) -> Events:
    """The events, (job's index, event), of jobs side by side in worker processes."""
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
        while running:
            finished, _ = wait_for(futures, timeout=0.2, return_when=FIRST_EXCEPTION)
            for i, event in _drain(events):
                yield i, event
                if event == ENDED:
                    running.remove(i)
            _raise_first_error(finished)
    except BaseException:
        for process in list((pool._processes or {}).values()):  # no public way to stop running work
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _torchrun(todo: Sequence[Job], distributed: Distributed, threads: int) -> Events:
    """The events of jobs one after another, each in all the processes of one torchrun."""
    identity = hashlib.sha256("".join(job.key for job in todo).encode()).hexdigest()[:20]
    folder = (root() / ".lsvit" / "torchrun" / identity).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    nodes, processes = f"--nnodes={distributed.nodes}", f"--nproc-per-node={distributed.processes}"
    meeting = ["--standalone", "--local-addr=127.0.0.1"]
    if distributed.nodes > 1:
        meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={distributed.endpoint}", f"--rdzv-id={identity}"]
    arguments = ["-m", "torch.distributed.run", nodes, processes, *meeting, "-m", "lsvit.torchrun", str(folder)]
    if distributed.nodes > 1:
        print(f"on each other machine, with this folder at the same place: cd {Path.cwd()} && DVC_ROOT={root().resolve()} "
              f"uv run python {' '.join(arguments)}", flush=True)  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": str(threads), STAGE_PID: str(os.getpid())}
    with ExitStack() as stack:
        for job in todo:
            stack.enter_context(_locked(job.folder, partial(print, f"{job.title}: waits for another run of the same job", flush=True)))
        (folder / JOBS).write_bytes(pickle.dumps(list(todo)))
        (folder / EVENTS).write_text("")
        log = stack.enter_context(open(folder / LOG, "w"))
        process = subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=env)
        try:
            yield from _tail(folder / EVENTS, process, len(todo))
        finally:
            process.terminate()
            process.wait()


def _tail(path: Path, process: subprocess.Popen, running: int) -> Events:
    """The lines that torchrun's first process adds to a file, until all jobs have ended."""
    line = ""
    with open(path) as file:
        while running:
            died = process.poll() is not None  # asked before reading: what it wrote last is still read
            while part := file.readline():
                line += part
                if not line.endswith("\n"):
                    continue
                i, event = json.loads(line)
                line = ""
                if "error" in event:
                    raise UserError(event["error"])
                yield i, event
                running -= event == ENDED
            if died and running:
                raise UserError(f"a process of the training died (torchrun's log: {path.with_name(LOG)}); finished epochs are kept, "
                                "the next run goes on from there")  # fmt: skip
            time.sleep(0.1)
    with suppress(subprocess.TimeoutExpired):  # else it is ended
        process.wait(timeout=60)


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
    die_with_parent()


@contextmanager
def _locked(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a job's lock: two experiments may want the same job."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        on_wait()
        lock.acquire()
    with lock:
        yield


def _work(job: Job, folder: Path, index: int) -> None:
    with _locked(folder, lambda: _events.put((index, {"text": "waits for another run of the same job"}))):
        if not (folder / DONE).exists():
            call(job, folder, lambda event: _events.put((index, event)))
            finish(job, folder)
    _events.put((index, ENDED))


def call(job: Job, folder: Path, report: Callable[[Event], None]) -> None:
    """Run a job's function in this process. Raises UserError if the device has too little memory for it."""
    import torch

    module, name = job.function.split(":")
    try:
        getattr(importlib.import_module(module), name)(job.config, **job.inputs, folder=folder, report=report)
    except torch.OutOfMemoryError as error:
        raise UserError(f"{job.title}: the device's memory is too small ({' '.join(str(error).split())[:120]}); accepted: a smaller "
                        "batch_size, finetune.micro_batch_size, or finetune.checkpointing: true") from None  # fmt: skip


def finish(job: Job, folder: Path) -> None:
    """Mark a job as done, with its configuration beside its results."""
    (folder / "config.json").write_text(json.dumps(job.record(), indent=1) + "\n")
    (folder / DONE).touch()
