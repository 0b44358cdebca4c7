"""Which exit answers for an image, within a budget."""

import torch
from torch import Tensor

from lsvit.routes import Route
from papers.exits.compute.budgets import pick
from papers.exits.compute.dynamic import Deployed, leave_early
from papers.exits.section import LAST_EXIT
from pipeline.deploy.predict import Opened
from pipeline.errors import UserError


@torch.inference_mode()
def choose_exit(
    opened: Opened,
    deployed: Deployed,
    image: Tensor,
    routes: list[Route],
    flops: float | None,
    latency: float | None,
    average: bool,
) -> int:
    """Which of the deployed exits answers about an image (C, H, W): its index.

    One budget, in FLOPs or ms, for every image: the best exit that fits, the same for all. `average`: the FLOPs hold on average
    over images like those that the exits were chosen on, and an image leaves when its answer is sure enough.

    Raises:
        UserError: the budget is below the cheapest exit's cost, no or two budgets are given, a route ends before the last exit or
            goes on after the model's own head, or the thresholds of `average` were not calibrated for these routes.
    """
    if (flops is None) == (latency is None) or (average and flops is None):
        raise UserError(
            "--exits: accepted with either --flops or --latency; --average with --flops"
        )
    last, length = deployed.depths[-1], len(routes[0])
    if length < last or (length > last and deployed.branches[-1] == LAST_EXIT):
        raise UserError(
            f"--exits: found a route of {length} layers, accepted: {last}, the depth of the last exit"
        )
    sequential = routes == [tuple(range(length))]
    if average and (len(routes) > 1 or (deployed.order == "sequential") != sequential):
        wanted = (
            "--order sequential"
            if deployed.order == "sequential"
            else "--order arbitrary --orders 1"
        )
        raise UserError(
            f"--average: its thresholds are calibrated for {deployed.order} order and one route an image, accepted: {wanted}"
        )
    budget, unit, cost = (
        (flops, "flops", deployed.flops)
        if flops is not None
        else (latency, "latency", deployed.latency)
    )
    assert budget is not None
    least = deployed.spent[0] if average else cost.min()
    if not budget >= least:  # nan
        raise UserError(
            f"--{unit}: found {budget:g}, accepted: at least {least:g}, the cost of the cheapest exit"
        )
    if not average:
        chosen = pick(cost, deployed.accuracy, budget)
        assert chosen is not None
        return chosen
    _, left = leave_early(opened.model, image[None], deployed.thresholds(budget), routes[0])
    return deployed.depths.index(int(left))
