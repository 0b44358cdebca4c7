"""Train early exits on a frozen backbone: every branch at every depth, on cached features.

Source: multi-exit ViT, classifier-wise strategy.
"""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel, Samples
from lsvit.routes import ENDED, Route, arbitrary, generator, kept_layers, per_sample
from papers.exits.branches import make_branch
from papers.exits.compute.budgets import calibration_error
from papers.exits.compute.memory import free_for_worker
from papers.exits.section import EXIT_WEIGHTS, LAST_EXIT, BranchName, ExitConfig, own_order
from pipeline.data.splits import Split
from pipeline.errors import UserError
from pipeline.jobs.files import ARRAYS, HELDOUT, ROWS, read_meta, write_rows
from pipeline.models.tokens import token_shape
from pipeline.training.devices import Execution
from pipeline.training.objectives import is_right, task_loss
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import batches_along, open_model, open_split

BATCH_SIZE = 500  # images of a pass without gradients
SHARE = 4  # features cached at once take at most one such part of the free memory
ORDERS = ("sequential", "arbitrary", "pruned")  # in which exits are evaluated
COLUMNS = ("branch", "depth", "order", "lr", "epochs", "accuracy", "mae", "ece")


class Part(NamedTuple):
    """Images of a split."""

    split: Split
    rows: Tensor  # (n,) long

    def along(self, routes: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Route | Tensor]]:
        """See :func:`pipeline.training.scoring.batches_along`."""
        return batches_along(self.split, self.rows, routes, BATCH_SIZE)


def open_parts(config: ExitConfig, data: Path, model: RoutedModel) -> dict[str, Part]:
    """Open the images that train branches, those that choose, and those that only report.

    Held-out images choose (learning rate, epoch, thresholds) where there are some. Else a random
    half of the validation images does, and the other half reports.
    """
    parts = {}
    for name, split_name in (("train", "train"), ("report", "validation"), ("judge", HELDOUT)):
        if name == "judge" and HELDOUT not in read_meta(data)["counts"]:
            continue
        split = open_split(config, data, split_name, model)
        images = config.options.images if name == "train" else None
        parts[name] = Part(split, torch.from_numpy(split.subset(images)))
    if "judge" not in parts:
        split = parts["report"].split
        draw = generator("heldout", "validation", config.options.seed)
        halves = torch.from_numpy(draw.permutation(len(split))).tensor_split(2)
        parts["judge"] = Part(split, halves[0].sort()[0])
        parts["report"] = Part(split, halves[1].sort()[0])
    return parts


def draw_routes(order: str, images: int, num_layers: int, config: ExitConfig, part: str) -> Tensor:
    """Draw a route for each of `images` images: (images, L).

    Args:
        order: "sequential", "arbitrary", or "pruned" (some layers in their original order).
        images, num_layers: how many.
        config: its seeds, and how many layers a pruned route keeps.
        part: of the images.
    """
    if order == "sequential":
        return torch.arange(num_layers).expand(images, -1)
    sampler: Any = arbitrary
    if order == "pruned":
        sampler = kept_layers(min(config.options.keep, num_layers), "sequential")
    draw = generator("samples", config.options.seed, config.seed, part, order)
    return torch.from_numpy(per_sample(sampler, draw, num_layers, images))


class States:
    """A tap: the tokens after chosen depths, (len(depths), B, N, D)."""

    def __init__(self, depths: list[int], out: Tensor) -> None:
        self.places = {depth: place for place, depth in enumerate(depths)}
        self.out = out

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """See :class:`lsvit.routed.Tap`."""
        if depth + 1 in self.places:
            self.out[self.places[depth + 1], samples] = after.to(self.out.device, self.out.dtype)


class Features(NamedTuple):
    """Tokens (n, N, D) after one depth, or (depths, n, N, D), and labels (n,) of a part."""

    tokens: Tensor
    labels: Tensor

    def at(self, place: int, device: torch.device) -> "Features":
        """Those of one depth, on the device if they fit in a part of its free memory."""
        tokens = self.tokens[place]
        if device.type == "cuda" and tokens.nbytes > torch.cuda.mem_get_info(device)[0] // SHARE:
            return Features(tokens, self.labels)
        return Features(tokens.to(device), self.labels)


@torch.inference_mode()
def record(
    model: RoutedModel, part: Part, routes: Tensor, depths: list[int], execution: Execution
) -> Features:
    """Keep the tokens after each of the depths that all routes (n, L) reach, which may be none."""
    reached = int((routes[0] != ENDED).sum())
    depths = [depth for depth in depths if depth <= reached]
    shape = token_shape(model.backbone)
    dtype = torch.bfloat16 if execution.precision == "bf16" else torch.float32
    tokens = torch.empty(len(depths), len(part.rows), shape.length, shape.width, dtype=dtype)
    labels = []
    for place, images, found, route in part.along(routes[:, : depths[-1] if depths else 1]):
        if depths:
            with execution.context():
                model(images, route, [States(depths, tokens[:, place])])
        labels.append(found)
    return Features(tokens, torch.cat(labels))


@torch.inference_mode()
def run(
    model: RoutedModel, part: Part, routes: Tensor, execution: Execution
) -> tuple[Tensor, Tensor]:
    """Run every image along its route: the model's own answers (n, C), and the labels (n,)."""
    answers, labels = [], []
    for _, images, found, route in part.along(routes):
        with execution.context():
            answers.append(model(images, route).float())
        labels.append(found)
    return torch.cat(answers), torch.cat(labels)


class Fitted(NamedTuple):
    """A trained branch, at the epoch with the lowest loss on the judging images."""

    branch: nn.Module
    loss: float
    lr: float
    epochs: int  # run


def fit(
    branch: nn.Module,
    train: Features,
    judge: Features,
    lr: float,
    config: ExitConfig,
    execution: Execution,
) -> Fitted:
    """Train a branch on the tokens after one depth (multi-exit ViT, section IV).

    Adam, reduce-on-plateau, early stopping.

    Raises:
        UserError: the loss is not finite.
    """
    options = config.tuning.model_copy(update={"lr": lr})
    device = execution.device
    branch = branch.to(device)
    optimizer = make_optimizer(branch, options)
    scheduler = make_scheduler(optimizer, options, steps=0)
    losses: list[float] = []
    best: dict[str, Any] = {}
    while len(losses) < options.epochs and not stops(losses, options.stop_patience):
        branch.train()
        order = generator("batches", config.seed, len(losses)).permutation(len(train.labels))
        for rows in torch.from_numpy(order).split(options.batch_size):
            tokens = train.tokens[rows.to(train.tokens.device)].to(device).float()
            optimizer.zero_grad()
            with execution.context():
                loss = task_loss(branch(tokens).float(), train.labels[rows.to(device)])
            loss.backward()
            optimizer.step()
        losses.append(task_loss(answers(branch, judge.tokens, execution), judge.labels).item())
        if not math.isfinite(losses[-1]):
            raise UserError(
                f"{config.title}, seed {config.seed}: a branch's loss is not finite; "
                f"try smaller exits.lrs than {lr}"
            )
        scheduler.step(losses[-1])
        if losses[-1] <= min(losses):
            best = copy.deepcopy(branch.state_dict())
    branch.load_state_dict(best)
    return Fitted(branch, min(losses), lr, len(losses))


@torch.inference_mode()
def answers(branch: nn.Module, tokens: Tensor, execution: Execution) -> Tensor:
    """A branch's answers (n, C) to tokens (n, N, D)."""
    branch.eval()
    outputs = []
    for batch in tokens.split(BATCH_SIZE):
        with execution.context():
            outputs.append(branch(batch.to(execution.device).float()).float())
    return torch.cat(outputs)


class Answered(NamedTuple):
    """How an exit answers n images."""

    confidence: np.ndarray  # (n,) of its answers; a regression has none (nan)
    correct: np.ndarray  # (n,) bool
    mae: float | None  # mean absolute error of a regression

    @classmethod
    def of(cls, outputs: Tensor, labels: Tensor) -> "Answered":
        """From outputs (n, C) and labels (n,); a regression has one output."""
        mae = None
        confidence = torch.full(labels.shape, torch.nan)
        if outputs.shape[1] == 1:
            mae = task_loss(outputs, labels).item()
        else:
            confidence = outputs.softmax(-1).amax(-1)
        correct = is_right(outputs, labels).cpu().numpy()
        return cls(confidence.cpu().numpy().astype(np.float32), correct, mae)


Stream = tuple[str, str]  # a part of the images and the order of their routes


class Exit(NamedTuple):
    """A trained exit and its answers."""

    branch: str
    depth: int
    lr: float | None
    epochs: int | None
    state: dict[str, Tensor]
    answered: dict[Stream, Answered]


def depths_at_once(parts: dict[str, Part], model: RoutedModel, execution: Execution) -> int:
    """How many depths' features fit in a part of the memory that is free for this worker.

    Raises:
        UserError: not even one depth's.
    """
    shape = token_shape(model.backbone)
    counts = {name: len(part.rows) for name, part in parts.items()}
    images = counts["train"] + counts["judge"] + len(ORDERS) * counts["report"]
    bytes_each = 2 if execution.precision == "bf16" else 4
    size = images * shape.length * shape.width * bytes_each
    free = free_for_worker()
    if size > free // 2:
        raise UserError(
            f"exits.images: the features of one layer take {size / 2**30:.0f} GiB, more than half "
            f"of the free memory, accepted: fewer than {counts['train']} images"
        )
    return max(1, free // SHARE // size)


def train_branches(
    config: ExitConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Train every branch at every depth of one frozen backbone, and evaluate it in every order.

    Branches are trained in the order that the backbone was trained for. One pass over the images
    gives the features of all depths, or of as many as fit in memory. Writes `rows.csv`, a row an
    exit and order; `arrays.npz`, confidence and correctness of every exit on the judging and on
    the reporting images in that order; and `exits.safetensors`, keys {branch}.{depth}.{parameter}.
    Finished depths are not trained again.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    model.eval().requires_grad_(False)
    report({"text": f"runs on {execution}"})
    parts = open_parts(config, data, model)
    own = own_order(config.variant.route)
    routes = {}
    for part, order in (("train", own), ("judge", own), *(("report", order) for order in ORDERS)):
        images = len(parts[part].rows)
        routes[part, order] = draw_routes(order, images, model.num_layers, config, part)
    depths = options.exits_of(model.num_layers)
    files = {depth: folder / f"depth_{depth}.pt" for depth in depths}
    todo = [depth for depth in depths if not files[depth].exists()]
    at_once = depths_at_once(parts, model, execution)
    for start in range(0, len(todo), at_once):
        group = todo[start : start + at_once]
        features = {}
        for (part, order), table in routes.items():
            features[part, order] = record(model, parts[part], table, group, execution)
        for place, depth in enumerate(group):
            here = {}
            for key, recorded in features.items():
                if place < len(recorded.tokens):
                    here[key] = recorded.at(place, execution.device)
            exits = []
            for branch in options.branches:
                exits.append(train_exit(branch, depth, here, model, own, config, execution))
            unfinished = folder / "depth.partial"
            with unfinished.open("wb") as stream:  # whose errors say that a disk is full
                torch.save(exits, stream)
            unfinished.replace(files[depth])
            report({"cell": f"exits after {depth} layers"})
    exits = []
    for file in files.values():
        exits += torch.load(file, weights_only=False)
    exits.append(evaluate_head(model, parts, routes, execution))
    write_exits(exits, own, min(options.keep, model.num_layers), folder)
    for file in files.values():
        file.unlink()


def train_exit(
    branch: BranchName,
    depth: int,
    features: dict[Stream, Features],
    model: RoutedModel,
    own: str,
    config: ExitConfig,
    execution: Execution,
) -> Exit:
    """Train one branch at one depth, and keep the learning rate that the judging images choose."""
    shape = token_shape(model.backbone)
    candidates = []
    for lr in config.options.lrs:
        torch.manual_seed(int(generator("train", config.seed, depth, branch).integers(2**62)))
        module = make_branch(branch, shape, model.backbone.num_classes, config.options)
        train, judge = features["train", own], features["judge", own]
        candidates.append(fit(module, train, judge, lr, config, execution))
    best = min(candidates, key=lambda fitted: fitted.loss)
    answered = {}
    for stream, recorded in features.items():
        if stream[0] != "train":
            outputs = answers(best.branch, recorded.tokens, execution)
            answered[stream] = Answered.of(outputs, recorded.labels)
    state = {name: tensor.cpu() for name, tensor in best.branch.state_dict().items()}
    return Exit(branch, depth, best.lr, best.epochs, state, answered)


def evaluate_head(
    model: RoutedModel,
    parts: dict[str, Part],
    routes: dict[Stream, Tensor],
    execution: Execution,
) -> Exit:
    """The model's own head, after all layers of a route."""
    answered = {}
    for stream, table in routes.items():
        if stream[0] != "train":
            answered[stream] = Answered.of(*run(model, parts[stream[0]], table, execution))
    return Exit(LAST_EXIT, model.num_layers, None, None, {}, answered)


def write_exits(exits: list[Exit], own: str, keep: int, folder: Path) -> None:
    """Write rows, arrays and weights, see :func:`train_branches`.

    Args:
        exits: the model's own head is the last.
        own: the order that they were trained in.
        keep: layers of a pruned route.
        folder: to write to.
    """
    from safetensors.torch import save_file

    rows = []
    states = {}
    for exit in exits:
        for order in ORDERS:
            answered = exit.answered.get(("report", order))
            if answered is None:  # a pruned route ends before
                continue
            is_pruned_head = exit.branch == LAST_EXIT and order == "pruned"
            depth = keep if is_pruned_head else exit.depth
            accuracy = round(float(answered.correct.mean()), 6)
            mae = ece = None
            if answered.mae is None:
                ece = round(calibration_error(answered.confidence, answered.correct), 6)
            else:
                mae = round(answered.mae, 6)
            rows.append((exit.branch, depth, order, exit.lr, exit.epochs, accuracy, mae, ece))
        for name, tensor in exit.state.items():
            states[f"{exit.branch}.{exit.depth}.{name}"] = tensor.contiguous()
    write_rows(folder / ROWS, COLUMNS, rows)
    save_file(states, folder / EXIT_WEIGHTS)
    arrays: dict[str, Any] = {}
    for part in ("judge", "report"):
        exit_answers = [exit.answered[part, own] for exit in exits]
        arrays[f"confidence_{part}"] = np.stack([answer.confidence for answer in exit_answers])
        arrays[f"correct_{part}"] = np.stack([answer.correct for answer in exit_answers])
    arrays["branch"] = np.array([exit.branch for exit in exits])
    arrays["depth"] = np.array([exit.depth for exit in exits])
    np.savez(folder / ARRAYS, **arrays)
