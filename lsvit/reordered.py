"""A list of blocks in another order, and what must not read it afterwards."""

from copy import copy
from functools import partial
from typing import Any

import torch
from torch import nn

from lsvit.routes import Route

Modules = dict[str, nn.Module | None]  # of a list of blocks, as torch keeps them, by name


def reorder(modules: Modules, order: Route) -> Modules:
    """The modules in this order, below the names of the first places."""
    names = [*modules, *map(str, range(len(modules), len(order)))]
    blocks = [block for _, block in modules.items()]  # values() may be refused
    reordered: Modules = {}
    for depth, layer in enumerate(order):
        assert not isinstance(layer, tuple)
        block = blocks[layer]
        if layer in order[:depth]:
            block = repeat(block, order)
        reordered[names[depth]] = block
    return reordered


def repeat(block: Any, order: Route) -> Any:
    """Another module of the same weights, since `children()` gives a module once."""
    again = copy(block)
    for hooks in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
        vars(again)[hooks] = copy(vars(block)[hooks])  # its own
    again.register_forward_pre_hook(partial(_refuse_cache, order), with_kwargs=True)
    return again


def _refuse_cache(
    order: Route, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    for value in (*args, *kwargs.values()):
        if hasattr(value, "get_seq_length"):  # as transformers' caches have it
            raise ValueError(
                f"order {order}: a repeated block would read its own keys in the cache, "
                "accepted: use_cache=False"
            )


class InOriginalOrder(dict[str, nn.Module | None]):
    """The modules of a list that has run in another order. No backward pass may take them.

    It takes them if a checkpointed function looks blocks up in the list: they would be recomputed
    in their original order, and gradients would be wrong. Items may be read, by which torch finds
    parameters; so do `children()` and slices of nn.Sequential, which are not refused.
    """

    def __getitem__(self, name: str) -> nn.Module | None:
        _refuse_recomputing()
        return super().__getitem__(name)

    def values(self) -> Any:
        """Refused inside a backward pass, as a single block is."""
        _refuse_recomputing()
        return super().values()


def _refuse_recomputing() -> None:
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
        raise ValueError(
            "a list of shuffled blocks is read inside a backward pass, where a checkpointed "
            "function would run them in their original order; checkpoint a block itself, as "
            "checkpoint(block, x), and let hooks keep the blocks that they need"
        )
