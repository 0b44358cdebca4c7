"""From what evaluations left to a tidy table. No torch here."""

from collections.abc import Mapping

from papers.nodes.compute.plan import Plan
from papers.nodes.section import Policy
from pipeline.jobs.files import RESULTS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import write_results


def keep(plan: Plan, jobs: Mapping[tuple[str, Policy, int], Job]) -> None:
    """Write results/nodes.csv (a row a model, policy, placement and fault)."""
    rows = plan.gather(jobs, keys=("variant", "policy", "seed"))
    write_results(rows, RESULTS / "nodes.csv")
