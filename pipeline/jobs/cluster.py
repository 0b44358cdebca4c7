"""Jobs on a Ray cluster: each a task on some node, where it runs as it would here; its files come back while it runs.

The driver, this process, holds everything that lasts: what a job starts from goes to its node with it, and with every report come
the files that have changed since the last one. A node may die at any time. Tasks are no actors and Ray repeats none of them:
a job that lost its node is sent again from here, with the newest state.
"""

import logging
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

from pipeline.config.sections import Distributed
from pipeline.errors import UserError, WorkerDied
from pipeline.jobs.address import ADDRESS, check_cluster
from pipeline.jobs.display import Event
from pipeline.jobs.files import read_meta
from pipeline.jobs.job import Job, all_locked
from pipeline.jobs.node import Input, Missing, Task, changed, content, digest, keep, work
from pipeline.jobs.processes import root
from pipeline.jobs.spread import Events, is_spread

DEATHS = 4  # of a job's workers between two epochs: then it is the job's fault
GIB = 2**30
PATIENCE = 5  # seconds without a report after which the nodes are counted


def cluster(
    todo: Sequence[Job], device: str, threads: int, distributed: Distributed | None = None
) -> Events:
    """The events, (job's index, event), of jobs on the nodes of the cluster at RAY_ADDRESS, all of them at once if there is room.

    A training in several processes has all of them on one node.

    Raises:
        UserError: no Ray, no cluster, no node that could run a job, a node with other code, or a job whose workers always die.
    """
    check_cluster()
    connect()
    with all_locked(todo):
        for job in todo:
            job.begin(job.folder)
        driver = _Driver(todo, device, threads, distributed)
        try:
            yield from driver.run()
        finally:
            driver.stop()


def connect(**alone: Any) -> None:
    """Join the cluster at RAY_ADDRESS; without an address one of this machine alone, which listens on 127.0.0.1 and ends with the process.

    Args:
        alone: options of `ray.init` for the latter.

    Raises:
        UserError: Ray does not start, or there is no cluster of these versions.
    """
    address = os.environ.get(ADDRESS)
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }  # else `uv run` sends this folder to all nodes
    if address is None or address.startswith(("127.", "localhost:")):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
            "0"  # Ray's name for: 127.0.0.1 is not to become the machine's own address
        )
    import ray

    if ray.is_initialized():
        return
    options: dict[str, Any] = (
        {} if address else {"_node_ip_address": "127.0.0.1", "include_dashboard": False} | alone
    )
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or "local", **options, log_to_driver=False, logging_level=logging.ERROR)
    except (
        OSError,
        RuntimeError,
        ValueError,
        SystemExit,
    ) as error:  # Python's and Ray's versions; that is no cluster, and Ray gives up
        said = " ".join(str(error).split())[:200]
        if not address:
            raise UserError(f"Ray does not start on this machine: {said}") from None
        raise UserError(
            f"{ADDRESS}: found {address!r}, no cluster to join ({said}); "
            "accepted: host:port of a cluster that this machine is part of, or auto; with RAY_AUTH_MODE=token "
            "where the cluster has a token"
        ) from None
    finally:
        signal.signal(signal.SIGTERM, terminated)  # Ray puts its own in its place


Resources = dict[str, float]  # Ray's names: CPU, GPU, memory in bytes


def slots(device: str, threads: int, processes: int) -> int:
    """How many jobs of so many processes the cluster runs side by side, each on one node. Raises UserError: none at all."""
    check_cluster()
    connect()
    nodes = _nodes()
    wanted = _needs(threads, processes, _gpus(device, nodes), processes)
    _check(nodes, wanted, "a training")
    return sum(
        min(int(node.get(kind, 0) // amount) for kind, amount in wanted.items() if amount)
        for node in nodes
    )


def _nodes() -> list[Resources]:
    """What the living nodes have."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _gpus(device: str, nodes: Sequence[Resources]) -> bool:
    """Whether each process takes a GPU: where some node has one."""
    return device != "cpu" and any(node.get("GPU") for node in nodes)


def _needs(threads: int, processes: int, gpus: bool, memory: int) -> Resources:
    """What a job of so many processes takes of its node, `memory` in GiB."""
    return {"CPU": threads * processes, "GPU": int(gpus) * processes, "memory": memory * GIB}


def _check(nodes: Sequence[Resources], wanted: Resources, title: str) -> None:
    """Raises UserError: none of the nodes could ever run this."""
    if not any(
        all(node.get(kind, 0) >= amount for kind, amount in wanted.items()) for node in nodes
    ):
        has = "; ".join(sorted(map(_amounts, nodes))) or "none"
        raise UserError(
            f"{title}: no node of the cluster can run it: needs {_amounts(wanted)}, found nodes with {has}; finished epochs "
            "are kept"
        )


class _Driver:
    """Sends jobs to nodes, keeps what comes back, and sends again what is lost."""

    def __init__(
        self, todo: Sequence[Job], device: str, threads: int, distributed: Distributed | None
    ) -> None:
        self.todo, self.device, self.threads = todo, device, threads
        self.distributed = [distributed if is_spread(job, distributed) else None for job in todo]
        self.processes = [each.processes if each else 1 for each in self.distributed]
        self.inputs: dict[Path, Input] = {}
        self.sent: dict[Path, Any] = {}
        self.deaths: Counter[int] = Counter()
        self.memory = [*self.processes]  # GiB that a job is given
        self.gpus = _gpus(device, _nodes())
        self.running: dict[Any, int] = {}

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
                except RayTaskError as error:
                    del self.running[stream]
                    if isinstance(error.cause, Missing):
                        for path in set(error.cause.args[0]) - set(
                            self.sent
                        ):  # into Ray's object store, from which all nodes take it
                            self.sent[path] = ray.put(
                                {name: file.read_bytes() for name, file in content(path).items()}
                            )
                        self.submit(i)
                    elif isinstance(error.cause, WorkerDied):
                        yield i, self.lost(i, error.cause)
                    else:
                        raise error.cause from error
                except (
                    RayError
                ) as error:  # the node or Ray's own process there died, or has too little memory
                    del self.running[stream]
                    yield i, self.lost(i, error)
                else:
                    keep(self.todo[i].folder, files)
                    if "epoch" in event:
                        self.deaths[i] = 0
                    yield i, event

    def submit(self, i: int) -> None:
        """Send a job to whichever node has room for it."""
        import ray

        job = self.todo[i]
        inputs = {name: self.input(path) if path else None for name, path in job.inputs.items()}
        images = [path for path in job.inputs.values() if path and (path / "meta.json").is_file()]
        listed = [
            shards for path in images for shards in read_meta(path).get("shards", {}).values()
        ]
        shards = {
            Path(shard["file"]).parent: self.input((root() / shard["file"]).parent)
            for shard in chain(*listed)
        }
        self.check_nodes(i)
        task = Task(
            job,
            job.key,
            inputs,
            shards,
            self.sent,
            changed(job.folder, {}),
            self.device,
            self.threads,
            self.distributed[i],
        )
        remote: Any = ray.remote(num_returns="streaming", max_retries=0)(work)
        needs = self.needs(i)
        options = {
            "num_cpus": needs["CPU"],
            "num_gpus": needs["GPU"],
            "memory": needs["memory"],
            "name": job.title,
        }
        self.running[remote.options(**options).remote(task)] = i

    def needs(self, i: int) -> Resources:
        """What a job takes of its node."""
        return _needs(self.threads, self.processes[i], self.gpus, self.memory[i])

    def check_nodes(self, *jobs: int) -> None:
        """Raises UserError: no living node could ever run one of the jobs."""
        nodes = _nodes()
        for i in jobs:
            _check(nodes, self.needs(i), self.todo[i].title)

    def input(self, path: Path) -> Input:
        """A file or folder as it is told to nodes; looked at once."""
        path = path.absolute()
        if path not in self.inputs:
            self.inputs[path] = Input(path, digest(path))
        return self.inputs[path]

    def lost(self, i: int, error: Exception) -> Event:
        """Send a job again whose worker died. Raises UserError: that happens again and again."""
        from ray.exceptions import OutOfMemoryError

        self.deaths[i] += 1
        reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
        if self.deaths[i] == DEATHS:
            raise UserError(
                f"{self.todo[i].title}: its worker died {DEATHS} times without finishing an epoch, the last time: {reason}; "
                "finished epochs are kept, the next run goes on from there"
            )
        if isinstance(error, OutOfMemoryError):
            self.memory[i] *= 2  # fewer beside it
        self.submit(i)
        return {"text": f"lost its worker, goes on elsewhere ({reason})"}

    def stop(self) -> None:
        """End what runs."""
        import ray

        for stream in self.running:
            with suppress(Exception):  # the cluster itself may be gone
                ray.cancel(stream, force=True)


def _amounts(node: Mapping[str, float]) -> str:
    return f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs, {node.get('memory', 0) / GIB:.1f} GiB"
