"""CutMix with a label for every patch (over-smoothing, patch mixing loss)."""

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot
from torchvision.transforms.v2 import CutMix

from pipeline.training.objectives import Batch


def mix_patches(
    images: Tensor, labels: Tensor, num_classes: int, grid: tuple[int, int], alpha: float
) -> Batch:
    """Replace a box of patches by another image's.

    torchvision draws the box, the same for the whole batch, and the partners. The box is snapped to
    the grid, each patch going where its centre lies, so that a patch has one label. An image's
    label is the mean of its patches'.

    Args:
        images: (B, C, H, W).
        labels: (B,).
        num_classes: of the labels.
        grid: patches in height and width, (h, w).
        alpha: of the Beta distribution of the box's area.

    Returns:
        The mixed images, shares of the classes as labels, and `patch_labels` (B, h w).
    """
    height, width = grid
    # Every pixel of an image holds the image's number: after CutMix it tells where it comes from.
    numbers = torch.arange(len(images), dtype=torch.float32).view(-1, 1, 1, 1)
    drawn, _ = CutMix(alpha=alpha, num_classes=num_classes)(
        numbers.expand(-1, 1, *images.shape[-2:]), labels.cpu()
    )
    source = interpolate(drawn, grid, mode="nearest-exact").long()[:, 0]  # (B, h, w)
    source = source.to(images.device)
    tiles = images.unflatten(2, (height, -1)).unflatten(4, (width, -1))
    tiles = tiles.permute(0, 2, 4, 1, 3, 5)  # (B, h, w, C, H / h, W / w)
    rows = torch.arange(height, device=images.device).view(-1, 1)
    columns = torch.arange(width, device=images.device)
    mixed = tiles[source, rows, columns].permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
    patch_labels = labels[source.flatten(1)]  # (B, h w)
    shares = one_hot(patch_labels, num_classes).float().mean(1)
    return Batch(mixed, shares, {"patch_labels": patch_labels})
