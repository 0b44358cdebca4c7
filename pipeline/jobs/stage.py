"""What a stage's script starts from: its parameters, its tracker, and a way to run jobs."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.config.load import load
from pipeline.config.paper import Paper
from pipeline.files import reading
from pipeline.jobs.display import Event
from pipeline.jobs.files import DATA, HELDOUT, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.pool import run, warm_up
from pipeline.jobs.processes import root
from pipeline.tracking.runs import STAGES, Tracker, experiment_name


class Stage:
    """A running stage.

    Args:
        module: of its jobs; workers import it while the stage reads its parameters.
        papers: whose sections params.yaml has.
        of: whose trainings its tracker logs: a paper's, or those of "pretrain"; a stage that trains nothing logs its results alone.
    """

    def __init__(self, module: str, papers: tuple[Paper, ...], of: str = STAGES) -> None:
        warm_up(module)
        with reading(DATA / "meta.json", "`dvc repro -f prepare-data` makes it again"):
            counts = read_meta(DATA)["counts"]
            sizes = counts["train"], counts["validation"], counts.get(HELDOUT, 0)
        self.params, self.of = load(papers=papers).with_sizes(*sizes), of
        self.tracker = Tracker(experiment_name(of, self.params.cell), root())

    def tracker_of(self, dataset: str, of: str | None = None) -> Tracker:
        """Logs to the experiment of a data set with the chosen model and scale."""
        cell = self.params.cell._replace(dataset=dataset)
        if (name := experiment_name(of or self.of, cell)) == self.tracker.experiment:
            return self.tracker
        found = Tracker(name, root())
        found.failed = self.tracker.failed  # and has said so
        return found

    def results(self, name: str) -> None:
        """Log what the stage of this name left in results/."""
        self.tracker_of(self.params.dataset, STAGES).results(name)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run measurements, a thread each. Raises UserError as :func:`pipeline.jobs.pool.run` does."""
        run(jobs, self.params.device, engine=self.params.engine)

    def train(self, jobs: Sequence[Job], threads: int) -> None:
        """Run trainings, spread over processes if params.yaml asks for that; epochs are tracked as they end."""

        def on_epoch(job: Job, row: Event) -> None:
            self.tracker.epoch(job.config.title, job.record(), row)

        with terminated():
            try:
                run(
                    jobs,
                    self.params.device,
                    on_epoch,
                    threads,
                    self.params.distributed,
                    self.params.engine,
                )
            except BaseException as error:
                self.tracker.stopped(error)
                raise


class _Terminated(BaseException):
    """SIGTERM has come."""


@contextmanager
def terminated() -> Iterator[None]:
    """Let SIGTERM raise, as SIGINT does, so that what is under way is left in order; then the process ends by the signal all the same."""

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
