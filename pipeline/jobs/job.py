"""A job: what it depends on, and the folder it works in.

A job's folder is `.lsvit/jobs/<function>/<key>` below the real repository, also from a queued
experiment's copy. A finished job is never run again, an unfinished one goes on from what its folder
holds.
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.declared import remove
from pipeline.errors import UserError, explain
from pipeline.files import reading, replace_text, sound
from pipeline.jobs.configs import WIDE, RunConfig
from pipeline.jobs.events import Event
from pipeline.jobs.files import CONFIG, sha256
from pipeline.jobs.identity import code_digest, processor
from pipeline.jobs.processes import root

DONE, LOCK = "done", "lock"
WAITS = "waits for another run of the same job"
TRAIN = "pipeline.training.loop:train"


@dataclass(frozen=True)
class Job:
    """A function to run in a worker process: `name(config, **inputs, folder=..., report=...)`.

    Args:
        title: shown to the user. No part of what the job is.
        function: "module:name".
        config: decides, with the code, whether two jobs are the same.
        inputs: paths by argument, which may differ: digests in `config` stand for their content.
        total: reports expected.
        apart: what of the options differs between trainings that are averaged, as "options.lr".
        first: sha256 of the first seed's starting weights, where each seed has its own. It tells
            averages apart.
        here: runs on this machine, whatever the engine: it measures it, or fetches what others need
            not have.
        memory: bytes of the machine's memory that it holds, where they are many.
    """

    title: str
    function: str
    config: RunConfig
    inputs: Mapping[str, Path | None] = field(default_factory=dict)
    total: int = 1
    apart: tuple[str, ...] = ("seed",)
    first: str | None = None
    here: bool = False
    memory: int = 0

    @property
    def code(self) -> str:
        """Digest of the code that the job runs, and of its libraries' versions."""
        return code_digest(self.function.split(":")[0], *self.config.modules())

    @cached_property
    def key(self) -> str:
        """Identity of the job: its effective options, its code, the processor."""
        parts = [self.config.effective(), self.function, self.code, self._processor()]
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def _processor(self) -> tuple[str, bool]:
        """The kind of device, and whether it has bf16 where `precision: auto` depends on that."""
        device, has_bf16 = processor(self.config.device, self.config.engine)
        width = self.config.model.kwargs.get("embed_dim", WIDE[device])
        matters = getattr(self.config, "precision", None) == "auto" and width >= WIDE[device]
        return device, has_bf16 and matters

    @cached_property
    def folder(self) -> Path:
        """Where the job keeps its state and its results."""
        name = self.function.split(":")[1]
        return root().resolve() / ".lsvit" / "jobs" / name / self.key

    def begin(self) -> None:
        """Record every effective option in the job's folder, for a person who looks there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = json.dumps(self.config.effective(), indent=1)
        replace_text(self.folder / CONFIG, options + "\n")

    def record(self) -> dict[str, Any]:
        """What the job is made with, for a reader of its results.

        It is the same for equal jobs of this data and model that are averaged with others from the
        same first starting weights.
        """
        names = {"dataset": self.config.dataset, "model_name": self.config.model_name}
        first = {"first_weights_sha256": self.first} if self.first else {}
        return names | self.config.effective() | {"apart": list(self.apart)} | first

    @property
    def done(self) -> bool:
        """Finished, in this or an earlier run."""
        return (self.folder / DONE).exists()

    def finish(self) -> None:
        """Mark the job as finished, with the size, time and sha256 of every file that it left."""
        left = {}
        for path in sorted(self.folder.iterdir()):
            if path.is_file() and path.name not in (CONFIG, LOCK):
                stat = path.stat()
                left[path.name] = [stat.st_size, stat.st_mtime_ns, sha256(path)]
        replace_text(self.folder / DONE, json.dumps(left, indent=1) + "\n")

    def discard_damaged(self) -> list[str]:
        """Names of files that changed since the job finished. If any, the job is unfinished."""
        if not self._find_damage():
            return []
        with self.locked():  # another run may have found the same, and have made it anew
            names = self._find_damage()
            if names:
                for name in (DONE, *self._left()):  # a training with a history would not go on
                    remove(self.folder / name)
        return names

    def _find_damage(self) -> list[str]:
        """Names of files with another size, or another time and another sha256."""
        names: list[str] = []
        for name, (size, time, digest) in self._left().items():
            path = self.folder / name
            is_same = path.is_file() and path.stat().st_size == size
            if is_same and path.stat().st_mtime_ns != time:
                is_same = sha256(path) == digest
            if not is_same:
                names.append(name)
        return names

    def _left(self) -> dict[str, tuple[int, int, str]]:
        """What a finished job left: (size, time, sha256) by name. Nothing of an unfinished one."""
        if not self.done:
            return {}
        with reading(self.folder / DONE, f"remove {self.folder} and the job is run again"):
            left = json.loads((self.folder / DONE).read_text("utf-8"))
            return {name: tuple(noted) for name, noted in left.items()}

    @contextmanager
    def locked(self, on_wait: Callable[[], object] | None = None) -> Iterator[None]:
        """Hold the job's lock: two experiments may want the same job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / LOCK)
        try:
            held = lock.acquire(timeout=1)
        except Timeout:
            if on_wait:
                on_wait()
            else:
                print(f"{self.title}: {WAITS}", flush=True)
            held = lock.acquire()
        with held:
            yield


@contextmanager
def all_locked(jobs: Iterable[Job]) -> Iterator[None]:
    """Hold the locks of several jobs, taken in one order: else two runs may wait for each other."""
    with ExitStack() as stack:
        for job in sorted(jobs, key=lambda job: job.folder):
            stack.enter_context(job.locked())
        yield


def call(job: Job, report: Callable[[Event], None]) -> None:
    """Run a job's function in this process.

    Raises:
        UserError: the device has too little memory, or a disk is full or may not be written. A
            worker's other errors arrive at the stage without their causes.
    """
    import torch

    for file in job.folder.glob("*.pt"):  # what an interrupted run goes on from
        if not sound(file):
            report({"text": f"{file.name} is damaged: what it had is computed again"})
            remove(file)
    module, name = job.function.split(":")
    function = getattr(importlib.import_module(module), name)
    try:
        function(job.config, **job.inputs, folder=job.folder, report=report)
    except torch.OutOfMemoryError as error:
        said = " ".join(str(error).split())
        raise UserError(
            f"{job.title}: the device's memory is too small ({said}); accepted: a smaller "
            "batch_size, finetune.micro_batch_size, or finetune.checkpointing: true"
        ) from None
    except UserError:
        raise
    except Exception as error:
        if line := explain(error):
            raise UserError(f"{job.title}: {line}") from None
        raise
