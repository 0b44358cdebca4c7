"""Layers of equal shape as one: for Latin routes, where at each depth every layer has an equal share of the batch."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from timm.layers import LayerScale
from timm.models.mlp_mixer import Affine, ResBlock
from torch import Tensor, nn
from torch.nn.functional import layer_norm

ELEMENTWISE = (
    Affine | LayerScale | ResBlock
)  # their own parameters, (D,) or (1, 1, D), multiply or are added to tokens (B, N, D)


def can_stack(modules: Sequence[nn.Module]) -> bool:
    """Whether modules look alike but for the values of their parameters, and all of those belong to modules known here."""

    def known(part: nn.Module) -> bool:
        own = [*part.parameters(recurse=False)]
        return (
            isinstance(part, nn.Linear | ELEMENTWISE)
            or (isinstance(part, nn.LayerNorm) and bool(own))
            or not own
        )

    alike = len({repr(module) for module in modules}) == 1 and not any(
        True for _ in modules[0].buffers()
    )
    return alike and all(map(known, modules[0].modules()))


class _Linear(nn.Module):
    """(G n, ..., D) -> (G n, ..., E): each of G groups through a matrix of its own, in one batched product."""

    weight: Tensor  # (G, D, E)
    bias: Tensor | None  # (G, 1, E)

    def forward(self, state: Tensor) -> Tensor:
        rows = state.reshape(len(self.weight), -1, state.shape[-1])
        product = (
            torch.bmm(rows, self.weight)
            if self.bias is None
            else torch.baddbmm(self.bias, rows, self.weight)
        )
        return product.view(*state.shape[:-1], -1)


class _LayerNorm(nn.Module):
    """(G n, ..., D): each of G groups with a scale and a shift of its own."""

    weight: Tensor  # (G, 1, D)
    bias: Tensor | None  # (G, 1, D)

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, state: Tensor) -> Tensor:
        rows = layer_norm(state, state.shape[-1:], eps=self.eps).reshape(
            len(self.weight), -1, state.shape[-1]
        )
        return (
            rows * self.weight if self.bias is None else torch.addcmul(self.bias, rows, self.weight)
        ).view_as(state)


class Stack:
    """Runs modules of equal shape side by side: the first n samples through the first, the next n through the second, ...

    It is timm's own code that runs, on the joined batch; only what has parameters is replaced by a batched form. The parameters
    stay where they are: :meth:`load` joins their present values, and gradients flow back to them.

    Args:
        modules: for which :func:`can_stack` holds.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.joined: nn.Module = deepcopy(modules[0])
        # of each parameter: the joined module that has it, its name, the modules' own parts that have it
        self.places: list[tuple[nn.Module, str, list[nn.Module]]] = []
        for name, part in modules[0].named_modules():
            self._replace(name, part)

    def _replace(self, name: str, part: nn.Module) -> None:
        own, parts = (
            [key for key, _ in part.named_parameters(recurse=False)],
            [module.get_submodule(name) for module in self.modules],
        )
        target: Any = self.joined.get_submodule(name)
        if isinstance(part, nn.Linear | nn.LayerNorm):
            target = _Linear() if isinstance(part, nn.Linear) else _LayerNorm(part.eps)
            target.bias = None
            parent, _, child = name.rpartition(".")
            setattr(self.joined.get_submodule(parent), child, target)
        for key in own:
            if key in target._parameters:
                del target._parameters[key]  # a plain tensor takes its place
            self.places.append((target, key, parts))

    def load(self, chosen: Sequence[int], samples: int) -> nn.Module:
        """The joined module, with the present parameters of the `chosen` modules, for `samples` samples each."""
        for target, key, parts in self.places:
            values = torch.stack([getattr(parts[i], key) for i in chosen])
            # Given the shape here in which it is used at every depth: views, and their gradients', are what small layers cost.
            values = (
                values.transpose(1, 2)
                if isinstance(target, _Linear) and key == "weight"
                else values.view(len(chosen), 1, -1)
            )
            setattr(
                target,
                key,
                values.repeat_interleave(samples, 0) if isinstance(target, ELEMENTWISE) else values,
            )
        return self.joined.train(self.modules[0].training)
