"""From what evaluations left to a tidy table. No torch here."""

import json
from collections.abc import Mapping

import pandas as pd

from lsvit.jobs.files import RESULTS, ROWS
from lsvit.jobs.job import Job
from lsvit.jobs.rows import gather_rows
from lsvit.papers.painters.compute.plan import Plan


def painters_metrics(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """For `dvc metrics`: variant -> kind -> accuracy, mean over the numbers of layers treated and the seeds."""
    metrics: dict[str, dict[str, float]] = {}
    for (variant, kind), accuracy in rows.groupby(["variant", "kind"], sort=False)["accuracy"].mean().items():
        metrics.setdefault(variant, {})[kind] = round(accuracy, 6)
    return metrics


def keep(plan: Plan, jobs: Mapping[tuple[str, int], Job]) -> None:
    """Write results/painters.csv (a row a strategy and number of layers treated) and painters_metrics.json (means)."""
    rows = gather_rows(plan.params.dataset, plan.params.model, {key: job.folder / ROWS for key, job in jobs.items()})
    rows.to_csv(RESULTS / "painters.csv", index=False, lineterminator="\n")
    (RESULTS / "painters_metrics.json").write_text(json.dumps(painters_metrics(rows), indent=1) + "\n")
