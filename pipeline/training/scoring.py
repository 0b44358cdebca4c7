"""A model on a data set: the opened model and split, loss and accuracy along given routes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lsvit.latin import Latin
from lsvit.routed import RoutedModel
from lsvit.routes import Route
from lsvit.taps import ExitLogits, PositionLogits
from pipeline.data.decode import resizing
from pipeline.data.splits import Split
from pipeline.jobs.configs import MeasureConfig, RunConfig, TrainConfig
from pipeline.jobs.files import read_meta
from pipeline.models.weights import build, input_size, normalisation
from pipeline.training.devices import Execution, pick_device, settle, sums_type
from pipeline.training.distributed import rank_and_world, sum_over_processes
from pipeline.training.losses import exit_objective, is_right, position_hits, task_loss


def open_model(
    config: TrainConfig | MeasureConfig, data: Path, weights: Path | None
) -> tuple[RoutedModel, Execution]:
    """The configured model, with the variant's position parts and layers and the given weights, on the device; how it is run."""
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
    resize = (
        None if "shards" in meta else resizing(config.model, meta["resize"])
    )  # shards were resized when they were decoded
    return Split(
        data,
        split,
        next(model.parameters()).device,
        *input_size(model, config.model),
        mean,
        std,
        limit,
        resize,
    )


def batches_along(
    split: Split, rows: Tensor, routes: Tensor, batch_size: int
) -> Iterator[tuple[slice, Tensor, Tensor, Route | Tensor]]:
    """The images at `rows` (n,) of a split, each with its own row of `routes` (n, L), batch by batch.

    Yields:
        Their places among the n, images, labels, and their routes: one where all of the batch share it, the faster way to run them.
    """
    for start in range(0, len(rows), batch_size):
        place = slice(start, min(start + batch_size, len(rows)))
        table = routes[place]
        yield (
            place,
            *split.take(rows[place]),
            tuple(table[0].tolist()) if (table == table[0]).all() else table,
        )


class Score(NamedTuple):
    """Means over the images: cross-entropy, top-1 accuracy and, for models that predict it, position accuracy.

    Of a regression the absolute error, and how often the rounded answer is right.
    """

    loss: float
    accuracy: float
    position_accuracy: float | None
    correct: Tensor  # (n,) bool, on the CPU: which images are answered correctly
    exits: dict[
        int, tuple[float, float]
    ]  # by depth: loss and accuracy of an early exit, over the images that reach it
    objective: (
        float | None
    )  # of models with early exits, see :func:`pipeline.training.losses.exit_objective`

    def numbers(self) -> dict[str, float]:
        """The means there are, by name."""
        names = ("loss", "accuracy", "position_accuracy", "objective")
        found = {key: value for key in names if (value := getattr(self, key)) is not None}
        for depth, (loss, accuracy) in self.exits.items():
            found |= {f"exit_{depth}_loss": loss, f"exit_{depth}_accuracy": accuracy}
        return found


@torch.inference_mode()
def score(
    model: RoutedModel,
    split: Split,
    routes: Sequence[Route | Latin] | Tensor,
    batch_size: int,
    execution: Execution,
) -> Score:
    """Run every image once; where several processes train, each runs some of the batches and all get the result.

    Batch i takes the i-th of `routes`, cyclically (one route: every image under it); or, if it is an integer tensor
    (len(split), L), every image takes its own row.
    """
    model.eval()
    device, dtype = execution.device, sums_type(execution.device)
    loss, positions = torch.zeros(2, dtype=dtype, device=device)
    correct = torch.zeros(len(split), dtype=torch.uint8, device=device)
    predicts = "predict" in model.position
    early = {
        int(depth): torch.zeros(3, dtype=dtype, device=device) for depth in model.exits
    }  # loss, right, images
    for i, images, labels in split.in_order(batch_size, *rank_and_world()):
        part = slice(i * batch_size, i * batch_size + len(labels))
        tap, exits = ([PositionLogits(model)] if predicts else []), ExitLogits(model)
        with execution.context():
            logits = model(
                images,
                routes[part] if isinstance(routes, Tensor) else routes[i % len(routes)],
                [*tap, exits],
            ).float()
            if tap:
                positions += position_hits(tap[0].logits) * len(labels)
        loss += task_loss(logits, labels, "sum")
        correct[part] = is_right(logits, labels)
        for depth, (samples, answers) in exits.logits.items():
            asked = labels[samples]
            right = is_right(answers, asked).sum()
            early[depth] += torch.stack(
                [
                    task_loss(answers.float(), asked, "sum"),
                    right,
                    torch.full_like(right, len(asked)),
                ]
            )
    sum_over_processes((loss, positions, correct, *early.values()))
    n, hits = len(split), correct.bool().cpu()
    found = {
        depth: (total / count, right / count)
        for depth, (total, right, count) in ((d, t.tolist()) for d, t in early.items())
        if count
    }
    objective = (
        exit_objective(
            model.exit_heads, loss.item() / n, {d: each for d, (each, _) in found.items()}
        )
        if model.exit_heads
        else None
    )
    return Score(
        loss.item() / n,
        hits.double().mean().item(),
        positions.item() / n if predicts else None,
        hits,
        found,
        objective,
    )
