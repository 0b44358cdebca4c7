"""What stage `exits` reports: a row an exit, and accuracy under budgets. No torch here."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from papers.exits.compute.budgets import leave, pick, threshold_within
from papers.exits.compute.in_use import InUse
from papers.exits.compute.plan import Backbone, Plan, Trained
from papers.exits.section import COUNTING, EXIT_COSTS, EXIT_WEIGHTS, EXITS_IN_USE, LAST_EXIT
from pipeline.files import read_json, write_json
from pipeline.jobs.files import ARRAYS, RESULTS
from pipeline.jobs.job import Job
from pipeline.jobs.rows import write_results
from pipeline.training.gather import gather_trainings

OUT = Path("outs/exits")
COLUMNS = [
    "dataset",
    "model",
    "variant",
    "strategy",
    "placement",
    "architecture",
    "seed",
    "order",
    "branch",
    "depth",
    "lr",
    "epochs",
    "accuracy",
    "mae",
    "judge",
    "flops",
    "practical",
]
DYNAMIC_COLUMNS = [
    "dataset",
    "model",
    "variant",
    "seed",
    "exits",
    "policy",
    "budget",
    "flops",
    "accuracy",
]
BUDGETS = 16  # budgets between the cheapest and the dearest exit
NONE, EVERY = "none", "all"


def exit_rows(
    plan: Plan, frozen: Mapping[Backbone, Job], trained: Iterable[Trained]
) -> pd.DataFrame:
    """A row an exit: of frozen backbones one an order of execution, then of trained models."""
    frames = [trained_rows(training) for training in trained]
    if frozen:
        rows = plan.gather(frozen, keys=Backbone._fields)
        everywhere = {"strategy": "classifier_wise", "placement": EVERY, "architecture": EVERY}
        frames.insert(0, rows.assign(**everywhere))
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.concat(frames).assign(model=plan.params.model).reindex(columns=COLUMNS)
    return rows.round({"accuracy": 6, "mae": 6})


def trained_rows(training: Trained) -> pd.DataFrame:
    """A row an exit of a model that was trained with its exits, in the original order."""
    job, kept = training.best()
    flops = read_json(training.plan.costs().folder / EXIT_COSTS)
    architecture = training.branch or NONE
    exits = [(f"exit_{depth}_", architecture, depth) for depth in training.placement]
    exits.append(("", LAST_EXIT, len(flops[LAST_EXIT])))
    counts = training.plan.task == COUNTING
    column, metric = ("mae", "loss") if counts else ("accuracy", "accuracy")
    rows = []
    for prefix, branch, depth in exits:
        row = {"branch": branch, "depth": depth, "flops": flops[branch][depth - 1]}
        rows.append(row | {column: kept[f"validation/sequential/{prefix}{metric}"]})
    # In the layer-wise strategy every exit is of a step of its own.
    is_one_job = training.strategy == "end_to_end"
    return pd.DataFrame(rows).assign(
        dataset=training.plan.task,
        variant=NONE,
        strategy=training.strategy,
        seed=training.seed,
        placement="-".join(map(str, training.placement)) or NONE,
        architecture=architecture,
        order="sequential",
        lr=job.config.model_dump()["options"]["lr"] if is_one_job else None,
        epochs=int(kept["epoch"]) if is_one_job else None,
    )


def dynamic_rows(model: str, frozen: Mapping[Backbone, Job]) -> pd.DataFrame:
    """Accuracy on the reporting images under budgets, of the exits in use.

    Policies: *budget*, known beforehand: one exit for all images, the best that fits. *anytime*:
    every exit on the way answers; the latest answer when the budget ends. *confidence*: images
    leave when sure, the budget holds on average (the threshold is set on the judging images).
    """
    rows = []
    for (dataset, variant, seed), job in frozen.items():
        if dataset == COUNTING:
            continue
        used = InUse.read(job.folder)
        with np.load(job.folder / ARRAYS) as arrays:
            correct = arrays["score_report"][used.places]
            confidence = arrays["confidence_report"][used.places]
        images = np.arange(correct.shape[1])
        for budget in np.linspace(used.flops[0], used.spent[-1], BUDGETS):
            latest = int((used.spent <= budget).sum()) - 1
            threshold = threshold_within(used.confidence, used.spent, budget)
            policies: dict[str, tuple[np.ndarray, Any]] = {
                "budget": (used.flops, pick(used.flops, used.accuracy, budget)),
                "anytime": (used.spent, latest),
                "confidence": (used.spent, leave(confidence, threshold)),
            }
            for policy, (paid, taken) in policies.items():
                flops = round(float(paid[taken].mean()))
                accuracy = round(float(correct[taken, images].mean()), 6)
                where = (dataset, model, variant, seed, len(used.depths), policy)
                rows.append((*where, round(float(budget)), flops, accuracy))
    return pd.DataFrame(rows, columns=DYNAMIC_COLUMNS)


def keep(plan: Plan, frozen: Mapping[Backbone, Job], trained: Iterable[Trained]) -> dict[Path, str]:
    """Write results/ (exits.csv, exits_dynamic.csv, exits.json) and outs/exits/.

    Returns:
        The folders of the models trained with exits, one a title, and the name of each one's task.
    """
    options = plan.options
    write_results(exit_rows(plan, frozen, trained), RESULTS / "exits.csv")
    write_results(dynamic_rows(plan.params.model, frozen), RESULTS / "exits_dynamic.csv")
    about = {"keep": options.keep, "counting": options.counting.model_dump()}
    write_json(RESULTS / "exits.json", about, indent=None)
    for backbone, job in frozen.items():
        folder = OUT / "classifier_wise" / backbone.variant / f"seed_{backbone.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in (EXIT_WEIGHTS, ARRAYS, EXITS_IN_USE):
            if (job.folder / name).exists():
                shutil.copyfile(job.folder / name, folder / name)
    models: dict[tuple[Path, Plan], dict[int, Job]] = {}
    for model in trained:
        models.setdefault((OUT / model.title, model.plan), {})[model.seed] = model.best()[0]
    for (folder, task), jobs in models.items():
        gather_trainings(jobs, folder, task.exit_judge)
    return {folder: task.task for folder, task in models}
