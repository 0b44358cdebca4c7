"""A model on a data set: the opened model and split, loss and accuracy along given routes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lsvit.data import Split, read_meta, resizing
from lsvit.devices import Execution, pick_device, settle
from lsvit.distributed import rank_and_world, sum_over_processes
from lsvit.jobs import AnalysisConfig, EvalConfig, RunConfig, TrainConfig
from lsvit.losses import position_hits
from lsvit.models import PositionLogits, RoutedModel
from lsvit.routes import Route
from lsvit.weights import build, input_size, normalisation


def open_model(config: EvalConfig | AnalysisConfig | TrainConfig, data: Path, weights: Path | None) -> tuple[RoutedModel, Execution]:
    """The configured model, with the variant's position parts and layers and the given weights, on the device; how it is run."""
    num_classes = len(read_meta(data)["classes"])
    model = build(config.model, num_classes, config.variant.position, config.variant.layers, weights)
    compile = config.options.compile if isinstance(config, TrainConfig) else "none"
    execution = settle(pick_device(config.device), model.backbone.embed_dim, config.precision, compile, config.deterministic)
    return model.to(execution.device), execution


def open_split(config: RunConfig, data: Path, split: str, model: RoutedModel, limit: int | None = None) -> Split:
    """A prepared split as the model wants it: channels, size, normalisation, device."""
    meta = read_meta(data)
    mean, std = normalisation(config.model, meta)
    resize = None if "shards" in meta else resizing(config.model, meta["resize"])  # shards were resized when they were decoded
    return Split(data, split, next(model.parameters()).device, *input_size(model, config.model), mean, std, limit, resize)


class Score(NamedTuple):
    """Means over the images: cross-entropy, top-1 accuracy and, for models that predict it, position accuracy."""

    loss: float
    accuracy: float
    position_accuracy: float | None
    correct: Tensor  # (n,) bool, on the CPU: which images are classified correctly

    def numbers(self) -> dict[str, float]:
        """The means there are, by name."""
        return {key: value for key in ("loss", "accuracy", "position_accuracy") if (value := getattr(self, key)) is not None}


@torch.inference_mode()
def score(model: RoutedModel, split: Split, routes: Sequence[Route] | Tensor, batch_size: int, execution: Execution) -> Score:
    """Run every image once; where several processes train, each runs some of the batches and all get the result.

    Batch i takes the i-th of `routes`, cyclically (one route: every image under it); or, if it is an integer tensor
    (len(split), L), every image takes its own row.
    """
    model.eval()
    loss, positions = torch.zeros(2, dtype=torch.float64, device=execution.device)
    correct = torch.zeros(len(split), dtype=torch.uint8, device=execution.device)
    predicts = "predict" in model.position
    for i, images, labels in split.in_order(batch_size, *rank_and_world()):
        part = slice(i * batch_size, i * batch_size + len(labels))
        taps = [PositionLogits(model)] if predicts else []
        with execution.context():
            logits = model(images, routes[part] if isinstance(routes, Tensor) else routes[i % len(routes)], taps).float()
        loss += cross_entropy(logits, labels, reduction="sum")
        correct[part] = logits.argmax(-1) == labels
        if predicts:
            positions += position_hits(taps[0].logits) * len(labels)
    sum_over_processes((loss, positions, correct))
    n, hits = len(split), correct.bool().cpu()
    return Score(loss.item() / n, hits.double().mean().item(), positions.item() / n if predicts else None, hits)
