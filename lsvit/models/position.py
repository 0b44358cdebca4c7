"""The position parts (LayerShuffle, sections 3.2 and 3.3)."""

from typing import Any

import torch
from torch import Tensor, nn

from lsvit.config.variant import Encode, Predict


class PositionEncoding(nn.Module):
    """LayerShuffle-position (section 3.2): z + Dropout(GELU(LN([z, e_p]) W)), before the block."""

    def __init__(self, num_layers: int, width: int, spec: Encode) -> None:
        super().__init__()
        self.shared = spec.shared
        tables = [nn.Embedding(num_layers, spec.dim) for _ in range(1 if spec.shared else num_layers)]
        if spec.init == "zeros":
            for table in tables:
                nn.init.zeros_(table.weight)
        self.embeddings: Any = nn.ModuleList(tables)
        self.projections = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width + spec.dim), nn.Linear(width + spec.dim, width), nn.GELU(), nn.Dropout(spec.dropout))
            for _ in range(num_layers)
        )

    def forward(self, state: Tensor, layer: int, depth: int) -> Tensor:
        """state: (B, N, D) -> (B, N, D)."""
        embedding = self.embeddings[0 if self.shared else layer].weight[depth]
        joined = torch.cat([state, embedding.to(state.dtype).expand(*state.shape[:2], -1)], dim=-1)
        return self.projections[layer](joined) + state


class PositionPrediction(nn.Module):
    """LayerShuffle-predict (section 3.3): u = LN(z) W, from one token or the mean of all."""

    def __init__(self, num_layers: int, width: int, spec: Predict) -> None:
        super().__init__()
        self.token = spec.token
        self.heads = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, num_layers)) for _ in range(num_layers))

    def forward(self, state: Tensor, layer: int) -> Tensor:
        """state: (B, N, D) -> logits over positions (B, L)."""
        return self.heads[layer](state.mean(dim=1) if self.token == "mean" else state[:, 0])
