"""What stage `exits` reports: a row an exit, and accuracy under budgets. No torch here."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from papers.exits.compute.budgets import leave, pick, threshold_within
from papers.exits.compute.in_use import InUse
from papers.exits.compute.plan import Frozen, Plan, Trained
from papers.exits.compute.rounds import Exits
from papers.exits.section import COUNTING, EXIT_COSTS, EXIT_WEIGHTS, EXITS_IN_USE, LAST_EXIT
from pipeline.files import read_json, write_json
from pipeline.jobs.files import ARRAYS, RESULTS, ROWS
from pipeline.jobs.rows import read_rows, write_results
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


def exit_rows(model: str, frozen: Iterable[Frozen], trained: Iterable[Trained]) -> pd.DataFrame:
    """A row an exit: of frozen backbones one an order of execution, then of trained models."""
    frames = []
    for backbone in frozen:
        rows = read_rows(backbone.job.folder / ROWS).assign(
            dataset=backbone.task.name,
            variant=backbone.variant,
            seed=backbone.seed,
            strategy="classifier_wise",
            placement=EVERY,
            architecture=EVERY,
        )
        frames.append(rows)
    frames += [trained_rows(training) for training in trained]
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    rows = pd.concat(frames).assign(model=model).reindex(columns=COLUMNS)
    return rows.round({"accuracy": 6, "mae": 6})


def trained_rows(training: Trained) -> pd.DataFrame:
    """A row an exit of a model that was trained with its exits, in the original order."""
    job, kept = training.best()
    flops = read_json(training.costs.folder / EXIT_COSTS)
    exits = [(f"exit_{depth}_", training.branch or NONE, depth) for depth in training.placement]
    exits.append(("", LAST_EXIT, len(flops[LAST_EXIT])))
    counts = training.task.name == COUNTING
    rows = []
    for prefix, branch, depth in exits:
        column, metric = ("mae", "loss") if counts else ("accuracy", "accuracy")
        row = {"branch": branch, "depth": depth, "flops": flops[branch][depth - 1]}
        rows.append(row | {column: kept[f"validation/sequential/{prefix}{metric}"]})
    # In the layer-wise strategy every exit is of a step of its own.
    is_one_job = training.variant.exits is None or training.variant.exits.step is None
    return pd.DataFrame(rows).assign(
        dataset=training.task.name,
        variant=NONE,
        strategy=training.strategy,
        seed=training.seed,
        placement="-".join(map(str, training.placement)) or NONE,
        architecture=training.branch or NONE,
        order="sequential",
        lr=job.config.model_dump()["options"]["lr"] if is_one_job else None,
        epochs=int(kept["epoch"]) if is_one_job else None,
    )


def dynamic_rows(model: str, backbones: Iterable[Frozen]) -> pd.DataFrame:
    """Accuracy on the reporting images under budgets, of the exits in use.

    Policies: *budget*, known beforehand: one exit for all images, the best that fits. *anytime*:
    every exit on the way answers; the latest answer when the budget ends. *confidence*: images
    leave when sure, the budget holds on average (the threshold is set on the judging images).
    """
    rows = []
    for backbone in backbones:
        used = InUse.read(backbone.job.folder)
        with np.load(backbone.job.folder / ARRAYS) as arrays:
            correct = arrays["score_report"][used.places]
            confidence = arrays["confidence_report"][used.places]
        images = np.arange(correct.shape[1])
        for budget in np.linspace(used.flops[0], used.spent[-1], BUDGETS):
            best = pick(used.flops, used.accuracy, budget)
            latest = int((used.spent <= budget).sum()) - 1
            threshold = threshold_within(used.confidence, used.spent, budget)
            policies = {
                "budget": (used.flops, np.full(len(images), best)),
                "anytime": (used.spent, np.full(len(images), latest)),
                "confidence": (used.spent, leave(confidence, threshold)),
            }
            for policy, (paid, taken) in policies.items():
                row = {
                    "dataset": backbone.task.name,
                    "model": model,
                    "variant": backbone.variant,
                    "seed": backbone.seed,
                    "exits": len(used.depths),
                    "policy": policy,
                    "budget": round(float(budget)),
                    "flops": round(float(paid[taken].mean())),
                    "accuracy": round(float(correct[taken, images].mean()), 6),
                }
                rows.append(row)
    return pd.DataFrame(rows, columns=DYNAMIC_COLUMNS)


def keep(plan: Plan, found: Exits) -> dict[Path, str]:
    """Write results/ (exits.csv, exits_dynamic.csv, exits.json) and outs/exits/.

    Returns:
        The folders of the models trained with exits, one a title, and the name of each one's task.
    """
    model = plan.params.model
    options = plan.options
    frozen = [*found.frozen, *found.counted]
    write_results(exit_rows(model, frozen, found.trained), RESULTS / "exits.csv")
    write_results(dynamic_rows(model, found.frozen), RESULTS / "exits_dynamic.csv")
    about = {"keep": options.keep, "counting": options.counting.model_dump()}
    write_json(RESULTS / "exits.json", about, indent=None)
    for each in frozen:
        folder = OUT / "classifier_wise" / each.variant / f"seed_{each.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        for name in (EXIT_WEIGHTS, ARRAYS, EXITS_IN_USE):
            if (each.job.folder / name).exists():
                shutil.copyfile(each.job.folder / name, folder / name)
    folders = {}
    for title in dict.fromkeys(each.title for each in found.trained):
        seeds = [each for each in found.trained if each.title == title]
        task = seeds[0].task
        gather_trainings({each.seed: each.best()[0] for each in seeds}, OUT / title, task.judge)
        folders[OUT / title] = task.name
    return folders
