"""From what jobs left to a tidy table. No torch here."""

from collections.abc import Mapping

from papers.questions.compute.plan import Key, Plan
from pipeline.files import read_json
from pipeline.jobs.files import HISTORY, RESULTS, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.rows import write_results
from pipeline.training.judging import kept_epoch


def keep(plan: Plan, jobs: Mapping[Key, Job], healing: Mapping[tuple[str, int, int], Job]) -> None:
    """Write results/questions.csv (a row a number)."""
    rows = plan.gather(jobs, keys=("part", "variant", "seed"))
    images = read_meta(plan.data)["counts"]["validation"]
    for (variant, seed, layers), job in healing.items():
        history = read_json(job.folder / HISTORY, list)
        epoch = kept_epoch(history, "sequential", plan.judge)
        accuracy = round(epoch["validation/sequential/accuracy"], 6)
        where = (plan.params.dataset, plan.params.model, "pruning", variant, seed)
        rows.loc[len(rows)] = [*where, "healed", layers, images, "accuracy", accuracy]
    write_results(rows, RESULTS / "questions.csv")
