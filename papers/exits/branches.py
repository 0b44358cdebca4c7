"""The seven early-exit branches (multi-exit ViT, section III), for tokens of any routed model."""

import math
from typing import Literal

import torch
from timm.layers import global_pool_nlc
from timm.models.mlp_mixer import MixerBlock, ResBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from papers.exits.section import BranchName, BranchSizes
from pipeline.errors import UserError
from pipeline.models.tokens import TokenShape

KERNEL = 3  # of the convolution
POOL = 2  # of the max-pooling


class Pool(nn.Module):
    """(B, N, D) -> (B, D): the class token, or the mean over the tokens after a prefix."""

    def __init__(self, kind: Literal["token", "avg"], prefix: int = 0) -> None:
        super().__init__()
        self.kind = kind
        self.prefix = prefix

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, N, D) -> (B, D)."""
        return global_pool_nlc(tokens, self.kind, self.prefix)


class Grid(nn.Module):
    """(B, N, D) -> (B, D or 2 D, height, width): the patches on their grid.

    The class token is ignored, added or concatenated to each.
    """

    def __init__(self, shape: TokenShape, kind: BranchName) -> None:
        super().__init__()
        self.shape = shape
        self.kind = kind

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (B, N, D) -> (B, channels, height, width)."""
        patches = tokens[:, self.shape.prefix :]
        class_token = tokens[:, :1]
        if self.kind == "cnn_add":
            patches = patches + class_token
        elif self.kind == "cnn_project":
            patches = torch.cat([patches, class_token.expand_as(patches)], dim=-1)
        return patches.transpose(1, 2).unflatten(2, self.shape.grid)


def dense(width: int, outputs: int, sizes: BranchSizes) -> nn.Sequential:
    """The MLP that ends every branch, (B, width) -> (B, outputs): three layers, two dropouts."""
    layers: list[nn.Module] = []
    for features in (width, sizes.hidden):
        layers += [nn.Linear(features, sizes.hidden), nn.GELU(), nn.Dropout(sizes.dropout)]
    return nn.Sequential(*layers, nn.Linear(sizes.hidden, outputs))


def make_branch(
    kind: BranchName, shape: TokenShape, outputs: int, sizes: BranchSizes
) -> nn.Sequential:
    """A branch: tokens (B, N, D) -> logits (B, outputs); one output is a regression.

    `mlp` and `vit` read the class token, of models without one the mean over the patches. `mixer`
    and `resmlp` mix all tokens, the class token included, and end in global average pooling. The
    convolution of `cnn_project` takes the concatenation itself: it is the projection (the paper's
    Table I counts 0.06 G operations more than for `cnn_ignore`; a dense projection would take
    0.68 G).

    Raises:
        UserError: `cnn_add` or `cnn_project` on a model without a class token.
    """
    width = shape.width
    features = width
    layers: list[nn.Module] = []
    if kind in ("mlp", "vit"):
        if kind == "vit":
            layers.append(Block(width, shape.heads, qkv_bias=True))
        norm = nn.LayerNorm(width)
        if shape.class_token:  # the norm is each token's own: it is enough on the one that is read
            layers += [Pool("token"), norm]
        else:
            layers += [norm, Pool("avg", shape.prefix)]
    elif kind == "mixer":
        layers += [MixerBlock(width, shape.length), Pool("avg")]
    elif kind == "resmlp":
        # timm starts the second affine at 1e-4, for deep stacks; a single layer starts at 1.
        layers += [ResBlock(width, shape.length, init_values=1.0), Pool("avg")]
    elif shape.class_token or kind == "cnn_ignore":
        channels = 2 * width if kind == "cnn_project" else width
        layers += [
            Grid(shape, kind),
            nn.Conv2d(channels, sizes.channels, KERNEL, padding="same"),
            nn.ReLU(),
            nn.MaxPool2d(POOL, ceil_mode=True),
            nn.Flatten(),
        ]
        pooled = math.prod(-(-side // POOL) for side in shape.grid)  # an odd grid's last row counts
        features = sizes.channels * pooled
    else:
        raise UserError(
            f"exits: found branch {kind!r} on a model without a class token, "
            "accepted: mlp, cnn_ignore, vit, mixer, resmlp"
        )
    return nn.Sequential(*layers, dense(features, outputs, sizes))
