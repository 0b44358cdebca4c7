"""A model on a data set: the opened model and split, loss and accuracy along given routes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lsvit.position import position_hits
from lsvit.routed import RoutedModel
from lsvit.routes import Route, Routes
from lsvit.taps import ExitLogits, PositionLogits
from pipeline.data.resize import resizing
from pipeline.data.splits import Split
from pipeline.jobs.configs import MeasureConfig, RunConfig, TrainConfig
from pipeline.jobs.files import read_meta
from pipeline.models.weights import build, input_size, normalisation
from pipeline.training.devices import Execution, pick_device, settle, sums_type
from pipeline.training.distributed import rank_and_world, sum_over_processes
from pipeline.training.objectives import is_right, task_loss


def open_model(
    config: TrainConfig | MeasureConfig, data: Path, weights: Path | None
) -> tuple[RoutedModel, Execution]:
    """The configured model with its parts and weights, on the device, and how it is run."""
    num_classes = len(read_meta(data)["classes"])
    model = build(config.model, num_classes, config.variant, weights)
    compile = config.options.compile if isinstance(config, TrainConfig) else "none"
    execution = settle(
        pick_device(config.device),
        model.backbone.embed_dim,
        config.precision,
        compile,
        config.deterministic,
    )
    return model.to(execution.device), execution


def open_split(
    config: RunConfig, data: Path, split: str, model: RoutedModel, limit: int | None = None
) -> Split:
    """A prepared split as the model wants it: channels, size, normalisation, device."""
    meta = read_meta(data)
    mean, std = normalisation(config.model, meta)
    in_chans, size = input_size(model, config.model)
    resize = None
    if "shards" not in meta:  # shards were resized when they were decoded
        resize = resizing(config.model, meta["resize"])
    device = next(model.parameters()).device
    return Split(data, split, device, in_chans, size, mean, std, limit, resize)


def batches_along(
    split: Split, rows: Tensor, routes: Tensor, batch_size: int
) -> Iterator[tuple[slice, Tensor, Tensor, Route | Tensor]]:
    """The images at `rows` (n,) of a split, each with its own row of `routes` (n, L), in batches.

    Yields:
        Their places among the n, images, labels, and their routes: one where all of the batch
        share it, which is the faster way to run them.
    """
    for start in range(0, len(rows), batch_size):
        place = slice(start, start + batch_size)
        images, labels = split.take(rows[place])
        table = routes[place]
        is_shared = (table == table[0]).all()
        yield place, images, labels, tuple(table[0].tolist()) if is_shared else table


@dataclass(frozen=True)
class InTurn:
    """Routes of whole batches of a split: batch i runs the i-th of `routes`, cyclically."""

    routes: Sequence[Routes]
    batch_size: int

    def part(self, start: int, count: int) -> Routes:
        """The route of the batch that begins at the image `start`."""
        return self.routes[start // self.batch_size % len(self.routes)]

    def rows(self, images: int) -> np.ndarray:
        """The route of every image, (images, length)."""
        tables = []
        for start in range(0, images, self.batch_size):
            count = min(self.batch_size, images - start)
            tables.append(self.part(start, count).rows(count))
        return np.concatenate(tables)


class Score(NamedTuple):
    """Means over the images: cross-entropy and top-1 accuracy.

    Of a regression the absolute error, and how often the rounded answer is right.
    """

    loss: float
    accuracy: float
    position_accuracy: float | None  # of models that predict positions
    correct: Tensor  # (n,) bool, on the CPU: which images are answered correctly
    exits: dict[int, tuple[float, float]]  # by depth: loss, accuracy of the images that reach it
    objective: float | None = None  # what is minimised, where it is not the loss

    def numbers(self) -> dict[str, float]:
        """The means there are, by name."""
        numbers = {"loss": self.loss, "accuracy": self.accuracy}
        if self.position_accuracy is not None:
            numbers["position_accuracy"] = self.position_accuracy
        if self.objective is not None:
            numbers["objective"] = self.objective
        for depth, (loss, accuracy) in self.exits.items():
            numbers[f"exit_{depth}_loss"] = loss
            numbers[f"exit_{depth}_accuracy"] = accuracy
        return numbers


@torch.inference_mode()
def score(
    model: RoutedModel,
    split: Split,
    routes: Routes | InTurn,
    batch_size: int,
    execution: Execution,
) -> Score:
    """Run every image of a split once, along `routes`.

    Where several processes train, each runs some of the batches and all get the result.
    """
    model.eval()
    device = execution.device
    dtype = sums_type(device)
    loss = torch.zeros((), dtype=dtype, device=device)
    position_hits_sum = torch.zeros((), dtype=dtype, device=device)
    correct = torch.zeros(len(split), dtype=torch.uint8, device=device)
    exit_sums = {  # by depth: loss, right answers, images
        int(depth): torch.zeros(3, dtype=dtype, device=device) for depth in model.exits
    }
    predicts = "predict" in model.position
    for i, images, labels in split.in_order(batch_size, *rank_and_world()):
        start = i * batch_size
        count = len(labels)
        exits = ExitLogits(model)
        taps: list[Any] = [exits, PositionLogits(model)] if predicts else [exits]
        with execution.context():
            logits = model(images, routes.part(start, count), taps).float()
            if predicts:
                position_hits_sum += position_hits(taps[1].logits) * count
        loss += task_loss(logits, labels, "sum")
        correct[start : start + count] = is_right(logits, labels)
        for depth, (samples, answers) in exits.logits.items():
            own_labels = labels[samples]
            right = is_right(answers, own_labels).sum()
            reached = torch.full_like(right, len(own_labels))
            exit_loss = task_loss(answers.float(), own_labels, "sum")
            exit_sums[depth] += torch.stack([exit_loss, right, reached])
    sum_over_processes((loss, position_hits_sum, correct, *exit_sums.values()))
    exit_means = {}
    for depth, sums in exit_sums.items():
        loss_sum, right_sum, reached_sum = sums.tolist()
        if reached_sum:
            exit_means[depth] = loss_sum / reached_sum, right_sum / reached_sum
    hits = correct.bool().cpu()
    return Score(
        loss=loss.item() / len(split),
        accuracy=hits.double().mean().item(),
        position_accuracy=position_hits_sum.item() / len(split) if predicts else None,
        correct=hits,
        exits=exit_means,
    )
