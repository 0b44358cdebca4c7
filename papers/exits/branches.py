"""The seven early-exit branches (multi-exit ViT, section III), for tokens of any routed model, classification and regression."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.config.variant import BranchName, BranchSizes
from pipeline.errors import UserError

KERNEL, POOL = 3, 2  # of the convolution and the max-pooling


class TokenShape(NamedTuple):
    """What the tokens of a model are: (B, prefix + height x width, width of the model)."""

    width: int
    prefix: int  # class token first, if there is one, then distillation or register tokens
    grid: tuple[int, int]  # patches: height, width
    heads: int
    first_is_class: bool = True  # of the prefix tokens, if there are any

    @property
    def class_token(self) -> bool:
        """Whether there is a class token."""
        return self.prefix > 0 and self.first_is_class

    @property
    def length(self) -> int:
        """Tokens of an image."""
        return self.prefix + math.prod(self.grid)


def token_shape(backbone: Any) -> TokenShape:
    """The tokens of a timm VisionTransformer or MlpMixer.

    Raises:
        UserError: the model drops patches in training, so that its tokens are no grid.
    """
    if not isinstance(getattr(backbone, "patch_drop", None), nn.Identity | None):
        raise UserError(
            "exits, losses, smoothing: found a model with patch dropout, accepted: models that keep their patches, on a grid"
        )
    patches = getattr(backbone, "stem", None) or backbone.patch_embed
    width, attention = backbone.embed_dim, getattr(backbone.blocks[0], "attn", None)
    heads = attention.num_heads if attention is not None else math.gcd(width, max(1, width // 64))
    prefix, first_is_class = (
        getattr(backbone, "num_prefix_tokens", 0),
        getattr(backbone, "has_class_token", False),
    )
    return TokenShape(width, prefix, tuple(patches.grid_size), heads, first_is_class)


class Read(nn.Module):
    """(B, N, D) -> (B, D): the class token; of models without one, the mean over the patches, as their own head reads them."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, N, D) -> (B, D)."""
        return (
            tokens[:, 0] if self.shape.class_token else tokens[:, self.shape.prefix :].mean(dim=1)
        )


class Pool(nn.Module):
    """(B, N, D) -> (B, D): global average pooling, the mean over all tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, N, D) -> (B, D)."""
        return tokens.mean(dim=1)


class Grid(nn.Module):
    """(B, N, D) -> (B, D or 2 D, height, width): the patches on their grid, with the class token ignored, added or concatenated."""

    def __init__(self, shape: TokenShape, kind: BranchName) -> None:
        super().__init__()
        self.shape, self.kind = shape, kind
        self.channels = shape.width * (2 if kind == "cnn_project" else 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, N, D) -> (B, channels, height, width)."""
        patches, class_token = tokens[:, self.shape.prefix :], tokens[:, :1]
        if self.kind == "cnn_add":
            patches = patches + class_token
        elif self.kind == "cnn_project":
            patches = torch.cat([patches, class_token.expand_as(patches)], dim=-1)
        return patches.transpose(1, 2).unflatten(2, self.shape.grid)


def dense(width: int, outputs: int, sizes: BranchSizes) -> nn.Sequential:
    """The MLP that ends every branch: three dense layers with two dropouts between them; (B, width) -> (B, outputs)."""
    layers: list[nn.Module] = []
    for features in (width, sizes.hidden):
        layers += [nn.Linear(features, sizes.hidden), nn.GELU(), nn.Dropout(sizes.dropout)]
    return nn.Sequential(*layers, nn.Linear(sizes.hidden, outputs))


def make_branch(
    kind: BranchName, shape: TokenShape, outputs: int, sizes: BranchSizes
) -> nn.Sequential:
    """A branch: tokens (B, N, D) -> logits (B, outputs); one output is a regression.

    `mlp` and `vit` read the class token, of models without one the mean over the patches. `mixer` and `resmlp` mix all tokens, the
    class token included, and end in global average pooling. The convolution of `cnn_project` takes the concatenation itself: it is
    the projection (the paper's Table I counts 0.06 G operations more than for `cnn_ignore`; a dense projection would take 0.68 G).

    Raises:
        UserError: `cnn_add` or `cnn_project` on a model without a class token.
    """
    from timm.models.mlp_mixer import MixerBlock, ResBlock
    from timm.models.vision_transformer import Block

    width = shape.width
    if kind in ("mlp", "vit"):
        encoder = [Block(width, shape.heads, qkv_bias=True)] if kind == "vit" else []
        read: list[nn.Module] = [nn.LayerNorm(width), Read(shape)]
        if (
            shape.class_token
        ):  # the norm is each token's own: that of the one that is read is enough
            read.reverse()
        return nn.Sequential(*encoder, *read, dense(width, outputs, sizes))
    if kind in ("mixer", "resmlp"):
        # timm starts ResMLP's second affine at 1e-4, for deep stacks; a single layer starts at 1
        mixer = (
            MixerBlock(width, shape.length)
            if kind == "mixer"
            else ResBlock(width, shape.length, init_values=1.0)
        )
        return nn.Sequential(mixer, Pool(), dense(width, outputs, sizes))
    if not shape.class_token and kind != "cnn_ignore":
        raise UserError(
            f"exits: found branch {kind!r} on a model without a class token, accepted: mlp, cnn_ignore, vit, mixer, resmlp"
        )
    grid = Grid(shape, kind)
    pooled = math.prod(
        -(-side // POOL) for side in shape.grid
    )  # the last row of an odd grid is pooled too
    return nn.Sequential(
        grid,
        nn.Conv2d(grid.channels, sizes.channels, KERNEL, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(POOL, ceil_mode=True),
        nn.Flatten(),
        dense(sizes.channels * pooled, outputs, sizes),
    )
