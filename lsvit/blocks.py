"""Find the list of blocks of a model."""

from numbers import Integral
from typing import Any

from torch import nn

from lsvit.routed import RoutedModel

SHOWN = 5  # lists, or classes, that a message names
ROUTED_BLOCKS = "backbone.blocks"  # the list of a routed model
COMPILED = (
    "a model whose blocks run in any order cannot be compiled as a whole; "
    "compile its blocks: for block in model.blocks: block.compile()"
)


Blocks = str | nn.Module | None  # where a list of blocks is, or the list; None: it is found


def find_blocks(model: nn.Module, blocks: Blocks = None) -> str:
    """Where the model's list of blocks is, as `named_modules` says.

    Args:
        model: of any kind.
        blocks: where it is said to be, or the list. None: find it.

    Raises:
        ValueError: as :func:`lsvit.shuffle`.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model: found {type(model).__name__}, accepted: a torch.nn.Module")
    if getattr(model.forward, "__func__", None) is nn.Module.forward:  # as of nn.ModuleList
        raise ValueError(
            f"model: found {type(model).__name__}, which has no forward pass, "
            "accepted: the model that calls its blocks"
        )
    path = blocks
    if isinstance(path, nn.Module):
        names = (name for name, module in model.named_modules() if module is blocks)
        path = next(names, type(blocks).__name__)
    if isinstance(model, RoutedModel):
        if path not in (None, ROUTED_BLOCKS):
            raise ValueError(f"blocks: found {path!r}, accepted: {ROUTED_BLOCKS!r} or none")
        return ROUTED_BLOCKS
    if any(isinstance(module, RoutedModel) for module in model.modules()):
        raise ValueError(f"{type(model).__name__}: give the lsvit.RoutedModel in it")
    lists = [name for name, module in model.named_modules() if _is_list_of_blocks(module)]
    if path is None and len(lists) == 1 and _is_whole_depth(model, lists[0]):
        path = lists[0]
    if path is None or path not in lists:
        raise ValueError(f"{type(model).__name__}: {_describe_mistake(path, lists)}")
    container = model.get_submodule(path)
    for module in model.modules():
        if is_compiled(module) and container in module.modules():
            raise ValueError(COMPILED)
    return path


def count_blocks(model: nn.Module, path: str) -> int:
    """How many blocks the list has."""
    return len(model.get_submodule(path)._modules)


def is_compiled(module: nn.Module) -> bool:
    """True of a module that torch.compile or `compile()` has wrapped."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def _is_list_of_blocks(module: nn.Module) -> bool:
    """True if it lists at least two modules of one class with parameters of equal shape."""
    if not isinstance(module, nn.ModuleList | nn.Sequential):
        return False
    kinds = {_shape_of(block) for block in module.children()}
    holds_modules = any(next(block.children(), None) for block in module.children())
    return len(module) > 1 and len(kinds) == 1 and holds_modules


def _is_whole_depth(model: nn.Module, path: str) -> bool:
    """False if blocks of the list's class stand outside it, as in a ResNet's other stages."""
    container = model.get_submodule(path)
    inside = set(container.modules())
    outside = {_kind_of(module) for module in model.modules() if module not in inside}
    return _kind_of(next(container.children())) not in outside


def _kind_of(module: nn.Module) -> Any:
    """Its class; of nn.Sequential, what it consists of."""
    if isinstance(module, nn.Sequential):
        return tuple(type(child) for child in module)
    return type(module)


def _shape_of(block: nn.Module) -> tuple[Any, ...]:
    shapes = tuple((name, value.shape) for name, value in block.named_parameters())
    return type(block), shapes


def check_whole(**numbers: int) -> None:
    """Raise ValueError if a number, by its name, is no whole number."""
    for name, found in numbers.items():
        if isinstance(found, bool) or not isinstance(found, Integral):
            raise ValueError(f"{name}: found {found!r}, accepted: a whole number")


def check_least(least: int, **numbers: int) -> None:
    """Raise ValueError if a number, by its name, is no whole number or less than `least`."""
    check_whole(**numbers)
    for name, found in numbers.items():
        if found < least:
            raise ValueError(f"{name}: found {found}, accepted: at least {least}")


def _describe_mistake(blocks: str | None, lists: list[str]) -> str:
    if not lists:
        return "found no list of blocks of one shape, at least two of them"
    mistake = "none is the model's whole depth" if blocks is None else f"blocks: found {blocks!r}"
    accepted = ", ".join(repr(name) for name in lists[:SHOWN])
    return f"{mistake}, lists of blocks of one shape: {accepted}; name one of them with blocks="
