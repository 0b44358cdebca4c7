"""Layers of equal shape as one, for Latin routes: at each depth every layer has an equal share."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from timm.layers import LayerNorm, LayerScale
from timm.models.mlp_mixer import Affine, ResBlock
from torch import Tensor, nn
from torch.nn.functional import layer_norm

# Modules whose own parameters, (D,) or (1, 1, D), multiply or are added to tokens (B, N, D).
ELEMENTWISE = Affine | LayerScale | ResBlock
# Whose parameters can be joined: these classes themselves, for a subclass may run something else.
KNOWN = (nn.Linear, nn.LayerNorm, LayerNorm, Affine, LayerScale, ResBlock)
Plain = dict[str, Any]
PLAIN = {bool, int, float, str, type(None)}
OF_TORCH = vars(nn.Module()).keys() - {"training"} | {"_compiled_call_impl"}


def can_stack(modules: Sequence[nn.Module]) -> bool:
    """True if modules differ in their parameters' values alone, and :class:`Stack` knows them."""
    if any(list(module.buffers()) for module in modules):
        return False
    if not all(map(_is_known, modules[0].modules())):
        return False
    first, *others = [
        [(name, type(part), plain(part)) for name, part in module.named_modules()]
        for module in modules
    ]
    return all(other == first for other in others)


def is_changed(module: nn.Module) -> bool:
    """True if something runs beside or in place of what its class says: a stack would not."""
    forward = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def plain(module: nn.Module) -> Plain | None:
    """What a forward pass may read beside parameters and parts: numbers, words and switches.

    None if the module has anything else, e.g. a tensor: of that nobody knows whether it is equal.
    """
    found: Plain = {}
    for name, value in vars(module).items():
        if name in OF_TORCH:
            continue
        kinds = set(map(type, value)) if type(value) is tuple else {type(value)}
        if not kinds <= PLAIN:
            return None
        found[name] = value
    return found


def _is_known(module: nn.Module) -> bool:
    """True if the module's own parameters can be joined, or it has none."""
    return type(module) in KNOWN or not list(module.parameters(recurse=False))


class _Linear(nn.Module):
    """(G n, ..., D) -> (G n, ..., E): each group through its own matrix, in one batched product."""

    weight: Tensor  # (G, D, E)
    bias: Tensor | None = None  # (G, 1, E)

    def forward(self, state: Tensor) -> Tensor:
        rows = state.reshape(len(self.weight), -1, state.shape[-1])
        if self.bias is None:
            product = torch.bmm(rows, self.weight)
        else:
            product = torch.baddbmm(self.bias, rows, self.weight)
        return product.view(*state.shape[:-1], -1)


class _LayerNorm(nn.Module):
    """(G n, ..., D): each of G groups with a scale and a shift of its own."""

    weight: Tensor  # (G, 1, D)
    bias: Tensor | None = None  # (G, 1, D)

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, state: Tensor) -> Tensor:
        normal = layer_norm(state, state.shape[-1:], eps=self.eps)
        rows = normal.reshape(len(self.weight), -1, state.shape[-1])
        if self.bias is None:
            scaled = rows * self.weight
        else:
            scaled = torch.addcmul(self.bias, rows, self.weight)
        return scaled.view_as(state)


class Stack:
    """Runs modules of equal shape side by side: the first n samples through the first, and so on.

    It is timm's own code that runs, on the joined batch; only what has parameters is replaced by a
    batched form. The parameters stay where they are: :meth:`load` joins their present values, and
    gradients flow back to them.

    Args:
        modules: :func:`can_stack` holds for them.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = modules
        self.joined: nn.Module = deepcopy(modules[0])
        # Of each parameter: the joined module that has it, its name, the modules it comes from.
        self.places: list[tuple[nn.Module, str, list[nn.Module]]] = []
        for name, module in modules[0].named_modules():
            self._join(name, module)

    def _join(self, name: str, module: nn.Module) -> None:
        """Put a module without parameters in the place of the joined module's part `name`."""
        target: Any = self.joined.get_submodule(name)
        if isinstance(module, nn.Linear | nn.LayerNorm):
            target = _Linear() if isinstance(module, nn.Linear) else _LayerNorm(module.eps)
            parent, _, child = name.rpartition(".")
            setattr(self.joined.get_submodule(parent), child, target)
        sources = [each.get_submodule(name) for each in self.modules]
        for key, _ in module.named_parameters(recurse=False):
            target._parameters.pop(key, None)  # a plain tensor takes its place
            self.places.append((target, key, sources))

    def load(self, chosen: Sequence[int], samples: int) -> nn.Module:
        """Join the present parameters of the `chosen` modules, for `samples` samples each."""
        for target, key, sources in self.places:
            values = torch.stack([getattr(sources[i], key) for i in chosen])
            # Shaped here as they are used at every depth: views and their gradients cost time.
            if isinstance(target, _Linear) and key == "weight":
                values = values.transpose(1, 2)
            else:
                values = values.view(len(chosen), 1, -1)
            if isinstance(target, ELEMENTWISE):
                values = values.repeat_interleave(samples, 0)
            setattr(target, key, values)
        return self.joined
