"""Early exits on a frozen backbone (multi-exit ViT, classifier-wise strategy): every branch at every depth, on cached features."""

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel, Samples
from lsvit.routes import ENDED, Route, arbitrary, generator, kept_layers, own_order, per_sample
from papers.exits.branches import make_branch, token_shape
from papers.exits.compute.budgets import calibration_error
from papers.exits.section import EXIT_WEIGHTS, LAST_EXIT, ExitConfig
from pipeline.config.variant import BranchName
from pipeline.data.splits import Split
from pipeline.errors import UserError
from pipeline.jobs.files import ARRAYS, HELDOUT, ROWS, read_meta, write_rows
from pipeline.training.devices import Execution
from pipeline.training.losses import is_right, task_loss
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import batches_along, open_model, open_split

BATCH_SIZE = 500  # images of a pass without gradients
SHARE = 4  # features of so many depths are cached at once that they take at most one such part of the free memory
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
    """The images that train branches, that choose (learning rate, epoch, thresholds), and that only report.

    Held-out images choose where there are some, else a random half of the validation images, and the other half reports.
    """

    def whole(split: str, images: int | None = None) -> Part:
        opened = open_split(config, data, split, model)
        return Part(opened, torch.from_numpy(opened.subset(images)))

    parts = {"train": whole("train", config.options.images), "report": whole("validation")}
    if HELDOUT in read_meta(data)["counts"]:
        return parts | {"judge": whole(HELDOUT)}
    split = parts["report"].split
    judge, report = torch.from_numpy(
        generator("heldout", "validation", config.options.seed).permutation(len(split))
    ).tensor_split(2)
    return parts | {"judge": Part(split, judge.sort()[0]), "report": Part(split, report.sort()[0])}


def draw_routes(order: str, images: int, num_layers: int, config: ExitConfig, part: str) -> Tensor:
    """A route for each of `images` images, (images, L): "sequential", "arbitrary", or "pruned" (some layers, original order)."""
    if order == "sequential":
        return torch.arange(num_layers).expand(images, -1)
    sampler = (
        arbitrary
        if order == "arbitrary"
        else kept_layers(min(config.options.keep, num_layers), "sequential")
    )
    return torch.from_numpy(
        per_sample(
            sampler,
            generator("samples", config.options.seed, config.seed, part, order),
            num_layers,
            images,
        )
    )


class States:
    """A tap: the tokens after chosen depths, (len(depths), B, N, D)."""

    def __init__(self, depths: list[int], out: Tensor) -> None:
        self.places = {depth: place for place, depth in enumerate(depths)}
        self.out = out

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """Called after each block; states (n, N, D)."""
        if depth + 1 in self.places:
            self.out[self.places[depth + 1], samples] = after.to(self.out.device, self.out.dtype)


class Features(NamedTuple):
    """Tokens (n, N, D) after one depth, or (len(depths), n, N, D), and labels (n,) of a part along its routes."""

    tokens: Tensor
    labels: Tensor

    def at(self, place: int, device: torch.device) -> "Features":
        """Those at one place of the depths, on the device if they take no more than a part of its free memory."""
        tokens = self.tokens[place]
        fits = device.type != "cuda" or tokens.nbytes <= torch.cuda.mem_get_info(device)[0] // SHARE
        return Features(tokens.to(device) if fits else tokens, self.labels)


@torch.inference_mode()
def record(
    model: RoutedModel, part: Part, routes: Tensor, depths: list[int], execution: Execution
) -> Features:
    """Run every image along its own row of `routes` (n, L) up to the last of the depths, and keep the tokens after each."""
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
    """The model's own answers (n, C) along a route for each image, and the labels (n,)."""
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
    """Train a branch on the tokens after one depth: Adam, reduce-on-plateau, early stopping (multi-exit ViT, section IV).

    Raises:
        UserError: the loss is not finite.
    """
    options = config.tuning.model_copy(update={"lr": lr})
    branch = branch.to(execution.device)
    optimizer = make_optimizer(branch, options)
    scheduler = make_scheduler(optimizer, options, steps=0)
    losses: list[float] = []
    best: dict[str, Any] = {}
    while len(losses) < options.epochs and not stops(losses, options.stop_patience):
        branch.train()
        order = generator("batches", config.seed, len(losses)).permutation(len(train.labels))
        for rows in torch.from_numpy(order).split(options.batch_size):
            optimizer.zero_grad()
            with execution.context():
                outputs = branch(
                    train.tokens[rows.to(train.tokens.device)].to(execution.device).float()
                )
                loss = task_loss(outputs.float(), train.labels[rows.to(execution.device)])
            loss.backward()
            optimizer.step()
        losses.append(task_loss(answers(branch, judge.tokens, execution), judge.labels).item())
        if not math.isfinite(losses[-1]):
            raise UserError(
                f"{config.title}, seed {config.seed}: a branch's loss is not finite; try smaller exits.lrs than {lr}"
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
    with execution.context():
        return torch.cat(
            [branch(part.to(execution.device).float()).float() for part in tokens.split(BATCH_SIZE)]
        )


class Answered(NamedTuple):
    """How an exit answers n images: the confidence of its answers and whether they are right, both (n,), and the mean error of a count."""

    confidence: np.ndarray
    correct: np.ndarray
    mae: float | None

    @classmethod
    def of(cls, outputs: Tensor, labels: Tensor) -> "Answered":
        """From outputs (n, C) and labels (n,); a regression has no confidence (nan)."""
        counts = outputs.shape[1] == 1
        confidence = torch.full(labels.shape, torch.nan) if counts else outputs.softmax(-1).amax(-1)
        mae = task_loss(outputs, labels).item() if counts else None
        return cls(
            confidence.cpu().numpy().astype(np.float32),
            is_right(outputs, labels).cpu().numpy(),
            mae,
        )

    def numbers(self) -> tuple[float, float | None, float | None]:
        """Accuracy, mean absolute error, expected calibration error."""
        ece = None if self.mae is not None else calibration_error(self.confidence, self.correct)
        return float(self.correct.mean()), self.mae, ece


def depths_at_once(parts: dict[str, Part], model: RoutedModel, execution: Execution) -> int:
    """How many depths' features fit in a part of the free memory.

    Raises:
        UserError: not even one depth's.
    """
    shape = token_shape(model.backbone)
    images = (
        len(parts["train"].rows)
        + len(parts["judge"].rows)
        + len(ORDERS) * len(parts["report"].rows)
    )
    each = images * shape.length * shape.width * (2 if execution.precision == "bf16" else 4)
    free = psutil.virtual_memory().available
    if each > free // 2:
        raise UserError(
            f"exits.images: the features of one layer take {each / 2**30:.0f} GiB, more than half of the free memory, "
            f"accepted: fewer than {len(parts['train'].rows)} images"
        )
    return max(1, free // SHARE // each)


def train_branches(
    config: ExitConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Train every branch at every depth of one frozen backbone, in the order it was trained for, and evaluate it in every order.

    One pass over the images gives the features of all depths, or of as many as fit in memory. Writes `rows.csv`, a row an exit
    and order, `arrays.npz`, confidence and correctness of every exit on the judging and on the reporting images in that order, and
    `exits.safetensors`, keys {branch}.{depth}.{parameter}. Finished depths are not trained again.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    model.eval().requires_grad_(False)
    report({"text": f"runs on {execution}"})
    parts = open_parts(config, data, model)
    own = own_order(config.variant.route)
    streams = [("train", own), ("judge", own), *(("report", order) for order in ORDERS)]
    routes = {
        (part, order): draw_routes(order, len(parts[part].rows), model.num_layers, config, part)
        for part, order in streams
    }
    every = options.exits_of(model.num_layers)
    todo = [depth for depth in every if not (folder / f"depth_{depth}.pt").exists()]
    at_once = depths_at_once(parts, model, execution)
    for depths in (todo[i : i + at_once] for i in range(0, len(todo), at_once)):
        features = {
            key: _record(model, parts[key[0]], table, depths, execution)
            for key, table in routes.items()
        }
        for place, depth in enumerate(depths):
            here = {
                key: each.at(place, execution.device)
                for key, each in features.items()
                if place < len(each.tokens)
            }
            found = [
                train_exit(kind, depth, here, model, own, config, execution)
                for kind in options.branches
            ]
            unfinished = folder / "depth.partial"
            torch.save([each.plain() for each in found], unfinished)
            unfinished.replace(folder / f"depth_{depth}.pt")
            report({"cell": f"exits after {depth} layers"})
    exits = [
        Exit.of(saved)
        for depth in every
        for saved in torch.load(folder / f"depth_{depth}.pt", weights_only=True)
    ]
    exits.append(_final(model, parts, routes, execution))
    _write(exits, own, min(options.keep, model.num_layers), folder)
    for depth in every:
        (folder / f"depth_{depth}.pt").unlink()


def _record(
    model: RoutedModel, part: Part, routes: Tensor, depths: list[int], execution: Execution
) -> Features:
    """Features of the depths that the routes reach, which may be none."""
    return record(
        model,
        part,
        routes,
        [depth for depth in depths if depth <= int((routes[0] != ENDED).sum())],
        execution,
    )


class Exit(NamedTuple):
    """A trained exit and its answers, by part and order."""

    branch: str
    depth: int
    lr: float | None
    epochs: int | None
    state: dict[str, Tensor]
    answered: dict[tuple[str, str], Answered]

    def plain(self) -> dict[str, Any]:
        """As a file without pickled classes can have it."""
        answered = {
            key: (*map(torch.from_numpy, (each.confidence, each.correct)), each.mae)
            for key, each in self.answered.items()
        }
        return self._asdict() | {"answered": answered}

    @classmethod
    def of(cls, saved: dict[str, Any]) -> "Exit":
        """From its plain form."""
        answered = {
            key: Answered(sure.numpy(), right.numpy(), mae)
            for key, (sure, right, mae) in saved["answered"].items()
        }
        return cls(**saved | {"answered": answered})


def train_exit(
    kind: BranchName,
    depth: int,
    features: dict[tuple[str, str], Features],
    model: RoutedModel,
    own: str,
    config: ExitConfig,
    execution: Execution,
) -> Exit:
    """Train one branch at one depth with every learning rate and keep the best by the judging images."""
    train, judge = features["train", own], features["judge", own]
    found: list[Fitted] = []
    for lr in config.options.lrs:
        torch.manual_seed(int(generator("train", config.seed, depth, kind).integers(2**62)))
        branch = make_branch(
            kind, token_shape(model.backbone), model.backbone.num_classes, config.options
        )
        found.append(fit(branch, train, judge, lr, config, execution))
    best = min(found, key=lambda fitted: fitted.loss)
    answered = {
        key: Answered.of(answers(best.branch, each.tokens, execution), each.labels)
        for key, each in features.items()
        if key[0] != "train"
    }
    return Exit(
        kind,
        depth,
        best.lr,
        best.epochs,
        {name: t.cpu() for name, t in best.branch.state_dict().items()},
        answered,
    )


def _final(
    model: RoutedModel,
    parts: dict[str, Part],
    routes: dict[tuple[str, str], Tensor],
    execution: Execution,
) -> Exit:
    """The model's own head, after all layers of a route."""
    answered = {
        key: Answered.of(*run(model, parts[key[0]], table, execution))
        for key, table in routes.items()
        if key[0] != "train"
    }
    return Exit(LAST_EXIT, model.num_layers, None, None, {}, answered)


def _write(exits: list[Exit], own: str, keep: int, folder: Path) -> None:
    from safetensors.torch import save_file

    rows = []
    for exit in exits:
        for (part, order), answered in exit.answered.items():
            if part == "report":
                numbers = (
                    number if number is None else round(number, 6) for number in answered.numbers()
                )
                depth = keep if (exit.branch, order) == (LAST_EXIT, "pruned") else exit.depth
                rows.append((exit.branch, depth, order, exit.lr, exit.epochs, *numbers))
    write_rows(folder / ROWS, COLUMNS, rows)
    arrays: dict[str, Any] = {
        f"{name}_{part}": np.stack([getattr(exit.answered[part, own], name) for exit in exits])
        for part in ("judge", "report")
        for name in ("confidence", "correct")
    }
    arrays |= {
        name: np.array([getattr(exit, name) for exit in exits]) for name in ("branch", "depth")
    }
    np.savez(folder / ARRAYS, **arrays)
    states = {
        f"{exit.branch}.{exit.depth}.{name}": t.contiguous()
        for exit in exits
        for name, t in exit.state.items()
    }
    save_file(states, folder / EXIT_WEIGHTS)
