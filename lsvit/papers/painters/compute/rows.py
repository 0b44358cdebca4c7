"""From what evaluations left to a tidy table. No torch here."""

from collections.abc import Mapping

from lsvit.jobs.files import RESULTS, ROWS
from lsvit.jobs.job import Job
from lsvit.jobs.rows import gather_rows
from lsvit.papers.painters.compute.plan import Plan


def keep(plan: Plan, jobs: Mapping[tuple[str, int], Job]) -> None:
    """Write results/painters.csv (a row a strategy and number of layers treated)."""
    rows = gather_rows(plan.params.dataset, plan.params.model, {key: job.folder / ROWS for key, job in jobs.items()})
    rows.to_csv(RESULTS / "painters.csv", index=False, lineterminator="\n")
