"""What one forward pass takes: operations, elements and FLOPs of a model, its blocks and its early exits, without weights or data.

Counted by torch itself on the meta device, where nothing is computed. One multiply-add is 2 FLOPs; norms, activations and sums are
none. Attention is run unfused, as matrix products: FlopCounterMode counts fused attention as 0 on a CPU.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lsvit.routed import NO_PARTS, RoutedModel
from lsvit.taps import PositionLogits
from papers.exits.branches import TokenShape, make_branch, token_shape
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, BranchName, BranchSizes, ExitHeads, Position, Variant
from pipeline.models.weights import create_backbone, input_size

FLOPS = 2  # index in the counts


class Operations(TorchDispatchMode):
    """Counts the operations that are run, views apart, and the elements that they put out."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.elements = 0, 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.count += 1
            self.elements += sum(tensor.numel() for tensor in tree_leaves(out))
        return out


@dataclass(frozen=True)
class Forward:
    """One image through a model: operations, elements, FLOPs (3,) outside its blocks, and in a block with its position part.

    Early exits count as outside: all of them are run.
    """

    num_layers: int
    outside: np.ndarray
    block: np.ndarray


class ExitFlops(NamedTuple):
    """FLOPs of one image in the parts of a model with early exits; all blocks of a model take the same."""

    embed: int  # patch embedding
    block: int  # one transformer block
    head: int  # final norm and the model's own head
    branches: dict[BranchName, int]  # one branch

    def at(self, branch: BranchName, depth: int) -> int:
        """FLOPs up to and including the branch after `depth` blocks. Raises KeyError for a branch that was not counted."""
        return self.embed + depth * self.block + self.branches[branch]

    def final(self, num_layers: int) -> int:
        """FLOPs of the model itself, without exits."""
        return self.embed + num_layers * self.block + self.head


def meta_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model without memory or weights, its attention unfused. Raises UserError as `create_backbone` does."""
    with torch.device("meta"):
        backbone = create_backbone(preset.model_copy(update={"init_std": None}), num_classes)
    return _countable(backbone)


def _countable(module: Any) -> Any:
    """The module with attention as matrix products, in evaluation."""
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False
    return module.eval().requires_grad_(
        False
    )  # FlopCounterMode expects gradients of what requires them


def _count(run: Callable[..., Tensor], *inputs: Any) -> np.ndarray:
    """Operations, elements, FLOPs (3,) of `run(*inputs)`."""
    with FlopCounterMode(display=False) as flops, Operations() as operations, torch.no_grad():
        run(*inputs)
    return np.array([operations.count, operations.elements, flops.get_total_flops()], dtype=float)


def _routed(
    backbone: Any, preset: ModelPreset, position: Position = NO_PARTS
) -> tuple[RoutedModel, Tensor]:
    """The model of a :func:`meta_backbone`, and an image (1, C, H, W) for it."""
    with torch.device("meta"):
        model = RoutedModel(backbone, position).eval()
        in_chans, size = input_size(model, preset)
        return model, torch.empty(1, in_chans, size, size)


def count_forward(
    backbone: Any,
    preset: ModelPreset,
    position: Position = NO_PARTS,
    exits: ExitHeads | None = None,
) -> Forward:
    """Counts of a :func:`meta_backbone` with position parts and early exits, as torch runs it; all blocks of a model take the same.

    Raises:
        UserError: the images are not square, or a part does not fit the model.
    """
    model, image = _routed(backbone, preset, position)
    counts = []
    for route in ((), (0,)):
        taps = [PositionLogits(model)] if "predict" in model.position else []
        counts.append(
            _count(model, image, route, taps) + sum(_count(getattr, tap, "logits") for tap in taps)
        )  # heads run when asked
    branches = (
        len(exits.depths)
        * count_branch(exits.branch, token_shape(backbone), backbone.num_classes, exits)
        if exits
        else 0
    )
    return Forward(model.num_layers, counts[0] + branches, counts[1] - counts[0])


def count_variant(backbone: Any, preset: ModelPreset, variant: Variant) -> Forward:
    """Counts of a variant's model, with its layers and parts, but for a loss's patch head. Raises UserError as :func:`count_forward`."""
    if variant.talking_heads:
        from papers.smoothing.talking_heads import talk

        with torch.device("meta"):
            talk(backbone := deepcopy(backbone))
    model = count_forward(backbone, preset, variant.position, variant.exits)
    return replace(model, num_layers=variant.layers or model.num_layers)


def count_branch(
    kind: BranchName, shape: TokenShape, outputs: int, sizes: BranchSizes
) -> np.ndarray:
    """Operations, elements, FLOPs (3,) of a branch on one image's tokens (1, N, D). Raises UserError as `make_branch` does."""
    with torch.device("meta"):
        branch, tokens = (
            make_branch(kind, shape, outputs, sizes),
            torch.empty(1, shape.length, shape.width),
        )
    return _count(_countable(branch), tokens)


def count_exits(
    preset: ModelPreset,
    num_classes: int,
    branches: Sequence[BranchName],
    sizes: BranchSizes,
    variant: Variant = PLAIN,
) -> ExitFlops:
    """FLOPs of one image in a variant of the preset's model for `num_classes` classes, and in each of these branches, of as many outputs.

    What the paper's Table I lists as FLOPS up to an exit are multiply-adds: half of these.

    Raises:
        UserError: timm does not know the model, its tokens are no grid, or a branch does not fit them.
    """
    backbone = meta_backbone(preset, num_classes)
    forward, shape = count_variant(backbone, preset, variant), token_shape(backbone)
    model, image = _routed(backbone, preset)
    embed = int(_count(model.embed, image)[FLOPS])
    return ExitFlops(
        embed,
        int(forward.block[FLOPS]),
        int(forward.outside[FLOPS]) - embed,
        {
            kind: int(count_branch(kind, shape, backbone.num_classes, sizes)[FLOPS])
            for kind in branches
        },
    )
