"""The tokens of a timm model: how many, how wide, and which are patches."""

import math
from typing import Any, NamedTuple

from torch import nn

from pipeline.errors import UserError


class TokenShape(NamedTuple):
    """What the tokens of a model are: (B, prefix + height x width, width of the model)."""

    width: int
    prefix: int  # class token first, if there is one, then distillation or register tokens
    grid: tuple[int, int]  # patches: height, width
    heads: int
    first_is_class: bool = True  # of the prefix tokens, if there are any

    @property
    def class_token(self) -> bool:
        """True if there is a class token."""
        return self.prefix > 0 and self.first_is_class

    @property
    def length(self) -> int:
        """Tokens of an image."""
        return self.prefix + math.prod(self.grid)


def patch_embed(backbone: Any) -> Any:
    """The module of a VisionTransformer or MlpMixer that makes tokens of images."""
    return getattr(backbone, "stem", None) or backbone.patch_embed


def token_shape(backbone: Any) -> TokenShape:
    """The tokens of a timm VisionTransformer or MlpMixer.

    Raises:
        UserError: the model drops patches in training, so that its tokens are no grid.
    """
    if not isinstance(getattr(backbone, "patch_drop", None), nn.Identity | None):
        raise UserError(
            "exits, losses, smoothing: found a model with patch dropout, "
            "accepted: models that keep their patches, on a grid"
        )
    width = backbone.embed_dim
    attention = getattr(backbone.blocks[0], "attn", None)
    heads = attention.num_heads if attention is not None else math.gcd(width, max(1, width // 64))
    return TokenShape(
        width,
        getattr(backbone, "num_prefix_tokens", 0),
        tuple(patch_embed(backbone).grid_size),
        heads,
        getattr(backbone, "has_class_token", False),
    )


def check_pairs(backbone: Any, key: str) -> None:
    """Raises UserError, naming the key, if images have fewer than two patches: there is no pair."""
    count = math.prod(token_shape(backbone).grid)
    if count < 2:
        raise UserError(
            f"{key}: found a model with {count} patch, accepted: 2 or more, for pairs of patches"
        )
