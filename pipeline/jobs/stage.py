"""What a stage's script starts from: its process, its parameters, its tracker, its jobs."""

import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.config.load import load_checked
from pipeline.config.paper import LEFT_OUT, Paper
from pipeline.declared import clear, leave_empty
from pipeline.files import reading
from pipeline.jobs.events import Event
from pipeline.jobs.files import DATA, HELDOUT, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.machine import available_cores, describe_gpus
from pipeline.jobs.portable import cpu_kind, cpu_name, describe_exceptions
from pipeline.jobs.processes import root, start_workers
from pipeline.jobs.run import run
from pipeline.tracking.runs import STAGES, Tracker, experiment_name


class Stage:
    """A running stage.

    Args:
        module: of its jobs. Workers import it while the stage plans its jobs.
        papers: whose sections params.yaml has.
        of: whose trainings its tracker logs: a paper's, or those of "pretrain". A stage that trains
            nothing logs its results alone.
        section: of params.yaml, of a paper's stage. If the paper does not run, this process ends.
    """

    def __init__(
        self, module: str, papers: tuple[Paper, ...], of: str = STAGES, section: str = ""
    ) -> None:
        params = load_checked(papers=papers)
        if section and section not in [used.name for used in params.running_sections]:
            print(f"{section}: {LEFT_OUT}", flush=True)
            leave_empty(clear(section.replace("_", "-")), LEFT_OUT)
            raise SystemExit(0)
        start_workers(module, "timm", "papers", "pipeline.jobs.stage")
        with reading(DATA / "meta.json", "`dvc repro -f prepare-data` makes it again"):
            counts = read_meta(DATA)["counts"]
            self.params = params.with_sizes(
                counts["train"], counts["validation"], counts.get(HELDOUT, 0)
            )
        lines = [f"on {cpu_name()} ({cpu_kind()}), {available_cores()} cores"]
        if self.params.portable:
            lines += describe_exceptions()
        if self.params.device == "auto":
            lines += describe_gpus()
        print(*lines, sep="\n", flush=True)
        self.of = of
        self.tracker = Tracker(experiment_name(of, self.params.cell), root())
        self._trackers = {self.tracker.experiment: self.tracker}

    def tracker_of(self, dataset: str, of: str | None = None) -> Tracker:
        """The tracker of the experiment of a data set with the chosen model and scale."""
        cell = self.params.cell._replace(dataset=dataset)
        name = experiment_name(of or self.of, cell)
        if name not in self._trackers:
            self._trackers[name] = Tracker(name, root())
            self._trackers[name].failed = self.tracker.failed  # and has said so
        return self._trackers[name]

    def results(self, name: str) -> None:
        """Log what the stage of this name left in results/, the last thing that it does."""
        for tracker in self._trackers.values():
            tracker.stopped()
        self.tracker_of(self.params.dataset, STAGES).results(name)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run measurements, a thread each. Raises UserError as :func:`pipeline.jobs.run.run`."""
        run(jobs, self.params.device, engine=self.params.engine, workers=self.params.workers)

    def measure(self, name: str, plan: Any, keep: Callable[[Any, Any], object]) -> None:
        """All that a measuring stage does: run the plan's jobs, keep their rows, log results."""
        jobs = plan.jobs()
        self.run(list(jobs.values()))
        keep(plan, jobs)
        self.results(name)

    def train(self, jobs: Sequence[Job], threads: int, then: str = "") -> None:
        """Run trainings, spread over processes if params.yaml says so. Tracks their epochs.

        `then` is what follows in the stage, in words.
        """

        def track(job: Job, row: Event) -> None:
            self.tracker_of(job.config.dataset).epoch(job.config.title, job.record(), row)

        with terminated():
            try:
                run(
                    jobs,
                    self.params.device,
                    track,
                    threads,
                    self.params.distributed,
                    self.params.engine,
                    self.params.workers,
                    then,
                )
            except BaseException as error:
                # A session of MLflow that was interrupted would keep its database locked.
                traceback.clear_frames(error.__traceback__)
                for tracker in self._trackers.values():
                    tracker.stopped(error)
                raise


class _Terminated(BaseException):
    """SIGTERM has come."""


@contextmanager
def terminated() -> Iterator[None]:
    """Within the block SIGTERM raises, as SIGINT does, and then ends the process all the same."""

    def stop(*_: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
