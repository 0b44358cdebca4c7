"""Jobs one after another, each in all the processes of one torchrun."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.config.sections import Distributed
from pipeline.errors import UserError, WorkerDied
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.events import ENDED, Events
from pipeline.jobs.job import Job, all_locked
from pipeline.jobs.machine import VISIBLE, gpus
from pipeline.jobs.processes import root

# Files in the folder that a stage and its torchrun share.
JOBS = "jobs.pickle"
EVENTS = "events.jsonl"
LOG = "log"
STAGE_PID = "LSVIT_STAGE_PID"  # environment variable for torchrun's processes


def is_spread(job: Job, distributed: Distributed | None) -> bool:
    """Whether a job is a training that params.yaml spreads over several processes."""
    several = distributed is not None and distributed.world_size > 1
    return several and isinstance(job.config, TrainConfig) and job.config.world_size > 1


def spread(todo: Sequence[Job], distributed: Distributed, threads: int) -> Events:
    """The events of jobs one after another, each in all the processes of one torchrun.

    Raises:
        UserError: a job made a user's mistake, or a process died; torchrun's log is printed then.
    """
    identity = hashlib.sha256("".join(job.key for job in todo).encode()).hexdigest()[:20]
    folder = (root() / ".lsvit" / "torchrun" / identity).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    meeting = ["--standalone", "--local-addr=127.0.0.1"]
    if distributed.nodes > 1:
        endpoint = f"--rdzv-endpoint={distributed.endpoint}"
        meeting = ["--rdzv-backend=c10d", endpoint, f"--rdzv-id={identity}"]
    arguments = [
        "-m",
        "torch.distributed.run",
        f"--nnodes={distributed.nodes}",
        f"--nproc-per-node={distributed.processes}",
        *meeting,
        "-m",
        "pipeline.training.torchrun",
        str(folder),
    ]
    if distributed.nodes > 1:
        print(
            "on each other machine, with this folder at the same place: "
            f"cd {Path.cwd()} && DVC_ROOT={root().resolve()} uv run python {' '.join(arguments)}",
            flush=True,
        )
    env = os.environ | {"OMP_NUM_THREADS": str(threads), STAGE_PID: str(os.getpid())}
    if not gpus().count:
        env[VISIBLE] = ""  # of GPUs that torch sees and cannot use
    try:
        with all_locked(todo), open(folder / LOG, "wb") as log:
            (folder / JOBS).write_bytes(pickle.dumps(list(todo)))
            (folder / EVENTS).write_text("", "utf-8")
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=log, env=env
            )
            try:
                yield from _follow(folder / EVENTS, process, len(todo))
            finally:
                process.terminate()
                process.wait()
    except WorkerDied:
        sys.stderr.write((folder / LOG).read_text("utf-8", "replace"))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _follow(path: Path, process: subprocess.Popen, running: int) -> Events:
    """The lines that torchrun's first process adds to a file, until all jobs have ended."""
    line = ""
    with open(path, encoding="utf-8") as file:
        while running:
            died = process.poll() is not None  # asked first: what it wrote last is still read
            while piece := file.readline():
                line += piece
                if not line.endswith("\n"):
                    continue
                i, event = json.loads(line)
                line = ""
                if "error" in event:
                    raise UserError(event["error"])
                yield i, event
                if event == ENDED:
                    running -= 1
            if died and running:
                raise WorkerDied(
                    "a process of the training died (torchrun's log is above); finished epochs are "
                    "kept, the next run goes on from there"
                )
            time.sleep(0.1)
    with suppress(subprocess.TimeoutExpired):  # else it is ended
        process.wait(timeout=60)
