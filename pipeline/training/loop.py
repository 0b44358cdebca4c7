"""The training loop of whole models, for pre-training, every variant and what papers train; resumable after any epoch, bit for bit on CPU.

Branches on cached features of a frozen model have a loop of their own, in the paper on early exits.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lsvit.latin import Latin, draw_routes
from lsvit.routed import EXITS_PREFIX, RoutedModel, Tap
from lsvit.routes import Route, Sampler, Spec, arbitrary, generator, make_sampler, training_order
from lsvit.taps import ExitLogits, FirstTokens, PositionLogits
from pipeline.config.sections import Optimisation
from pipeline.config.variant import ExitHeads, Losses
from pipeline.data.splits import Split
from pipeline.errors import UserError
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
from pipeline.models.weights import create_backbone, load_start, save_weights
from pipeline.training.augmentation import Augmentation, Batch
from pipeline.training.augmentation import seed as seed_libraries
from pipeline.training.devices import Execution, compile_blocks
from pipeline.training.distributed import (
    barrier,
    own_seed,
    parallel,
    rank_and_world,
    sum_over_processes,
    without_averaging,
)
from pipeline.training.judging import judging_loss
from pipeline.training.losses import (
    exit_objective,
    is_right,
    patch_classification,
    patch_contrastive,
    patch_cosine,
    position_hits,
    position_loss,
    task_loss,
)
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import open_model, open_split, score

CHECKPOINT = "checkpoint.pt"
REPORT_SECONDS = 20
NO_LOSSES = Losses()


def validation_routes(num_layers: int, batches: int, spec: Spec) -> dict[str, list[Route]]:
    """The routes of per-epoch validation, by order, the same for every variant, seed and epoch: a fresh one per batch if random.

    A variant trained with a sampler beyond the paper also has "trained": routes of that sampler.
    """
    samplers: dict[str, Sampler] = {"arbitrary": arbitrary} | (
        {"trained": make_sampler(spec)} if training_order(spec) == "trained" else {}
    )
    drawn = {
        name: [draw(generator("validation", num_layers, i), num_layers) for i in range(batches)]
        for name, draw in samplers.items()
    }
    original: list[Route] = [tuple(range(num_layers))]
    return {"sequential": original} | drawn


def validate(
    model: RoutedModel,
    split: Split,
    suite: str,
    orders: Sequence[str],
    config: TrainConfig,
    execution: Execution,
) -> Row:
    """Loss, accuracy and, where predicted, position accuracy in the given orders (none: all); names {suite}/{order}/{metric}."""
    batch_size = config.options.validation_batch_size
    routes = validation_routes(
        model.num_layers, math.ceil(len(split) / batch_size), config.variant.route
    )
    row: Row = {}
    for order in orders or routes:
        result = score(model, split, routes[order], batch_size, execution)
        row |= {f"{suite}/{order}/{name}": value for name, value in result.numbers().items()}
    return row


class TrainingStep(nn.Module):
    """The forward pass of a training step up to the loss, in one module: DDP follows the loss to every parameter that takes part."""

    def __init__(
        self,
        model: RoutedModel,
        position_weight: float,
        execution: Execution,
        losses: Losses = NO_LOSSES,
    ) -> None:
        super().__init__()
        self.model, self.position_weight, self.losses, self.execution = (
            model,
            position_weight,
            losses,
            execution,
        )

    def forward(self, batch: Batch, route: Route | Tensor | Latin) -> dict[str, Tensor]:
        """The scalars of a batch, means over its images: `loss` and, for the history, its parts."""
        images, labels = batch.images, batch.labels
        taps = [PositionLogits(self.model)] if "predict" in self.model.position else []
        with self.execution.context():
            heads, early, first = self.model.exit_heads, ExitLogits(self.model), FirstTokens()
            alone, exit = heads is not None and heads.step is not None, trained_exit(heads)
            read: list[Tap] = [*taps, first] if self.losses.contrastive else [*taps]
            state = self.model.tokens(images, route, read if alone else [*read, early], exit)
            logits = self.model.answer(state, exit)
            loss = task_loss(logits, labels)
            parts = {
                "class_loss": loss.detach(),
                "accuracy": is_right(logits, labels).float().mean(),
            }
            if heads and not alone:
                # Means over the batch: samples that end before an exit count as nothing, also where a batch is run in parts.
                reached = early.logits.items()
                each = {
                    depth: task_loss(answers, labels[samples], "sum") / len(labels)
                    for depth, (samples, answers) in reached
                }
                loss = exit_objective(heads, loss, each)
                parts["objective"] = loss.detach()
            if taps:
                position = position_loss(taps[0].logits)
                parts |= {
                    "position_loss": position.detach(),
                    "position_accuracy": position_hits(taps[0].logits),
                }
                loss = loss + self.position_weight * position
            for name, (weight, value) in self.smoothing_losses(first, state, batch).items():
                parts |= {f"{name}_loss": value.detach()}
                loss = loss + weight * value
        return {"loss": loss, **parts}

    def smoothing_losses(
        self, first: FirstTokens, state: Tensor, batch: Batch
    ) -> dict[str, tuple[float, Tensor]]:
        """(weight, value) of each loss against over-smoothing. The last layer's patches are read behind the model's last LayerNorm,
        as in the published code; a model that normalises after pooling has none there."""
        cosine, contrastive, mixing = (
            self.losses.cosine,
            self.losses.contrastive,
            self.losses.mixing,
        )
        if not (cosine or contrastive or mixing):
            return {}
        model, found = self.model, {}
        late = model.patches(model.backbone.norm(state))
        if cosine:
            found["cosine"] = cosine.weight, patch_cosine(late).mean()
        if contrastive:
            found["contrastive"] = (
                contrastive.weight,
                patch_contrastive(model.patches(first.tokens), late, contrastive.normalize),
            )
        if mixing and model.patch_head is not None:
            labels = batch.labels if batch.patches is None else batch.patches
            found["mixing"] = mixing.weight, patch_classification(model.patch_head(late), labels)
        return found


def trained_exit(heads: ExitHeads | None) -> int | None:
    """The depth of the early exit that a step of the layer-wise strategy trains; None: the last exit, or all of them."""
    return (
        heads.depths[heads.step]
        if heads and heads.step is not None and heads.step < len(heads.depths)
        else None
    )


def freeze(model: RoutedModel) -> None:
    """Under the layer-wise strategy, train only the step's layers and its exit (multi-exit ViT, section II-A)."""
    heads = model.exit_heads
    if heads is None or heads.step is None:
        return
    first, last = (0, *heads.depths, model.num_layers)[heads.step : heads.step + 2]

    def is_trained(name: str) -> bool:
        if name.startswith(EXITS_PREFIX):
            return name.startswith(f"{EXITS_PREFIX}{trained_exit(heads)}.")
        name = name.removeprefix("backbone.")
        if name.startswith("blocks."):
            return first <= int(name.split(".")[1]) < last
        after = name.startswith(("norm.", "fc_norm.", "attn_pool.", "head"))
        return last == model.num_layers if after else first == 0

    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(name))


def draw_route(
    config: TrainConfig, num_layers: int, epoch: int, step: int
) -> Route | Tensor | Latin:
    """The route of a step, or this process's part of its routes: a table (n, L) under ``per: sample``, Latin under ``per: latin``."""
    rank, world = rank_and_world()
    own = (rank,) * (config.routes == "own" and rank > 0)
    rng, samples = generator("train", config.seed, epoch, step, *own), config.options.batch_size
    drawn = draw_routes(config.variant.route, config.per, rng, num_layers, samples)
    if isinstance(drawn, Latin):
        return drawn.after(sum(map(len, np.array_split(np.arange(samples), world)[:rank])))
    return (
        torch.from_numpy(np.array_split(drawn, world)[rank])
        if isinstance(drawn, np.ndarray)
        else drawn
    )


def train_step(
    step: nn.Module, batch: Batch, route: Route | Tensor | Latin, options: Optimisation
) -> dict[str, Tensor]:
    """Gradients of the mean loss over the whole batch, of which this is this process's part.

    Returns:
        The sums over these images of what :class:`TrainingStep` gives.
    """
    world = rank_and_world()[1]
    passes = count_passes(options, world)
    sums: dict[str, Tensor] = {}
    seen = 0
    for i, part in enumerate(batch.split(passes)):
        count = len(part.images)
        r = (
            route[seen : seen + count]
            if isinstance(route, Tensor)
            else route.after(seen)
            if isinstance(route, Latin)
            else route
        )
        seen += count
        # With a route for each sample the passes use different layers, and DDP averages only those of the pass that it sees.
        with without_averaging(step, skip=i < passes - 1 and not isinstance(route, Tensor | Latin)):
            found = step(part, r)
            (found["loss"] * (len(part.images) * world / options.batch_size)).backward()
        for name, value in found.items():
            sums[name] = sums.get(name, 0) + value.detach() * len(part.images)
    return sums


def count_passes(options: Optimisation, world: int) -> int:
    """Parts of a process's share of a batch, equally many in every process, though their shares may differ by one image."""
    largest, smallest = -(-options.batch_size // world), options.batch_size // world
    return min(smallest, -(-largest // (options.micro_batch_size or largest)))


def train_epoch(
    step: nn.Module,
    split: Split,
    augment: Augmentation,
    config: TrainConfig,
    num_layers: int,
    epoch: int,
    optimizer: torch.optim.Optimizer,
    scheduler: Any,
    report: Callable[[dict], None],
) -> Row:
    """One epoch: a pure function of the state it starts from and of (seed, epoch). Long ones report their progress."""
    options = config.options
    seed_libraries(own_seed(int(generator("train", config.seed, epoch).integers(2**62))))
    step.train()
    totals: dict[str, Tensor] = {}
    steps, last_report = len(split.subset(options.images)) // options.batch_size, time.monotonic()
    part, repeats = rank_and_world(), config.variant.recipe.repeats
    for i, (images, labels) in enumerate(
        split.shuffled(options.batch_size, config.seed, epoch, *part, options.images, repeats)
    ):
        optimizer.zero_grad()
        sums = train_step(
            step, augment(images, labels), draw_route(config, num_layers, epoch, i), options
        )
        optimizer.step()
        if options.schedule != "plateau":
            scheduler.step()
        totals = {name: totals[name] + value if totals else value for name, value in sums.items()}
        if time.monotonic() - last_report > REPORT_SECONDS:
            report({"progress": epoch - 1 + (i + 1) / steps})
            last_report = time.monotonic()
    sum_over_processes(totals.values())
    return {
        f"train/{name}": total.item() / (steps * options.batch_size)
        for name, total in totals.items()
    }


def train(
    config: TrainConfig,
    data: Path,
    weights: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Train one model in `folder`, going on from the checkpoint there if there is one.

    Leaves `execution.txt`, `history.json` and, per protocol, the weights of the epoch with the lowest loss (in the order the variant trains
    for): on the validation images and, if some training images are held out, on those. `report` receives every finished
    epoch's metrics and its seconds. The learning rate on a plateau and early stopping go by the held-out images, where there are some.

    Raises:
        UserError: the loss is not finite, or an epoch has no complete batch.
    """
    if (folder / HISTORY).exists():  # killed after the last epoch, before it was marked as done
        return
    options = config.options
    torch.set_num_threads(options.threads)
    torch.manual_seed(config.seed)
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    model.checkpointing = options.checkpointing
    freeze(model)
    if execution.compiled:
        compile_blocks(model.backbone.blocks)
    splits = {split: open_split(config, data, split, model) for split in read_meta(data)["counts"]}
    train_split = splits.pop("train")
    steps = len(train_split.subset(options.images)) // options.batch_size
    if steps == 0:
        used = len(train_split.subset(options.images))
        raise UserError(
            f"batch_size: found {options.batch_size}, accepted: at most the {used} training images used"
        )
    optimizer = make_optimizer(model, options)
    scheduler = make_scheduler(optimizer, options, steps * options.epochs)
    step = parallel(TrainingStep(model, options.position_weight, execution, config.variant.losses))
    augment = Augmentation(config.variant, model.backbone, execution.device)
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    history = _resume(folder, parts, execution.device)

    judges = {judge: judging_loss(judge, config.variant) for judge in splits}
    chief = judges.get(HELDOUT, judges["validation"])
    if history and rank_and_world()[0] == 0:
        _keep_best(
            folder, model, history, judges
        )  # a kill may have come between the last checkpoint and its weights
    while len(history) < options.epochs and not stops(
        [row[chief] for row in history], options.stop_patience
    ):
        start = time.perf_counter()
        row = {"epoch": len(history) + 1, "lr": optimizer.param_groups[0]["lr"]}
        row |= train_epoch(
            step,
            train_split,
            augment,
            config,
            model.num_layers,
            len(history) + 1,
            optimizer,
            scheduler,
            report,
        )
        own = (training_order(config.variant.route),)
        row |= validate(
            model,
            splits["validation"],
            "validation",
            own if options.validation_orders == "trained" else (),
            config,
            execution,
        )
        if HELDOUT in splits:
            row |= validate(model, splits[HELDOUT], HELDOUT, own, config, execution)
        _check_finite(row, config)
        if options.schedule == "plateau":
            scheduler.step(row[chief])
        history.append(row)
        if rank_and_world()[0] == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            _replace(folder / CHECKPOINT, partial(torch.save, state | {"history": history}))
            _keep_best(folder, model, history, judges)
        report(row | {"seconds": time.perf_counter() - start})
    barrier()  # no process still reads what the first one now removes
    if rank_and_world()[0] == 0:
        (folder / EXECUTION).write_text(f"{execution}\n")
        _replace(
            folder / HISTORY, lambda path: path.write_text(json.dumps(history, indent=1) + "\n")
        )
        (folder / CHECKPOINT).unlink(missing_ok=True)


def _resume(folder: Path, parts: dict[str, Any], device: torch.device) -> list[Row]:
    """The epochs that the checkpoint in `folder` has, if there is one; the parts take the state they had after them."""
    if not (folder / CHECKPOINT).exists():
        return []
    state = torch.load(folder / CHECKPOINT, map_location=device, weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return state["history"]


def _keep_best(
    folder: Path, model: RoutedModel, history: list[Row], judges: dict[str, str]
) -> None:
    """Write the model as the weights of each judging split that has its lowest loss, of those in `judges`, in the last epoch."""
    for judge, loss in judges.items():
        if history[-1][loss] <= min(row[loss] for row in history):
            _replace(folder / weights_file(judge), partial(save_weights, model))


def _check_finite(row: Row, config: TrainConfig) -> None:
    if not all(math.isfinite(value) for value in row.values()):
        where = (
            f"{config.title}, seed {config.seed}: the loss is not finite in epoch {row['epoch']}"
        )
        raise UserError(f"{where}; try a smaller lr than {config.options.lr}")


def fetch(
    config: TrainConfig,
    data: Path,
    weights: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Write the preset's published or local weights, with a head for the data set: the starting weights of every variant.

    The head is drawn anew from the seed where that of the weights has another number of outputs, or was one of two and the
    preset keeps one. `weights.json` says what was loaded, see :func:`pipeline.models.weights.load_start`.

    Raises:
        UserError: the weights cannot be had, or do not fit the model.
    """
    torch.manual_seed(config.seed)
    preset = (
        config.model
        if weights is None
        else config.model.model_copy(update={"weights": str(weights)})
    )
    model = RoutedModel(create_backbone(preset, len(read_meta(data)["classes"])))
    loaded = load_start(model.backbone, preset)
    save_weights(model, folder / WEIGHTS)
    (folder / ORIGIN).write_text(json.dumps(loaded, indent=1) + "\n")
    (folder / HISTORY).write_text("[]\n")


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that a kill at any moment leaves the old one or the new one, never half of it."""
    unfinished = path.with_suffix(".partial")
    write(unfinished)
    unfinished.replace(path)
