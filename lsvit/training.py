"""The one training loop, for every variant and for pre-training; resumable after any epoch, bit for bit on CPU."""

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from lsvit.data import HELDOUT, Split, read_meta
from lsvit.devices import autocast
from lsvit.errors import UserError
from lsvit.jobs import HISTORY, WEIGHTS, Row, TrainConfig, weights_file
from lsvit.losses import position_hits, position_loss
from lsvit.models import PositionLogits, RoutedModel
from lsvit.routes import Route, Spec, arbitrary, generator, make_sampler, per_sample, training_order
from lsvit.runs import open_model, open_split, score
from lsvit.sections import Optimisation
from lsvit.weights import create_backbone, save_weights

CHECKPOINT = "checkpoint.pt"
REPORT_SECONDS = 20


def make_optimizer(model: torch.nn.Module, options: Optimisation) -> torch.optim.Optimizer:
    """Adam or AdamW, one fused step for all parameters."""
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[options.optimizer]
    return kind(model.parameters(), lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay, fused=True)


def make_scheduler(optimizer: torch.optim.Optimizer, options: Optimisation, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate over `steps` optimiser steps."""
    schedulers = torch.optim.lr_scheduler
    if options.schedule == "linear":
        return schedulers.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=steps)
    if options.schedule == "one_cycle":
        return schedulers.OneCycleLR(optimizer, max_lr=options.lr, total_steps=steps, cycle_momentum=False)
    return schedulers.ConstantLR(optimizer, factor=1.0)


def validation_routes(num_layers: int, batches: int, spec: Spec) -> dict[str, list[Route]]:
    """The routes of per-epoch validation, by order, the same for every variant, seed and epoch: a fresh one per batch if random.

    A variant trained with a sampler beyond the paper also has "trained": routes of that sampler.
    """
    samplers = {"arbitrary": arbitrary} | ({"trained": make_sampler(spec)} if training_order(spec) == "trained" else {})
    drawn = {name: [draw(generator("validation", num_layers, i), num_layers) for i in range(batches)] for name, draw in samplers.items()}
    return {"sequential": [tuple(range(num_layers))]} | drawn


def validate(model: RoutedModel, split: Split, suite: str, orders: Sequence[str], config: TrainConfig) -> Row:
    """Loss, accuracy and, where predicted, position accuracy in the given orders; names {suite}/{order}/{metric}."""
    options = config.options
    routes = validation_routes(model.num_layers, math.ceil(len(split) / options.validation_batch_size), config.variant.route)
    row: Row = {}
    for order in orders or routes:
        result = score(model, split, routes[order], options.validation_batch_size, options.precision)
        row |= {f"{suite}/{order}/{name}": value for name, value in result.numbers().items()}
    return row


def train_epoch(
    model: RoutedModel, split: Split, config: TrainConfig, epoch: int,
    optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler, report: Callable[[Row], None],
) -> Row:  # fmt: skip
    """One epoch: a pure function of the state it starts from and of (seed, epoch). Long ones report their progress."""
    options, device = config.options, split.device
    sampler = make_sampler(config.variant.route)
    torch.manual_seed(int(generator("train", config.seed, epoch).integers(2**62)))  # dropout
    model.train()
    totals: dict[str, torch.Tensor] = {}
    route: Route | torch.Tensor
    images_seen, last_report = 0, time.monotonic()
    for step, (images, labels) in enumerate(split.shuffled(options.batch_size, config.seed, epoch)):
        rng = generator("train", config.seed, epoch, step)
        if config.variant.per == "sample":
            route = torch.from_numpy(per_sample(sampler, rng, model.num_layers, len(labels)))
        else:
            route = sampler(rng, model.num_layers)
        taps = [PositionLogits(model)] if "predict" in model.position else []
        with autocast(device, options.precision):
            logits = model(images, route, taps)
            loss = cross_entropy(logits, labels)
            parts = {"class_loss": loss.detach(), "accuracy": (logits.argmax(-1) == labels).float().mean()}
            if taps:
                parts |= {"position_loss": position_loss(taps[0].logits), "position_accuracy": position_hits(taps[0].logits)}
                loss = loss + options.position_weight * parts["position_loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        for name, value in {"loss": loss, **parts}.items():
            totals[name] = totals.get(name, 0) + value.detach() * len(labels)
        images_seen += len(labels)
        if time.monotonic() - last_report > REPORT_SECONDS:
            report({"progress": epoch - 1 + images_seen / len(split)})
            last_report = time.monotonic()
    return {f"train/{name}": total.item() / images_seen for name, total in totals.items()}


def train(config: TrainConfig, data: Path, weights: Path | None, folder: Path, report: Callable[[Row], None]) -> None:
    """Train one model in `folder`, going on from the checkpoint there if there is one.

    Leaves `history.json` and, per protocol, the weights of the epoch with the lowest loss (in the order the variant trains
    for): on the validation images and, if some training images are held out, on those. `report` receives every finished
    epoch's metrics and its seconds.

    Raises:
        UserError: the loss is not finite, or an epoch has no complete batch.
    """
    if (folder / HISTORY).exists():  # killed after the last epoch, before it was marked as done
        return
    options = config.options
    torch.set_num_threads(options.threads)
    torch.manual_seed(config.seed)
    model = open_model(config, data, weights)
    splits = {split: open_split(config, data, split, model) for split in read_meta(data)["counts"]}
    train_split = splits.pop("train")
    steps = len(train_split) // options.batch_size
    if steps == 0:
        raise UserError(f"batch_size: found {options.batch_size}, accepted: at most the {len(train_split)} training images")
    optimizer = make_optimizer(model, options)
    scheduler = make_scheduler(optimizer, options, steps * options.epochs)

    # ---- resume ----
    history: list[Row] = []
    if (folder / CHECKPOINT).exists():
        state = torch.load(folder / CHECKPOINT, map_location=train_split.device, weights_only=True)
        for part, name in ((model, "model"), (optimizer, "optimizer"), (scheduler, "scheduler")):
            part.load_state_dict(state[name])
        history = state["history"]

    # ---- epochs ----
    order = training_order(config.variant.route)
    judges = {judge: f"{judge}/{order}/loss" for judge in splits}
    for epoch in range(len(history) + 1, options.epochs + 1):
        start = time.perf_counter()
        row = {"epoch": epoch, "lr": optimizer.param_groups[0]["lr"]}
        row |= train_epoch(model, train_split, config, epoch, optimizer, scheduler, report)
        row |= validate(model, splits["validation"], "validation", (), config)
        if HELDOUT in splits:
            row |= validate(model, splits[HELDOUT], HELDOUT, (order,), config)
        if not all(math.isfinite(value) for value in row.values()):
            raise UserError(
                f"{config.title}, seed {config.seed}: the loss is not finite in epoch {epoch}; try a smaller lr than {options.lr}"
            )
        history.append(row)
        for judge, loss in judges.items():
            if row[loss] <= min(r[loss] for r in history):
                _replace(folder / weights_file(judge), lambda path: save_weights(model, path))
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}
        _replace(folder / CHECKPOINT, partial(torch.save, parts | {"history": history}))
        report(row | {"seconds": time.perf_counter() - start})
    _replace(folder / HISTORY, lambda path: path.write_text(json.dumps(history, indent=1) + "\n"))
    (folder / CHECKPOINT).unlink(missing_ok=True)


def fetch(config: TrainConfig, data: Path, weights: Path | None, folder: Path, report: Callable[[Row], None]) -> None:
    """Write the preset's published or local weights, with a head for the data set: the starting weights of every variant.

    The head is drawn anew from the seed if the weights' own has another number of classes.

    Raises:
        UserError: the weights cannot be had.
    """
    torch.manual_seed(config.seed)
    preset = config.model if weights is None else config.model.model_copy(update={"weights": str(weights)})
    save_weights(RoutedModel(create_backbone(preset, len(read_meta(data)["classes"]))), folder / WEIGHTS)
    (folder / HISTORY).write_text("[]\n")


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one, never half of it."""
    unfinished = path.with_suffix(".partial")
    write(unfinished)
    unfinished.replace(path)
