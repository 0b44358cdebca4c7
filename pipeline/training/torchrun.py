"""One of the processes that torchrun started: `python -m pipeline.training.torchrun FOLDER`.

All of them train the jobs in the folder together.
"""

import json
import os
import pickle
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from pipeline.jobs.portable import read_portable, use_portable_kernels

use_portable_kernels(read_portable(Path("params.yaml")))  # on other machines than the first

# ruff: noqa: E402 (the variables are read when these are imported)
import psutil
import torch

from pipeline.errors import UserError
from pipeline.jobs.events import ENDED, Event
from pipeline.jobs.job import Job, call
from pipeline.jobs.processes import ends_unless, is_alive
from pipeline.jobs.spread import EVENTS, JOBS, STAGE_PID
from pipeline.training.distributed import barrier, rank_and_world, start


def main() -> None:
    """Train the jobs one after another, in each with the other processes.

    The first process marks a job as done. It writes events to a file, a line each.

    The process ends when the stage that started torchrun is gone, which torchrun's agent does not.
    """
    folder = Path(sys.argv[1])
    with open(folder / JOBS, "rb") as file:
        jobs: list[Job] = pickle.load(file)  # noqa: S301 (the stage wrote it)
    stage = os.environ.get(STAGE_PID)  # absent on other machines than the first
    watch = ends_unless(partial(is_alive, psutil.Process(int(stage)))) if stage else nullcontext()
    with watch, open(folder / EVENTS, "a", buffering=1, encoding="utf-8") as events:
        start(cuda=jobs[0].config.device != "cpu" and torch.cuda.is_available())
        is_first = rank_and_world()[0] == 0

        def send(index: int, event: Event) -> None:
            if is_first or "error" in event:
                events.write(json.dumps([index, event]) + "\n")

        for i, job in enumerate(jobs):
            try:
                if is_first:
                    job.begin()
                barrier()
                call(job, partial(send, i))
                barrier()
                if is_first:
                    job.finish()
                    send(i, ENDED)
            except UserError as error:
                send(i, {"error": str(error)})
                raise SystemExit(1) from None
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
