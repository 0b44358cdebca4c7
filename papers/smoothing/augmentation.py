"""The parts of DeiT's recipe that change images and labels, from timm's and torchvision's parts."""

import random
from collections.abc import Callable

import torch
from timm.data.auto_augment import rand_augment_choices, rand_augment_transform
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import RandomResizedCropAndInterpolation, str_to_pil_interp
from torch import Tensor
from torch.nn.functional import interpolate, one_hot
from torchvision.transforms.v2 import Compose, CutMix, MixUp, RandomHorizontalFlip
from torchvision.transforms.v2.functional import pil_to_tensor, to_pil_image

from papers.smoothing.section import Recipe
from pipeline.data.splits import Split
from pipeline.training.objectives import Batch

EVEN = 0.5  # of the batches have CutMix where there is mixup too (timm's switch_prob)


def augment(
    batch: Batch, recipe: Recipe, num_classes: int, grid: tuple[int, int], split: Split
) -> Batch:
    """Apply every part of the recipe that is on, in the order in which DeiT has them.

    It draws from the global generators of torch, numpy and Python, as the libraries' parts do.

    Args:
        batch: with classes as labels. Erasing changes its images in place.
        recipe: which parts.
        num_classes: of the labels.
        grid: patches in height and width, along which CutMix cuts.
        split: where the images come from, which says how they were normalised.
    """
    images = change_each(batch.images, recipe, split)
    labels = batch.labels
    if recipe.erasing:
        images = RandomErasing(recipe.erasing, mode="pixel", device=str(split.device))(images)
    batch = Batch(images, labels)
    if recipe.cutmix and not (recipe.mixup and random.random() < EVEN):
        batch = mix_patches(images, labels, num_classes, grid, recipe.cutmix)
    elif recipe.mixup:
        mixup = MixUp(alpha=recipe.mixup, num_classes=num_classes)
        batch = Batch(*mixup(images, labels))
    if recipe.label_smoothing:
        shares = batch.labels  # (B, C)
        if shares.ndim == 1:
            shares = one_hot(shares, num_classes).float()
        smoothing = recipe.label_smoothing
        batch.labels = (1 - smoothing) * shares + smoothing / num_classes
    return batch


def change_each(images: Tensor, recipe: Recipe, split: Split) -> Tensor:
    """Crop, flip and RandAugment: of pixels before their normalisation, every image its own."""
    changes: list[Callable] = []
    if recipe.crop < 1:
        scale = (recipe.crop, 1.0)
        side = split.resize.crop
        changes.append(RandomResizedCropAndInterpolation(side, scale, interpolation="bicubic"))
    if recipe.flip:
        changes.append(RandomHorizontalFlip(recipe.flip))
    if recipe.randaugment:
        changes.append(make_randaugment(recipe.randaugment, split))
    if not changes:
        return images
    change = Compose(changes)
    pixels = (images - split.shift) / split.scale  # 0 to 255
    pixels = pixels.round().clamp(0, 255).byte().cpu()
    changed = [pil_to_tensor(change(to_pil_image(image))) for image in pixels]
    floats = torch.stack(changed).to(images.device).float()
    return torch.addcmul(split.shift, floats, split.scale)


def make_randaugment(magnitude: int, split: Split) -> Callable:
    """DeiT's RandAugment: two of timm's changes an image, each with probability 0.5.

    They are DeiT's without posterising: Pillow refuses the 0 bits to which timm's goes at times.
    What is moved in from outside has the data set's mean colour.
    """
    names = [name for name in rand_augment_choices("") if name != "PosterizeIncreasing"]
    colour = (-split.shift / split.scale)[0, :, 0, 0]  # (C,)
    options = {
        "img_mean": tuple(colour.round().int().tolist()),
        "interpolation": str_to_pil_interp("bicubic"),
    }
    return rand_augment_transform(f"rand-m{magnitude}-mstd0.5-inc1", options, names)


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
    # Every pixel of an image holds the image's number: after CutMix it tells where it comes from.
    numbers = torch.arange(len(images), dtype=torch.float32).view(-1, 1, 1, 1)
    drawn, _ = CutMix(alpha=alpha, num_classes=num_classes)(
        numbers.expand(-1, 1, *images.shape[2:]), labels.cpu()
    )
    patches = interpolate(drawn, grid, mode="nearest-exact")  # (B, 1, h, w)
    pixels = interpolate(patches, images.shape[2:], mode="nearest-exact")  # (B, 1, H, W)
    source = pixels.long().to(images.device).expand_as(images)
    mixed = images.gather(0, source)
    patch_labels = labels[patches.long().flatten(1).to(labels.device)]  # (B, h w)
    shares = one_hot(patch_labels, num_classes).float().mean(1)
    return Batch(mixed, shares, {"patch_labels": patch_labels})
