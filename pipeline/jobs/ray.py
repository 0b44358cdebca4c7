"""Jobs on a Ray cluster: each a task on some node, whose files come back while it runs.

This process, the driver, holds everything that lasts. A job's state and its inputs go to a node as
bytes, and with every event come the files that have changed. Ray repeats no task: a job that lost
its node is sent again from here, with the newest state.
"""

import hashlib
import logging
import os
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from pipeline.config.sections import Distributed
from pipeline.errors import UserError, WorkerDied
from pipeline.jobs.address import ADDRESS, check_cluster
from pipeline.jobs.events import ENDED, Event, Events
from pipeline.jobs.files import read_meta, sha256
from pipeline.jobs.job import DONE, LOCK, Job, all_locked
from pipeline.jobs.pool import pool
from pipeline.jobs.processes import root, start_workers
from pipeline.jobs.spread import is_spread, spread

DEATHS = 4  # of a job's workers between two epochs: then it is the job's fault
GIB = 2**30
PATIENCE = 5  # seconds without a report after which the nodes are counted
PARTIAL = ".partial"
Files = dict[str, bytes | None]  # by name; None: the file is no longer there
State = dict[str, tuple[int, int]]  # by name: time of the last change, size
Resources = dict[str, float]  # Ray's names: CPU, GPU, memory in bytes


class Input(NamedTuple):
    """A file or folder that a job reads. A node that finds the same at this path takes its own."""

    path: Path
    digest: str


class Task(NamedTuple):
    """What a node needs to run a job."""

    job: Job
    code: str  # digest that the node's code must have
    inputs: Mapping[str, Input | None]  # by argument of the job's function
    shards: Mapping[Path, Input]  # by the place below the root that the images' metadata name
    sent: Mapping[Path, Any]  # references to what some node has missed, in Ray's object store
    state: Files
    device: str
    threads: int
    distributed: Distributed | None  # of a training in several processes


# ---- on a node --------------------------------------------------------------------------------


def work(task: Task) -> Generator[tuple[Event, Files], None, None]:
    """Run a job as the local engine does, in a folder of its own.

    Yields:
        Each of the job's events, with the files of its folder that have changed since the last. Or
        `missing` alone: the paths of inputs that the node does not see, and nobody has sent.

    Raises:
        UserError: a user's mistake, or this node has other code or libraries than the driver.
    """
    import ray

    node = f"{socket.gethostname()} {ray.util.get_node_ip_address()}"
    if task.job.code != task.code:
        raise UserError(
            f"{task.job.title}: node {node} has other code or libraries than the machine that "
            "sends the jobs; accepted: the same commit and `uv sync` on all of them"
        )
    needed = [each for each in (*task.inputs.values(), *task.shards.values()) if each]
    missing = [each.path for each in needed if each.path not in task.sent and not _is_here(each)]
    if missing:
        yield {"missing": missing}, {}
        return
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it, the local engine does not
    with tempfile.TemporaryDirectory(prefix="lsvit-", ignore_cleanup_errors=True) as place:
        os.environ["DVC_ROOT"] = place
        paths = {
            name: _receive(each, task.sent, Path(place)) if each else None
            for name, each in task.inputs.items()
        }
        for name, each in task.shards.items():
            link = Path(place, name)
            link.parent.mkdir(parents=True)
            link.symlink_to(_receive(each, task.sent, Path(place)))
        job = task.job.moved(Path(place, "job"), paths)
        write_files(job.folder, task.state)
        known = State()
        read_changes(job.folder, known)
        if task.distributed:
            events = spread([job], task.distributed, task.threads)
        else:
            start_workers(job.function.split(":")[0], "timm")
            events = pool([job], task.device, task.threads, _tasks_here())
        yield {"text": f"on node {node}"}, {}
        for _, event in events:
            if "text" in event:
                event = event | {"text": f"{event['text']}, on node {node}"}
            yield event, read_changes(job.folder, known)


def _tasks_here() -> int:
    """How many tasks like this one its node has room for."""
    import ray

    context = ray.get_runtime_context()
    (node,) = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    taken = context.get_assigned_resources()
    return int(min(node["Resources"][name] // taken[name] for name in taken if taken[name]))


def _is_here(wanted: Input) -> bool:
    return wanted.path.exists() and digest(wanted.path) == wanted.digest


def _receive(wanted: Input, sent: Mapping[Path, Any], place: Path) -> Path:
    """The path of an input: in a shared folder, or as it came through the object store."""
    import ray

    if _is_here(wanted):
        return wanted.path
    target = place / wanted.digest
    for name, content in ray.get(sent[wanted.path]).items():
        file = target / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return target / wanted.path.name


# ---- files as bytes ---------------------------------------------------------------------------


def files_of(path: Path) -> dict[str, Path]:
    """The files of a folder, or a file alone, by their names with the folder's."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {str(file.relative_to(path.parent)): file for file in files if file.is_file()}


def digest(path: Path) -> str:
    """The sha256 of a file; of a folder that of names, sizes and JSON files (sha256 of images)."""
    if path.is_file():
        return sha256(path)
    whole = hashlib.sha256()
    for name, file in files_of(path).items():
        content = sha256(file) if file.suffix == ".json" else ""
        whole.update(f"{name} {file.stat().st_size} {content}\n".encode())
    return whole.hexdigest()


def read_changes(folder: Path, known: State) -> Files:
    """Read the files that are not as `known` says, as they stand at one moment. Updates `known`."""
    while True:
        state = _state(folder)
        names = [name for name in state if state[name] != known.get(name)]
        names.sort(key=lambda name: state[name])  # as they were written
        with suppress(FileNotFoundError):
            files: Files = {name: (folder / name).read_bytes() for name in names}
            if _state(folder) == state:
                break
    files |= {name: None for name in known if name not in state}
    known.clear()
    known.update(state)
    return files


def _state(folder: Path) -> State:
    state = State()
    for file in folder.glob("*"):
        with suppress(FileNotFoundError):
            if file.suffix != PARTIAL and file.name not in (DONE, LOCK):
                state[file.name] = (file.stat().st_mtime_ns, file.stat().st_size)
    return state


def write_files(folder: Path, files: Files) -> None:
    """Take a job's files over; a kill at any moment leaves each as it was or as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        target = folder / Path(name).name  # no node chooses another folder
        if content is None:
            target.unlink(missing_ok=True)
        else:
            partial = target.with_suffix(PARTIAL)
            partial.write_bytes(content)
            partial.replace(target)


# ---- the driver -------------------------------------------------------------------------------


def connect(**alone: Any) -> None:
    """Join the cluster at RAY_ADDRESS; without an address start one of this machine alone.

    The latter listens on 127.0.0.1 and ends with the process. Where Ray has been initialised in
    this process, its cluster is taken.

    Args:
        alone: options of `ray.init` for the latter.

    Raises:
        UserError: Ray does not start, or there is no cluster of these versions.
    """
    check_cluster()
    address = os.environ.get(ADDRESS)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # `uv run` would send this folder to nodes
    if address is None or address.startswith(("127.", "localhost:")):
        # Ray's name for: 127.0.0.1 is not to become the machine's own address.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = {}
    if not address:
        options = {"_node_ip_address": "127.0.0.1", "include_dashboard": False} | alone
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", **options, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, SystemExit) as error:
        reason = " ".join(str(error).split())[:200]
        if not address:
            raise UserError(f"Ray does not start on this machine: {reason}") from None
        raise UserError(
            f"{ADDRESS}: found {address!r}, no cluster to join ({reason}); accepted: host:port of "
            "a cluster that this machine is part of, or auto; with RAY_AUTH_MODE=token where the "
            "cluster has a token"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, terminated)  # Ray puts its own in its place


def has_gpus() -> bool:
    """Whether some node of the cluster has a GPU. Raises UserError as :func:`connect`."""
    connect()
    return any(node.get("GPU") for node in _nodes())


def run_on_cluster(
    todo: Sequence[Job], device: str, threads: int, distributed: Distributed | None = None
) -> Events:
    """The events of jobs on the nodes of the cluster, all of them at once if there is room.

    A training in several processes has all of them on one node.

    Raises:
        UserError: no Ray, no cluster, no node that could run a job, a node with other code, or a
            job whose workers always die.
    """
    connect()
    with all_locked(todo):
        for job in todo:
            job.begin()
        driver = _Driver(todo, device, threads, distributed)
        try:
            yield from driver.run()
        finally:
            driver.stop()


def _nodes() -> list[Resources]:
    """What the living nodes have."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class _Driver:
    """Sends jobs to nodes, keeps what comes back, and sends again what is lost."""

    def __init__(
        self, todo: Sequence[Job], device: str, threads: int, distributed: Distributed | None
    ) -> None:
        self.todo = todo
        self.device = device
        self.threads = threads
        self.distributed = [distributed if is_spread(job, distributed) else None for job in todo]
        self.processes = [each.processes if each else 1 for each in self.distributed]
        self.memory = [*self.processes]  # GiB that a job is given
        self.gpus = device != "cpu" and any(node.get("GPU") for node in _nodes())
        self.sent: dict[Path, Any] = {}
        self.deaths: Counter[int] = Counter()
        self.running: dict[Any, int] = {}  # index of the job by its stream of events

    def run(self) -> Events:
        """Events as they come, until every job has ended."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        for i in range(len(self.todo)):
            self.submit(i)
        while self.running:
            ready, _ = ray.wait(list(self.running), timeout=PATIENCE, fetch_local=False)
            if not ready:
                self.check_nodes(*self.running.values())
            for stream in cast(list[Any], ready):
                i = self.running[stream]
                try:
                    event, files = ray.get(next(stream))
                except StopIteration:
                    del self.running[stream]
                except RayError as error:  # also of a node that died or has too little memory
                    del self.running[stream]
                    cause = error.cause if isinstance(error, RayTaskError) else error
                    if isinstance(cause, WorkerDied) or not isinstance(error, RayTaskError):
                        yield i, self.resubmit(i, cause)
                    else:
                        raise cause from error
                else:
                    if "missing" in event:
                        del self.running[stream]
                        self.send(event["missing"])
                        self.submit(i)
                        continue
                    write_files(self.todo[i].folder, files)
                    if event == ENDED:
                        self.todo[i].finish()
                    if "epoch" in event:
                        self.deaths[i] = 0
                    yield i, event

    def submit(self, i: int) -> None:
        """Send a job to whichever node has room for it."""
        import ray

        self.check_nodes(i)
        job = self.todo[i]
        shards: dict[Path, Input] = {}
        for path in job.inputs.values():
            if path and (path / "meta.json").is_file():
                for files in read_meta(path).get("shards", {}).values():
                    for shard in files:
                        place = Path(shard["file"]).parent
                        shards[place] = _input(root() / place)
        task = Task(
            job=job,
            code=job.code,
            inputs={name: _input(path) if path else None for name, path in job.inputs.items()},
            shards=shards,
            sent=self.sent,
            state=read_changes(job.folder, State()),
            device=self.device,
            threads=self.threads,
            distributed=self.distributed[i],
        )
        needs = self.needs(i)
        remote: Any = ray.remote(num_returns="streaming", max_retries=0)(work)
        remote = remote.options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], memory=needs["memory"], name=job.title
        )
        self.running[remote.remote(task)] = i

    def send(self, paths: Sequence[Path]) -> None:
        """Put inputs into Ray's object store, from which all nodes take them."""
        import ray

        for path in set(paths) - set(self.sent):
            content = {name: file.read_bytes() for name, file in files_of(path).items()}
            self.sent[path] = ray.put(content)

    def needs(self, i: int) -> Resources:
        """What a job takes of its node."""
        processes = self.processes[i]
        gpus = processes if self.gpus else 0
        return {"CPU": self.threads * processes, "GPU": gpus, "memory": self.memory[i] * GIB}

    def check_nodes(self, *jobs: int) -> None:
        """Raises UserError: no living node could ever run one of the jobs."""
        nodes = _nodes()
        for i in jobs:
            needs = self.needs(i)
            if not any(all(n.get(key, 0) >= needs[key] for key in needs) for n in nodes):
                there = "; ".join(sorted(map(_amounts, nodes))) or "none"
                raise UserError(
                    f"{self.todo[i].title}: no node of the cluster can run it: needs "
                    f"{_amounts(needs)}, found nodes with {there}; finished epochs are kept"
                )

    def resubmit(self, i: int, error: Exception) -> Event:
        """Send a job again whose worker died. Raises UserError: it has died again and again."""
        from ray.exceptions import OutOfMemoryError

        self.deaths[i] += 1
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        if self.deaths[i] == DEATHS:
            raise UserError(
                f"{self.todo[i].title}: its worker died {DEATHS} times without finishing an epoch, "
                f"the last time: {reason}; finished epochs are kept, the next run goes on there"
            )
        if isinstance(error, OutOfMemoryError):
            self.memory[i] *= 2  # fewer jobs beside it
        self.submit(i)
        return {"text": f"lost its worker, goes on elsewhere ({reason})"}

    def stop(self) -> None:
        """End what runs."""
        import ray

        for stream in self.running:
            with suppress(Exception):  # the cluster itself may be gone
                ray.cancel(stream, force=True)


@cache
def _input(path: Path) -> Input:
    return Input(path.absolute(), digest(path))


def _amounts(has: Resources) -> str:
    memory = has.get("memory", 0) / GIB
    return f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs, {memory:.1f} GiB"
