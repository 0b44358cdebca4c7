"""Dynamic inference with early exits: anytime answers, images that leave early, costs."""

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel
from lsvit.routes import Route
from papers.exits.branches import make_branch
from papers.exits.compute.flops import count_exits
from papers.exits.compute.in_use import InUse
from papers.exits.section import (
    EXIT_COSTS,
    EXIT_WEIGHTS,
    EXITS_IN_USE,
    LAST_EXIT,
    BranchName,
    BranchSizes,
    ExitConfig,
)
from pipeline.errors import UserError
from pipeline.files import reading, write_json
from pipeline.jobs.files import ARRAYS, read_meta
from pipeline.models.tokens import token_shape
from pipeline.models.weights import input_size, read_tensors
from pipeline.training.scoring import open_model

ROUNDS = 10  # timed calls of every exit, one after another in each round


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
        state = {}
        for name, tensor in tensors.items():
            if name.startswith(prefix):
                state[name.removeprefix(prefix)] = tensor
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
    file = folder / EXITS_IN_USE
    with reading(file, "accepted: outs/exits/classifier_wise/<variant>/seed_<n>"):
        record = json.loads(file.read_text())
        with np.load(folder / ARRAYS) as arrays:
            used = InUse.read(record, arrays)
        owner = record["weights_sha256"]
        sizes = BranchSizes.model_validate(record["sizes"])
    if owner != weights_sha256:
        whose = f"{folder.parent.name}, {folder.name}"
        raise UserError(f"{folder}: exits of other weights, accepted: those of {whose}")
    exits: Any = dict(zip(used.depths, used.branches, strict=True))
    if used.branches[-1] == LAST_EXIT:
        del exits[used.depths[-1]]
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
            :func:`papers.exits.compute.budgets.exit_thresholds`.
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
        depth, state = next(states) if rest is None else states.send(rest)
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


@torch.inference_mode()
def measure(config: ExitConfig, data: Path, folder: Path, report: Callable[[dict], None]) -> None:
    """Measure FLOPs and time of one image up to every exit on this machine; weights do not matter.

    Writes `costs.json`: `flops` and `latency_ms` (median over the rounds) by "{branch}.{depth}",
    "final.{depth}" among them; `branch_flops` of the branches alone; `hardware`.
    """
    torch.set_num_threads(1)
    model, execution = open_model(config, data, None)
    model.eval()
    options = config.options
    num_classes = len(read_meta(data)["classes"])
    counted = count_exits(config.model, num_classes, options.branches, options, config.variant)
    depths = options.exits_of(model.num_layers)
    shape = token_shape(model.backbone)
    in_chans, size = input_size(model, config.model)
    image = torch.randn(1, in_chans, size, size, device=execution.device)
    branches = {}
    for kind in options.branches:
        branch = make_branch(kind, shape, model.backbone.num_classes, options)
        branches[kind] = branch.to(execution.device).eval()
    times = defaultdict(list)
    for _ in range(ROUNDS + 1):
        for kind, branch in branches.items():
            model.exits = nn.ModuleDict({str(depth): branch for depth in depths})
            for depth in depths:
                seconds = _seconds(model, image, depth, execution.context)
                times[f"{kind}.{depth}"].append(seconds)
        seconds = _seconds(model, image, None, execution.context)
        times[f"final.{model.num_layers}"].append(seconds)
    report({"cell": f"{len(times)} exits timed"})
    flops = {f"{kind}.{depth}": counted.at(kind, depth) for kind in branches for depth in depths}
    for depth in range(1, model.num_layers + 1):  # of pruned routes too
        flops[f"final.{depth}"] = counted.model.whole(depth)
    latency = {}
    for name, measured in times.items():  # the first one warms up
        latency[name] = round(1000 * statistics.median(measured[1:]), 4)
    threads = ", one thread" if execution.device.type == "cpu" else ""
    costs = {
        "hardware": f"{execution}{threads}",
        "num_layers": model.num_layers,
        "flops": flops,
        "branch_flops": counted.branches,
        "latency_ms": latency,
    }
    write_json(folder / EXIT_COSTS, costs)


def _seconds(model: RoutedModel, image: Tensor, exit: int | None, context: Callable) -> float:
    start = time.perf_counter()
    with context():
        model(image, exit=exit).argmax().item()  # waits for the device
    return time.perf_counter() - start
