"""Losses as pure functions."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def position_loss(logits: Sequence[Tensor]) -> Tensor:
    """Sum over the executed layers of the cross-entropy of their predicted position (LayerShuffle, section 3.3).

    Args:
        logits: by depth, each (n, L), where n is the number of samples whose route reaches that depth (all reach the first);
            the target of the t-th is position t.

    Returns:
        A scalar, mean over the batch.
    """
    batch = len(logits[0])
    losses = [cross_entropy(u, torch.full(u.shape[:1], depth, device=u.device), reduction="sum") / batch for depth, u in enumerate(logits)]
    return torch.stack(losses).sum()


def position_hits(logits: Sequence[Tensor]) -> Tensor:
    """The share of samples and executed layers whose position is predicted correctly; a scalar in [0, 1]."""
    return torch.cat([u.argmax(-1) == depth for depth, u in enumerate(logits)]).float().mean()
