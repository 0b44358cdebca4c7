"""Answers about images by early exits, within a budget."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lsvit.predict import Opened, predict
from lsvit.routes import Route
from papers.exits.compute.budgets import pick
from papers.exits.compute.dynamic import exit_after, leave_early, measure_latency
from papers.exits.compute.in_use import InUse
from papers.exits.section import LAST_EXIT
from pipeline.errors import UserError


class Budget(NamedTuple):
    """What an image may cost: FLOPs, or ms on this machine.

    `average`: the FLOPs hold on average over images like those that the exits were chosen on, and
    an image leaves when its answer is sure enough. Otherwise all images leave at the best exit that
    fits.
    """

    flops: float | None
    latency: float | None
    average: bool


def check_routes(deployed: InUse, routes: list[Route], average: bool) -> None:
    """Raise UserError if the exits do not lie on the routes, or were calibrated for others."""
    last, length = deployed.depths[-1], len(routes[0])
    if length < last or (length > last and deployed.branches[-1] == LAST_EXIT):
        raise UserError(
            f"--exits: found a route of {length} layers, "
            f"accepted: {last}, the depth of the last exit"
        )
    order = "sequential" if routes == [tuple(range(length))] else "arbitrary"
    if average and (len(routes) > 1 or order != deployed.order):
        raise UserError(
            f"--average: its threshold is calibrated for one route an image, "
            f"accepted: --order {deployed.order} --orders 1"
        )


@torch.inference_mode()
def answer(
    opened: Opened,
    deployed: InUse,
    image: Tensor,
    routes: list[Route],
    budget: Budget,
    top: int,
) -> dict[str, Any]:
    """What :func:`lsvit.predict.predict` finds about an image (C, H, W) at the exit that the budget
    chooses, and the `exit`. Its time is measured where the budget is one.

    Raises:
        UserError: no or two budgets are given, or one below the cheapest exit's cost, or
            :func:`check_routes` refuses the routes.
    """
    flops, latency, average = budget
    if (flops is None) == (latency is None) or (average and flops is None):
        raise UserError(
            "--exits: accepted with either --flops or --latency; --average with --flops"
        )
    check_routes(deployed, routes, average)
    name, amount = "latency", latency
    if amount is None:
        name, amount = "flops", flops
        cost = deployed.spent if average else deployed.flops
    else:
        cost = measure_latency(opened.model, deployed.depths, image[None])
    assert amount is not None
    if not amount >= cost.min():  # nan is refused too
        raise UserError(
            f"--{name}: found {amount:g}, "
            f"accepted: at least {cost.min():g}, the cost of the cheapest exit"
        )
    chosen = pick(cost, deployed.accuracy, amount)
    assert chosen is not None
    if average:
        _, depth = leave_early(opened.model, image[None], deployed.thresholds(amount), routes[0])
        chosen = deployed.depths.index(int(depth))
    about = deployed.describe(chosen, average)
    if latency is not None:
        about["latency_ms"] = round(float(cost[chosen]), 4)
    head = exit_after(opened.model, deployed.depths[chosen])
    return {"exit": about, **predict(opened, image, routes, top, head)}
