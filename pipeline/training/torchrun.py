"""One of the processes that torchrun started: `python -m pipeline.training.torchrun FOLDER` trains the jobs there, all of them together."""

import json
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from pipeline.errors import UserError
from pipeline.jobs.display import ENDED, Event
from pipeline.jobs.job import Job, call
from pipeline.jobs.spread import EVENTS, JOBS, STAGE_PID
from pipeline.training.distributed import barrier, end, rank_and_world, start


def die_with_stage() -> None:
    """End this process when the stage that started torchrun is gone; torchrun's agent outlives it otherwise."""
    pid = os.environ.get(STAGE_PID)  # absent on other machines than the first
    if pid is None:
        return

    def watch() -> None:
        while Path("/proc", pid).exists():
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def work(job: Job, report: Callable[[Event], None]) -> None:
    """Run one job together with the other processes; the first one marks it as done."""
    job.folder.mkdir(parents=True, exist_ok=True)
    if rank_and_world()[0] == 0:
        job.begin(job.folder)
    barrier()
    call(job, job.folder, report)
    barrier()
    if rank_and_world()[0] == 0:
        job.finish(job.folder)
        report(ENDED)


def main() -> None:
    """Train the jobs one after another; events go to a file, a line each, from the first process."""
    folder = Path(sys.argv[1])
    jobs: list[Job] = pickle.loads((folder / JOBS).read_bytes())  # noqa: S301 (the stage that started this process wrote it)
    die_with_stage()
    start(cuda=jobs[0].config.device != "cpu" and torch.cuda.is_available())
    with open(folder / EVENTS, "a", buffering=1) as events:

        def send(index: int, event: Event) -> None:
            if rank_and_world()[0] == 0 or "error" in event:
                events.write(json.dumps([index, event]) + "\n")

        for i, job in enumerate(jobs):
            try:
                work(job, partial(send, i))
            except UserError as error:
                send(i, {"error": str(error)})
                raise SystemExit(1) from None
    end()


if __name__ == "__main__":
    main()
