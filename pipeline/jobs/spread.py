"""Jobs one after another, each in all the processes of one torchrun."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.config.sections import Distributed
from pipeline.errors import UserError, WorkerDied
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.display import ENDED, Event
from pipeline.jobs.job import Job, all_locked
from pipeline.jobs.processes import root

JOBS, EVENTS, LOG = (
    "jobs.pickle",
    "events.jsonl",
    "log",
)  # in the folder that a stage and its torchrun share
STAGE_PID = "LSVIT_STAGE_PID"  # environment variable for torchrun's processes
Events = Generator[tuple[int, Event], None, None]  # (job's index, event)


def is_spread(job: Job, distributed: Distributed | None) -> bool:
    """Whether a job is a training that params.yaml spreads over several processes."""
    several = distributed is not None and distributed.world_size > 1
    return several and isinstance(job.config, TrainConfig) and job.config.world_size > 1


def spread(todo: Sequence[Job], distributed: Distributed, threads: int) -> Events:
    """The events of jobs one after another, each in all the processes of one torchrun."""
    identity = hashlib.sha256("".join(job.key for job in todo).encode()).hexdigest()[:20]
    folder = (root() / ".lsvit" / "torchrun" / identity).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    nodes, processes = f"--nnodes={distributed.nodes}", f"--nproc-per-node={distributed.processes}"
    meeting = ["--standalone", "--local-addr=127.0.0.1"]
    if distributed.nodes > 1:
        meeting = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={distributed.endpoint}",
            f"--rdzv-id={identity}",
        ]
    arguments = [
        "-m",
        "torch.distributed.run",
        nodes,
        processes,
        *meeting,
        "-m",
        "pipeline.training.torchrun",
        str(folder),
    ]
    if distributed.nodes > 1:
        print(
            f"on each other machine, with this folder at the same place: cd {Path.cwd()} && DVC_ROOT={root().resolve()} "
            f"uv run python {' '.join(arguments)}",
            flush=True,
        )
    env = os.environ | {"OMP_NUM_THREADS": str(threads), STAGE_PID: str(os.getpid())}
    with all_locked(todo), open(folder / LOG, "w") as log:
        (folder / JOBS).write_bytes(pickle.dumps(list(todo)))
        (folder / EVENTS).write_text("")
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
            died = (
                process.poll() is not None
            )  # asked before reading: what it wrote last is still read
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
                raise WorkerDied(
                    f"a process of the training died (torchrun's log: {path.with_name(LOG)}); finished epochs are kept, "
                    "the next run goes on from there"
                )
            time.sleep(0.1)
    with suppress(subprocess.TimeoutExpired):  # else it is ended
        process.wait(timeout=60)
