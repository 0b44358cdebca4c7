"""Any model's blocks in any order: hooks reorder the list of blocks for one forward pass.

A hook before the model's forward pass puts a reordered copy in the place of the list's `_modules`,
whose keys stay, and a hook after it puts the original back. So whatever reads the list inside the
forward pass follows the order: a loop, an index, a slice, ``nn.Sequential``, timm's
`checkpoint_seq`. Checkpointing keeps the blocks that it ran, so it recomputes them in their order.
Weights, names and state_dict are those of the model.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from lsvit.blocks import COMPILED, Blocks, check_least, check_whole, count_blocks, find_blocks
from lsvit.latin import Latin
from lsvit.latin import latin as draw_latin
from lsvit.latin_blocks import LatinBlocks, TokenModel, route_tokens
from lsvit.reordered import InOriginalOrder, Modules, reorder, repeat
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, Route, Sampler, as_route, between, generator

Draw = Callable[[np.random.Generator, int], Route | Latin]  # (generator, num_layers) -> order
NUM_HOOKS = 4  # of a Shuffle: two on the model, two on its list of blocks


# ---- what users call ---------------------------------------------------------------------------


def shuffle(
    model: nn.Module,
    sampler: Sampler | None = None,
    *,
    seed: int = 0,
    drop: float = 0.0,
    first: int = 0,
    last: int = 0,
    latin: bool = False,
    per_rank: bool = False,
    blocks: Blocks = None,
) -> "Shuffle":
    """Run the model's blocks in a new random order in every forward pass in training mode.

    In evaluation mode they run in their original order (LayerShuffle, Algorithm 1). Call the model
    itself: `model.forward_features(images)` runs no hooks, so it has the original order.

    Gradient checkpointing of blocks (timm's `set_grad_checkpointing`, transformers'
    `gradient_checkpointing_enable`) recomputes them in their order. A checkpointed function is
    given its blocks: one that looks them up in the list, by an index or a loop, is refused in the
    backward pass. Compile blocks
    (``block.compile()``), not the whole model, which would be compiled again for each order. With
    DistributedDataParallel `drop` needs ``find_unused_parameters=True``. Training in
    nn.DataParallel is refused.

    A :class:`lsvit.RoutedModel` that is called with a route runs along it, and nothing is drawn.

    An exception inside a forward pass leaves the list of blocks as it was, but for a
    KeyboardInterrupt: then the next pass, or `model.state_dict()`, puts it in order.

    Threads may evaluate a shuffled model at the same time. No thread may run the model while
    another one trains it, or runs it inside :func:`in_order`: the list of blocks is shared.

    What a model indexes in its loop follows the depth, e.g. ``output_hidden_states``. (Ask
    transformers for them once in the original order first: it listens only to the blocks that are
    there at the first time.) What a block knows itself follows the block, e.g. its share of a
    key-value cache. So generation needs one order for all tokens, and an order with a repeated
    block needs ``use_cache=False``.

    Args:
        model: a model with one list of blocks of equal shape (nn.ModuleList or nn.Sequential):
            timm's, transformers', torchvision's, a :class:`lsvit.RoutedModel`, your own.
        sampler: how orders are drawn, (generator, num_layers) -> route. E.g. ``lsvit.drop(0.2)``
            is LayerDrop: the original order, each block left out with probability 0.2. None: a
            random order of all blocks.
        seed: the order depends on it and the step alone: it is drawn from
            ``lsvit.generator("shuffle", seed, step)``.
        drop: leave out each block that is shuffled with this probability.
        first, last: how many blocks at either end stay in place.
        latin: draw Latin orders, one for each of L groups of a batch (:class:`lsvit.Latin`).
        per_rank: each process of a distributed training draws orders of its own. Otherwise all draw
            the same.
        blocks: the list of blocks, or its name as `named_modules` has it, e.g.
            "vit.encoder.layer". None: it is found.

    Returns:
        What tells the orders, and the step, which a resumed training sets.

    Raises:
        ValueError: no list of blocks is found, or several, or `blocks` is none. The list is
            shuffled already, through this model or one around it, the model is compiled as a whole,
            `latin` is asked of a model that :class:`lsvit.RoutedModel` does not take, or an option
            is not what is accepted. In the forward pass: the model was compiled as a whole, it is
            checkpointed as a whole, it is a replica of nn.DataParallel, or a repeated block is
            given a key-value cache. In the backward pass: a checkpointed function looks blocks up
            in the list.
        IndexError: in the forward pass, if the sampler draws a block that does not exist, or the
            model's loop takes more blocks than the order has.
    """
    path = find_blocks(model, blocks)
    check_least(0, seed=seed)
    check_whole(first=first, last=last)
    if _attached(model, path):
        raise ValueError(f"{path}: is shuffled already, call lsvit.unshuffle(model) first")
    if sampler is not None and (isinstance(sampler, type) or not callable(sampler)):
        found = f"{sampler}" if isinstance(sampler, type) else type(sampler).__name__
        raise ValueError(
            f"sampler: found {found}, accepted: a function, for example lsvit.fixed((2, 0, 1)) or "
            "lsvit.drop(0.2)"
        )
    if sampler and (drop or first or last or latin):
        raise ValueError("sampler: found with drop, first, last or latin, accepted: it alone")
    if latin and drop:
        raise ValueError(f"drop: found {drop} with latin, accepted: 0")
    draw: Draw = sampler or between(first, last, drop)
    if not sampler:
        draw(generator("check"), count_blocks(model, path))  # raises ValueError if it cannot be
    if latin:
        draw = partial(draw_latin, first=first, last=last)
        if not isinstance(model, RoutedModel):
            route_tokens(model, path)  # raises ValueError where this cannot be
    return Shuffle(model, path, draw, seed, per_rank)


def unshuffle(model: nn.Module) -> None:
    """Undo :func:`shuffle`: the model, and whatever it holds, is as it was before.

    This also holds for a list of blocks that was shuffled through a model around this one.
    """
    for module in model.modules():
        for attached in _shuffles_of(module):
            attached.remove()


def get_shuffle(model: nn.Module, blocks: Blocks = None) -> "Shuffle":
    """What :func:`shuffle` attached to a model, e.g. to one that ``torch.load`` gave.

    Raises:
        ValueError: as :func:`shuffle`, or the model is not shuffled.
    """
    path = find_blocks(model, blocks)
    attached = _attached(model, path)
    if attached is None:
        raise ValueError(f"{type(model).__name__}: {path} is not shuffled")
    return attached


@contextmanager
def in_order(
    model: nn.Module, order: Sequence[int] | Route | Latin, blocks: Blocks = None
) -> "Iterator[Shuffle]":
    """Run the model's blocks in this order inside the context, in training and evaluation mode.

    What :func:`shuffle` says of threads, checkpointing and caches holds here too. If the whole
    model is checkpointed, or a function that looks blocks up, the backward pass has to run inside
    the context as well: after it they would be recomputed in another order. A warning says so if
    the model is not called inside the context.

    Args:
        model: as :func:`shuffle` takes it, shuffled or not.
        order: indices of blocks, which may repeat or be absent, e.g. ``(2, 0, 1)``.
        blocks: the list of blocks, or its name. None: it is found.

    Raises:
        ValueError: as :func:`shuffle`, or a step of the order is a tuple and the model is no
            :class:`lsvit.RoutedModel`.
            In the forward pass: an order is longer than the list, and the model's loop ends
            before it.
        IndexError: a block of the order does not exist.
    """
    path = find_blocks(model, blocks)
    attached = _attached(model, path)
    runner = attached or Shuffle(model, path, draw=None)
    outer_order = runner.fixed
    runner.num_layers = count_blocks(model, path)
    passes = runner.passes
    try:
        runner.fixed = runner.check(order)
        yield runner
        if runner.passes == passes:
            warnings.warn(
                f"{type(model).__name__}: was not called inside in_order, so nothing ran in the "
                "order; call the model itself, not a method of it",
                stacklevel=3,
            )
    finally:
        runner._restore()  # torch runs no hook after KeyboardInterrupt
        runner.fixed = outer_order
        if not attached:
            runner.remove()


# ---- the hooks ---------------------------------------------------------------------------------


class Shuffle:
    """What :func:`shuffle` attaches to a model: hooks, and the orders that they draw.

    Copies of the model (deepcopy, pickle, timm's ModelEmaV3) have one of their own, without the
    order of a surrounding :func:`in_order`.

    Attributes:
        blocks: where the model's list of blocks is, e.g. "vit.encoder.layer".
        num_layers: how many blocks the list has. They are counted in each forward pass.
        seed: of the orders.
        step: how many orders were drawn: one in each forward pass in training mode. Save it with
            the optimizer, and set it when a training is resumed.
        order: the last order that was drawn or that :func:`in_order` asked for, of a forward pass;
            None before the first.
        fixed: the order that :func:`in_order` asks for; None outside it.
        passes: how many forward passes ran in an order.
    """

    passes = 0
    _cut = False  # a longer order has begun, and its last block has not run
    _guarded: tuple[nn.Module, ...] = ()  # lists that have run in another order, with gradients

    def __init__(
        self,
        model: nn.Module,
        blocks: str,
        draw: Draw | None,
        seed: int = 0,
        per_rank: bool = False,
    ) -> None:
        self.blocks = blocks
        self.seed = seed
        self.step = 0
        self.order: Route | Latin | None = None
        self.fixed: Route | Latin | None = None
        self._draw = draw
        self._per_rank = per_rank
        # A list, and its modules while others are in their place
        self._original: tuple[nn.Module, Modules] | None = None
        self._routed: TokenModel | None = None
        container = model.get_submodule(blocks)
        self.num_layers = count_blocks(model, blocks)
        self._side_by_side = isinstance(model, RoutedModel)
        # torch runs no hook after KeyboardInterrupt. So what reads the list's names, and the next
        # forward pass, put the original back as well.
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(self, with_kwargs=True),
            model.register_forward_hook(self._finish, always_call=True, prepend=True),
            container.register_state_dict_pre_hook(self._restore),
            container.register_load_state_dict_pre_hook(self._restore),
        ]

    def __call__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Put an order in the place of the list: torch calls this before the forward pass."""
        self._restore()
        self._cut = False
        if self.fixed is None and not (self._draw and model.training):
            self._guard(dict)  # whatever recomputes this pass finds the original order
            return None
        if self._side_by_side and (len(args) > 1 or "route" in kwargs):
            return None
        if getattr(model, "_is_replica", False):  # replicas are threads that share this object
            raise ValueError(
                "a shuffled model cannot run in nn.DataParallel, accepted: DistributedDataParallel "
                "(torchrun)"
            )
        if torch.compiler.is_compiling():
            _refuse_compiled()
        container = model.get_submodule(self.blocks)
        self.num_layers = len(container._modules)
        order = self._next_order(model) if self.fixed is None else self.fixed
        self.order = order
        self.passes += 1
        if self._side_by_side:
            return args, kwargs | {"route": order}
        self._original = container, container._modules
        if isinstance(order, Latin):
            self._routed = route_tokens(model, self.blocks, self._routed)
            container._modules = {"0": LatinBlocks(self._routed, order)}
        else:
            container._modules = reorder(container._modules, order)
            if len(order) > self.num_layers:
                self._expect_last(container._modules, order)
        return None

    def check(self, order: Sequence[int] | Route | Latin) -> Route | Latin:
        """The order as a tuple, or Latin. Raises ValueError and IndexError as :func:`in_order`."""
        routes = order if isinstance(order, Latin) else OneRoute(as_route(order))
        for layer in routes.layer_range():
            if not 0 <= layer < self.num_layers:
                raise IndexError(
                    f"order: block {layer} does not exist, "
                    f"the model has blocks 0 to {self.num_layers - 1}"
                )
        if isinstance(routes, Latin):
            return routes
        if not self._side_by_side and any(isinstance(step, tuple) for step in routes.steps):
            raise ValueError(
                f"order: found {routes.steps}, accepted: single blocks; "
                "lsvit.RoutedModel runs blocks side by side"
            )
        return routes.steps

    def is_attached(self) -> bool:
        """False if the model that it was attached to is gone, as in a copy of the list alone."""
        return len(self._alive()) == NUM_HOOKS

    def remove(self) -> None:
        """Take the hooks off the model and off its list of blocks."""
        self._restore()
        self._guard(dict)
        for handle in self._handles:
            handle.remove()

    def _alive(self) -> list[RemovableHandle]:
        """The hooks whose module is still there. torch cannot copy the others."""
        return [handle for handle in self._handles if handle.hooks_dict_ref() is not None]

    def _next_order(self, model: nn.Module) -> Route | Latin:
        assert self._draw is not None
        if torch._C._current_graph_task_id() != -1:
            raise ValueError(
                f"{type(model).__name__}: a shuffled model runs inside a backward pass, where it "
                "would draw another order; checkpoint its blocks, not the model"
            )
        key = [self.seed, self.step]
        if self._per_rank and torch.distributed.is_initialized():
            key.append(torch.distributed.get_rank())
        order = self.check(self._draw(generator("shuffle", *key), self.num_layers))
        self.step += 1
        return order

    def _expect_last(self, modules: Modules, order: Route) -> None:
        """A loop of a fixed length would leave out what is behind it, without a word."""
        name = next(reversed(modules))
        last = repeat(modules[name], order)
        last.register_forward_pre_hook(self._note_last)
        modules[name] = last
        self._cut = True

    def _note_last(self, *arguments: Any) -> None:
        self._cut = False

    def _finish(self, model: nn.Module, args: Any, output: Any) -> None:
        """Put the original back: torch calls this after the forward pass."""
        self._restore()
        cut, self._cut = self._cut, False
        if cut and output is not None:  # None: it failed
            raise ValueError(
                f"{type(model).__name__}: found a forward pass that ends before the last block of "
                f"{self.order}, accepted: orders of at most {self.num_layers} blocks"
            )

    def _restore(self, *arguments: Any) -> None:
        if self._original is not None:
            container, modules = self._original
            container._modules = modules
            self._original = None
            if torch.is_grad_enabled() and container not in self._guarded:
                self._guarded = (*self._guarded, container)
        self._guard(InOriginalOrder)

    def _guard(self, kind: type[Modules]) -> None:
        if torch.compiler.is_compiling():
            return
        for container in self._guarded:
            if type(container._modules) is not kind:
                container._modules = kind(container._modules.items())

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handles": self._alive(), "_routed": None, "fixed": None}

    def __repr__(self) -> str:
        return f"Shuffle(blocks={self.blocks!r}, seed={self.seed}, step={self.step})"


def _shuffles_of(module: nn.Module) -> list[Shuffle]:
    """What has hooks on this model or list of blocks."""
    hooks = [*module._forward_pre_hooks.values(), *module._state_dict_pre_hooks.values()]
    owners = [getattr(hook, "__self__", hook) for hook in hooks]
    return [owner for owner in owners if isinstance(owner, Shuffle)]


def _attached(model: nn.Module, path: str) -> Shuffle | None:
    """What reorders this list already, on the model or on a module in it.

    Raises:
        ValueError: it is on a module around the model, which a call of the model would pass by.
    """
    container = model.get_submodule(path)
    for module in model.modules():
        for runner in module._forward_pre_hooks.values():
            if isinstance(runner, Shuffle) and module.get_submodule(runner.blocks) is container:
                return runner
    for runner in _shuffles_of(container):
        if runner.is_attached():
            raise ValueError(
                f"{path}: is shuffled already, as {runner.blocks} of a model around "
                f"{type(model).__name__}; give that model, or call lsvit.unshuffle(model) first"
            )
    return None


@torch.compiler.disable
def _refuse_compiled() -> None:
    raise ValueError(COMPILED)
