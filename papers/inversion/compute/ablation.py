"""Take parts out of every block of a model, or take them over from another model.

Source: representation, "Ablations" and "Transplants".
"""

from collections.abc import Collection
from typing import Any

from timm.models.mlp_mixer import MixerBlock, ResBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from pipeline.errors import UserError

# How the names of a part's tensors begin; mixers call their patch embedding stem
PREFIXES = {
    "patch_embed": ("patch_embed.", "stem."),
    "pos_embed": ("pos_embed",),
    "norm1": ("blocks.0.norm1.",),
}


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
        block = self.block
        branches = (("attention", block.norm1, self._tokens), ("mlp", block.norm2, self._channels))
        for part, norm, branch in branches:
            if part not in self.without:
                change = branch(x if "norms" in self.without else norm(x))
                x = change if "residuals" in self.without else x + change
        return x

    def _tokens(self, x: Tensor) -> Tensor:
        """Run what lets tokens see each other."""
        block = self.block
        if isinstance(block, Block):
            return block.drop_path1(block.ls1(block.attn(x)))
        x = x.transpose(1, 2)
        if isinstance(block, MixerBlock):
            return block.drop_path(block.mlp_tokens(x).transpose(1, 2))
        return block.drop_path(block.ls1 * block.linear_tokens(x).transpose(1, 2))

    def _channels(self, x: Tensor) -> Tensor:
        """Run what treats every token alone."""
        block = self.block
        if isinstance(block, Block):
            return block.drop_path2(block.ls2(block.mlp(x)))
        x = block.mlp_channels(x)
        return block.drop_path(x if isinstance(block, MixerBlock) else block.ls2 * x)


def ablate(backbone: Any, without: Collection[str]) -> None:
    """Take the same parts, as :class:`Ablated`, out of every block of a timm model in place."""
    backbone.blocks = nn.Sequential(*(Ablated(block, without) for block in backbone.blocks))


def transplant(target: nn.Module, source: nn.Module, parts: Collection[str]) -> None:
    """Copy parts of a timm model to another one of the same architecture.

    Args:
        target: is changed in place.
        source: stays as it is.
        parts: of "patch_embed", "pos_embed", "norm1" (of the first block).

    Raises:
        UserError: the models have no such part.
    """
    for part in parts:
        tensors = {}
        for name, tensor in source.state_dict().items():
            if name.startswith(PREFIXES[part]):
                tensors[name] = tensor
        if not tensors:
            raise UserError(
                f"transplants: found {part!r}, accepted: parts that {type(source).__name__} has; "
                "it has none of that name"
            )
        target.load_state_dict(tensors, strict=False)
