"""May a cell lead? `uv run python benchmarks/gate.py` -> gate.json.

A data set tells something about orders and depths of layers only where a model needs its layers.
Two differences, on held-out images that nothing else reports, over three seeds: the refined
baseline minus logistic regression on the pixels of the same training images, and the baseline
minus refit-3, which has its first three layers alone. The gate is passed if both are at least
three points and their 95 % intervals exclude 0.

It judges the cell that params.yaml declares, which needs held-out images, and replaces what
gate.json has of the same data set, after

    uv run python -m stages.prepare_data && uv run python -m stages.pretrain

Trainings are those of the stages: what has finished is taken, what is left can be resumed. Other
variants are not trained here. What has finished of them stands beside: the accuracy on the
validation images in both orders, after the last epoch.
"""

# isort: off
import stages  # noqa: F401 (before numpy: it sets what makes bytes portable)

# isort: on
import json
from pathlib import Path
from typing import Any

import numpy as np
from machine import machine, show, write

from lsvit.routes import ORDERS
from papers import PAPERS
from papers.layershuffle import PAPER
from papers.layershuffle.compute.logistic import choose_regression, read_pixels
from papers.layershuffle.section import PruneEval
from pipeline.config.sections import Finetune
from pipeline.config.variant import BASELINE
from pipeline.errors import UserError
from pipeline.jobs.files import DATA, HELDOUT, HISTORY, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage
from pipeline.report.statistics import estimate

FILE = Path(__file__).with_suffix(".json")
SEEDS = 3
SHALLOW = "refit_3"
LEAST = 3.0  # points
ACCURACY = f"{HELDOUT}/sequential/accuracy"


def train(stage: Stage) -> dict[str, np.ndarray]:
    """Refine the baseline and refit-3: held-out accuracy in % after the last epoch, by seed."""
    params = stage.params.model_copy(update={"seeds": stage.params.seeds[:SEEDS]})
    jobs = Plan(params, Finetune).refinements([BASELINE, SHALLOW])
    stage.train([jobs[name][seed] for seed in params.seeds for name in jobs], threads=1)
    return {name: np.array([accuracy(job) for job in jobs[name].values()]) for name in jobs}


def accuracy(job: Job, column: str = ACCURACY) -> float:
    """An accuracy of a training's history in %, after its last epoch."""
    history: list[dict[str, float]] = json.loads((job.folder / HISTORY).read_text("utf-8"))
    return 100 * history[-1][column]


def logistic_regression(strengths: list[float]) -> dict[str, float]:
    """Accuracy in % of the pipeline's regression on pixels, on held-out and validation images.

    The held-out images choose its strength, which favours it: the gate is the narrower for it.
    """
    heldout = read_pixels(DATA, HELDOUT)
    regression = choose_regression(read_pixels(DATA, "train"), heldout, strengths)
    return {
        split: 100 * float(regression.score(*read_pixels(DATA, split)))
        for split in (HELDOUT, "validation")
    }


def validation(stage: Stage) -> dict[str, Any]:
    """Validation accuracy in % after the last epoch: by variant and order, a number a seed."""
    accuracies: dict[str, Any] = {}
    params = stage.params.model_copy(update={"seeds": stage.params.seeds[:SEEDS]})
    for name, jobs in Plan(params, Finetune).refinements(list(params.all_variants)).items():
        if all(job.done for job in jobs.values()):
            accuracies[name] = {
                order: [accuracy(job, f"validation/{order}/accuracy") for job in jobs.values()]
                for order in ORDERS
            }
    return accuracies


def judge(differences: np.ndarray) -> dict[str, Any]:
    """The mean of differences by seed with its interval, and whether the gate is passed."""
    interval = estimate(differences)
    passed = interval.mean >= LEAST and interval.low > 0
    return {
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "by_seed": differences.tolist(),
        "passed": bool(passed),
    }


@stage_process()
def main() -> None:
    """Train what is missing, judge, write and print."""
    stage = Stage("pipeline.training.loop", PAPERS, of=PAPER.name)
    if stage.params.protocol != "heldout":
        raise UserError("params.yaml: protocol: found 'paper', accepted: heldout")
    accuracies = train(stage)
    floor = logistic_regression(stage.params.resolve(PruneEval).logistic)
    rows = {
        "baseline minus logistic regression": judge(accuracies[BASELINE] - floor[HELDOUT]),
        f"baseline minus {SHALLOW}": judge(accuracies[BASELINE] - accuracies[SHALLOW]),
    }
    cell = stage.params.cell
    options = stage.params.resolve(Finetune)
    counts = read_meta(DATA)["counts"]
    content = {
        "machine": machine(),
        "cell": {"dataset": cell.dataset, "model": cell.model, "scale": cell.scale},
        "finetune": options.model_dump(include={"lr", "schedule", "batch_size", "epochs"}),
        "heldout_images": counts[HELDOUT],
        "accuracy": {name: values.tolist() for name, values in accuracies.items()}
        | {"logistic_regression": floor[HELDOUT]},
        "gate": rows,
        "validation_images": counts["validation"],
        "validation": validation(stage) | {"logistic_regression": floor["validation"]},
    }
    gates = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    write(FILE, gates | {cell.dataset: content})
    show("the gate", [{"difference": name} | row for name, row in rows.items()])


if __name__ == "__main__":
    main()
