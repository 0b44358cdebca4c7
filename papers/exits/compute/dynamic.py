"""Dynamic inference with early exits: anytime answers, and images that leave early."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lsvit.predict import Opened, predict
from lsvit.routed import RoutedModel
from lsvit.routes import Route
from papers.exits.branches import make_branch
from papers.exits.compute.budgets import pick
from papers.exits.compute.in_use import InUse
from papers.exits.section import EXIT_WEIGHTS, EXITS_IN_USE, LAST_EXIT, BranchName, BranchSizes
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.models.tokens import token_shape
from pipeline.models.weights import read_tensors

ROUNDS = 11  # timed calls of every exit, one after another in each round; the first warms up


def attach(
    model: RoutedModel, file: Path, chosen: Mapping[int, BranchName], sizes: BranchSizes
) -> None:
    """Give a model the exits that stage `exits` trained on it, one branch at each chosen depth.

    Raises:
        UserError: the file is missing, has no such exit, or belongs to another model.
    """
    tensors = read_tensors(file)
    for depth, kind in chosen.items():
        prefix = f"{kind}.{depth}."
        names = [name for name in tensors if name.startswith(prefix)]
        state = {name.removeprefix(prefix): tensors[name] for name in names}
        branch = make_branch(kind, token_shape(model.backbone), model.backbone.num_classes, sizes)
        try:
            branch.load_state_dict(state)
        except RuntimeError:
            missing = f"found no branch {kind!r} after {depth} layers that fits the model"
            raise UserError(f"{file}: {missing}, accepted: exits of this model") from None
        model.exits[str(depth)] = branch.to(next(model.parameters()).device).eval()


def deploy(model: RoutedModel, folder: Path, weights_sha256: str) -> InUse:
    """Attach the exits worth using, see stage `exits`, to the model that they were trained on.

    Args:
        model: gets the exits.
        folder: outs/exits/classifier_wise/<variant>/seed_<n>.
        weights_sha256: of the model's weights.

    Raises:
        UserError: the folder is none of that stage's, or it belongs to another model.
    """
    with reading(folder / EXITS_IN_USE, "accepted: outs/exits/classifier_wise/<variant>/seed_<n>"):
        used = InUse.read(folder)
        sizes = BranchSizes.model_validate(used.sizes)
    if used.weights_sha256 != weights_sha256:
        whose = f"{folder.parent.name}, {folder.name}"
        raise UserError(f"{folder}: exits of other weights, accepted: those of {whose}")
    exits: Any = dict(zip(used.depths, used.branches, strict=True))
    if used.branches[-1] == LAST_EXIT:
        exits.popitem()
    attach(model, folder / EXIT_WEIGHTS, exits, sizes)
    return used


def anytime(
    model: RoutedModel, images: Tensor, route: Route | None = None
) -> Iterator[tuple[int, Tensor]]:
    """Yield (depth, logits (B, C)) of every exit in turn, at last of the model's own head.

    Nothing beyond the answer asked for is executed: whoever is interrupted has the latest one.
    """
    depth, state = 0, images
    for depth, state in model.states(images, route):
        if str(depth) in model.exits:
            yield depth, model.answer(state, depth)
    yield depth, model.answer(state)


def leave_early(
    model: RoutedModel, images: Tensor, thresholds: Mapping[int, float], route: Route | None = None
) -> tuple[Tensor, Tensor]:
    """Let every image leave at the first exit that is confident enough; the others go on.

    Confidence is the largest probability.

    Args:
        images: (B, C, H, W).
        thresholds: by depth, for some or all exits of the model, see
            :func:`papers.exits.compute.budgets.threshold_within`.
        route: layers, shared by the batch; default: all in their original order.

    Returns:
        (logits (B, num_classes), depth at which each image left (B,)).

    Raises:
        ValueError: the model has one output, a regression, whose answers have no confidence.
    """
    if model.backbone.num_classes == 1:
        raise ValueError("leave_early: found a model with one output, accepted: a classifier")
    route = tuple(range(model.num_layers)) if route is None else route
    states = model.states(images, route)
    waiting = torch.arange(len(images), device=images.device)
    rest = None
    logits = torch.empty(len(images), model.backbone.num_classes, device=images.device)
    left = torch.full_like(waiting, len(route))
    while len(waiting):
        depth, state = states.send(rest)
        rest = None
        if depth == len(route):
            logits[waiting] = model.answer(state).to(logits.dtype)
            break
        if depth in thresholds:
            answers = model.answer(state, depth).to(logits.dtype)
            sure = answers.softmax(-1).amax(-1) >= thresholds[depth]
            logits[waiting[sure]] = answers[sure]
            left[waiting[sure]] = depth
            rest = (~sure).nonzero()[:, 0]
            waiting = waiting[rest]
    return logits, left


def measure_latency(model: RoutedModel, depths: Sequence[int], image: Tensor) -> np.ndarray:
    """Measure how long an image (1, C, H, W) takes up to each exit: ms (E,), medians.

    Args:
        model: has the exits; what answers after the other depths is its own head.
        depths: (E,), of the exits.
        image: as the model takes it.
    """
    times = np.zeros((ROUNDS, len(depths)))
    for round_times in times:
        for place, depth in enumerate(depths):
            start = time.perf_counter()
            model(image, exit=exit_after(model, depth)).argmax().item()  # waits for the device
            round_times[place] = 1000 * (time.perf_counter() - start)
    return np.median(times[1:], axis=0)


def exit_after(model: RoutedModel, depth: int) -> int | None:
    """The early exit after so many layers; None where there is none, but the model's own head."""
    return depth if str(depth) in model.exits else None


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
    name, amount = "flops", flops
    cost = deployed.spent if average else deployed.flops
    if latency is not None:
        name, amount = "latency", latency
        cost = measure_latency(opened.model, deployed.depths, image[None])
    assert amount is not None
    if not amount >= cost.min():  # nan is refused too
        raise UserError(
            f"--{name}: found {amount:g}, "
            f"accepted: at least {cost.min():g}, the cost of the cheapest exit"
        )
    chosen = pick(cost, deployed.accuracy, amount)
    if average:
        _, depth = leave_early(opened.model, image[None], deployed.thresholds(amount), routes[0])
        chosen = deployed.depths.index(int(depth))
    about = deployed.describe(chosen, average)
    if latency is not None:
        about["latency_ms"] = round(float(cost[chosen]), 4)
    head = exit_after(opened.model, deployed.depths[chosen])
    return {"exit": about, **predict(opened, image, routes, top, head)}
