"""LS-position, LS-predict and its loss (LayerShuffle, sections 3.2 and 3.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

PUBLISHED_DIM = 32  # F of LayerShuffle, section 3.2
PUBLISHED_WIDTH = 768


@dataclass(frozen=True)
class Encode:
    """What LayerShuffle-position attaches (section 3.2).

    Attributes:
        dim: width of the embedding.
        std: standard deviation of the projections' initial weights. None: what torch's
            initialisation has at the paper's width, 0.0204.
        shared: one table of embeddings for all layers, not one for each.
        init: of the embeddings.
        dropout: after the projection.

    Raises:
        ValueError: there is no such `init`, or no width.
    """

    dim: int = PUBLISHED_DIM
    std: float | None = None
    shared: bool = False
    init: Literal["normal", "zeros"] = "normal"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.init not in ("normal", "zeros"):
            raise ValueError(f"encode.init: found {self.init!r}, accepted: normal, zeros")
        if self.dim < 1:
            raise ValueError(f"encode.dim: found {self.dim}, accepted: at least 1")


@dataclass(frozen=True)
class Predict:
    """What LayerShuffle-predict attaches (section 3.3).

    `token`: what the heads read. The paper does not say; the published code takes the mean.

    Raises:
        ValueError: there is no such `token`.
    """

    token: Literal["mean", "class_token"] = "mean"

    def __post_init__(self) -> None:
        if self.token not in ("mean", "class_token"):
            raise ValueError(f"predict.token: found {self.token!r}, accepted: mean, class_token")


@dataclass(frozen=True)
class Position:
    """The parts that know or tell a layer's position."""

    encode: Encode | None = None
    predict: Predict | None = None


class PositionEncoding(nn.Module):
    """LayerShuffle-position: z + Dropout(GELU(LN([z, e_p]) W)), before the block (section 3.2)."""

    def __init__(self, num_layers: int, width: int, spec: Encode) -> None:
        super().__init__()
        self.shared = spec.shared
        inputs = width + spec.dim
        num_tables = 1 if spec.shared else num_layers
        tables = [nn.Embedding(num_layers, spec.dim) for _ in range(num_tables)]
        if spec.init == "zeros":
            for table in tables:
                nn.init.zeros_(table.weight)
        self.embeddings: Any = nn.ModuleList(tables)
        self.projections = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(inputs),
                nn.Linear(inputs, width),
                nn.GELU(),
                nn.Dropout(spec.dropout),
            )
            for _ in range(num_layers)
        )
        # torch draws weights and biases uniformly within 1 / sqrt(inputs) of 0: their standard
        # deviation is 1 / sqrt(3 inputs).
        like = 1 / (3 * spec.std**2) if spec.std else PUBLISHED_WIDTH + PUBLISHED_DIM
        if like != inputs:
            with torch.no_grad():
                for projection in self.projections:
                    for parameter in projection.get_submodule("1").parameters():
                        parameter.mul_((inputs / like) ** 0.5)

    def forward(self, state: Tensor, layer: int, depth: int) -> Tensor:
        """state: (B, N, D) -> (B, N, D)."""
        return self._encode(state, self._embedding(layer, depth), self.projections[layer])

    def side_by_side(
        self, state: Tensor, layers: Sequence[int], depth: int, projection: nn.Module
    ) -> Tensor:
        """Encode the layers' equal shares of the samples, in their order; (B, N, D) -> (B, N, D).

        `projection` is that of all these layers, joined (:class:`lsvit.stacked.Stack`).
        """
        share = len(state) // len(layers)
        embeddings = torch.stack([self._embedding(layer, depth) for layer in layers])
        of_samples = embeddings.repeat_interleave(share, 0).unsqueeze(1)  # (B, 1, dim)
        return self._encode(state, of_samples, projection)

    def _embedding(self, layer: int, depth: int) -> Tensor:
        return self.embeddings[0 if self.shared else layer].weight[depth]

    def _encode(self, state: Tensor, embedding: Tensor, projection: nn.Module) -> Tensor:
        of_tokens = embedding.to(state.dtype).expand(*state.shape[:2], -1)  # (B, N, dim)
        return projection(torch.cat([state, of_tokens], dim=-1)) + state


class PositionPrediction(nn.Module):
    """LayerShuffle-predict: u = LN(z) W, from one token or the mean of all (section 3.3)."""

    def __init__(self, num_layers: int, width: int, spec: Predict) -> None:
        super().__init__()
        self.token = spec.token
        self.heads = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_layers))
            for _ in range(num_layers)
        )

    def read(self, state: Tensor) -> Tensor:
        """What the heads read of tokens (B, N, D): (B, D)."""
        return state.mean(dim=1) if self.token == "mean" else state[:, 0]

    def forward(self, read: Tensor, layer: int) -> Tensor:
        """read: (B, D) -> logits over positions (B, L)."""
        return self.heads[layer](read)


def position_loss(logits: Sequence[Tensor]) -> Tensor:
    """Sum over the executed layers of the cross-entropy of their predicted position (section 3.3).

    Args:
        logits: by depth, each (n, L), where n is the number of samples whose route reaches that
            depth (all reach the first). The target of the t-th is position t.

    Returns:
        A scalar, mean over the batch.
    """
    batch = len(logits[0])
    losses = []
    for depth, answers in enumerate(logits):
        targets = torch.full(answers.shape[:1], depth, device=answers.device)
        losses.append(cross_entropy(answers, targets, reduction="sum") / batch)
    return torch.stack(losses).sum()


def position_hits(logits: Sequence[Tensor]) -> Tensor:
    """The share of samples and executed layers whose position is predicted correctly: a scalar."""
    hits = [answers.argmax(-1) == depth for depth, answers in enumerate(logits)]
    return torch.cat(hits).float().mean()
