"""Readers along a route: position predictions and early exits."""

from functools import cached_property

import torch
from torch import Tensor

from lsvit.routed import RoutedModel, Samples


class PositionLogits:
    """A tap that collects the position prediction of every executed layer."""

    def __init__(self, model: RoutedModel) -> None:
        self.predict = model.position["predict"]
        # By depth, then by group of samples: the layer, and what its head reads (n, D).
        self.groups: list[list[tuple[int, Tensor]]] = []

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """See :class:`lsvit.routed.Tap`."""
        if depth == len(self.groups):
            self.groups.append([])
        self.groups[depth].append((layer, self.predict.read(after)))

    @cached_property
    def logits(self) -> list[Tensor]:
        """By depth (n, L): the n samples whose routes reach it, grouped by the layer they ran.

        Read it when the route has ended. A head answers once for all depths: one for each group of
        samples would be hundreds of small products.
        """
        reads_of: dict[int, list[Tensor]] = {}
        for groups in self.groups:
            for layer, read in groups:
                reads_of.setdefault(layer, []).append(read)
        answers_of: dict[int, list[Tensor]] = {}
        for layer, reads in reads_of.items():
            sizes = [len(read) for read in reads]
            answers_of[layer] = list(self.predict(torch.cat(reads), layer).split(sizes))
        logits = []
        for groups in self.groups:
            logits.append(torch.cat([answers_of[layer].pop(0) for layer, _ in groups]))
        return logits


class ExitLogits:
    """A tap that collects the answer of every early exit that a route reaches."""

    def __init__(self, model: RoutedModel) -> None:
        self.exits = model.exits
        self.groups: dict[int, list[tuple[Samples, Tensor]]] = {}  # by depth

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """See :class:`lsvit.routed.Tap`."""
        executed = depth + 1
        if str(executed) in self.exits:
            answers = self.exits[str(executed)](after)
            self.groups.setdefault(executed, []).append((samples, answers))

    @property
    def logits(self) -> dict[int, tuple[Samples, Tensor]]:
        """By depth: which samples reach the exit, and their logits (n, num_classes)."""
        logits: dict[int, tuple[Samples, Tensor]] = {}
        for depth, groups in self.groups.items():
            answers = torch.cat([answers for _, answers in groups])
            samples = _all_samples(groups)
            if isinstance(samples, Tensor):
                samples = samples.to(answers.device)
            logits[depth] = samples, answers
        return logits


def in_batch_order(groups: list[tuple[Samples, Tensor]]) -> Tensor:
    """What a tap read of every sample, group by group -> (B, ...), in the batch's order."""
    values = torch.cat([values for _, values in groups])
    samples = _all_samples(groups)
    return values[samples.argsort().to(values.device)] if isinstance(samples, Tensor) else values


def _all_samples(groups: list[tuple[Samples, Tensor]]) -> Samples:
    """The samples of several groups, one after another."""
    indices = [samples for samples, _ in groups if isinstance(samples, Tensor)]
    return torch.cat(indices) if indices else slice(None)
