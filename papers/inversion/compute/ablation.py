"""Models with parts taken out of every block, or taken over from another model (representation, ablations and transplants)."""

from collections.abc import Collection
from typing import Any

import torch
from timm.models.mlp_mixer import MixerBlock, ResBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from pipeline.errors import UserError


class Ablated(nn.Module):
    """A block of timm's ViT, MLP-Mixer or ResMLP without some of its parts, with the weights it has.

    A block is two branches, each with a norm before and a residual connection around it: attention (of mixers: the mixing of the
    tokens) and MLP (of mixers: of the channels). Norms inside attention stay. Without its residual connections it is the one after
    the other: the published code, other than its text, then feeds the block's input to the MLP and so leaves attention out as well.

    Args:
        block: of timm; shares its parts.
        without: of "residuals", "norms", "attention", "mlp".

    Raises:
        UserError: the block is of another kind.
    """

    block: Any

    def __init__(self, block: nn.Module, without: Collection[str]) -> None:
        super().__init__()
        if type(block) not in (Block, MixerBlock, ResBlock):
            raise UserError(
                f"ablations: found blocks of {type(block).__name__}, accepted: those of timm's ViT, MLP-Mixer and ResMLP"
            )
        self.block, self.without = block, frozenset(without)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D) -> (B, N, D)."""
        for part, branch in (("attention", self._tokens), ("mlp", self._channels)):
            if part not in self.without:
                x = branch(x) if "residuals" in self.without else x + branch(x)
        return x

    def _norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        return x if "norms" in self.without else norm(x)

    def _tokens(self, x: Tensor) -> Tensor:
        """The branch that lets tokens see each other."""
        block, x = self.block, self._norm(self.block.norm1, x)
        if isinstance(block, Block):
            return block.drop_path1(block.ls1(block.attn(x)))
        if isinstance(block, MixerBlock):
            return block.drop_path(block.mlp_tokens(x.transpose(1, 2)).transpose(1, 2))
        return block.drop_path(block.ls1 * block.linear_tokens(x.transpose(1, 2)).transpose(1, 2))

    def _channels(self, x: Tensor) -> Tensor:
        """The branch that treats every token alone."""
        block, x = self.block, self._norm(self.block.norm2, x)
        if isinstance(block, Block):
            return block.drop_path2(block.ls2(block.mlp(x)))
        x = block.mlp_channels(x)
        return block.drop_path(x if isinstance(block, MixerBlock) else block.ls2 * x)


def ablate(backbone: Any, without: Collection[str]) -> None:
    """Take the same parts out of every block of a timm model, which keeps its weights. Raises UserError as :class:`Ablated` does."""
    backbone.blocks = nn.Sequential(*(Ablated(block, without) for block in backbone.blocks))


@torch.no_grad()
def transplant(target: Any, source: Any, parts: Collection[str]) -> None:
    """Give one timm model parts of another of the same architecture: "patch_embed", "pos_embed", "norm1" (of the first block).

    Raises:
        UserError: the models have no such part.
    """
    for part in parts:
        own, given = _part(target, part), _part(source, part)
        if isinstance(own, nn.Module):
            own.load_state_dict(given.state_dict())
        else:
            own.copy_(given)


def patch_embedding(backbone: Any) -> Any:
    """The module that makes tokens of patches; its `proj` is a strided convolution."""
    return backbone.stem if hasattr(backbone, "stem") else backbone.patch_embed


def _part(backbone: Any, part: str) -> Any:
    if part == "patch_embed":
        return patch_embedding(backbone)
    found = getattr(backbone.blocks[0] if part == "norm1" else backbone, part, None)
    if found is None:
        raise UserError(
            f"transplants: found {part!r}, accepted: parts that {type(backbone).__name__} has; it has none of that name"
        )
    return found
