"""From what evaluations left to a tidy table. No torch here."""

from collections.abc import Mapping

from papers.painters.compute.plan import Plan
from pipeline.jobs.files import RESULTS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import write_results


def keep(plan: Plan, jobs: Mapping[tuple[str, int], Job]) -> None:
    """Write results/painters.csv (a row a strategy and number of layers treated)."""
    write_results(plan.gather(jobs), RESULTS / "painters.csv")
