"""Talking-heads attention for timm's ViTs (over-smoothing, Table 3; Shazeer et al.), with timm's own module."""

from typing import Any

from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from torch import Tensor, nn

from pipeline.errors import UserError


class TalkingHeads(TalkingHeadAttn):
    """timm's, called as its ViT blocks call attention."""

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """x: (B, N, D) -> (B, N, D). Raises ValueError for masks, which routed models do not use."""
        if attn_mask is not None or is_causal:
            raise ValueError("talking heads take no mask")
        return super().forward(x)


def talk(backbone: Any) -> None:
    """Give a timm ViT talking-heads attention (over-smoothing, Table 3), timm's own, in every block.

    The matrices that mix the heads before and after the softmax begin as identities: the model answers as before, and published
    weights keep their meaning.

    Raises:
        UserError: the blocks have no attention, or one that timm's talking heads cannot replace.
    """
    for block in backbone.blocks:
        old: Any = getattr(block, "attn", None)
        plain = (
            type(old) is Attention
            and old.gate is None
            and all(isinstance(n, nn.Identity) for n in (old.q_norm, old.k_norm, old.norm))
        )
        if not plain or old.attn_dim != backbone.embed_dim:
            raise UserError(
                f"talking_heads: found {type(backbone).__name__} with other attention, accepted: timm's ViTs with plain attention"
            )
        new = TalkingHeads(
            old.attn_dim, old.num_heads, old.qkv.bias is not None, old.attn_drop.p, old.proj_drop.p
        )
        new.qkv, new.proj = old.qkv, old.proj
        for mix in (new.proj_l, new.proj_w):
            nn.init.eye_(mix.weight)
            nn.init.zeros_(mix.bias)
        block.attn = new
