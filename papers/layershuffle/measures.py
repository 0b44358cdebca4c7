"""What LayerShuffle's claims are decided on: quantities with a value a seed, in % and points."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lsvit.routes import ORDERS, Order
from papers.layershuffle.tables import PUBLISHED, PUBLISHED_VARIANTS
from pipeline.config.variant import BASELINE, PRETRAINED
from pipeline.report.evaluations import label
from pipeline.report.ledger import CannotTell, Evidence, NotComparable, NotRun
from pipeline.report.statistics import Estimate, from_error

LAYERSHUFFLED = ("ls", "ls_pos", "ls_pred")


def without_route(e: Evidence, variant: str, order: Order, route: str) -> np.ndarray:
    """Accuracy in % with all layers, one route left out of the mean."""
    rows = e.evaluations(variant, order, None)
    if route not in set(rows["route"]):
        raise NotRun(f"{label(variant)}, {order}: its routes were not evaluated one by one")
    return 100 * e.by_seed(rows[rows["route"] != route], "accuracy", f"{label(variant)}, {order}")


def ahead_of_start(e: Evidence) -> np.ndarray:
    """What the baseline is ahead of each seed's starting weights in the original order, where this project trained them."""
    pretrain = e.table("pretrain")
    judges = [
        f"{judge}/sequential/loss"
        for judge in ("heldout", "validation")
        if f"{judge}/sequential/loss" in pretrain
    ]
    if not judges:
        raise NotRun("the accuracy of the starting weights is not among the results")
    kept = pretrain.loc[
        pretrain.groupby("seed", sort=False)[judges[0]].idxmin(), "validation/sequential/accuracy"
    ]
    refined = e.accuracy(BASELINE, "sequential")
    return refined - np.resize(100 * kept, len(refined))


def position_accuracy(e: Evidence, variant: str = "ls_pred") -> np.ndarray:
    """How often LS-pred names a layer's position under arbitrary orders, in %."""
    return 100 * e.by_seed(
        e.evaluations(variant, "arbitrary", None),
        "position_accuracy",
        f"{label(variant)}'s position accuracy",
    )


def positions_named(e: Evidence, variant: str) -> np.ndarray:
    """Position accuracy in % of the way from chance to certainty."""
    return 100 * (position_accuracy(e, variant) - 100 / e.num_layers) / (100 - 100 / e.num_layers)


def kept_first(e: Evidence, variant: str, k: int) -> np.ndarray:
    """Accuracy in % with the first k layers in place, an order per image of the others."""
    rows, sampler = e.table("samplers"), f"fix_first {k}"
    rows = rows[(rows["variant"] == variant) & (rows["sampler"] == sampler)]
    if len(rows):
        e.orders.append(min(int(rows["images"].iloc[0]), math.factorial(e.num_layers - k)))
    return 100 * e.by_seed(rows, "accuracy", f"{label(variant)} under {sampler}")


def analysed(e: Evidence, model: str, name: str, of: str = "seeds") -> np.ndarray:
    """A number of the analysis, in which every image has an order of its own, or its standard errors over the images: by seed."""
    analysis = e.read("analysis")
    if model not in analysis["models"]:
        raise NotRun(f"the analysis of {label(model)} is not among the results")
    e.orders.append(analysis["images"])
    return np.array(list(analysis["models"][model][name][of].values()))


def of_start(name: str) -> Callable[[Evidence], Estimate | np.ndarray]:
    """A number of the starting weights, one each; where there is one set of them the interval is over its images, each with an order
    of its own, and too narrow in that the plane of figure 4a and other starting weights stay out of it."""

    def measure(e: Evidence) -> Estimate | np.ndarray:
        values, errors = (analysed(e, PRETRAINED, name, of) for of in ("seeds", "errors"))
        return (
            values
            if len(values) > 1
            else from_error(values.item(), errors.item(), e.read("analysis")["images"])
        )

    return measure


def gained(e: Evidence, name: str) -> np.ndarray:
    """What refinement with LS adds to a number of each seed's starting weights."""
    refined = analysed(e, "ls", name)
    return refined - np.resize(analysed(e, PRETRAINED, name), len(refined))


def protocol_change(e: Evidence) -> np.ndarray:
    """Largest change of a row of Table 1, in points, when held-out images choose the epoch."""
    protocols = e.table("protocols")
    if set(protocols["protocol"]) != {"paper", "heldout"}:
        raise NotRun("no images were held out")
    for order in ORDERS:
        e.evaluations(BASELINE, order, None)
    moved = protocols.groupby(["variant", "seed"])["epoch"].transform("nunique") > 1
    if not moved.any():
        raise CannotTell(
            "held-out images chose the same epoch of every training: nothing could change"
        )
    table = protocols[moved].set_index(["protocol", "variant", "seed"])[["sequential", "arbitrary"]]
    change = (100 * (table.loc["heldout"] - table.loc["paper"])).abs().max(axis=1)
    return change.groupby("seed", sort=False).max().to_numpy()


def published_range(measure: Callable[[dict[str, float], dict[str, float]], float]) -> str:
    """The range, over the paper's four cells, of a measure of (sequential, arbitrary), each the accuracies in % by variant."""
    rows = {
        cell: {v: mean for v, (mean, _) in zip(PUBLISHED_VARIANTS, row, strict=True)}
        for cell, row in PUBLISHED.items()
    }
    found = [
        measure(rows[data, model, "sequential"], row)
        for (data, model, order), row in rows.items()
        if order == "arbitrary"
    ]
    return f"{min(found):.1f} to {max(found):.1f} points"


def shuffled(e: Evidence, order: Order) -> list[np.ndarray]:
    """Accuracies of LS, LS-pos and LS-pred."""
    return [e.accuracy(variant, order) for variant in LAYERSHUFFLED]


def approaches(row: dict[str, float]) -> list[float]:
    """What a published row has of the three."""
    return [row[variant] for variant in LAYERSHUFFLED]


def refit(e: Evidence, order: Order, keep: int) -> np.ndarray:
    """refit-k; with all layers that is the baseline."""
    return e.accuracy(BASELINE if keep == e.num_layers else f"refit_{keep}", order)


def lead(e: Evidence, variant: str, other: str, keep: int) -> np.ndarray:
    """What a variant is ahead of another in original order."""
    return e.accuracy(variant, "sequential", keep) - e.accuracy(other, "sequential", keep)


def regained(e: Evidence, variant: str, k: int) -> np.ndarray:
    """Of what arbitrary orders cost, the part in % that is regained by keeping the first k layers in place."""
    worst, kept, best = (kept_first(e, variant, i) for i in (0, k, e.num_layers))
    return 100 * (kept - worst) / (best - worst)


def numbers_kept(e: Evidence) -> list[int]:
    """The numbers of layers that LS was evaluated with. Raises NotRun if there is only one."""
    rows = e.table("prune_eval")
    keep = sorted(int(k) for k in rows.loc[rows["variant"] == "ls", "keep"].unique())
    if len(keep) < 2:
        raise NotRun("LS with several numbers of layers is not among the results")
    return keep


def smallest_gain(e: Evidence, order: Order) -> np.ndarray:
    """Of LS, from one number of layers to the next."""
    return np.min(np.diff([e.accuracy("ls", order, k) for k in numbers_kept(e)], axis=0), axis=0)


def only_ls(e: Evidence) -> np.ndarray:
    """The smallest lead of LS over all others, whatever the number of layers, in arbitrary order."""

    def others(k: int) -> list[np.ndarray]:
        return [
            e.accuracy("layerdrop", "arbitrary", k),
            e.accuracy(BASELINE, "arbitrary", k),
            refit(e, "arbitrary", k),
        ]

    return np.min(
        [e.accuracy("ls", "arbitrary", k) - other for k in numbers_kept(e) for other in others(k)],
        axis=0,
    )


def by_batch(e: Evidence) -> str:
    """LS trained with one order a batch, as in the paper."""
    return "ls_batch" if "ls" in e.cell["latin"] else "ls"


def around(figure: float) -> dict[str, Any]:
    """The fields of a claim about a figure that the paper's text gives for ImageNet with ViT-B/16 alone."""

    def centre(e: Evidence) -> float:
        if e.published_cell() != ("ImageNet", "ViT-B/16"):
            raise NotComparable("the figure is about ImageNet with ViT-B/16")
        return figure

    return {"centre": centre, "middle": figure}


def if_of(e: Evidence, family: str, values: np.ndarray) -> np.ndarray:
    """The values, if the model's preset is named after this family; else NotRun."""
    if not e.cell["model"].startswith(f"{family.lower()}_"):
        raise NotRun(f"the claim is about {family}")
    return values


def trained_latin(e: Evidence, variant: str) -> str:
    """A variant, if it was trained with Latin orders."""
    if variant not in e.cell["latin"]:
        raise NotRun(f"{label(variant)} was not trained with Latin orders")
    return variant


def distances(e: Evidence, variant: str) -> np.ndarray:
    """Of each seed's accuracy under arbitrary orders from the seeds' median. Of fewer than four too much follows from each other."""
    values = e.accuracy(variant, "arbitrary")
    if len(values) < 4:
        raise NotRun(f"{len(values)} seeds: how much they differ takes at least 4")
    return np.abs(values - np.median(values))


def last_gain(e: Evidence) -> np.ndarray:
    """What the last five epochs add to LS on ImageNet under arbitrary orders."""
    if e.cell["dataset"] != "imagenet" or not e.is_published:
        raise NotRun("needs ImageNet")
    curve = e.table("finetune/ls").pivot(
        index="epoch", columns="seed", values="validation/arbitrary/accuracy"
    )
    if len(curve) < 6:
        raise NotRun(f"{len(curve)} epochs: there is no gain of the last five")
    return 100 * (curve.iloc[-1] - curve.iloc[-6]).to_numpy()


def needs(what: str) -> Callable[[Evidence], np.ndarray]:
    """Of a claim that no cell can decide alone."""

    def measure(e: Evidence) -> np.ndarray:
        raise CannotTell(f"needs {what}")

    return measure
