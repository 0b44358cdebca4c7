"""What a stage's script starts from: its parameters, its tracker, and a way to run jobs."""

from collections.abc import Sequence

from lsvit.config.params import load
from lsvit.jobs.display import Event
from lsvit.jobs.job import Job
from lsvit.jobs.pool import run, warm_up
from lsvit.jobs.processes import root
from lsvit.tracking import Tracker


class Stage:
    """A running stage.

    Args:
        module: of its jobs; workers import it while the stage reads its parameters.
    """

    def __init__(self, module: str) -> None:
        warm_up(module)
        self.params = load()
        self.tracker = self.tracker_of(self.params.dataset)

    def tracker_of(self, dataset: str) -> Tracker:
        """Logs to the experiment of a data set with the chosen model and scale."""
        return Tracker(f"{dataset}/{self.params.model}/{self.params.scale_of(self.params.model)}", root())

    def run(self, jobs: Sequence[Job]) -> None:
        """Run measurements, a thread each. Raises UserError as :func:`lsvit.jobs.pool.run` does."""
        run(jobs, self.params.device)

    def train(self, jobs: Sequence[Job], threads: int) -> None:
        """Run trainings, spread over processes if params.yaml asks for that; epochs are tracked as they end."""

        def on_epoch(job: Job, row: Event) -> None:
            self.tracker.epoch(job.config.title, job.record(), row)

        try:
            run(jobs, self.params.device, on_epoch, threads, self.params.distributed)
        except BaseException as error:
            self.tracker.stopped(error)
            raise
