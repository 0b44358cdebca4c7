"""From what evaluations left to a tidy table. No torch here."""

from collections.abc import Mapping

from papers.painters.compute.plan import Plan
from pipeline.jobs.files import RESULTS, ROWS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import gather_rows


def keep(plan: Plan, jobs: Mapping[tuple[str, int], Job]) -> None:
    """Write results/painters.csv (a row a strategy and number of layers treated)."""
    rows = gather_rows(
        plan.params.dataset,
        plan.params.model,
        {key: job.folder / ROWS for key, job in jobs.items()},
    )
    rows.to_csv(RESULTS / "painters.csv", index=False, lineterminator="\n")
