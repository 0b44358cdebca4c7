"""Losses as pure functions."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, l1_loss, normalize, softplus

from pipeline.config.variant import ExitHeads


def task_loss(outputs: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy of logits (B, C) and classes (B,) or shares of them (B, C); of a single output (B, 1), a regression, the
    absolute error. A scalar."""
    if outputs.shape[1] == 1:
        return l1_loss(outputs[:, 0], labels.to(outputs.dtype), reduction=reduction)
    return cross_entropy(outputs, labels, reduction=reduction)


def is_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Which answers (B, C) are the classes (B,), or the ones with the largest share (B, C); of a single output, which round to the
    number asked for. (B,) bool."""
    if labels.ndim == 2:
        labels = labels.argmax(-1)
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
    losses = [
        cross_entropy(u, torch.full(u.shape[:1], depth, device=u.device), reduction="sum") / batch
        for depth, u in enumerate(logits)
    ]
    return torch.stack(losses).sum()


def position_hits(logits: Sequence[Tensor]) -> Tensor:
    """The share of samples and executed layers whose position is predicted correctly; a scalar in [0, 1]."""
    return torch.cat([u.argmax(-1) == depth for depth, u in enumerate(logits)]).float().mean()


def patch_cosine(patches: Tensor) -> Tensor:
    """Cosine similarity of an image's patches, mean over all pairs of different ones (over-smoothing, CosSim and l_cos).

    CosSim(h) = 1 / (n (n - 1)) sum over i != j of h_i . h_j / (||h_i|| ||h_j||), from the sum of the unit vectors: in time linear
    in the patches.

    Args:
        patches: (B, N, D), N > 1, without class token.

    Returns:
        (B,) in [-1 / (N - 1), 1].
    """
    unit, count = normalize(patches.float(), dim=-1), patches.shape[1]
    return (unit.sum(1).square().sum(-1) - unit.square().sum((1, 2))) / (count * (count - 1))


def patch_contrastive(early: Tensor, late: Tensor, normalized: bool = False) -> Tensor:
    """The patch contrastive loss (over-smoothing, l_cons): a late patch should be nearer to its own early one than their mean is.

    l_cons = -1/n sum_i log(exp(e_i . h_i) / (exp(e_i . h_i) + exp(e_i . mean_j h_j))), in which a difference of two logits decides:
    softplus(e_i . (mean_j h_j - h_i)). No gradient flows to the early patches, as in the source.

    Args:
        early, late: (B, N, D), patches after the first and after the last layer.
        normalized: of unit vectors. The formula's dot products grow with the norms: patches a little apart in direction already
            saturate it once they are long, and lengthening them lowers it without turning them. Cosines cannot.

    Returns:
        A scalar, mean over images and patches.
    """
    early, late = early.detach().float(), late.float()
    if normalized:
        early, late = normalize(early, dim=-1), normalize(late, dim=-1)
    return softplus((early * (late.mean(1, keepdim=True) - late)).sum(-1)).mean()


def patch_classification(logits: Tensor, labels: Tensor) -> Tensor:
    """The patch mixing loss (over-smoothing, l_token): mean over the patches of the cross-entropy of their own labels.

    Args:
        logits: (B, N, C), of the linear head on every patch.
        labels: (B, N), the class of the image that each patch comes from; or (B, C), shares of the classes in all of an image.

    Returns:
        A scalar.
    """
    shared = labels.is_floating_point()
    targets = labels.unsqueeze(1).expand_as(logits).flatten(0, 1) if shared else labels.flatten()
    return cross_entropy(logits.flatten(0, 1), targets)
