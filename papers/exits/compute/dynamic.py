"""Dynamic inference with early exits: anytime answers, images that leave early, costs."""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel
from lsvit.routes import Route
from papers.exits.branches import make_branch
from papers.exits.compute.budgets import exit_thresholds
from papers.exits.compute.flops import count_exits
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
        UserError: the file is missing or has no such exit, or it belongs to another model.
    """
    tensors = read_tensors(file)
    for depth, kind in chosen.items():
        prefix = f"{kind}.{depth}."
        own = {
            name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)
        }
        if not own:
            known = sorted({".".join(name.split(".")[:2]) for name in tensors})
            raise UserError(
                f"{file}: has no branch {kind!r} after {depth} layers, accepted: {', '.join(known)}"
            )
        branch = make_branch(kind, token_shape(model.backbone), model.backbone.num_classes, sizes)
        try:
            branch.load_state_dict(own)
        except RuntimeError as error:
            raise UserError(
                f"{file}: does not fit the model: {' '.join(str(error).split())[:200]}"
            ) from None
        model.exits[str(depth)] = branch.to(next(model.parameters()).device).eval()


class Deployed(NamedTuple):
    """Exits put into use on a model, E of them by depth; the last may be the model's own head."""

    order: str  # of the layers when they were trained: sequential or arbitrary
    branches: list[str]
    depths: list[int]
    flops: np.ndarray  # (E,), of one image up to and including the exit
    spent: (
        np.ndarray
    )  # (E,), with the branches of all exits before it, as where each is tried on the way
    latency: np.ndarray  # (E,), ms, where the stage ran
    accuracy: np.ndarray  # (E,), on the images that chose them
    confidence: np.ndarray  # (E, n), of those images

    def describe(self, i: int, tried: bool) -> dict[str, Any]:
        """An exit's branch, depth, costs, and accuracy on the images that chose it.

        If the exits before it were `tried` on the way, FLOPs include their branches.
        """
        flops, latency, accuracy = (
            float(values[i])
            for values in (self.spent if tried else self.flops, self.latency, self.accuracy)
        )
        numbers = {
            "flops": int(flops),
            "latency_ms": round(latency, 4),
            "accuracy": round(accuracy, 4),
        }
        return {"branch": self.branches[i], "depth": self.depths[i], **numbers}

    def thresholds(self, budget: float) -> dict[int, float]:
        """Thresholds by depth, for :func:`leave_early`, that cost at most so many FLOPs on average.

        This holds for images like those that chose the exits.
        """
        return dict(
            zip(
                self.depths,
                exit_thresholds(self.confidence, self.spent, budget).tolist(),
                strict=True,
            )
        )


def deploy(model: RoutedModel, folder: Path, weights_sha256: str) -> Deployed:
    """Attach the exits worth using, see stage `exits`, to the model that they were trained on.

    Args:
        model: gets the exits.
        folder: outs/exits/classifier_wise/<variant>/seed_<n>.
        weights_sha256: of the model's weights.

    Raises:
        UserError: the folder is none of that stage's, or it belongs to another model.
    """
    file = folder / EXITS_IN_USE
    try:
        found = json.loads(file.read_text())
        with np.load(folder / ARRAYS) as arrays:
            names = [
                f"{branch}.{depth}"
                for branch, depth in zip(arrays["branch"], arrays["depth"], strict=True)
            ]
            used = [
                names.index(f"{branch}.{depth}")
                for branch, depth in zip(found["branches"], found["depths"], strict=True)
            ]
            confidence = arrays["confidence_judge"][used]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"{file}: cannot be read ({type(error).__name__}), "
            "accepted: outs/exits/classifier_wise/<variant>/seed_<n>"
        ) from None
    if found["weights_sha256"] != weights_sha256:
        raise UserError(
            f"{folder}: exits of other weights, "
            f"accepted: those of {folder.parent.name}, {folder.name}"
        )
    chosen = {
        depth: kind
        for depth, kind in zip(found["depths"], found["branches"], strict=True)
        if kind != LAST_EXIT
    }
    attach(model, folder / EXIT_WEIGHTS, chosen, BranchSizes.model_validate(found["sizes"]))
    columns = {name: np.array(found[name]) for name in ("flops", "spent", "latency", "accuracy")}
    return Deployed(
        found["order"], found["branches"], found["depths"], **columns, confidence=confidence
    )


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
    waiting, rest = torch.arange(len(images), device=images.device), None
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
            logits[waiting[sure]], left[waiting[sure]] = answers[sure], depth
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
    outputs, options = model.backbone.num_classes, config.options
    counted = count_exits(
        config.model, len(read_meta(data)["classes"]), options.branches, options, config.variant
    )
    depths = options.exits_of(model.num_layers)
    shape = token_shape(model.backbone)
    branches = {
        kind: make_branch(kind, shape, outputs, options).to(execution.device).eval()
        for kind in options.branches
    }
    in_chans, size = input_size(model, config.model)
    image = torch.randn(1, in_chans, size, size, device=execution.device)
    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS + 1):
        for kind, branch in branches.items():
            model.exits = nn.ModuleDict({str(depth): branch for depth in depths})
            for depth in depths:
                times.setdefault(f"{kind}.{depth}", []).append(
                    _seconds(model, image, depth, execution.context)
                )
        times.setdefault(f"final.{model.num_layers}", []).append(
            _seconds(model, image, None, execution.context)
        )
    report({"cell": f"{len(times)} exits timed"})
    flops = {f"{kind}.{depth}": counted.at(kind, depth) for kind in branches for depth in depths}
    flops |= {
        f"final.{depth}": counted.model.whole(depth) for depth in range(1, model.num_layers + 1)
    }  # of pruned routes too
    found = {
        "hardware": f"{execution}{', one thread' if execution.device.type == 'cpu' else ''}",
        "num_layers": model.num_layers,
        "flops": flops,
        "branch_flops": {str(kind): count for kind, count in counted.branches.items()},
        "latency_ms": {
            name: round(1000 * statistics.median(seconds[1:]), 4) for name, seconds in times.items()
        },  # the first one warms up
    }
    (folder / EXIT_COSTS).write_text(json.dumps(found, indent=1) + "\n")


def _seconds(model: RoutedModel, image: Tensor, exit: int | None, context: Callable) -> float:
    start = time.perf_counter()
    with context():
        model(image, exit=exit).argmax().item()  # waits for the device
    return time.perf_counter() - start
