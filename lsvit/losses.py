"""Losses as pure functions."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss

from lsvit.sections import ExitHeads


def task_loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of logits (B, C) and classes (B,); of a single output (B, 1), a regression, the absolute error. A scalar."""
    if outputs.shape[1] == 1:
        return l1_loss(outputs[:, 0], labels.to(outputs.dtype), reduction=reduction)
    return cross_entropy(outputs, labels, reduction=reduction)


def is_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Which answers (B, C) are the classes (B,); of a single output, which round to the number asked for. (B,) bool."""
    return (outputs[:, 0].round() if outputs.shape[1] == 1 else outputs.argmax(-1)) == labels


Loss = TypeVar("Loss", Tensor, float)


def exit_objective(heads: ExitHeads, final: Loss, exits: Mapping[int, Loss]) -> Loss:
    """The loss of a model with early exits, from the losses of the last exit and, by depth, of the others that were reached.

    End-to-end (multi-exit ViT, section II-A): l_t = final_weight l + sum over b of weight l_b. Layer-wise: that of the step's exit.
    """
    if heads.step is not None:
        return exits[heads.depths[heads.step]] if heads.step < len(heads.depths) else final
    return heads.final_weight * final + sum(heads.weight * loss for loss in exits.values())


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
