"""Run jobs, by the engine that each of them needs. No other module knows the engines."""

from collections.abc import Callable, Sequence
from contextlib import closing

from pipeline.config.params import Engine
from pipeline.config.sections import Distributed
from pipeline.jobs.display import Display
from pipeline.jobs.events import Event, Events
from pipeline.jobs.job import Job
from pipeline.jobs.pool import pool
from pipeline.jobs.processes import root
from pipeline.jobs.spread import is_spread, spread

OnEpoch = Callable[[Job, Event], None]


def run(
    jobs: Sequence[Job],
    device: str = "auto",
    on_epoch: OnEpoch | None = None,
    threads: int = 1,
    distributed: Distributed | None = None,
    engine: Engine = "local",
    workers: int | None = None,
    then: str = "",
) -> None:
    """Run the unfinished jobs in parallel and show their progress.

    Args:
        jobs: to run. Jobs of several names may be the same: they run once.
        device: as in params.yaml. Each job takes a GPU, or without one `threads` cores.
        on_epoch: receives every finished epoch's metrics.
        threads: cores that a job takes.
        distributed: where it asks for several processes a training, torchrun starts them, one
            training after another, after all other jobs.
        then: what the stage does after these jobs, in words.
        engine: "ray" runs all on the nodes of a cluster but trainings over several machines.
        workers: jobs side by side on this machine; None: as many as it has GPUs, or cores for.

    Raises:
        UserError: a job made a user's mistake, or its process died; what has finished is kept.
    """
    todo: dict[str, Job] = {}
    for job in jobs:
        place = job.folder.relative_to(root().resolve())
        if damaged := job.discard_damaged():
            names = ", ".join(damaged)
            print(f"{job.title}: {names} in {place} damaged since it finished, run again")
        if job.done:
            print(f"{job.title}: finished before, taken from {place}", flush=True)
        else:
            todo.setdefault(job.key, job)

    ray_jobs: list[Job] = []
    pool_jobs: list[Job] = []
    spread_jobs: list[Job] = []
    for job in todo.values():
        several = is_spread(job, distributed)
        over_machines = several and distributed is not None and distributed.nodes > 1
        if engine == "ray" and not job.here and not over_machines:
            ray_jobs.append(job)
        elif several:
            spread_jobs.append(job)
        else:
            pool_jobs.append(job)

    started: list[tuple[list[Job], Events]] = []  # generators, which run when they are read
    if ray_jobs:
        from pipeline.jobs.ray import run_on_cluster

        started.append((ray_jobs, run_on_cluster(ray_jobs, device, threads, distributed)))
    if pool_jobs:
        started.append((pool_jobs, pool(pool_jobs, device, threads, workers)))
    if spread_jobs and distributed:
        started.append((spread_jobs, spread(spread_jobs, distributed, threads)))
    for group, events in started:
        titles = [(job.title, job.total) for job in group]
        with Display(titles, then) as display, closing(events):
            for i, event in events:
                display.show(i, event)
                if on_epoch and "epoch" in event:
                    on_epoch(group[i], event)
