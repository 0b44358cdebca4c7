"""Taps of the routed model's own parts: what they read along a route."""

import itertools
from functools import cached_property

import torch
from torch import Tensor

from lsvit.routed import RoutedModel, Samples


class PositionLogits:
    """A tap that collects the position prediction of every executed layer."""

    def __init__(self, model: RoutedModel) -> None:
        self.predict = model.position["predict"]
        self.groups: list[
            list[tuple[int, Tensor]]
        ] = []  # by depth, then by group of samples: layer, what its head reads (n, D)

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """Called after each block; states (n, N, D)."""
        if depth == len(self.groups):
            self.groups.append([])
        self.groups[depth].append((layer, self.predict.read(after)))

    @cached_property
    def logits(self) -> list[Tensor]:
        """By depth: (n, L), the n samples whose routes reach it, grouped by the layer they ran. Asked for when the route has ended."""
        by_layer: dict[int, list[Tensor]] = {}
        for layer, read in itertools.chain(*self.groups):
            by_layer.setdefault(layer, []).append(read)
        # A head answers once for all depths, where a head for each group of a batch would be hundreds of small products.
        answers = {
            layer: iter(self.predict(torch.cat(reads), layer).split([*map(len, reads)]))
            for layer, reads in by_layer.items()
        }
        return [torch.cat([next(answers[layer]) for layer, _ in groups]) for groups in self.groups]


class FirstTokens:
    """A tap that keeps the tokens after the first layer of every sample's route."""

    def __init__(self) -> None:
        self.groups: list[tuple[Samples, Tensor]] = []

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """Called after each block; states (n, N, D)."""
        if depth == 0:
            self.groups.append((samples, after))

    @property
    def tokens(self) -> Tensor:
        """(B, N, D), in the batch's order."""
        which = [samples for samples, _ in self.groups if isinstance(samples, Tensor)]
        tokens = torch.cat([after for _, after in self.groups])
        return tokens[torch.cat(which).argsort().to(tokens.device)] if which else tokens


class ExitLogits:
    """A tap that collects the answer of every early exit that a route reaches."""

    def __init__(self, model: RoutedModel) -> None:
        self.exits = model.exits
        self.groups: dict[int, list[tuple[Samples, Tensor]]] = {}  # by depth

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """Called after each block; states (n, N, D)."""
        if str(depth + 1) in self.exits:
            self.groups.setdefault(depth + 1, []).append(
                (samples, self.exits[str(depth + 1)](after))
            )

    @property
    def logits(self) -> dict[int, tuple[Samples, Tensor]]:
        """By depth: which samples reach the exit, and their logits (n, num_classes) in that order."""
        found: dict[int, tuple[Samples, Tensor]] = {}
        for depth, groups in self.groups.items():
            which = [samples for samples, _ in groups if isinstance(samples, Tensor)]
            logits = torch.cat([logits for _, logits in groups])
            found[depth] = (torch.cat(which).to(logits.device) if which else slice(None), logits)
        return found
