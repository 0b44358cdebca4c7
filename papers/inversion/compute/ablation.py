"""Take parts out of every block of a model, or take them over from another model.

Source: representation, "Ablations" and "Transplants".
"""

from collections.abc import Collection
from typing import Any

import torch
from timm.models.mlp_mixer import MixerBlock, ResBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from pipeline.errors import UserError


class Ablated(nn.Module):
    """A block of timm's ViT, MLP-Mixer or ResMLP without some of its parts.

    A block has two branches, each with a norm before and a residual connection around it:
    attention (of mixers: the mixing of the tokens) and MLP (of mixers: of the channels). Norms
    inside attention stay. Without residual connections the MLP follows attention. The published
    code, unlike its text, then feeds the block's input to the MLP and so leaves out attention too.

    Args:
        block: of timm; its parts and weights are shared.
        without: of "residuals", "norms", "attention", "mlp".

    Raises:
        UserError: the block is of another class.
    """

    block: Any

    def __init__(self, block: nn.Module, without: Collection[str]) -> None:
        super().__init__()
        if type(block) not in (Block, MixerBlock, ResBlock):
            raise UserError(
                f"ablations: found blocks of {type(block).__name__}, "
                "accepted: those of timm's ViT, MLP-Mixer and ResMLP"
            )
        self.block = block
        self.without = frozenset(without)

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D) -> (B, N, D)."""
        for part, branch in (("attention", self._tokens), ("mlp", self._channels)):
            if part in self.without:
                continue
            x = branch(x) if "residuals" in self.without else x + branch(x)
        return x

    def _norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        return x if "norms" in self.without else norm(x)

    def _tokens(self, x: Tensor) -> Tensor:
        """Run the branch that lets tokens see each other."""
        block = self.block
        x = self._norm(block.norm1, x)
        if isinstance(block, Block):
            return block.drop_path1(block.ls1(block.attn(x)))
        if isinstance(block, MixerBlock):
            return block.drop_path(block.mlp_tokens(x.transpose(1, 2)).transpose(1, 2))
        return block.drop_path(block.ls1 * block.linear_tokens(x.transpose(1, 2)).transpose(1, 2))

    def _channels(self, x: Tensor) -> Tensor:
        """Run the branch that treats every token alone."""
        block = self.block
        x = self._norm(block.norm2, x)
        if isinstance(block, Block):
            return block.drop_path2(block.ls2(block.mlp(x)))
        if isinstance(block, MixerBlock):
            return block.drop_path(block.mlp_channels(x))
        return block.drop_path(block.ls2 * block.mlp_channels(x))


def ablate(backbone: Any, without: Collection[str]) -> None:
    """Take the same parts, as :class:`Ablated`, out of every block of a timm model in place."""
    backbone.blocks = nn.Sequential(*(Ablated(block, without) for block in backbone.blocks))


@torch.no_grad()
def transplant(target: Any, source: Any, parts: Collection[str]) -> None:
    """Copy parts of a timm model to another one of the same architecture.

    Args:
        target: is changed in place.
        source: stays as it is.
        parts: of "patch_embed", "pos_embed", "norm1" (of the first block).

    Raises:
        UserError: the models have no such part.
    """
    for part in parts:
        old = _find_part(target, part)
        new = _find_part(source, part)
        if isinstance(old, nn.Module):
            old.load_state_dict(new.state_dict())
        else:
            old.copy_(new)


def patch_embedding(backbone: Any) -> Any:
    """The module that makes tokens of patches; its `proj` is a strided convolution."""
    return backbone.stem if hasattr(backbone, "stem") else backbone.patch_embed


def _find_part(backbone: Any, name: str) -> Any:
    if name == "patch_embed":
        return patch_embedding(backbone)
    owner = backbone.blocks[0] if name == "norm1" else backbone
    part = getattr(owner, name, None)
    if part is None:
        raise UserError(
            f"transplants: found {name!r}, accepted: parts that {type(backbone).__name__} has; "
            "it has none of that name"
        )
    return part
