"""What a training does to a batch of images and labels: mixed patches, mixup, random erasing. From torchvision's and timm's parts."""

import random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from papers.exits.branches import token_shape
from pipeline.config.variant import Variant

EVEN = 0.5  # where both mixup and mixed patches are asked for, each batch has one of them (timm's switch_prob)


class Batch(NamedTuple):
    """What a training step learns from."""

    images: Tensor  # (B, C, H, W)
    labels: Tensor  # (B,) classes, or (B, C) shares of the classes in each image
    patches: Tensor | None = (
        None  # (B, N) class of each patch, of images that were mixed patch by patch
    )

    def split(self, parts: int) -> "list[Batch]":
        """Nearly equal parts of the batch, in order."""
        patches = self.patches.tensor_split(parts) if self.patches is not None else [None] * parts
        each = zip(
            self.images.tensor_split(parts), self.labels.tensor_split(parts), patches, strict=True
        )
        return [Batch(*part) for part in each]


def mix_patches(
    images: Tensor, labels: Tensor, num_classes: int, grid: tuple[int, int], alpha: float
) -> Batch:
    """CutMix with a label for every patch (over-smoothing, patch mixing loss): a box of patches comes from another image.

    torchvision draws the box, the same for the whole batch, and the partners; it is snapped to the grid, each patch going where its
    centre lies, so that a patch has one label. An image's label is the mean of its patches'.

    Args:
        images: (B, C, H, W).
        labels: (B,).
        grid: patches in height and width, (h, w).
        alpha: of the Beta distribution of the box's area.
    """
    from torchvision.transforms.v2 import CutMix

    size, (h, w) = len(images), grid
    own = (
        torch.arange(size, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, *images.shape[-2:])
    )
    drawn, _ = CutMix(alpha=alpha, num_classes=num_classes)(own, labels.cpu())
    source = (
        interpolate(drawn, grid, mode="nearest-exact").long()[:, 0].to(images.device)
    )  # (B, h, w)
    tiles = (
        images.unflatten(2, (h, -1)).unflatten(4, (w, -1)).permute(0, 2, 4, 1, 3, 5)
    )  # (B, h, w, C, H / h, W / w)
    rows, columns = (
        torch.arange(h, device=images.device).view(-1, 1),
        torch.arange(w, device=images.device),
    )
    mixed = tiles[source, rows, columns].permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
    patches = labels[source.flatten(1)]
    shares = one_hot(patches, num_classes).float().mean(1)
    return Batch(mixed, shares, patches)


class Augmentation:
    """The augmentation of a variant's training batches: what its `recipe` and its patch mixing loss ask for.

    Draws from the global generators of torch and of Python, as the libraries' parts do: :func:`seed` them before an epoch.
    """

    def __init__(self, variant: Variant, backbone: Any, device: torch.device) -> None:
        from timm.data.random_erasing import RandomErasing
        from torchvision.transforms.v2 import MixUp

        self.mixing, self.num_classes, recipe = (
            variant.losses.mixing,
            backbone.num_classes,
            variant.recipe,
        )
        self.grid = token_shape(backbone).grid if self.mixing else (1, 1)
        self.erase = (
            RandomErasing(recipe.erasing, mode="pixel", device=str(device))
            if recipe.erasing
            else None
        )
        self.mixup = (
            MixUp(alpha=recipe.mixup, num_classes=self.num_classes) if recipe.mixup else None
        )

    def __call__(self, images: Tensor, labels: Tensor) -> Batch:
        """images (B, C, H, W), labels (B,); erasing changes the images in place."""
        if self.erase:
            images = self.erase(images)
        if self.mixing and not (self.mixup and random.random() < EVEN):
            return mix_patches(images, labels, self.num_classes, self.grid, self.mixing.alpha)
        return Batch(*self.mixup(images, labels)) if self.mixup else Batch(images, labels)


def seed(value: int) -> None:
    """Seed the global generators that dropout, drop path and augmentation draw from."""
    torch.manual_seed(value)
    random.seed(value)
