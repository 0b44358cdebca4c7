"""Routed timm models: the only loop over blocks in the project."""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import cached_property, reduce
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from lsvit.latin import Latin
from lsvit.position import PositionEncoding, PositionPrediction
from lsvit.routes import ENDED, Route, Step, layers_of
from lsvit.stacked import Stack, can_stack
from papers.exits.branches import make_branch, token_shape
from pipeline.config.variant import ExitHeads, Position
from pipeline.errors import UserError

NO_PARTS = Position()
Samples = slice | Tensor
WIDEST_STACK = (
    256  # stacked layers cost memory and, from some width on, time: benchmarks/latin.json
)
# keys of attached parts in a weights file; all others are timm's own
POSITION_PREFIX, EXITS_PREFIX, PATCH_HEAD_PREFIX = "position.", "exits.", "patch_head."


class Tap(Protocol):
    """Reads the states along a route: called after each block; with per-sample routes, after each block's group of samples."""

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """`depth`: blocks executed before this one; `layer`: index of its weights; `before`, `after`: (n, N, D).

        `samples`: which samples of the batch these are: ``slice(None)`` for all, else their indices (n,) on the CPU.
        """


class RoutedModel(nn.Module):
    """A timm model whose blocks run along a route.

    Args:
        backbone: a timm VisionTransformer (distilled or not) or MlpMixer; its blocks must keep the token shape.
        position: the position parts to attach.
        exits: the early exits to attach, keyed by depth: the number of blocks executed before them.
        patch_head: attach a linear head on every patch, which the patch mixing loss trains.

    With the attribute `checkpointing` a training step keeps no activations inside the blocks: each block's are computed again
    in the backward pass, along the same route.

    Raises:
        UserError: the backbone is of another family or has a forward pass of its own, or a part reads a class token it does not have.
    """

    backbone: Any  # timm's families share no typed interface
    position: Any  # an nn.ModuleDict of the parts "encode" and "predict"

    def __init__(
        self,
        backbone: nn.Module,
        position: Position = NO_PARTS,
        exits: ExitHeads | None = None,
        patch_head: bool = False,
    ) -> None:
        super().__init__()
        from timm.models.deit import VisionTransformerDistilled
        from timm.models.mlp_mixer import MlpMixer
        from timm.models.vision_transformer import VisionTransformer

        kind: Any = type(backbone)
        family = next((f for f in (VisionTransformer, MlpMixer) if issubclass(kind, f)), None)
        if family is None or (kind.forward, kind.forward_features) != (
            family.forward,
            family.forward_features,
        ):
            raise UserError(
                f"model {kind.__name__}: not routable, accepted: timm's VisionTransformer and MlpMixer families"
            )
        self.backbone = backbone
        # A distilled model without its second head reads its class token alone, as one that is not distilled does.
        one_head = issubclass(kind, VisionTransformerDistilled) and not hasattr(
            backbone, "head_dist"
        )
        self._forward_head: Any = (VisionTransformer if one_head else kind).forward_head
        width = self.backbone.embed_dim
        self.num_prefix_tokens: int = getattr(backbone, "num_prefix_tokens", 0)
        self.has_class_token: bool = getattr(backbone, "has_class_token", False)
        if (
            position.predict
            and position.predict.token == "class_token"
            and not self.has_class_token
        ):
            raise UserError(
                f"position.predict.token: found 'class_token', accepted: mean ({type(backbone).__name__} has no class token)"
            )
        parts: dict[str, nn.Module] = {}
        if position.encode:
            parts["encode"] = PositionEncoding(self.num_layers, width, position.encode)
        if position.predict:
            parts["predict"] = PositionPrediction(self.num_layers, width, position.predict)
        self.position = nn.ModuleDict(parts)
        self.exit_heads = exits
        made = (
            {
                str(d): make_branch(
                    exits.branch, token_shape(backbone), self.backbone.num_classes, exits
                )
                for d in exits.depths
            }
            if exits
            else {}
        )
        self.exits = nn.ModuleDict(made)
        self.patch_head = nn.Linear(width, self.backbone.num_classes) if patch_head else None
        self.checkpointing = False

    @property
    def num_layers(self) -> int:
        """How many blocks the model has."""
        return len(self.backbone.blocks)

    def embed(self, images: Tensor) -> Tensor:
        """images: (B, C, H, W) -> the tokens before the first block (B, N, D)."""
        b = self.backbone
        if hasattr(b, "stem"):  # MlpMixer
            return b.stem(images)
        return b.norm_pre(b.patch_drop(b._pos_embed(b.patch_embed(images))))

    def forward(
        self,
        images: Tensor,
        route: Route | Tensor | Latin | None = None,
        taps: Sequence[Tap] = (),
        exit: int | None = None,
    ) -> Tensor:
        """Execute the layers of `route`, in order, and the classification head.

        Args:
            images: (B, C, H, W).
            route: layer indices; layers may repeat or be absent, and a tuple of them runs side by side on the same state, their
                outputs averaged. Default: all, in their original order, which equals timm's
                own forward bit for bit. Or one route per sample, an integer tensor (B, L), a shorter one ending in -1s: at
                each depth the samples that run the same layer next go through it together. Or Latin routes, which give the same
                as their rows would sample by sample, and faster: see :meth:`_run_latin`.
            taps: called after each block.
            exit: the depth of an early exit: its head answers, and the layers of the route after it are not executed.

        Returns:
            Logits (B, num_classes).

        Raises:
            IndexError: a layer of the route or the exit does not exist, a step has no layer, the route ends before the exit or
                outruns the positions of a position part.
            ValueError: per-sample routes are no integer tensor of B rows, are empty for a sample, or go on after a -1.
        """
        return self.answer(self.tokens(images, route, taps, exit), exit)

    def tokens(
        self,
        images: Tensor,
        route: Route | Tensor | Latin | None = None,
        taps: Sequence[Tap] = (),
        exit: int | None = None,
    ) -> Tensor:
        """The state at the end of a route, or before an early exit: tokens (B, N, D). Arguments and errors as :meth:`forward`."""
        route = tuple(range(self.num_layers)) if route is None else route
        if isinstance(route, Tensor):
            route = route.cpu()
            self._check_routes(route, len(images))
            if exit is not None:
                self._check_exit(exit, int((route != ENDED).sum(dim=1).min()))
            return self._run_groups(self.embed(images), route[:, :exit], taps)
        if isinstance(route, Latin):
            for each in route.routes:
                self._check_layers(each, min(each), max(each), len(each))
            if exit is not None:
                self._check_exit(exit, len(route.routes[0]))
                route = route.to_depth(exit)
            return self._run_latin(self.embed(images), route, taps)
        if exit is not None:
            self._check_exit(exit, len(route))
        return deque(self.states(images, route[:exit], taps), maxlen=1).pop()[1]

    def states(
        self, images: Tensor, route: Route | None = None, taps: Sequence[Tap] = ()
    ) -> Generator[tuple[int, Tensor], Tensor | None]:
        """The states along a route, (depth, tokens (B, N, D)), from the embedding (depth 0) on.

        A block is executed when its state is asked for: who stops asking stops the model. Samples that need no more are left
        behind by sending the index (b,) of those that do; taps do not hear of that.

        Raises:
            IndexError: as :meth:`forward`.
        """
        route = tuple(range(self.num_layers)) if route is None else route
        layers = layers_of(route)
        self._check_layers(route, min(layers, default=0), max(layers, default=0), len(route))
        state = self.embed(images)
        for depth, step in enumerate(route):
            rest = yield depth, state
            state = self._step(
                state if rest is None else state[rest], step, depth, taps, slice(None)
            )
        yield len(route), state

    def answer(self, state: Tensor, exit: int | None = None) -> Tensor:
        """Tokens (B, N, D) -> logits (B, num_classes), of the early exit at this depth or of the model's own head."""
        return (
            self._forward_head(self.backbone, self.backbone.norm(state))
            if exit is None
            else self.exits[str(exit)](state)
        )

    def patches(self, state: Tensor) -> Tensor:
        """Tokens (B, N, D) -> those of the patches (B, N - prefix tokens, D)."""
        return state[:, self.num_prefix_tokens :]

    def _step(
        self, before: Tensor, step: Step, depth: int, taps: Sequence[Tap], samples: Samples
    ) -> Tensor:
        """One layer, or the mean of several side by side, on samples that share it: (n, N, D) -> (n, N, D)."""
        if isinstance(step, tuple):
            outputs = (self._layer(before, layer, depth, taps, samples) for layer in step)
            return reduce(torch.add, outputs) / len(step)  # one output at a time in memory
        return self._layer(before, step, depth, taps, samples)

    def _layer(
        self, before: Tensor, layer: int, depth: int, taps: Sequence[Tap], samples: Samples
    ) -> Tensor:
        """One layer with its position part."""
        state = self._recomputed(self._block, before, layer, depth)
        for tap in taps:
            tap(depth, layer, before, state, samples)
        return state

    def _recomputed(self, run: Callable[..., Tensor], *given: Any) -> Tensor:
        """What a function gives; under `checkpointing` its activations are not kept but computed again in the backward pass."""
        if not (self.checkpointing and torch.is_grad_enabled()):
            return run(*given)
        # Saving the generators' state waits for the device, and only dropout needs it.
        return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=self._draws)

    def _block(self, before: Tensor, layer: int, depth: int) -> Tensor:
        state = (
            self.position["encode"](before, layer, depth) if "encode" in self.position else before
        )
        return self.backbone.blocks[layer](state)

    @cached_property
    def _draws(self) -> bool:
        """Whether a block draws random numbers in training: dropout, timm's drop path."""
        modules = [*self.backbone.blocks.modules(), *self.position.modules()]
        rates = (getattr(m, "p", None) or getattr(m, "drop_prob", None) for m in modules)
        return any(isinstance(rate, float) and rate > 0 for rate in rates)

    def _run_groups(self, state: Tensor, routes: Tensor, taps: Sequence[Tap]) -> Tensor:
        """Per-sample routes (B, L): at each depth the samples are sorted by their next layer and split into its groups.

        The rows stay sorted between depths, so that each depth moves every sample once; `row[i]` is where sample i lies.
        """
        row = torch.arange(len(routes))
        for depth, layers in enumerate(routes.unbind(1)):
            order = layers.argsort(stable=True)  # samples by layer; those at their end, -1, first
            sizes = torch.bincount(layers + 1, minlength=self.num_layers + 1).tolist()
            groups = state.index_select(0, row[order].to(state.device, non_blocking=True)).split(
                sizes
            )
            samples = order.split(sizes)
            done = [groups[0]] if sizes[0] else []
            done += [
                self._step(groups[layer + 1], layer, depth, taps, samples[layer + 1])
                for layer in range(self.num_layers)
                if sizes[layer + 1]
            ]
            state = torch.cat(done)
            row[order] = torch.arange(len(routes))
        return state.index_select(0, row.to(state.device, non_blocking=True))

    @cached_property
    def _stacks(self) -> tuple[Stack, Stack | None] | None:
        """The blocks, and the position encoding's projections, as one; None where they cannot be, or that is not faster."""
        blocks, encode = list(self.backbone.blocks), getattr(self.position, "encode", None)
        if self.backbone.embed_dim > WIDEST_STACK or not can_stack(blocks):
            return None
        return Stack(blocks), Stack(list(encode.projections)) if encode else None

    def _run_latin(self, state: Tensor, latin: Latin, taps: Sequence[Tap]) -> Tensor:
        """Latin routes: where the groups run different layers, these run side by side, each on its share of the batch.

        A batch that the number of groups does not divide is filled with tokens of zeros, which are dropped in the end: no result
        and no gradient depends on them. Where blocks cannot be stacked, or are so wide that nothing is gained, the samples are
        grouped as under routes of their own.
        """
        routes, first, batch = latin.routes, latin.first, len(state)
        if self._stacks is None:
            return self._run_groups(state, torch.from_numpy(latin.rows(batch)), taps)
        for depth, layer in enumerate(routes[0][:first]):
            state = self._step(state, layer, depth, taps, slice(None))
        end = len(routes[0]) - latin.last
        if first < end:
            state = self._run_square(state, [route[:end] for route in routes], first, taps)
        for depth, layer in enumerate(routes[0][end:], end):
            state = self._step(state, layer, depth, taps, slice(None))
        return state

    def _run_square(
        self, state: Tensor, routes: Sequence[tuple[int, ...]], first: int, taps: Sequence[Tap]
    ) -> Tensor:
        """The Latin square of the routes from depth `first` on: (B, N, D) -> (B, N, D)."""
        assert self._stacks
        groups, batch = len(routes), len(state)
        share = -(-batch // groups)
        table = np.asarray(routes)[:, first:]
        layers = sorted(table[:, 0].tolist())
        blocks, projections = self._stacks
        block, projection = (
            blocks.load(layers, share),
            projections.load(layers, share) if projections else None,
        )

        def run(state: Tensor, depth: int) -> Tensor:
            if projection:
                state = self.position["encode"].side_by_side(state, layers, depth, projection)
            return block(state)

        samples = [torch.arange(batch)[group::groups] for group in range(groups)]
        # Each group's place in the state (groups, share, N, D), which lies by group before and after the square, by layer inside.
        place = np.vstack([np.arange(groups), np.searchsorted(layers, table.T), np.arange(groups)])
        group = place.argsort(1)
        moves = torch.from_numpy(np.take_along_axis(place[:-1], group[1:], 1)).to(
            state.device, non_blocking=True
        )
        state = (
            pad(state, (0, 0, 0, 0, 0, groups * share - batch))
            .unflatten(0, (share, groups))
            .transpose(0, 1)
        )
        for step, depth in enumerate(range(first, len(routes[0]))):
            before = state.index_select(0, moves[step])
            state = self._recomputed(run, before.flatten(0, 1), depth).unflatten(0, (groups, share))
            for tap in taps:
                for layer, mine, old, new in zip(
                    layers, group[step + 1], before.unbind(), state.unbind(), strict=True
                ):
                    if n := len(samples[mine]):
                        tap(depth, layer, old[:n], new[:n], samples[mine])
        return state.index_select(0, moves[-1]).transpose(0, 1).flatten(0, 1)[:batch]

    def _check_layers(self, route: Route, lowest: int, highest: int, length: int) -> None:
        if () in route:
            raise IndexError(f"route {route}: a step has no layer")
        for layer in (lowest, highest):
            if not 0 <= layer < self.num_layers:
                raise IndexError(
                    f"route {route}: layer {layer} does not exist, the model has layers 0 to {self.num_layers - 1}"
                )
        if len(self.position) and length > self.num_layers:
            raise IndexError(
                f"route of {length} layers: the position parts know {self.num_layers} positions"
            )

    def _check_exit(self, exit: int, length: int) -> None:
        if str(exit) not in self.exits:
            raise IndexError(
                f"exit {exit} does not exist, the model has exits after these numbers of layers: {', '.join(self.exits) or 'none'}"
            )
        if exit > length:
            raise IndexError(f"route of {length} layers: it ends before the exit after {exit}")

    def _check_routes(self, routes: Tensor, batch: int) -> None:
        if (
            routes.ndim != 2
            or len(routes) != batch
            or routes.is_floating_point()
            or routes.dtype == torch.bool
        ):
            raise ValueError(
                f"per-sample routes: found {routes.dtype} {tuple(routes.shape)}, accepted: integers ({batch}, length)"
            )
        ended = routes == ENDED
        if (ended[:, :-1] & ~ended[:, 1:]).any() or ended[:, :1].any():
            raise ValueError(
                "per-sample routes: found -1 before a layer or an empty route, accepted: -1 after a route's last layer alone"
            )
        layers = routes[~ended]
        if len(layers):
            worst = routes[((routes < ENDED) | (routes >= self.num_layers)).any(1)]
            self._check_layers(
                tuple((worst if len(worst) else routes)[0].tolist()),
                int(layers.min()),
                int(layers.max()),
                routes.shape[1],
            )
