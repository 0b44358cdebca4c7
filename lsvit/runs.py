"""A model on a data set: the opened model and split, loss and accuracy along given routes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lsvit.data import Split, read_meta
from lsvit.devices import autocast, pick_device
from lsvit.jobs import RunConfig
from lsvit.losses import position_hits
from lsvit.models import PositionLogits, RoutedModel
from lsvit.routes import Route
from lsvit.weights import build, input_size, normalisation


def open_model(config: RunConfig, data: Path, weights: Path | None) -> RoutedModel:
    """The configured model, with the variant's position parts and layers and the given weights, on the device."""
    num_classes = len(read_meta(data)["classes"])
    model = build(config.model, num_classes, config.variant.position, config.variant.layers, weights)
    return model.to(pick_device(config.device))


def open_split(config: RunConfig, data: Path, split: str, model: RoutedModel, limit: int | None = None) -> Split:
    """A prepared split as the model wants it: channels, size, normalisation, device."""
    mean, std = normalisation(config.model, read_meta(data))
    return Split(data, split, next(model.parameters()).device, *input_size(model, config.model), mean, std, limit)


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
def score(model: RoutedModel, split: Split, routes: Sequence[Route] | Tensor, batch_size: int, precision: str = "fp32") -> Score:
    """Run every image once.

    Batch i takes the i-th of `routes`, cyclically (one route: every image under it); or, if it is an integer tensor
    (len(split), L), every image takes its own row.
    """
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=split.device)
    positions, correct = loss.clone(), []
    predicts = "predict" in model.position
    for i, (images, labels) in enumerate(split.in_order(batch_size)):
        each = isinstance(routes, Tensor)
        taps = [PositionLogits(model)] if predicts else []
        with autocast(split.device, precision):
            logits = model(images, routes[i * batch_size :][: len(labels)] if each else routes[i % len(routes)], taps).float()
        loss += cross_entropy(logits, labels, reduction="sum")
        correct.append(logits.argmax(-1) == labels)
        if predicts:
            positions += position_hits(taps[0].logits) * len(labels)
    n, hits = len(split), torch.cat(correct).cpu()
    return Score(loss.item() / n, hits.double().mean().item(), positions.item() / n if predicts else None, hits)
