"""Routed timm models: the only loop over blocks in the project."""

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, Protocol

import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from lsvit.latin import Latin
from lsvit.position import Position, PositionEncoding, PositionPrediction
from lsvit.routes import OneRoute, Routes, RouteTable, Step, as_route
from lsvit.stacked import Plain, Stack, can_stack, is_changed, plain

NO_PARTS = Position()
AnyRoute = Sequence[Step] | Tensor | Routes | None  # what :meth:`RoutedModel.forward` takes
Samples = slice | Tensor
# Stacked layers cost memory and, from some width on, time: benchmarks/latin.json.
WIDEST_STACK = 256


class Tap(Protocol):
    """Reads the states along a route: called after each block.

    Where samples have routes of their own it is called after each block's group of samples.
    """

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """Read the state before and after a block.

        Args:
            depth: blocks executed before this one.
            layer: index of the block's weights.
            before, after: (n, N, D).
            samples: which samples of the batch these are: ``slice(None)`` for all, else their
                indices (n,) on the CPU.
        """


class Stacks(NamedTuple):
    """A model's blocks, and its position encoding's projections, joined for Latin routes."""

    # What was joined: another module in its place, or another switch of it, makes new stacks.
    parts: list[tuple[nn.Module, Plain]]
    blocks: Stack
    projections: Stack | None


class RoutedModel(nn.Module):
    """A timm model whose blocks run along a route.

    With the attribute `checkpointing` a training step keeps no activations inside the blocks: each
    block's are computed again in the backward pass, along the same route.

    Args:
        backbone: a timm VisionTransformer (distilled or not) or MlpMixer; its blocks keep the token
            shape.
        position: the position parts to attach.
        exits: early exits, tokens (B, N, D) -> logits (B, num_classes), by depth: the number of
            blocks executed before them.

    Raises:
        ValueError: the backbone is of another family, has a forward pass of its own or hooks before
            it (is shuffled), or a part reads a class token that it does not have.
    """

    backbone: Any  # timm's families share no typed interface
    position: Any  # an nn.ModuleDict of the parts "encode" and "predict"

    def __init__(
        self,
        backbone: nn.Module,
        position: Position = NO_PARTS,
        exits: Mapping[int, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self._forward_head = _head_of(backbone)
        self.num_prefix_tokens: int = getattr(backbone, "num_prefix_tokens", 0)
        self.has_class_token: bool = getattr(backbone, "has_class_token", False)
        width = self.backbone.embed_dim
        predict = position.predict
        if predict and predict.token == "class_token" and not self.has_class_token:
            raise ValueError(
                "position.predict.token: found 'class_token', accepted: mean "
                f"({type(backbone).__name__} has no class token)"
            )
        self.position = nn.ModuleDict()
        if position.encode:
            self.position["encode"] = PositionEncoding(self.num_layers, width, position.encode)
        if predict:
            self.position["predict"] = PositionPrediction(self.num_layers, width, predict)
        self.exits = nn.ModuleDict({str(depth): head for depth, head in (exits or {}).items()})
        self.checkpointing = False
        self._made_stacks: Stacks | None = None

    @property
    def num_layers(self) -> int:
        """How many blocks the model has."""
        return len(self.backbone.blocks)

    # ---- the forward pass ----------------------------------------------------------------------

    def embed(self, images: Tensor) -> Tensor:
        """images: (B, C, H, W) -> the tokens before the first block (B, N, D)."""
        model = self.backbone
        if isinstance(model, MlpMixer):
            return model.stem(images)
        return model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))

    def forward(
        self,
        images: Tensor,
        route: AnyRoute = None,
        taps: Sequence[Tap] = (),
        exit: int | None = None,
    ) -> Tensor:
        """Execute the layers of `route`, in order, and the classification head.

        Args:
            images: (B, C, H, W).
            route: one of these. Layers may repeat or be absent.

                - None: all layers in their original order, which equals timm's own forward bit for
                  bit.
                - A sequence of layers, for all images. A tuple inside it runs side by side on the
                  same state; the outputs are averaged.
                - An integer tensor (B, L), a route for each image, a shorter one ending in -1s: at
                  each depth the images that run the same layer next go through it together.
                - :class:`lsvit.Latin`: gives what its rows would give, and is faster.
            taps: called after each block.
            exit: the depth of an early exit: its head answers, and the layers of the route after it
                are not executed.

        Returns:
            Logits (B, num_classes).

        Raises:
            IndexError: a layer of the route or the exit does not exist, a step has no layer, the
                route ends before the exit or outruns the positions of a position part.
            ValueError: the route is none of these, or a tensor of routes is not as
                :class:`lsvit.RouteTable` takes it, or has not B rows.
        """
        return self.answer(self.tokens(images, route, taps, exit), exit)

    def tokens(
        self,
        images: Tensor,
        route: AnyRoute = None,
        taps: Sequence[Tap] = (),
        exit: int | None = None,
    ) -> Tensor:
        """The state at the end of a route, or before an early exit: tokens (B, N, D).

        Arguments and errors as :meth:`forward`.
        """
        routes = self._checked(route, exit)
        if exit is not None:
            routes = routes.to_depth(exit)
        if isinstance(routes, RouteTable):
            table = torch.from_numpy(routes.rows(len(images)))
            return self._run_groups(self.embed(images), table, taps)
        if isinstance(routes, Latin):
            return self._run_latin(self.embed(images), routes, taps)
        state = self.embed(images)
        for depth, step in enumerate(routes.steps):
            state = self.run_step(state, step, depth, taps)
        return state

    def states(
        self, images: Tensor, route: Sequence[Step] | None = None, taps: Sequence[Tap] = ()
    ) -> Generator[tuple[int, Tensor], Tensor | None]:
        """The states along one route, (depth, tokens (B, N, D)), from the embedding (depth 0) on.

        A block is executed when its state is asked for: who stops asking stops the model. Samples
        that need no more are left behind by sending the index (b,) of those that do; taps do not
        hear of that.

        Raises:
            IndexError: as :meth:`forward`.
            ValueError: it is no single route.
        """
        steps = as_route(range(self.num_layers) if route is None else route)
        self._checked(steps, None)
        state = self.embed(images)
        for depth, step in enumerate(steps):
            rest = yield depth, state
            state = self.run_step(state if rest is None else state[rest], step, depth, taps)
        yield len(steps), state

    def answer(self, state: Tensor, exit: int | None = None) -> Tensor:
        """Tokens (B, N, D) -> logits (B, num_classes), of an early exit or of the model's head."""
        if exit is not None:
            return self.exits[str(exit)](state)
        return self._forward_head(self.backbone, self.backbone.norm(state))

    def patches(self, state: Tensor) -> Tensor:
        """Tokens (B, N, D) -> those of the patches (B, N - prefix tokens, D)."""
        return state[:, self.num_prefix_tokens :]

    # ---- one step ------------------------------------------------------------------------------

    def run_step(
        self,
        before: Tensor,
        step: Step,
        depth: int,
        taps: Sequence[Tap] = (),
        samples: Samples = slice(None),
    ) -> Tensor:
        """One layer, or the mean of several side by side: (n, N, D) -> (n, N, D)."""
        if not isinstance(step, tuple):
            return self._run_layer(before, step, depth, taps, samples)
        outputs = (self._run_layer(before, layer, depth, taps, samples) for layer in step)
        return reduce(torch.add, outputs) / len(step)  # one output at a time in memory

    def _run_layer(
        self, before: Tensor, layer: int, depth: int, taps: Sequence[Tap], samples: Samples
    ) -> Tensor:
        state = self._recomputed(self._block, before, layer, depth)
        for tap in taps:
            tap(depth, layer, before, state, samples)
        return state

    def _block(self, before: Tensor, layer: int, depth: int) -> Tensor:
        """One layer with its position encoding."""
        if "encode" in self.position:
            before = self.position["encode"](before, layer, depth)
        return self.backbone.blocks[layer](before)

    def _recomputed(self, run: Callable[..., Tensor], *args: Any) -> Tensor:
        """Call a function. Under `checkpointing` its activations are not kept."""
        if not (self.checkpointing and torch.is_grad_enabled()):
            return run(*args)
        # Saving the generators' state waits for the device, and only dropout needs it.
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=self._is_random())

    def _is_random(self) -> bool:
        """True if a block draws random numbers in training: dropout, timm's drop path."""
        for module in (*self.backbone.blocks.modules(), *self.position.modules()):
            rate = getattr(module, "p", None) or getattr(module, "drop_prob", None)
            if isinstance(rate, float) and rate > 0:
                return True
        return False

    # ---- a route for each sample ---------------------------------------------------------------

    def _run_groups(self, state: Tensor, routes: Tensor, taps: Sequence[Tap]) -> Tensor:
        """Routes (B, L): at each depth the samples are sorted by their next layer into groups.

        The rows stay sorted between depths, so that each depth moves every sample once; `row[i]` is
        where sample i lies.
        """
        row = torch.arange(len(routes))
        for depth, layers in enumerate(routes.unbind(1)):
            order = layers.argsort(stable=True)  # samples by layer; those at their end, -1, first
            sizes = torch.bincount(layers + 1, minlength=self.num_layers + 1).tolist()
            samples = order.split(sizes)
            places = row[order].to(state.device, non_blocking=True)
            groups = state.index_select(0, places).split(sizes)
            outputs = [groups[0]] if sizes[0] else []
            for layer, size in enumerate(sizes[1:]):
                if size:
                    group = groups[layer + 1]
                    outputs.append(self.run_step(group, layer, depth, taps, samples[layer + 1]))
            state = torch.cat(outputs)
            row[order] = torch.arange(len(routes))
        return state.index_select(0, row.to(state.device, non_blocking=True))

    # ---- Latin routes --------------------------------------------------------------------------

    def _run_latin(self, state: Tensor, latin: Latin, taps: Sequence[Tap]) -> Tensor:
        """Latin routes: where groups run different layers, these run side by side on their shares.

        Where blocks cannot be stacked, or are so wide that nothing is gained, the samples are
        grouped as under routes of their own.
        """
        stacks = self._stacks()
        if stacks is None:
            return self._run_groups(state, torch.from_numpy(latin.rows(len(state))), taps)
        route = latin.routes[0]
        start = latin.first
        end = len(route) - latin.last
        for depth in range(start):
            state = self.run_step(state, route[depth], depth, taps)
        if start < end:
            state = self._run_square(stacks, state, latin, taps)
        for depth in range(end, len(route)):
            state = self.run_step(state, route[depth], depth, taps)
        return state

    def _run_square(
        self, stacks: Stacks, state: Tensor, latin: Latin, taps: Sequence[Tap]
    ) -> Tensor:
        """The middle of Latin routes: (B, N, D) -> (B, N, D).

        A batch that the number of groups does not divide is filled with tokens of zeros, which are
        dropped in the end: no result and no gradient depends on them.
        """
        batch = len(state)
        num_groups = len(latin.routes)
        share = -(-batch // num_groups)
        depths = range(latin.first, len(latin.routes[0]) - latin.last)
        layers = sorted(route[latin.first] for route in latin.routes)
        block = stacks.blocks.load(layers, share)
        projection = stacks.projections.load(layers, share) if stacks.projections else None

        def run(state: Tensor, depth: int) -> Tensor:
            if projection:
                state = self.position["encode"].side_by_side(state, layers, depth, projection)
            return block(state)

        # The state is (groups, share, N, D). Inside the square a group lies in the slot of the
        # layer that it runs. E.g. groups 0, 1, 2 run layers 7, 3, 5: slots 0, 1, 2 hold groups 1,
        # 2, 0.
        group_in: list[list[int]] = []  # by depth, then by slot
        for depth in depths:
            group_of = {route[depth]: group for group, route in enumerate(latin.routes)}
            group_in.append([group_of[layer] for layer in layers])
        # Where each slot's group lay one depth before: outside the square in its own slot.
        in_order = list(range(num_groups))
        gather_index = []
        for old, new in zip([in_order, *group_in], [*group_in, in_order], strict=True):
            gather_index.append([old.index(group) for group in new])
        moves = torch.tensor(gather_index).to(state.device, non_blocking=True)

        samples = [torch.arange(batch)[group::num_groups] for group in range(num_groups)]
        padded = pad(state, (0, 0, 0, 0, 0, num_groups * share - batch))
        state = padded.unflatten(0, (share, num_groups)).transpose(0, 1)
        for i, depth in enumerate(depths):
            before = state.index_select(0, moves[i])
            after = self._recomputed(run, before.flatten(0, 1), depth)
            state = after.unflatten(0, (num_groups, share))
            for slot, layer in enumerate(layers):
                own = samples[group_in[i][slot]]
                if len(own):
                    for tap in taps:
                        tap(depth, layer, before[slot, : len(own)], state[slot, : len(own)], own)
        return state.index_select(0, moves[-1]).transpose(0, 1).flatten(0, 1)[:batch]

    def _stacks(self) -> Stacks | None:
        """The blocks as one; None where they cannot be, or that is not faster."""
        blocks = list(self.backbone.blocks)
        if self.backbone.embed_dim > WIDEST_STACK:
            return None
        parts = []
        for module in (*self.backbone.blocks.modules(), *self.position.modules()):
            found = plain(module)
            if found is None or is_changed(module):
                return None
            parts.append((module, found))
        if self._made_stacks is None or self._made_stacks.parts != parts:
            if not can_stack(blocks):
                return None
            projections = None
            if "encode" in self.position:
                projections = Stack(list(self.position["encode"].projections))
            self._made_stacks = Stacks(parts, Stack(blocks), projections)
        return self._made_stacks

    def __getstate__(self) -> dict[str, Any]:
        # Stacks hold tensors of the last pass, which cannot be copied. A copy makes its own.
        return super().__getstate__() | {"_made_stacks": None}

    # ---- checks --------------------------------------------------------------------------------

    def _checked(self, route: AnyRoute, exit: int | None) -> Routes:
        """The route in one of its three forms. Raises IndexError and ValueError as `forward`."""
        routes: Routes
        if isinstance(route, Routes):
            routes = route
        elif isinstance(route, Tensor):
            routes = RouteTable(route.cpu().numpy())
        else:
            routes = OneRoute(as_route(range(self.num_layers) if route is None else route))
        for layer in routes.layer_range():
            if not 0 <= layer < self.num_layers:
                raise IndexError(
                    f"route: layer {layer} does not exist, "
                    f"the model has layers 0 to {self.num_layers - 1}"
                )
        shortest, longest = routes.lengths()
        if len(self.position) and longest > self.num_layers:
            raise IndexError(
                f"route of {longest} layers: the position parts know {self.num_layers} positions"
            )
        if exit is not None and str(exit) not in self.exits:
            raise IndexError(
                f"exit {exit} does not exist, the model has exits after these numbers of layers: "
                f"{', '.join(self.exits) or 'none'}"
            )
        if exit is not None and exit > shortest:
            raise IndexError(f"route of {shortest} layers: it ends before the exit after {exit}")
        return routes


def _head_of(backbone: nn.Module) -> Any:
    """timm's `forward_head` for a backbone. Raises ValueError if the backbone is not routable."""
    cls: Any = type(backbone)
    for family in (VisionTransformer, MlpMixer):
        if not issubclass(cls, family):
            continue
        if (cls.forward, cls.forward_features) == (family.forward, family.forward_features):
            break
    else:
        raise ValueError(
            f"model {cls.__name__}: not routable, accepted: timm's VisionTransformer and "
            "MlpMixer families"
        )
    if backbone._forward_pre_hooks:
        raise ValueError(
            f"model {cls.__name__}: found hooks before its forward pass, which would not run; call "
            "lsvit.unshuffle(model) first, and shuffle the RoutedModel"
        )
    # A distilled model without its second head reads its class token alone, as others do.
    if isinstance(backbone, VisionTransformerDistilled) and not hasattr(backbone, "head_dist"):
        return VisionTransformer.forward_head
    return cls.forward_head
