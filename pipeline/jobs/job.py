"""A job: what it depends on, and the folder it works in.

A job's folder is `.lsvit/jobs/<kind>/<key>` below the real repository (also from a queued experiment's copy). The key is
a hash of the options that have an effect and are no defaults, of the code that its function runs and of the versions of torch
and timm: a finished job is never run again, an unfinished one goes on from what its folder holds.
"""

import hashlib
import importlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pipeline.errors import UserError
from pipeline.files import read_json, reading, replace_text, sound
from pipeline.jobs.configs import RunConfig
from pipeline.jobs.display import Event
from pipeline.jobs.files import CONFIG, sha256
from pipeline.jobs.identity import agree, code_digest, merged
from pipeline.jobs.processes import root

DONE, LOCK = "done", "lock"
TRAIN = "pipeline.training.loop:train"


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
    apart: tuple[str, ...] = (
        "seed",
    )  # what of the options differs between the trainings that are averaged, as "options.lr"
    first: str | None = (
        None  # sha256 of the first seed's starting weights, where each seed has its own: it tells averages apart
    )
    here: bool = False  # runs on this machine, whatever the engine: it measures it, or fetches what others need not have

    @cached_property
    def key(self) -> str:
        """Identity of the job: options, code and library versions."""
        return _hash(
            self.config.effective(defaults=False),
            self.function,
            [code_digest(place.split(":")[0]) for place in self.places],
        )

    @property
    def places(self) -> list[str]:
        """The code that the job runs: its function, and what papers' keys of its variant name."""
        return [self.function, *self.config.variant.extension_places()]

    @property
    def folder(self) -> Path:
        """Where the job keeps its state and its results: of folders with its key the first that no job under other defaults has."""
        place, options = (
            root() / ".lsvit" / "jobs" / self.function.split(":")[1],
            json.loads(json.dumps(self.config.effective())),
        )
        folders = (
            place / (f"{self.key}-{number}" if number else self.key) for number in itertools.count()
        )
        return next(
            each
            for each in folders
            if not (each / CONFIG).exists() or agree(read_json(each / CONFIG), options)
        )

    def begin(self, folder: Path) -> None:
        """Note every effective option in the job's `folder`, also of a finished job those that have come since."""
        file, options = folder / CONFIG, self.config.effective()
        before = read_json(file) if file.exists() else None
        noted = merged(before, options) if before else options
        if noted != before:
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_text(file, json.dumps(noted, indent=1) + "\n")

    def record(self) -> dict[str, Any]:
        """What the job is made with, but for defaults, for a reader of its results: the same for equal jobs of this data and model, which
        are averaged with others from the same first starting weights."""
        names = {"dataset": self.config.dataset, "model_name": self.config.model_name}
        first = {"first_weights_sha256": self.first} if self.first else {}
        return names | self.config.effective(defaults=False) | {"apart": list(self.apart)} | first

    @property
    def done(self) -> bool:
        """Finished, in this or an earlier run."""
        return (self.folder / DONE).exists()

    def finish(self, folder: Path) -> None:
        """Mark the job in its `folder` as finished, with the sha256 of what it left there."""
        left = {
            path.name: sha256(path)
            for path in sorted(folder.iterdir())
            if path.is_file() and path.name not in (CONFIG, LOCK)
        }
        replace_text(folder / DONE, json.dumps(left, indent=1) + "\n")

    def damaged(self) -> list[str]:
        """Names of what a finished job left and is no longer what it was; then it is one no more. An older version noted no checksums."""
        names, _ = self._damage()
        if names:
            with locked(
                self.folder, self.waits
            ):  # another run may have found the same, and have made it anew
                names, left = self._damage()
                for name in (
                    (DONE, *left) if names else ()
                ):  # a training whose history is there has ended
                    _remove(self.folder / name)
        return names

    def _damage(self) -> tuple[list[str], list[str]]:
        """Names of what a finished job left and is no longer what it was, and of all that it left; none of an unfinished one."""
        if not self.done:
            return [], []
        with reading(done := self.folder / DONE, f"remove {self.folder} and the job is run again"):
            noted = json.loads(done.read_text() or "{}")
            names = [name for name, digest in noted.items() if not has(self.folder / name, digest)]
        return names, [*noted]

    def waits(self) -> None:
        """Say that another run has the job's lock."""
        print(f"{self.title}: waits for another run of the same job", flush=True)


@contextmanager
def locked(folder: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold a job's lock: two experiments may want the same job."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        held = lock.acquire(timeout=1)
    except Timeout:
        on_wait()
        held = lock.acquire()
    with held:
        yield


@contextmanager
def all_locked(jobs: Iterable[Job]) -> Iterator[None]:
    """Hold the locks of several jobs, taken in one order, whoever asks: else two runs may wait for each other."""
    with ExitStack() as stack:
        for job in sorted(jobs, key=lambda job: job.folder):
            stack.enter_context(locked(job.folder, job.waits))
        yield


def call(job: Job, folder: Path, report: Callable[[Event], None]) -> None:
    """Run a job's function in this process. Raises UserError if the device has too little memory for it."""
    import torch

    module, name = job.function.split(":")
    for file in folder.glob("*.pt"):  # what an interrupted run goes on from
        if not sound(file):
            report({"text": f"{file.name} is damaged: what it had is computed again"})
            _remove(file)
    try:
        getattr(importlib.import_module(module), name)(
            job.config, **job.inputs, folder=folder, report=report
        )
    except torch.OutOfMemoryError as error:
        raise UserError(
            f"{job.title}: the device's memory is too small ({' '.join(str(error).split())[:120]}); accepted: a smaller "
            "batch_size, finetune.micro_batch_size, or finetune.checkpointing: true"
        ) from None


def has(path: Path, digest: str) -> bool:
    """Whether a file is there and has this sha256."""
    return path.is_file() and sha256(path) == digest


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _hash(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]
