"""Talking-heads attention for timm's ViTs (over-smoothing, Table 3; Shazeer et al.)."""

from typing import Any

from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from torch import Tensor, nn

from pipeline.errors import UserError


class TalkingHeads(TalkingHeadAttn):
    """timm's, called as its ViT blocks call attention.

    Weights of a model without talking heads leave the matrices that mix the heads as they are.
    """

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """x: (B, N, D) -> (B, N, D). Raises ValueError for a mask: routed models use none."""
        if attn_mask is not None or is_causal:
            raise ValueError("talking heads take no mask")
        return super().forward(x)

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *args: Any) -> None:
        for name, tensor in self.state_dict().items():
            if name.startswith(("proj_l.", "proj_w.")):
                state_dict.setdefault(prefix + name, tensor)
        super()._load_from_state_dict(state_dict, prefix, *args)


def use_talking_heads(backbone: Any) -> None:
    """Give a timm ViT talking-heads attention in every block.

    The matrices that mix the heads before and after the softmax begin as identities: the model
    answers as before, and published weights keep their meaning.

    Raises:
        UserError: the blocks have no attention, or one that timm's talking heads cannot replace.
    """
    for block in backbone.blocks:
        old: Any = getattr(block, "attn", None)
        if not _is_plain(old) or old.attn_dim != backbone.embed_dim:
            raise UserError(
                f"talking_heads: found {type(backbone).__name__} with other attention, "
                "accepted: timm's ViTs with plain attention"
            )
        new = TalkingHeads(
            old.attn_dim, old.num_heads, old.qkv.bias is not None, old.attn_drop.p, old.proj_drop.p
        )
        new.qkv = old.qkv
        new.proj = old.proj
        for mix in (new.proj_l, new.proj_w):
            nn.init.eye_(mix.weight)
            nn.init.zeros_(mix.bias)
        block.attn = new


def _is_plain(attention: Any) -> bool:
    """True for timm's attention without gate and norms."""
    if type(attention) is not Attention or attention.gate is not None:
        return False
    norms = (attention.q_norm, attention.k_norm, attention.norm)
    return all(isinstance(norm, nn.Identity) for norm in norms)
