"""Losses as pure functions."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def position_loss(logits: Sequence[Tensor]) -> Tensor:
    """Sum over the executed layers of the cross-entropy of their predicted position (LayerShuffle, section 3.3).

    Args:
        logits: by depth, each (B, L); the target of the t-th is position t.

    Returns:
        A scalar, mean over the batch.
    """
    return torch.stack([cross_entropy(u, torch.full(u.shape[:1], depth, device=u.device)) for depth, u in enumerate(logits)]).sum()


def position_hits(logits: Sequence[Tensor]) -> Tensor:
    """The share of samples and executed layers whose position is predicted correctly; a scalar in [0, 1]."""
    return torch.stack([(u.argmax(-1) == depth).float().mean() for depth, u in enumerate(logits)]).mean()
