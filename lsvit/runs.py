"""A model on a data set: the opened model and split, loss and accuracy along given routes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from lsvit.data import Split, read_meta
from lsvit.jobs import RunConfig
from lsvit.losses import position_hits
from lsvit.models import PositionLogits, RoutedModel, build, input_size, normalisation, pick_device
from lsvit.routes import Route


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


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The autocast context of a `precision:` value (fp32 or bf16)."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


@torch.inference_mode()
def score(model: RoutedModel, split: Split, routes: Sequence[Route], batch_size: int, precision: str = "fp32") -> Score:
    """Run every image once; batch i takes the i-th route, cyclically. One route: every image under it."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=split.device)
    hits, positions = loss.clone(), loss.clone()
    predicts = "predict" in model.position
    for i, (images, labels) in enumerate(split.in_order(batch_size)):
        taps = [PositionLogits(model)] if predicts else []
        with autocast(split.device, precision):
            logits = model(images, routes[i % len(routes)], taps).float()
        loss += cross_entropy(logits, labels, reduction="sum")
        hits += (logits.argmax(-1) == labels).sum()
        if predicts:
            positions += position_hits(taps[0].logits) * len(labels)
    n = len(split)
    return Score(loss.item() / n, hits.item() / n, positions.item() / n if predicts else None)
