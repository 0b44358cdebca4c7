"""Jobs on a Ray cluster: each a task on some node, which works in the job's own folder.

All nodes share the repository's folder, at the same path, and the data. So a task reads and writes
what a job of this machine would, and Ray carries its events alone. Ray repeats no task: a job that
lost its node is sent again from here, and goes on from its last epoch.
"""

import logging
import os
import signal
import socket
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, cast

from pipeline.config.sections import Distributed
from pipeline.errors import UserError, WorkerDied
from pipeline.jobs.address import ADDRESS, check_cluster
from pipeline.jobs.environment import prepare_environment
from pipeline.jobs.events import Event, Events
from pipeline.jobs.job import Job
from pipeline.jobs.machine import available_cores, use_short_temporary_folder
from pipeline.jobs.pool import pool
from pipeline.jobs.portable import use_portable_kernels
from pipeline.jobs.processes import root, start_workers
from pipeline.jobs.spread import is_spread, spread

DEATHS = 4  # of a job's workers between two epochs: then it is the job's fault
GIB = 2**30
SESSION_NAME = 68  # characters that Ray adds to its folder, for sockets
PATIENCE = 5  # seconds without a report after which the nodes are counted
Resources = dict[str, float]  # Ray's names: CPU, GPU, memory in bytes


# ---- on a node --------------------------------------------------------------------------------


def work(
    job: Job,
    code: str,
    place: Path,
    marker: Path,
    folder: Path,
    device: str,
    threads: int,
    distributed: Distributed | None,
) -> Iterator[Event]:
    """Run a job as the local engine does. Yields its events.

    Args:
        job: to run.
        code: digest that the node's code must have.
        place: the repository that jobs belong to.
        marker: a folder there that the driver has just made, under a random name.
        folder: the driver's working folder.
        device: as in params.yaml.
        threads: cores that a process takes.
        distributed: of a training in several processes.

    Raises:
        UserError: a user's mistake, or this node has other code or libraries than the driver, or
            does not see its folders.
    """
    import ray

    node = f"{socket.gethostname()} {ray.util.get_node_ip_address()}"
    if job.code != code:
        raise UserError(
            f"{job.title}: node {node} has other code or libraries than the machine that "
            "sends the jobs; accepted: the same commit and `uv sync` on all of them"
        )
    inputs = [folder / path for path in job.inputs.values() if path]
    for needed in (marker, folder, *inputs):
        if not needed.exists():
            raise UserError(
                f"{job.title}: node {node} does not see {needed}; accepted: a repository and data "
                "that all nodes share, at the same path"
            )
    os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it, the local engine does not
    os.environ["DVC_ROOT"] = str(place)
    use_portable_kernels(job.config.portable)
    prepare_environment()
    os.chdir(folder)
    if distributed:
        events = spread([job], distributed, threads)
    else:
        start_workers(job.function.split(":")[0], "timm")
        events = pool([job], device, threads)
    yield {"text": f"on node {node}"}
    for _, event in events:
        if "text" in event:
            event = event | {"text": f"{event['text']}, on node {node}"}
        yield event


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
        use_short_temporary_folder(SESSION_NAME, "RAY_TMPDIR")
        options = {
            "num_cpus": available_cores(),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        } | alone
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", **options, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, SystemExit) as error:
        reason = " ".join(str(error).split())
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
    todo: Sequence[Job], device: str, threads: int, distributed: Distributed | None
) -> Events:
    """The events of jobs on the nodes of the cluster, all of them at once if there is room.

    A training in several processes has all of them on one node.

    Raises:
        UserError: no Ray, no cluster, no node that could run a job, a node with other code or
            without this folder, or a job whose workers always die.
    """
    connect()
    place = root().resolve() / ".lsvit"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ray-", dir=place) as marker:
        driver = _Driver(todo, Path(marker), device, threads, distributed)
        try:
            yield from driver.run()
        finally:
            driver.stop()


def _nodes() -> list[Resources]:
    """What the living nodes have."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@dataclass
class _Driver:
    """Sends jobs to nodes, and sends again what is lost."""

    todo: Sequence[Job]
    marker: Path
    device: str
    threads: int
    distributed: Distributed | None
    needs: list[Resources] = field(default_factory=list)  # what a job takes of its node
    deaths: Counter[int] = field(default_factory=Counter)
    running: dict[Any, int] = field(default_factory=dict)  # job's index by its stream of events

    def __post_init__(self) -> None:
        uses_gpus = self.device != "cpu" and has_gpus()
        for job in self.todo:
            several = self.spread_of(job)
            count = several.processes if several else 1
            memory = max(count, ceil(job.memory / GIB)) * GIB
            gpus = count if uses_gpus else 0
            self.needs.append({"CPU": self.threads * count, "GPU": gpus, "memory": memory})

    def spread_of(self, job: Job) -> Distributed | None:
        """How a job is spread over processes, if it is."""
        return self.distributed if is_spread(job, self.distributed) else None

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
                    event = ray.get(next(stream))
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
                    if "epoch" in event:
                        self.deaths[i] = 0
                    yield i, event

    def submit(self, i: int) -> None:
        """Send a job to whichever node has room for it."""
        import ray

        self.check_nodes(i)
        job, needs = self.todo[i], self.needs[i]
        remote: Any = ray.remote(work)
        remote = remote.options(
            num_returns="streaming",
            max_retries=0,
            num_cpus=needs["CPU"],
            num_gpus=needs["GPU"],
            memory=needs["memory"],
            name=job.title,
        )
        stream = remote.remote(
            job,
            job.code,
            root().resolve(),
            self.marker,
            Path.cwd(),
            self.device,
            self.threads,
            self.spread_of(job),
        )
        self.running[stream] = i

    def check_nodes(self, *jobs: int) -> None:
        """Raises UserError: no living node could ever run one of the jobs."""
        nodes = _nodes()
        for i in jobs:
            needs = self.needs[i]
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
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        if self.deaths[i] == DEATHS:
            raise UserError(
                f"{self.todo[i].title}: its worker died {DEATHS} times without finishing an epoch, "
                f"the last time: {reason}; finished epochs are kept, the next run goes on there"
            )
        if isinstance(error, OutOfMemoryError):
            self.needs[i]["memory"] *= 2  # fewer jobs beside it
        self.submit(i)
        return {"text": f"lost its worker, goes on elsewhere ({reason})"}

    def stop(self) -> None:
        """End what runs."""
        import ray

        for stream in self.running:
            with suppress(Exception):  # the cluster itself may be gone
                ray.cancel(stream, force=True)


def _amounts(has: Resources) -> str:
    memory = has.get("memory", 0) / GIB
    return f"{has.get('CPU', 0):g} CPUs, {has.get('GPU', 0):g} GPUs, {memory:.1f} GiB"
