"""A job on a node of a Ray cluster, in a folder of its own: what goes there with it, and what comes back while it runs."""

import hashlib
import os
import socket
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config.sections import Distributed
from pipeline.errors import UserError, WorkerDied
from pipeline.jobs.display import Event
from pipeline.jobs.files import sha256
from pipeline.jobs.job import DONE, LOCK, Job
from pipeline.jobs.pool import pool, warm_up
from pipeline.jobs.processes import root
from pipeline.jobs.spread import LOG, Events, spread

UNFINISHED = ".partial"
Files = dict[str, bytes | None]  # by name in a job's folder; None: is no longer there
State = dict[str, tuple[int, int]]  # by name: time of the last change, size


class Input(NamedTuple):
    """A file or folder that a job reads. A node takes its own where it finds the same at this path: a shared folder."""

    path: Path
    digest: str


class Missing(Exception):
    """A node does not see these inputs: (paths)."""


class Task(NamedTuple):
    """What a node needs to run a job."""

    job: Job
    key: str
    inputs: Mapping[str, Input | None]  # by argument of the job's function
    shards: Mapping[
        Path, Input
    ]  # by the place below the repository's root that the metadata of prepared images name
    sent: Mapping[
        Path, Any
    ]  # of inputs that some node has missed: references to their content in Ray's object store
    state: Files
    device: str
    threads: int
    distributed: Distributed | None  # of a training in several processes


def work(task: Task) -> Generator[tuple[Event, Files], None, None]:
    """On a node: run a job as the local engine does, in a folder of its own.

    Yields:
        Each of the job's events, with the files of its folder that have changed since the last one.

    Raises:
        UserError: the job made a user's mistake, or this node has other code or libraries than the driver.
        Missing: the node does not see an input, and nobody has sent it.
    """
    import ray

    node = f"{socket.gethostname()} {ray.util.get_node_ip_address()}"
    job = replace(task.job)  # without what was cached
    if job.key != task.key:
        raise UserError(
            f"{job.title}: node {node} has other code of lsvit, torch or timm than the machine that sends the jobs; "
            "accepted: the same commit and `uv sync` on all of them"
        )
    inputs = [each for each in (*task.inputs.values(), *task.shards.values()) if each]
    if absent := [each.path for each in inputs if each.path not in task.sent and not _here(each)]:
        raise Missing(absent)
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it, the local engine does not
    with tempfile.TemporaryDirectory(prefix="lsvit-", ignore_cleanup_errors=True) as place:
        os.environ["DVC_ROOT"] = place
        job = replace(
            job,
            inputs={
                name: each and _fetch(each, task.sent, Path(place))
                for name, each in task.inputs.items()
            },
        )
        for name, each in task.shards.items():
            link = Path(place, name)
            link.parent.mkdir(parents=True)
            link.symlink_to(_fetch(each, task.sent, Path(place)))
        folder, known = job.folder, State()
        keep(folder, task.state)
        changed(folder, known)
        yield {"text": f"on node {node}"}, {}
        for _, event in _events(job, task, node):
            if "text" in event:
                event = event | {"text": f"{event['text']}, on node {node}"}
            yield event, changed(folder, known)


def _events(job: Job, task: Task, node: str) -> Events:
    """The job run as the local engine does: in a worker process, or in those of a torchrun."""
    if not task.distributed:
        warm_up(job.function.split(":")[0])
        yield from pool([job], task.device, task.threads)
        return
    try:
        yield from spread([job], task.distributed, task.threads)
    except WorkerDied:  # the log's folder goes with the job's
        for log in root().glob(f".lsvit/torchrun/*/{LOG}"):
            sys.stderr.write(log.read_text())
        raise WorkerDied(
            f"a process of the training died (Ray's log of the worker on node {node} has torchrun's)"
        ) from None


def _here(wanted: Input) -> bool:
    """Whether this node sees an input at its path."""
    return wanted.path.exists() and digest(wanted.path) == wanted.digest


def _fetch(wanted: Input, sent: Mapping[Path, Any], place: Path) -> Path:
    """An input in a shared folder, or as it came through the object store."""
    import ray

    if _here(wanted):
        return wanted.path
    target = place / wanted.digest
    for name, found in ray.get(sent[wanted.path]).items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found)
    return target / wanted.path.name


def content(path: Path) -> dict[str, Path]:
    """The files of a folder, or a file alone, by their names with the folder's."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path.parent)): file for file in files if file.is_file()}


def digest(path: Path) -> str:
    """Identity of a file, or of a folder: names and sizes of its files, and what its JSON files hold (the sha256 of images)."""
    if path.is_file():
        return sha256(path)
    parts = [
        f"{name} {file.stat().st_size} {sha256(file) if file.suffix == '.json' else ''}"
        for name, file in content(path).items()
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def changed(folder: Path, known: State) -> Files:
    """The files of a job's folder that are not as `known` says, in the order in which they were written; `known` becomes what they are.

    They are read as they stand at one moment: as a kill at this moment would have left them.
    """
    while True:
        found = _state(folder)
        names = [name for name in found if found[name] != known.get(name)]
        names.sort(
            key=lambda name: (name == DONE, found[name][0])
        )  # clocks of file systems tick slowly
        with suppress(FileNotFoundError):
            files: Files = {name: (folder / name).read_bytes() for name in names}
            if _state(folder) == found:
                break
    files |= {name: None for name in known if name not in found}
    known.clear()
    known.update(found)
    return files


def _state(folder: Path) -> State:
    found = State()
    for file in folder.glob("*"):
        with suppress(FileNotFoundError):
            if file.suffix != UNFINISHED and file.name != LOCK:
                found[file.name] = (file.stat().st_mtime_ns, file.stat().st_size)
    return found


def keep(folder: Path, files: Files) -> None:
    """Take a job's files over in their order; a kill at any moment leaves each as it was or as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, found in files.items():
        target = folder / Path(name).name  # nothing from elsewhere chooses another folder
        if found is None:
            target.unlink(missing_ok=True)
            continue
        unfinished = target.with_suffix(UNFINISHED)
        unfinished.write_bytes(found)
        unfinished.replace(target)
