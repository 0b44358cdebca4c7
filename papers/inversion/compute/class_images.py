"""Class-maximising inputs (representation, "Input Generation with Vision Transformers")."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from lsvit.routed import RoutedModel
from papers.inversion.compute.descent import KERNEL, Normaliser, noise, open_frozen
from papers.inversion.section import ClassImages, ClassImagesConfig
from pipeline.jobs.files import ARRAYS, ROWS, read_meta
from pipeline.models.weights import build, input_size


def gap_gradient(
    model: RoutedModel, normalise: Normaliser, images: Tensor, options: ClassImages
) -> Tensor:
    """The gradient of |C - O(a_i)_i| at images (classes, C, H, W), each at its own class i."""
    gradients: list[Tensor] = []
    for classes in torch.arange(len(images), device=images.device).split(options.batch_size):
        batch = images[classes].requires_grad_()
        outputs = model(normalise(batch)).gather(1, classes[:, None])
        gap = (options.target - outputs).abs().sum()
        gradients += torch.autograd.grad(gap, batch)
    return torch.cat(gradients)


def maximise(
    model: RoutedModel,
    normalise: Normaliser,
    shape: tuple[int, int, int],
    classes: int,
    options: ClassImages,
    seed: int,
) -> Tensor:
    """An image a class: a_(n+1) = blur(a_n - lr * grad |C - O(a_n)_i|) from a_0 ~ N(0.7, 1/20).

    The 3x3 Gaussian blur is annealed, sigma from `options.blur` down to 0. The images are wider
    than the model takes by `options.jitter` pixels: it sees their middle, and after
    `options.jitter_after` steps random crops of them. A step changes only what the model saw.

    Args:
        model: its first `classes` outputs are the classes.
        normalise: pixels in [0, 1].
        shape: (C, H, W), what the model takes.
        classes: how many.
        options: the schedule.
        seed: of the noise and of the crops.

    Returns:
        (classes, C, H, W), the middle crops.
    """
    device = next(model.parameters()).device
    channels, height, width = shape
    rim = options.jitter // 2
    size = (classes, channels, height + options.jitter, width + options.jitter)
    canvas = noise(size, seed).to(device)
    generator = torch.Generator().manual_seed(seed)
    for step in range(options.steps):
        # Drawn in every step, so that the crops do not depend on when they begin.
        top, left = torch.randint(options.jitter + 1, (2,), generator=generator).tolist()
        if step < options.jitter_after:
            top, left = rim, rim
        window = canvas[:, :, top : top + height, left : left + width]
        moved = window - options.lr * gap_gradient(model, normalise, window, options)
        sigma = options.blur * (1 - step / options.steps)
        if sigma:
            moved = gaussian_blur(moved, KERNEL, [sigma])
        window.copy_(moved)
    return canvas[:, :, rim : rim + height, rim : rim + width].contiguous()


@torch.no_grad()
def rate(model: RoutedModel, normalise: Normaliser, images: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of each image's own class, and the likeliest class: (classes,) each."""
    probabilities = model(normalise(images))[:, : len(images)].softmax(1)
    return probabilities.diagonal(), probabilities.argmax(1)


def measure(
    config: ClassImagesConfig,
    data: Path,
    weights: Path,
    judge: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Make class-maximising inputs of one model, and show them to another training of it.

    Writes `rows.csv`, a row a class, and `arrays.npz` with `images` (classes, C, H, W).

    Raises:
        UserError: the weights or the data do not fit.
    """
    model, normalise = open_frozen(config, data, weights)
    names = read_meta(data)["classes"]
    channels, side = input_size(model, config.model)
    shape = (channels, side, side)
    images = maximise(model, normalise, shape, len(names), config.options, config.seed)
    probability, _ = rate(model, normalise, images)
    rows = pd.DataFrame({"class": names, "probability": probability.cpu().numpy()})
    rows = rows.assign(judge_probability=np.nan, judge_sees="")
    if judge is not None:
        other = build(config.model, len(names), config.variant, judge).to(images.device).eval()
        probability, seen = rate(other, normalise, images)
        sees = [names[i] for i in seen.tolist()]
        rows = rows.assign(judge_probability=probability.cpu().numpy(), judge_sees=sees)
    rows.to_csv(folder / ROWS, index=False, float_format="%.6g", lineterminator="\n")
    np.savez_compressed(folder / ARRAYS, images=images.half().cpu(), classes=names)
    report({"text": f"{len(names)} class images"})
