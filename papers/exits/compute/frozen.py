"""Train early exits on a frozen backbone: every branch at every depth, on recorded tokens.

Source: multi-exit ViT, classifier-wise strategy.
"""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel
from lsvit.routes import ENDED, Sampler, arbitrary, generator, kept_layers, per_sample, sequential
from papers.exits.branches import make_branch
from papers.exits.compute.budgets import practical
from papers.exits.compute.flops import ExitFlops, count_exits
from papers.exits.compute.in_use import InUse
from papers.exits.section import (
    EXIT_WEIGHTS,
    LAST_EXIT,
    BranchSizes,
    ExitConfig,
    own_order,
)
from pipeline.data.splits import Split
from pipeline.errors import UserError
from pipeline.jobs.files import ARRAYS, HELDOUT, ROWS, read_meta, write_rows
from pipeline.models.tokens import token_shape
from pipeline.training.devices import Execution
from pipeline.training.objectives import is_right, task_loss
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import batches_along, open_model, open_split

BATCH_SIZE = 500  # images of a pass without gradients
SHARE = 4  # tokens lie on a GPU if they take at most one such part of its free memory
ORDERS = ("sequential", "arbitrary", "pruned")  # in which exits are evaluated
COLUMNS = (
    "branch",
    "depth",
    "order",
    "lr",
    "epochs",
    "accuracy",
    "mae",
    "judge",
    "flops",
    "practical",
)


class Part(NamedTuple):
    """Images of a split."""

    split: Split
    rows: Tensor  # (n,) long


def open_parts(config: ExitConfig, data: Path, model: RoutedModel) -> dict[str, Part]:
    """Open the images that train branches, those that choose, and those that only report.

    Held-out images choose (learning rate, epoch, thresholds) where there are some. Else a random
    half of the validation images does, and the other half reports.
    """

    def open_part(name: str, images: int | None = None) -> Part:
        split = open_split(config, data, name, model)
        return Part(split, torch.from_numpy(split.subset(images)))

    parts = {"train": open_part("train", config.options.images), "report": open_part("validation")}
    if HELDOUT in read_meta(data)["counts"]:
        return parts | {"judge": open_part(HELDOUT)}
    split = parts["report"].split
    draw = generator("heldout", "validation", config.options.seed)
    halves = torch.from_numpy(draw.permutation(len(split))).tensor_split(2)
    for name, half in zip(("judge", "report"), halves, strict=True):
        parts[name] = Part(split, half.sort()[0])
    return parts


def draw_routes(order: str, images: int, num_layers: int, config: ExitConfig, part: str) -> Tensor:
    """Draw a route for each of `images` images: (images, L).

    Args:
        order: "sequential", "arbitrary", or "pruned" (some layers in their original order).
        images, num_layers: how many.
        config: its seeds, and how many layers a pruned route keeps.
        part: of the images.
    """
    pruned = kept_layers(min(config.options.keep, num_layers), "sequential")
    samplers: dict[str, Sampler] = {
        "sequential": sequential,
        "arbitrary": arbitrary,
        "pruned": pruned,
    }
    draw = generator("samples", config.options.seed, config.seed, part, order)
    return torch.from_numpy(per_sample(samplers[order], draw, num_layers, images))


class Recorded(NamedTuple):
    """Tokens (n, N, D) of images after one depth, and their labels (n,)."""

    tokens: Tensor
    labels: Tensor


@torch.inference_mode()
def record(
    model: RoutedModel, part: Part, routes: Tensor, depth: int, execution: Execution
) -> Recorded:
    """Record the tokens after a depth, which all routes (n, L) reach.

    They lie on the device if they fit in a part of its free memory.
    """
    shape = token_shape(model.backbone)
    dtype = torch.bfloat16 if execution.precision == "bf16" else torch.float32
    tokens = torch.empty(len(part.rows), shape.length, shape.width, dtype=dtype)
    device = execution.device
    if device.type != "cuda" or tokens.nbytes <= torch.cuda.mem_get_info(device)[0] // SHARE:
        tokens = tokens.to(device)
    labels = []
    for place, images, found, route in batches_along(*part, routes[:, :depth], BATCH_SIZE):
        with execution.context():
            tokens[place] = model.tokens(images, route).to(tokens)
        labels.append(found)
    return Recorded(tokens, torch.cat(labels))


class Fitted(NamedTuple):
    """A trained branch, at the epoch with the lowest loss on the judging images."""

    branch: nn.Module
    loss: float
    lr: float
    epochs: int  # run


def fit(
    branch: nn.Module,
    train: Recorded,
    judge: Recorded,
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
    scaler = torch.amp.GradScaler(device.type, enabled=execution.precision == "fp16")
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
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
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
    score: np.ndarray  # (n,): 1 where the answer is right, else 0; of a regression minus its error


def judge_answers(outputs: Tensor, labels: Tensor) -> Answered:
    """From outputs (n, C) and labels (n,); a regression has one output."""
    if outputs.shape[1] == 1:
        confidence = torch.full(labels.shape, torch.nan)
        score = -(outputs[:, 0] - labels).abs()
    else:
        confidence = outputs.softmax(-1).amax(-1)
        score = is_right(outputs, labels)
    return Answered(confidence.cpu().float().numpy(), score.cpu().double().numpy())


class Exit(NamedTuple):
    """A trained exit and its answers: to the images that judge, and in each order that reaches it
    to those that report.
    """

    branch: str
    depth: int
    lr: float | None
    epochs: int | None
    state: dict[str, Tensor]
    answered: dict[str, Answered]


def train_branches(
    config: ExitConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Train every branch at every depth of one frozen backbone, and evaluate it in every order.

    Branches are trained in the order that the backbone was trained for. Writes what
    :func:`write_exits` does. Finished depths are not trained again.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    model.eval().requires_grad_(False)
    report({"text": f"runs on {execution}"})
    parts = open_parts(config, data, model)
    own = own_order(config.variant.route)
    streams = {}
    for name in ("train", "judge", *ORDERS):
        part, order = (name, own) if name in parts else ("report", name)
        table = draw_routes(order, len(parts[part].rows), model.num_layers, config, part)
        streams[name] = parts[part], table
    exits = []
    for depth in options.exits_of(model.num_layers):
        file = folder / f"depth_{depth}.pt"
        if not file.exists():
            recorded = {}
            for name, (images, table) in streams.items():
                if depth <= (table[0] != ENDED).sum():
                    recorded[name] = record(model, images, table, depth, execution)
            trained = train_depth(depth, recorded, model, config, execution)
            with file.open("wb") as stream:  # whose errors say that a disk is full
                torch.save(trained, stream)
            report({"cell": f"exits after {depth} layers"})
        exits += torch.load(file, weights_only=False)
    del streams["train"]
    answered = {name: run_head(model, *stream, execution) for name, stream in streams.items()}
    exits.append(Exit(LAST_EXIT, model.num_layers, None, None, {}, answered))
    classes = len(read_meta(data)["classes"])
    flops = count_exits(config.model, classes, options.branches, options, config.variant)
    write_exits(exits, flops, config, folder)
    for file in folder.glob("depth_*.pt"):
        file.unlink()


def train_depth(
    depth: int,
    recorded: dict[str, Recorded],
    model: RoutedModel,
    config: ExitConfig,
    execution: Execution,
) -> list[Exit]:
    """Train all branches after one depth; the judging images choose each one's learning rate."""
    shape = token_shape(model.backbone)
    exits = []
    for kind in config.options.branches:
        candidates = []
        for lr in config.options.lrs:
            torch.manual_seed(int(generator("train", config.seed, depth, kind).integers(2**62)))
            branch = make_branch(kind, shape, model.backbone.num_classes, config.options)
            train, judge = recorded["train"], recorded["judge"]
            candidates.append(fit(branch, train, judge, lr, config, execution))
        best = min(candidates, key=lambda fitted: fitted.loss)
        answered = {}
        for name, (tokens, labels) in recorded.items():
            if name != "train":
                answered[name] = judge_answers(answers(best.branch, tokens, execution), labels)
        state = {name: tensor.cpu() for name, tensor in best.branch.state_dict().items()}
        exits.append(Exit(kind, depth, best.lr, best.epochs, state, answered))
    return exits


@torch.inference_mode()
def run_head(model: RoutedModel, part: Part, routes: Tensor, execution: Execution) -> Answered:
    """Answer every image along its route by the model's own head."""
    outputs, labels = [], []
    for _, images, found, route in batches_along(*part, routes, BATCH_SIZE):
        with execution.context():
            outputs.append(model(images, route).float())
        labels.append(found)
    return judge_answers(torch.cat(outputs), torch.cat(labels))


def write_exits(exits: list[Exit], flops: ExitFlops, config: ExitConfig, folder: Path) -> None:
    """Write what was trained on a backbone.

    `rows.csv` has a row an exit and order. In the order that exits were trained in, `judge` is the
    accuracy or error on the judging images, and whether an exit is practical is seen on the
    reporting ones. `arrays.npz` has every exit's answers in that order. `exits.safetensors` has
    keys {branch}.{depth}.{parameter}. `exits.json` says which exits of a classifier to use.

    Args:
        exits: the model's own head is the last.
        flops: of every exit.
        config: of the job.
        folder: to write to.
    """
    from safetensors.torch import save_file

    own = own_order(config.variant.route)
    columns: dict[str, list] = {
        "branch": [exit.branch for exit in exits],
        "depth": [exit.depth for exit in exits],
        "flops": [flops.at(exit.branch, exit.depth) for exit in exits],
        "branch_flops": [flops.branches.get(exit.branch, 0) for exit in exits],
    }
    for part, name in {"judge": "judge", "report": own}.items():
        for field in Answered._fields:
            columns[f"{field}_{part}"] = [getattr(exit.answered[name], field) for exit in exits]
    arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    np.savez(folder / ARRAYS, **arrays)
    counts = bool(np.isnan(arrays["confidence_judge"]).all())
    is_practical = practical(arrays["flops"], arrays["score_report"])

    rows = []
    states = {}
    for place, exit in enumerate(exits):
        for order, answers in exit.answered.items():
            if order == "judge":
                continue
            depth = exit.depth
            if exit.branch == LAST_EXIT and order == "pruned":
                depth = min(config.options.keep, depth)
            score = abs(round(float(answers.score.mean()), 6))
            values = (None, score) if counts else (score, None)
            judge = here = None
            if order == own:
                judge = abs(round(float(exit.answered["judge"].score.mean()), 6))
                here = bool(is_practical[place])
            cost = flops.at(exit.branch, depth)
            head = (exit.branch, depth, order, exit.lr, exit.epochs)
            rows.append((*head, *values, judge, cost, here))
        for name, tensor in exit.state.items():
            states[f"{exit.branch}.{exit.depth}.{name}"] = tensor.contiguous()
    write_rows(folder / ROWS, COLUMNS, rows)
    save_file(states, folder / EXIT_WEIGHTS)
    if not counts:  # a count has no confidence to go by
        InUse.among(
            arrays,
            weights_sha256=config.weights_sha256,
            sizes=config.options.narrow(BranchSizes).model_dump(),
            order=own,
        ).write(folder)
