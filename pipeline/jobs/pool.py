"""Jobs in worker processes, side by side."""

import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import WorkerDied
from pipeline.jobs.events import ENDED, Event, Events
from pipeline.jobs.job import WAITS, Job, call
from pipeline.jobs.machine import VISIBLE, available_cores, gpu_variable, gpus, memory_limit
from pipeline.jobs.processes import die_with_parent, root

MEMORY_SHARE = 0.8  # of this machine's, which jobs may plan with
_events: Any = None  # in a worker process: the queue to the stage


def workers_here(todo: Sequence[Job], gpu_count: int, threads: int, workers: int | None) -> int:
    """Jobs that run side by side on this machine, as :func:`pool` says."""
    most = [len(todo)]
    largest = max(job.memory for job in todo)
    if largest:
        most.append(int(MEMORY_SHARE * memory_limit()) // largest)
    if gpu_count:
        most.append(gpu_count)
    if workers or not gpu_count:
        most.append(workers or available_cores() // threads)
    return max(1, min(most))


def pool(todo: Sequence[Job], device: str, threads: int, workers: int | None = None) -> Events:
    """The events of jobs side by side in worker processes.

    Args:
        todo: the jobs.
        device: as in params.yaml.
        threads: cores that a job takes.
        workers: jobs side by side; None: one a GPU, or one per `threads` cores. They are fewer
            where there are fewer GPUs, or memory for fewer.

    Raises:
        UserError: a job made a user's mistake, or a worker died.
    """
    gpu_count = gpus().count if device in ("auto", "cuda") else 0
    if device == "mps":
        workers = 1
    count = workers_here(todo, gpu_count, threads, workers)
    context = multiprocessing.get_context("forkserver")
    slots, events = context.SimpleQueue(), context.Queue()
    for slot in range(count):
        slots.put(slot if gpu_count else None)
    executor = ProcessPoolExecutor(
        count,
        mp_context=context,
        initializer=_start_worker,
        initargs=(slots, events, root().resolve()),
    )
    try:
        futures = [executor.submit(_work, job, i) for i, job in enumerate(todo)]
        running = len(todo)
        while running:
            finished, _ = wait_for(futures, timeout=0.2, return_when=FIRST_EXCEPTION)
            with suppress(queue.Empty):
                while True:
                    i, event = events.get(timeout=0.05)
                    yield i, event
                    if event == ENDED:
                        running -= 1
            for future in finished:
                if isinstance(future.exception(), BrokenProcessPool):
                    raise WorkerDied(
                        "a worker process died (killed, or out of memory); finished epochs are "
                        "kept, the next run goes on from there"
                    )
                future.result()  # raises what the job raised
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.terminate()  # there is no public way to stop running work
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _start_worker(slots: Any, events: Any, place: Path) -> None:
    """In a new worker: take a GPU, or none, and die with the stage, whatever ends it."""
    # Ctrl-C reaches the stage, too, which says so; a worker ends without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ["DVC_ROOT"] = str(place)  # the fork server may have started for another root
    os.environ[VISIBLE] = gpu_variable(slots.get())
    global _events
    _events = events
    die_with_parent()


def _work(job: Job, index: int) -> None:
    def report(event: Event) -> None:
        _events.put((index, event))

    with job.locked(lambda: report({"text": WAITS})):
        if not job.done:
            job.begin()
            call(job, report)
            job.finish()
    report(ENDED)
