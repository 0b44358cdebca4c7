"""The training loop of whole models; resumable after any epoch, bit for bit on a CPU.

Branches on cached features of a frozen model have a loop of their own, in the paper on early exits.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, Routes, Sampler, arbitrary, generator
from lsvit.weights import save_weights
from pipeline.config.samplers import Spec, draw_routes, grown, make_sampler, training_order
from pipeline.config.variant import PLAIN, Variant
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import (
    EXECUTION,
    HELDOUT,
    HISTORY,
    ORIGIN,
    WEIGHTS,
    Row,
    read_meta,
    weights_file,
)
from pipeline.models.extensions import extensions_of
from pipeline.models.start import load_start
from pipeline.models.weights import attach, build, create_backbone
from pipeline.training.devices import Execution, compile_blocks
from pipeline.training.distributed import (
    barrier,
    parallel,
    rank_and_world,
    sum_over_processes,
)
from pipeline.training.judging import judged_loss
from pipeline.training.objectives import (
    Augment,
    Batch,
    ClassLoss,
    Objective,
    PositionLoss,
    TeacherLoss,
)
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import InTurn, open_model, open_split, score
from pipeline.training.step import TrainingStep, backward_in_parts

CHECKPOINT = "checkpoint.pt"
REPORT_SECONDS = 20
Report = Callable[[dict[str, Any]], None]


class Run:
    """One training, at its start: what it computes with, and what a checkpoint holds of it.

    `report` gets what `train` reports. Raises UserError if an epoch has no complete batch.
    """

    def __init__(
        self,
        config: TrainConfig,
        data: Path,
        weights: Path | None,
        report: Report,
        teacher: Path | None = None,
    ) -> None:
        self.config = config
        self.report = report
        options = config.options

        # ---- the model
        torch.set_num_threads(options.threads)
        torch.manual_seed(config.seed)
        model, execution = open_model(config, data, weights)
        report({"text": f"runs on {execution}"})
        model.checkpointing = options.checkpointing
        self.model = model
        self.execution = execution
        self.extensions = extensions_of(config.variant)
        for extension in self.extensions:
            extension.freeze(model)
        if execution.compiled:
            compile_blocks(model.backbone.blocks)

        # ---- the images
        meta = read_meta(data)
        # Validation images and, where some are held out, those.
        self.judges = {split: open_split(config, data, split, model) for split in meta["counts"]}
        self.train_split = self.judges.pop("train")
        # The learning rate on a plateau and early stopping go by it.
        self.chief = HELDOUT if HELDOUT in self.judges else "validation"
        images = len(self.train_split.subset(options.images))
        self.steps = images // options.batch_size  # of an epoch
        if self.steps == 0:
            raise UserError(
                f"batch_size: found {options.batch_size}, "
                f"accepted: at most the {images} training images used"
            )
        self.augments: list[Augment] = []
        for extension in self.extensions:
            augment = extension.augmentation(model, self.train_split)
            if augment is not None:
                self.augments.append(augment)

        # ---- what is minimised, and how
        objectives: list[Objective] = []
        if config.variant.teacher is not None:
            teaching = None
            if config.teacher is not None:
                teaching = build(config.model, len(meta["classes"]), config.teacher, teacher)
                teaching.to(execution.device).eval()
            objectives.append(TeacherLoss(options.teacher_weight, teaching))
        step = make_step(model, config.variant, options.position_weight, execution, objectives)
        self.step = parallel(step)
        self.optimizer = make_optimizer(model, options)
        # Of the loss in fp16. In other precisions it does nothing.
        is_fp16 = execution.precision == "fp16"
        self.scaler = torch.amp.GradScaler(execution.device.type, enabled=is_fp16)
        self.scheduler = make_scheduler(self.optimizer, options, self.steps * options.epochs)
        self.resumable: dict[str, Any] = {  # what has a state that a checkpoint holds
            "model": model,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "scheduler": self.scheduler,
        }

    def judged(self, history: Sequence[Row], judge: str) -> list[float]:
        """By epoch, the loss that chooses the epoch on a split."""
        return [judged_loss(row, self.config.variant.route, judge) for row in history]


def train(
    config: TrainConfig,
    data: Path,
    weights: Path | None,
    folder: Path,
    report: Report,
    teacher: Path | None = None,
) -> None:
    """Train one model in `folder`, going on from the checkpoint there if there is one.

    Leaves `execution.txt`, `history.json` and, for each judging split, the weights of the epoch
    with the lowest loss in the order that the variant trains for. The judging splits are the
    validation images and, if some training images are held out, those. The learning rate on a
    plateau and early stopping go by the held-out images, where there are some. `report` receives
    every finished epoch's metrics and its seconds.

    Raises:
        UserError: the loss is not finite, or an epoch has no complete batch.
    """
    if (folder / HISTORY).exists():  # killed after the last epoch, before it was marked as done
        return
    run = Run(config, data, weights, report, teacher)
    options = config.options
    is_first = rank_and_world()[0] == 0
    history = _resume(folder, run)
    if history and is_first:
        # A kill may have come between the last checkpoint and its weights.
        _keep_best(folder, run, history)

    # ---- epochs
    while len(history) < options.epochs:
        if stops(run.judged(history, run.chief), options.stop_patience):
            break
        start = time.perf_counter()
        epoch = len(history) + 1
        row: Row = {"epoch": epoch, "lr": run.optimizer.param_groups[0]["lr"]}
        row |= train_epoch(run, epoch)
        row |= validate_epoch(run)
        if not all(math.isfinite(value) for value in row.values()):
            raise UserError(
                f"{config.title}, seed {config.seed}: the loss is not finite in epoch {epoch}; "
                f"try a smaller lr than {options.lr}"
            )
        history.append(row)
        if options.schedule == "plateau":
            run.scheduler.step(run.judged(history, run.chief)[-1])
        if is_first:
            state = {name: part.state_dict() for name, part in run.resumable.items()}
            _replace(folder / CHECKPOINT, partial(_save, state | {"history": history}))
            _keep_best(folder, run, history)
        report(row | {"seconds": time.perf_counter() - start})

    # ---- the end
    barrier()  # no process still reads what the first one now removes
    if is_first:
        (folder / EXECUTION).write_text(f"{run.execution}\n", "utf-8")
        _replace(folder / HISTORY, partial(write_json, content=history))
        (folder / CHECKPOINT).unlink(missing_ok=True)


def make_step(
    model: RoutedModel,
    variant: Variant,
    position_weight: float,
    execution: Execution,
    others: Sequence[Objective] = (),
) -> TrainingStep:
    """The training step of a variant: the loss of the task, of predicted positions, of papers.

    `others` are objectives beside those.
    """
    objectives: list[Objective] = [ClassLoss(), *others]
    if "predict" in model.position:
        objectives.append(PositionLoss(position_weight))
    exit = None
    for extension in extensions_of(variant):
        objectives = extension.objectives(model, objectives)
        exit = extension.exit if exit is None else exit
    return TrainingStep(model, objectives, execution, exit)


def train_epoch(run: Run, epoch: int) -> Row:
    """One epoch: a pure function of the state it starts from and of (seed, epoch).

    Long epochs report their progress.
    """
    config = run.config
    options = config.options
    seed_libraries("train", config.seed, epoch)
    run.step.train()
    totals: dict[str, Tensor] = {}
    last_report = time.monotonic()
    repeats = max([extension.repeats for extension in run.extensions], default=1)
    batches = run.train_split.shuffled(
        options.batch_size, config.seed, epoch, *rank_and_world(), options.images, repeats
    )
    for i, (images, labels) in enumerate(batches):
        batch = Batch(images, labels)
        if run.augments:  # variants see the same images whatever else they draw
            seed_libraries("augmentation", config.seed, epoch, i)
        for augment in run.augments:
            batch = augment(batch)
        progress = (epoch - 1 + i / run.steps) / options.epochs
        routes = draw_route(config, run.model.num_layers, epoch, i, progress)

        run.optimizer.zero_grad()
        sums = backward_in_parts(run.step, batch, routes, options, run.scaler)
        if options.clip is not None:
            run.scaler.unscale_(run.optimizer)
            nn.utils.clip_grad_norm_(run.model.parameters(), options.clip)
        run.scaler.step(run.optimizer)
        run.scaler.update()
        if options.schedule != "plateau":
            run.scheduler.step()

        for name, value in sums.items():
            totals[name] = totals.get(name, 0) + value
        if time.monotonic() - last_report > REPORT_SECONDS:
            run.report({"progress": epoch - 1 + (i + 1) / run.steps})
            last_report = time.monotonic()
    sum_over_processes(totals.values())
    images_seen = run.steps * options.batch_size
    return {f"train/{name}": total.item() / images_seen for name, total in totals.items()}


def draw_route(
    config: TrainConfig, num_layers: int, epoch: int, step: int, progress: float = 1.0
) -> Routes:
    """The routes of a step: of this process's share of the batch.

    `progress` is of the training, from 0 to 1: samplers that grow go by it.
    """
    rank, world = rank_and_world()
    key = [config.seed, epoch, step]
    if config.routes == "own" and rank > 0:
        key.append(rank)
    samples = config.options.batch_size
    spec = grown(config.variant.route, progress)
    routes = draw_routes(spec, config.per, generator("train", *key), num_layers, samples)
    share = np.array_split(np.arange(samples), world)[rank]
    return routes.part(int(share[0]), len(share))


def seed_libraries(stream: str, *key: int) -> None:
    """Seed the global generators that dropout, drop path and augmentation draw from.

    Processes have seeds of their own. The first one keeps that of the key.
    """
    seed = (int(generator(stream, *key).integers(2**62)) + rank_and_world()[0]) % 2**62
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# ---- validation --------------------------------------------------------------------------------


def validation_routes(num_layers: int, batches: int, spec: Spec) -> dict[str, list[OneRoute]]:
    """The routes of per-epoch validation, by order: one for each batch.

    They are the same for every variant, seed and epoch. A variant trained with a sampler beyond the
    paper also has "trained": routes of that sampler.
    """
    samplers: dict[str, Sampler] = {"arbitrary": arbitrary}
    if training_order(spec) == "trained":
        samplers["trained"] = make_sampler(spec)
    routes = {"sequential": [OneRoute(tuple(range(num_layers)))]}
    for name, sampler in samplers.items():
        routes[name] = []
        for i in range(batches):
            route = sampler(generator("validation", num_layers, i), num_layers)
            routes[name].append(OneRoute(route))
    return routes


def validate_epoch(run: Run) -> Row:
    """The metrics of an epoch on all judging splits."""
    own_order = [training_order(run.config.variant.route)]
    only_own = run.config.options.validation_orders == "trained"
    row = validate(run, "validation", own_order if only_own else None)
    if HELDOUT in run.judges:
        row |= validate(run, HELDOUT, own_order)
    return row


def validate(run: Run, judge: str, orders: Sequence[str] | None) -> Row:
    """The metrics on a split, named {split}/{order}/{metric}, in the given orders or all."""
    split = run.judges[judge]
    batch_size = run.config.options.validation_batch_size
    batches = math.ceil(len(split) / batch_size)
    routes = validation_routes(run.model.num_layers, batches, run.config.variant.route)
    row: Row = {}
    for order in orders or routes:
        in_turn = InTurn(routes[order], batch_size)
        result = score(run.model, split, in_turn, batch_size, run.execution)
        for extension in run.extensions:
            result = extension.judge(result)
        row |= {f"{judge}/{order}/{name}": value for name, value in result.numbers().items()}
    return row


# ---- checkpoints -------------------------------------------------------------------------------


def _resume(folder: Path, run: Run) -> list[Row]:
    """Load the checkpoint in `folder`, if there is one. Returns its epochs."""
    if not (folder / CHECKPOINT).exists():
        return []
    device = run.execution.device
    state = torch.load(folder / CHECKPOINT, map_location=device, weights_only=True)
    for name, part in run.resumable.items():
        part.load_state_dict(state[name])
    return state["history"]


def _keep_best(folder: Path, run: Run, history: list[Row]) -> None:
    """Write the weights of each judging split that has its lowest loss in the last epoch."""
    for judge in run.judges:
        losses = run.judged(history, judge)
        if losses[-1] <= min(losses):
            _replace(folder / weights_file(judge), partial(save_weights, run.model))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one."""
    unfinished = path.with_suffix(".partial")
    write(unfinished)
    unfinished.replace(path)


def _save(state: dict[str, Any], path: Path) -> None:
    """Write with Python's own file, whose error says when a disk is full."""
    with path.open("wb") as file:
        torch.save(state, file)


# ---- published weights -------------------------------------------------------------------------


def fetch(
    config: TrainConfig, data: Path, weights: Path | None, folder: Path, report: Report
) -> None:
    """Write the preset's published, local or random weights, with a head for the data set.

    They are the starting weights of every variant. The head is drawn anew from the seed where that
    of the weights is for other classes, or was one of two and the preset keeps one.
    `weights.json` says what was loaded, see :func:`pipeline.models.weights.load_start`.

    Raises:
        UserError: the weights cannot be had, or do not fit the model.
    """
    torch.manual_seed(config.seed)
    preset = config.model
    if weights is not None:
        preset = preset.model_copy(update={"weights": str(weights)})
    classes = read_meta(data)["classes"]
    backbone = create_backbone(preset, len(classes))
    model = attach(backbone, PLAIN)
    loaded: dict[str, str | None] = {"head": "fresh"}
    if preset.weights != "random":
        loaded = load_start(model.backbone, preset, classes)
    save_weights(model, folder / WEIGHTS)
    write_json(folder / ORIGIN, loaded)
    write_json(folder / HISTORY, [])
