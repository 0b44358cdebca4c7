"""What stage `exits` reports: a row an exit, and accuracy under budgets. No torch here."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from papers.exits.compute.budgets import cumulative_cost, exit_thresholds, leave, pick, practical
from papers.exits.compute.in_use import InUse, trained_exits
from papers.exits.compute.plan import Frozen, Plan, Trained
from papers.exits.compute.rounds import Exits
from papers.exits.section import (
    COUNTING,
    EXIT_COSTS,
    EXIT_WEIGHTS,
    EXITS_IN_USE,
    LAST_EXIT,
    own_order,
)
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
    "ece",
    "flops",
    "latency_ms",
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
    "latency_ms",
    "accuracy",
]
BUDGETS = 16  # budgets between the cheapest and the dearest exit
NONE, EVERY = "none", "all"


def read_costs(each: Frozen | Trained) -> dict[str, Any]:
    """Read what :func:`papers.exits.compute.dynamic.measure` found for a model like this one."""
    return read_json(each.costs.folder / EXIT_COSTS)


def read_answers(each: Frozen) -> dict[str, np.ndarray]:
    """Read how every exit on a frozen backbone answered, see `train_branches`."""
    with np.load(each.job.folder / ARRAYS) as arrays:
        return dict(arrays)


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
        frames.append(_with_costs(rows, read_costs(backbone)))
    for training in trained:
        frames.append(_with_costs(_trained_rows(training), read_costs(training)))
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat(frames).assign(model=model)


def _trained_rows(training: Trained) -> pd.DataFrame:
    """A row an exit of a model that was trained with its exits, in the original order."""
    job, kept = training.best()
    rows = []
    exits = [(f"exit_{depth}_", training.branch, depth) for depth in training.placement]
    for prefix, branch, depth in [*exits, ("", LAST_EXIT, read_costs(training)["num_layers"])]:
        row = {"branch": branch, "depth": depth, "mae": None}
        row["accuracy"] = kept[f"validation/sequential/{prefix}accuracy"]
        if training.task.name == COUNTING:
            row["mae"] = kept[f"validation/sequential/{prefix}loss"]
        rows.append(row)
    # In the layer-wise strategy every exit is of a step of its own.
    is_one_job = training.strategy != "layer_wise"
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


def _with_costs(rows: pd.DataFrame, costs: dict[str, Any]) -> pd.DataFrame:
    """Adds FLOPs, latency, and whether an exit is practical among those of its model."""
    names = rows["branch"] + "." + rows["depth"].astype(str)
    rows = rows.reset_index(drop=True).assign(
        flops=names.map(costs["flops"]).to_numpy(),
        latency_ms=names.map(costs["latency_ms"]).to_numpy(),
        mae=pd.to_numeric(rows["mae"]).to_numpy(),  # all None where nothing is counted
        practical=False,
    )
    score = rows["accuracy"].where(rows["mae"].isna(), -rows["mae"])
    for _, group in rows.groupby("order"):
        is_practical = practical(group["flops"].to_numpy(), score[group.index].to_numpy())
        rows.loc[group.index, "practical"] = is_practical
    return rows.reindex(columns=COLUMNS).round({"accuracy": 6, "mae": 6, "ece": 6})


def put_into_use(each: Frozen, arrays: Mapping[str, np.ndarray]) -> InUse:
    """Choose exits as :func:`choose` on the judging images (section IV-A)."""
    costs = read_costs(each)
    names = [f"{branch}.{depth}" for depth, branch in trained_exits(arrays)]
    flops = np.array([costs["flops"][name] for name in names])
    latency = np.array([costs["latency_ms"][name] for name in names])
    accuracy = arrays["correct_judge"].mean(axis=1)
    use = choose(flops, accuracy, arrays["depth"])
    branches = arrays["branch"][use].tolist()
    own = np.array([costs["branch_flops"].get(branch, 0) for branch in branches])
    return InUse(
        order=own_order(each.job.config.variant.route),
        branches=branches,
        depths=arrays["depth"][use].tolist(),
        flops=flops[use],
        spent=cumulative_cost(flops[use], own),
        latency=latency[use],
        accuracy=accuracy[use],
        confidence=arrays["confidence_judge"][use],
    )


def dynamic_rows(model: str, backbones: Iterable[Frozen]) -> pd.DataFrame:
    """Accuracy on the reporting images under budgets, of the exits in use.

    Policies: *budget*, known beforehand: one exit for all images, the best that fits. *anytime*:
    every exit on the way answers; the latest answer when the budget ends. *confidence*: images
    leave when sure, the budget holds on average (thresholds are calibrated on the judging images).
    """
    rows = []
    for backbone in backbones:
        arrays = read_answers(backbone)
        used = put_into_use(backbone, arrays)
        places = used.places(arrays)
        correct = arrays["correct_report"][places]
        confidence = arrays["confidence_report"][places]
        images = np.arange(correct.shape[1])
        for budget in np.linspace(used.flops[0], used.spent[-1], BUDGETS):
            best = pick(used.flops, used.accuracy, budget)
            latest = int((used.spent <= budget).sum()) - 1
            thresholds = exit_thresholds(used.confidence, used.spent, budget)
            policies = {
                "budget": (used.flops, np.full(len(images), best)),
                "anytime": (used.spent, np.full(len(images), latest)),
                "confidence": (used.spent, leave(confidence, thresholds)),
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
                    "latency_ms": round(float(used.latency[taken].mean()), 4),
                    "accuracy": round(float(correct[taken, images].mean()), 6),
                }
                rows.append(row)
    return pd.DataFrame(rows, columns=DYNAMIC_COLUMNS)


def choose(flops: np.ndarray, score: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """Choose the exits that are put into use (section IV-A): indices by depth.

    These are the best practical one at each depth that has any, and the last: the model's own head
    is there anyway, and early exits, the best of many, look better here than they are.
    """
    index = np.flatnonzero(practical(flops, score) | (depths == depths.max()))
    chosen = []
    for depth in np.unique(depths[index]):
        here = index[depths[index] == depth]
        chosen.append(here[score[here].argmax()])
    return np.array(chosen)


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
    runs: list[Frozen | Trained] = [*frozen, *found.trained]
    hardware = {read_costs(each)["hardware"] for each in runs}
    about = {
        "hardware": ", ".join(sorted(hardware)),
        "batch_size": 1,
        "keep": options.keep,
        "images": options.images,
        "counting": options.counting.model_dump(),
    }
    write_json(RESULTS / "exits.json", about, indent=None)
    for each in frozen:
        _keep_branches(plan.sizes, each)
    folders = {}
    for title in dict.fromkeys(each.title for each in found.trained):
        seeds = [each for each in found.trained if each.title == title]
        task = seeds[0].task
        gather_trainings({each.seed: each.best()[0] for each in seeds}, OUT / title, task.judge)
        folders[OUT / title] = task.name
    return folders


def _keep_branches(sizes: dict[str, Any], each: Frozen) -> None:
    """Write the branches' weights, and those worth using, to outs/exits/classifier_wise/."""
    folder = OUT / "classifier_wise" / each.variant / f"seed_{each.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(each.job.folder / EXIT_WEIGHTS, folder / EXIT_WEIGHTS)
    if each.task.name != COUNTING:  # a count has no confidence to go by
        shutil.copyfile(each.job.folder / ARRAYS, folder / ARRAYS)
        used = put_into_use(each, read_answers(each))
        about = {"weights_sha256": each.job.config.weights_sha256, "order": used.order}
        record = about | {"sizes": sizes} | used.record()
        write_json(folder / EXITS_IN_USE, record)
