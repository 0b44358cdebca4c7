"""What a training minimises: objectives, each of which reads a forward pass and adds terms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from lsvit.position import position_hits, position_loss
from lsvit.routed import RoutedModel, Tap
from lsvit.taps import PositionLogits


@dataclass
class Batch:
    """What a training step learns from."""

    images: Tensor  # (B, C, H, W)
    labels: Tensor  # (B,) classes, or (B, C) shares of the classes in each image
    extras: Mapping[str, Tensor] = field(default_factory=dict)  # (B, ...) for a paper's objective

    def split(self, parts: int) -> "Iterator[Batch]":
        """Nearly equal parts of the batch, in order."""
        for rows in np.array_split(np.arange(len(self.images)), parts):
            part = slice(rows[0], rows[-1] + 1)
            extras = {name: tensor[part] for name, tensor in self.extras.items()}
            yield Batch(self.images[part], self.labels[part], extras)


Augment = Callable[[Batch], Batch]


class ForwardPass(NamedTuple):
    """What an objective reads, beside its taps."""

    model: RoutedModel
    batch: Batch
    state: Tensor  # (B, N, D), after the last layer of the route or before the exit
    logits: Tensor  # (B, num_classes)


# By name: the weight in the loss and the value, a scalar, mean over the batch. Where the weight is
# None the value is noted in the history and is no part of the loss.
Terms = dict[str, tuple[float | None, Tensor]]


class Objective(Protocol):
    """A part of what a training minimises."""

    def taps(self, model: RoutedModel) -> Sequence[Tap]:
        """Fresh taps for one forward pass; none unless it is overridden."""
        return ()

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        """The terms of a forward pass, with the taps made for it."""


class ClassLoss(Objective):
    """The loss of the task: cross-entropy, of a single output the absolute error."""

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        """The loss, and beside it the accuracy."""
        labels = forward.batch.labels
        return {
            "class_loss": (1.0, task_loss(forward.logits, labels)),
            "accuracy": (None, is_right(forward.logits, labels).float().mean()),
        }


@dataclass
class PositionLoss:
    """The loss of LayerShuffle-predict (section 3.3)."""

    weight: float

    def taps(self, model: RoutedModel) -> Sequence[Tap]:
        """A reader of the predicted positions."""
        return (PositionLogits(model),)

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        """The loss, and beside it the share of positions predicted correctly."""
        logits = taps[0].logits
        return {
            "position_loss": (self.weight, position_loss(logits)),
            "position_accuracy": (None, position_hits(logits)),
        }


@dataclass
class TeacherLoss(Objective):
    """Cross-entropy with a teacher's answers (distillation without temperature; Hinton et al.,
    2015).

    Attributes:
        weight: of the loss.
        teacher: a model that is not trained. None: the trained model itself in its original order,
            in a pass of its own, in which it learns the labels too.
    """

    weight: float
    teacher: RoutedModel | None

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        """The loss; without a teacher also that of the task in the original order."""
        images, labels = forward.batch.images, forward.batch.labels
        terms: Terms = {}
        if self.teacher is None:
            answers = forward.model(images)
            terms["original_loss"] = 1.0, task_loss(answers, labels)
        else:
            with torch.no_grad():
                answers = self.teacher(images)
        shares = answers.detach().softmax(-1)
        terms["teacher_loss"] = self.weight, cross_entropy(forward.logits, shares)
        return terms


def task_loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """The loss of a model's answers: a scalar.

    Args:
        outputs: (B, C), logits; or (B, 1), a regression, whose loss is the absolute error.
        labels: (B,), classes or the numbers asked for; or (B, C), shares of the classes.
        reduction: "mean" or "sum" over the batch.
    """
    if outputs.shape[1] == 1:
        return l1_loss(outputs[:, 0], labels.to(outputs.dtype), reduction=reduction)
    return cross_entropy(outputs, labels, reduction=reduction)


def is_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Which answers are right, (B,) bool; arguments as :func:`task_loss` takes them.

    Of shares of classes the largest counts, and a regression's answer is rounded.
    """
    if labels.ndim == 2:
        labels = labels.argmax(-1)
    answers = outputs[:, 0].round() if outputs.shape[1] == 1 else outputs.argmax(-1)
    return answers == labels
