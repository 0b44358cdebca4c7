"""Jobs in worker processes, side by side or each spread by torchrun; what they report is shown."""

import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from pipeline.config.params import Engine
from pipeline.config.sections import Distributed
from pipeline.errors import WorkerDied
from pipeline.jobs import server
from pipeline.jobs.display import ENDED, Display, Event
from pipeline.jobs.job import DONE, Job, call, locked
from pipeline.jobs.processes import cuda_devices, die_with_parent, root
from pipeline.jobs.spread import Events, is_spread, spread

_events: Any = None  # in a worker process: the queue to the parent


def warm_up(module: str) -> None:
    """Start the fork server, which imports torch, timm and the jobs' module once for all workers; the parent never does.

    Called first in a stage, so that these seconds pass while the stage reads its parameters. A fork of the warm server needs none.
    """
    if not server.warm:
        multiprocessing.set_forkserver_preload([module, "timm"])
        forkserver.ensure_running()


def run(
    jobs: Sequence[Job],
    device: str = "auto",
    on_epoch: Callable[[Job, Event], None] | None = None,
    threads: int = 1,
    distributed: Distributed | None = None,
    engine: Engine = "local",
) -> None:
    """Run the unfinished jobs in parallel and show their progress: a process a GPU, or per `threads` CPU cores without one.

    If `distributed` asks for several processes a training, torchrun starts them, one training after another, and the other jobs
    run before. With `engine` "ray" the nodes of a cluster run all but trainings over several machines. `on_epoch` receives every
    finished epoch's metrics.

    Raises:
        UserError: a job made a user's mistake, or its process died; the finished part of every job is kept.
    """
    for job in jobs:
        if job.done and (names := job.damaged()):
            print(
                f"{job.title}: {', '.join(names)} in {job.folder.relative_to(root())} damaged since it finished, run again",
                flush=True,
            )
    todo = list(
        {job.folder: job for job in jobs if not job.done}.values()
    )  # jobs of several names may be the same
    for job in jobs:
        if job.done:
            job.begin(job.folder)
            print(
                f"{job.title}: finished before, taken from {job.folder.relative_to(root())}",
                flush=True,
            )
    elsewhere, together, apart = list[Job](), list[Job](), list[Job]()
    for job in todo:
        several = is_spread(job, distributed)
        if (
            engine == "ray"
            and not job.here
            and not (several and distributed and distributed.nodes > 1)
        ):
            elsewhere.append(job)
        else:
            (apart if several else together).append(job)
    if elsewhere:
        from pipeline.jobs.cluster import (
            cluster,
        )  # which runs a job on a node as `pool` and `spread` do here

        _show(elsewhere, cluster(elsewhere, device, threads, distributed), on_epoch)
    if together:
        _show(together, pool(together, device, threads), on_epoch)
    if apart and distributed:
        _show(apart, spread(apart, distributed, threads), on_epoch)


def _show(
    jobs: Sequence[Job], events: Events, on_epoch: Callable[[Job, Event], None] | None
) -> None:
    with Display(jobs) as display, closing(events):
        for i, event in events:
            display.show(i, event)
            if on_epoch and "epoch" in event:
                on_epoch(jobs[i], event)


def workers_here(device: str, threads: int) -> int:
    """Jobs that run side by side on this machine: one a GPU, or one per `threads` cores; MPS is one."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if device == "mps":
        return 1
    return (device != "cpu" and cuda_devices()) or max(1, cores // threads)


def pool(todo: Sequence[Job], device: str, threads: int) -> Events:
    """The events, (job's index, event), of jobs side by side in worker processes."""
    gpus = 0 if device == "cpu" else cuda_devices()
    workers = min(len(todo), workers_here(device, threads))
    context = multiprocessing.get_context("fork" if server.warm else "forkserver")
    slots, events = context.SimpleQueue(), context.Queue()
    for slot in range(workers):
        slots.put(slot if gpus else None)
    executor = ProcessPoolExecutor(
        workers,
        mp_context=context,
        initializer=_start_worker,
        initargs=(slots, events, root().resolve(), workers),
    )
    try:
        futures = [
            executor.submit(_work, job, job.folder.resolve(), i) for i, job in enumerate(todo)
        ]
        running = set(range(len(todo)))
        while running:
            finished, _ = wait_for(futures, timeout=0.2, return_when=FIRST_EXCEPTION)
            for i, event in _drain(events):
                yield i, event
                if event == ENDED:
                    running.remove(i)
            _raise_first_error(finished)
    except BaseException:
        for process in list(
            (executor._processes or {}).values()
        ):  # no public way to stop running work
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


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
            raise WorkerDied(
                "a worker process died (killed, or out of memory); finished epochs are kept, the next run goes on from there"
            )
        if error is not None:
            raise error


def _start_worker(slots: Any, events: Any, place: Path, workers: int) -> None:
    """In a new worker: take a GPU, and die with the parent, whatever ends it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a fork of a stage has what the stage does at it
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C ends it without a word: it reaches the stage, too, which says so
    os.environ["DVC_ROOT"] = str(place)  # a fork server that has served another root knows that one
    os.environ["LSVIT_WORKERS"] = str(workers)  # they share the memory
    slot = slots.get()
    if slot is not None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = (
            str(slot) if visible is None else visible.split(",")[slot]
        )
    global _events
    _events = events
    die_with_parent()


def _work(job: Job, folder: Path, index: int) -> None:
    with locked(
        folder, lambda: _events.put((index, {"text": "waits for another run of the same job"}))
    ):
        if not (folder / DONE).exists():
            job.begin(folder)
            call(job, folder, lambda event: _events.put((index, event)))
            job.finish(folder)
    _events.put((index, ENDED))
