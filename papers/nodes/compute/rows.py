"""From what evaluations left to a tidy table. No torch here."""

from collections.abc import Mapping

import pandas as pd

from papers.nodes.compute.plan import Plan
from papers.nodes.section import POLICIES, Policy
from pipeline.jobs.files import RESULTS, ROWS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import gather_rows


def keep(plan: Plan, jobs: Mapping[tuple[str, Policy, int], Job]) -> None:
    """Write results/nodes.csv (a row a model, policy, placement and fault)."""
    frames = []
    for policy in POLICIES:
        files = {
            (name, seed): job.folder / ROWS
            for (name, own, seed), job in jobs.items()
            if own == policy
        }
        if files:
            rows = gather_rows(plan.params.dataset, plan.params.model, files)
            rows.insert(rows.columns.get_loc("seed"), "policy", policy)
            frames.append(rows)
    pd.concat(frames, ignore_index=True).to_csv(
        RESULTS / "nodes.csv", index=False, lineterminator="\n"
    )
