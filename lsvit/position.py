"""The position parts (LayerShuffle, sections 3.2 and 3.3)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.config.variant import Encode, Predict

PUBLISHED_DIM, PUBLISHED_WIDTH = 32, 768  # LayerShuffle, section 4


class PositionEncoding(nn.Module):
    """LayerShuffle-position (section 3.2): z + Dropout(GELU(LN([z, e_p]) W)), before the block."""

    def __init__(self, num_layers: int, width: int, spec: Encode) -> None:
        super().__init__()
        self.shared = spec.shared
        dim = spec.dim or max(1, round(PUBLISHED_DIM * width / PUBLISHED_WIDTH))
        tables = [nn.Embedding(num_layers, dim) for _ in range(1 if spec.shared else num_layers)]
        if spec.init == "zeros":
            for table in tables:
                nn.init.zeros_(table.weight)
        self.embeddings: Any = nn.ModuleList(tables)
        self.projections = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width + dim),
                nn.Linear(width + dim, width),
                nn.GELU(),
                nn.Dropout(spec.dropout),
            )
            for _ in range(num_layers)
        )
        # torch draws weights and biases uniformly within 1 / sqrt(inputs) of 0, a standard deviation of 1 / sqrt(3 inputs).
        inputs = 1 / (3 * spec.std**2) if spec.std else PUBLISHED_WIDTH + PUBLISHED_DIM
        if inputs != width + dim:
            with torch.no_grad():
                for projection in self.projections:
                    for parameter in projection.get_submodule("1").parameters():
                        parameter.mul_(((width + dim) / inputs) ** 0.5)

    def forward(self, state: Tensor, layer: int, depth: int) -> Tensor:
        """state: (B, N, D) -> (B, N, D)."""
        return self._encode(state, self._embedding(layer, depth), self.projections[layer])

    def side_by_side(
        self, state: Tensor, layers: Sequence[int], depth: int, projection: nn.Module
    ) -> Tensor:
        """The same for the layers' equal shares of the samples, joined in their order, by their joined projections."""
        embeddings = torch.stack([self._embedding(layer, depth) for layer in layers])
        return self._encode(
            state,
            embeddings.repeat_interleave(len(state) // len(layers), 0).unsqueeze(1),
            projection,
        )

    def _embedding(self, layer: int, depth: int) -> Tensor:
        return self.embeddings[0 if self.shared else layer].weight[depth]

    def _encode(self, state: Tensor, embedding: Tensor, projection: nn.Module) -> Tensor:
        joined = torch.cat([state, embedding.to(state.dtype).expand(*state.shape[:2], -1)], dim=-1)
        return projection(joined) + state


class PositionPrediction(nn.Module):
    """LayerShuffle-predict (section 3.3): u = LN(z) W, from one token or the mean of all."""

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
