"""What stage `exits` reports: a row an exit, and accuracy under budgets. No torch here."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from papers.exits.compute.budgets import cumulative_cost, exit_thresholds, leave, pick, practical
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
from pipeline.jobs.files import ARRAYS, RESULTS, ROWS
from pipeline.jobs.rows import read_rows
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
    """What :func:`papers.exits.compute.dynamic.measure` found for a model like this one."""
    return json.loads((each.costs.folder / EXIT_COSTS).read_text())


def frozen_rows(model: str, found: Iterable[Frozen]) -> pd.DataFrame:
    """A row an exit and order of execution of every frozen backbone."""
    frames = []
    for each in found:
        rows = read_rows(each.job.folder / ROWS)
        where = {
            "dataset": each.task.name,
            "model": model,
            "variant": each.variant,
            "seed": each.seed,
        }
        rows = rows.assign(**where, strategy="classifier_wise", placement=EVERY, architecture=EVERY)
        frames.append(_with_costs(rows, read_costs(each)))
    return pd.concat(frames) if frames else pd.DataFrame(columns=COLUMNS)


def trained_rows(model: str, found: Iterable[Trained]) -> pd.DataFrame:
    """A row an exit of every model that was trained with its exits, in the original order."""
    frames = []
    for each in found:
        job, kept = each.best()
        costs = read_costs(each)
        own = each.strategy != "layer_wise"  # there every exit is of a step of its own
        where = {
            "dataset": each.task.name,
            "model": model,
            "variant": NONE,
            "strategy": each.strategy,
            "seed": each.seed,
            "placement": "-".join(map(str, each.placement)) or NONE,
            "architecture": each.branch or NONE,
            "order": "sequential",
            "lr": job.config.model_dump()["options"]["lr"] if own else None,
            "epochs": int(kept["epoch"]) if own else None,
        }
        rows = []
        early = [(f"exit_{depth}_", each.branch, depth) for depth in each.placement]
        for name, branch, depth in [*early, ("", LAST_EXIT, costs["num_layers"])]:
            error = (
                kept[f"validation/sequential/{name}loss"] if each.task.name == COUNTING else None
            )
            accuracy = kept[f"validation/sequential/{name}accuracy"]
            rows.append(
                where | {"branch": branch, "depth": depth, "accuracy": accuracy, "mae": error}
            )
        frames.append(_with_costs(pd.DataFrame(rows), costs))
    return pd.concat(frames) if frames else pd.DataFrame(columns=COLUMNS)


def _with_costs(rows: pd.DataFrame, costs: dict[str, Any]) -> pd.DataFrame:
    """Adds FLOPs, latency, and whether an exit is practical among those of its model."""
    names = rows["branch"] + "." + rows["depth"].astype(str)
    rows = rows.assign(
        flops=names.map(costs["flops"]), latency_ms=names.map(costs["latency_ms"]), practical=False
    )
    rows["mae"] = pd.to_numeric(rows["mae"])  # all None where nothing is counted
    rows = rows.assign(score=rows["accuracy"].where(rows["mae"].isna(), -rows["mae"])).reset_index(
        drop=True
    )
    for _, group in rows.groupby("order"):
        rows.loc[group.index, "practical"] = practical(
            group["flops"].to_numpy(), group["score"].to_numpy()
        )
    return rows.reindex(columns=COLUMNS).round({"accuracy": 6, "mae": 6, "ece": 6})


class Used(NamedTuple):
    """The exits of a frozen backbone that are put into use, E of them by depth, and how they answer."""

    branches: list[str]
    depths: list[int]
    flops: np.ndarray  # (E,), of one image up to and including the exit
    spent: np.ndarray  # (E,), with the branches of all exits before it
    latency: np.ndarray  # (E,), ms
    accuracy: np.ndarray  # (E,), on the judging images
    confidence: dict[str, np.ndarray]  # (E, n), of the judging and of the reporting images
    correct: dict[str, np.ndarray]  # the same

    @classmethod
    def of(cls, each: Frozen) -> "Used":
        """Those that are practical on the judging images, the best one at each depth (section IV-A), and the model's own head."""
        cost = read_costs(each)
        with np.load(each.job.folder / ARRAYS) as arrays:
            names = [
                f"{branch}.{depth}"
                for branch, depth in zip(arrays["branch"], arrays["depth"], strict=True)
            ]
            flops, latency = (
                np.array([cost[key][name] for name in names]) for key in ("flops", "latency_ms")
            )
            accuracy = arrays["correct_judge"].mean(axis=1)
            use = choose(flops, accuracy, arrays["depth"])
            own = np.array(
                [cost["branch_flops"].get(branch, 0) for branch in arrays["branch"][use]]
            )
            answers = [
                {part: arrays[f"{name}_{part}"][use] for part in ("judge", "report")}
                for name in ("confidence", "correct")
            ]
            branches, depths = arrays["branch"][use].tolist(), arrays["depth"][use].tolist()
        return cls(
            branches,
            depths,
            flops[use],
            cumulative_cost(flops[use], own),
            latency[use],
            accuracy[use],
            *answers,
        )

    def record(self) -> dict[str, Any]:
        """What :func:`papers.exits.compute.dynamic.deploy` reads."""
        columns = ("branches", "depths", "flops", "spent", "latency", "accuracy")
        return {name: np.asarray(getattr(self, name)).tolist() for name in columns}


def dynamic_rows(model: str, found: Iterable[Frozen]) -> pd.DataFrame:
    """Accuracy on the reporting images under budgets, of the exits in use.

    Policies: *budget*, known beforehand: one exit for all images, the best that fits. *anytime*: every exit on the way answers;
    the latest answer when the budget ends. *confidence*: images leave when sure, the budget holds on average (thresholds are
    calibrated on the judging images).
    """
    rows = []
    for each in found:
        used = Used.of(each)
        where = {
            "dataset": each.task.name,
            "model": model,
            "variant": each.variant,
            "seed": each.seed,
            "exits": len(used.depths),
        }
        images = np.arange(used.correct["report"].shape[1])
        for budget in np.linspace(used.flops[0], used.spent[-1], BUDGETS):
            best = pick(used.flops, used.accuracy, budget)
            latest = int((used.spent <= budget).sum()) - 1
            exits = leave(
                used.confidence["report"],
                exit_thresholds(used.confidence["judge"], used.spent, budget),
            )
            answers = {
                "budget": np.full(len(images), best),
                "anytime": np.full(len(images), latest),
                "confidence": exits,
            }
            for policy, taken in answers.items():
                paid = used.flops if policy == "budget" else used.spent
                row = {
                    "policy": policy,
                    "budget": round(float(budget)),
                    "flops": round(float(paid[taken].mean())),
                    "latency_ms": round(float(used.latency[taken].mean()), 4),
                    "accuracy": round(float(used.correct["report"][taken, images].mean()), 6),
                }
                rows.append(where | row)
    return pd.DataFrame(rows, columns=DYNAMIC_COLUMNS)


def choose(flops: np.ndarray, score: np.ndarray, depths: np.ndarray) -> np.ndarray:
    """The exits (section IV-A) that are put into use, indices by depth: the best practical one at each depth that has any, and the last.

    The model's own head is there anyway, and the early exits, chosen as the best of many, look better than they are on these images.
    """
    index = np.flatnonzero(practical(flops, score) | (depths == depths.max()))
    chosen = []
    for depth in np.unique(depths[index]):
        here = index[depths[index] == depth]
        chosen.append(here[score[here].argmax()])
    return np.array(chosen)


def keep(plan: Plan, found: Exits) -> dict[Path, str]:
    """Write results/exits.csv, exits_dynamic.csv, exits.json, and what `lsvit predict --exits` needs to outs/exits/.

    Returns:
        The folders of the models trained with exits, one a title, and the name of each one's task.
    """
    model, options = plan.params.model, plan.options
    frozen = [*found.frozen, *found.counted]
    rows = pd.concat([frozen_rows(model, frozen), trained_rows(model, found.trained)])
    rows.to_csv(RESULTS / "exits.csv", index=False, lineterminator="\n")
    dynamic_rows(model, found.frozen).to_csv(
        RESULTS / "exits_dynamic.csv", index=False, lineterminator="\n"
    )
    hardware = sorted(
        {
            *(read_costs(each)["hardware"] for each in frozen),
            *(read_costs(each)["hardware"] for each in found.trained),
        }
    )
    about = {
        "hardware": ", ".join(hardware),
        "batch_size": 1,
        "keep": options.keep,
        "images": options.images,
    }
    (RESULTS / "exits.json").write_text(
        json.dumps(about | {"counting": options.counting.model_dump()}) + "\n"
    )
    for each in frozen:
        _keep_branches(plan, each)
    folders = {}
    for title in dict.fromkeys(each.title for each in found.trained):
        seeds = [each for each in found.trained if each.title == title]
        task = seeds[0].task
        gather_trainings({each.seed: each.best()[0] for each in seeds}, OUT / title, task.judge)
        folders[OUT / title] = task.name
    return folders


def _keep_branches(plan: Plan, each: Frozen) -> None:
    """outs/exits/classifier_wise/<variant>/seed_<n>/: the branches' weights, and those worth using."""
    folder, done = OUT / "classifier_wise" / each.variant / f"seed_{each.seed}", each.job.folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(done / EXIT_WEIGHTS, folder / EXIT_WEIGHTS)
    if each.task.name != COUNTING:  # a count has no confidence to go by
        shutil.copyfile(done / ARRAYS, folder / ARRAYS)
        order = own_order(plan.params.all_variants[each.variant].route)
        used = {
            "weights_sha256": each.job.config.weights_sha256,
            "order": order,
            "sizes": plan.sizes,
            **Used.of(each).record(),
        }
        (folder / EXITS_IN_USE).write_text(json.dumps(used, indent=1) + "\n")
