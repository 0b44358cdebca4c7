"""Class-maximising inputs (representation, "Input Generation with Vision Transformers")."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from lsvit.routed import RoutedModel
from papers.inversion.compute.descent import KERNEL, Normalise, noise, open_frozen
from papers.inversion.section import ClassImages, ClassImagesConfig
from pipeline.jobs.files import ARRAYS, ROWS, read_meta
from pipeline.models.weights import build, input_size


def maximise(
    model: RoutedModel,
    normalise: Normalise,
    shape: tuple[int, int, int],
    classes: int,
    options: ClassImages,
    seed: int,
) -> Tensor:
    """An image a class, all at once: a_(n+1) = blur(a_n - lr * grad |C - O(a_n)_i|) from a_0 ~ N(0.7, 1/20).

    The 3x3 Gaussian blur is annealed, sigma from `options.blur` down to 0. The images are wider than the model takes by
    `options.jitter` pixels: it sees their middle, and after `options.jitter_after` steps random crops of them, and a step changes
    what the model has seen alone.

    Args:
        model: its first `classes` outputs are the classes.
        normalise: of pixels in [0, 1].
        shape: (C, H, W), what the model takes.
        classes: how many.
        options: the schedule.
        seed: of the noise and of the crops.

    Returns:
        (classes, C, H, W), the middle crops.
    """
    device = next(model.parameters()).device
    channels, height, width = shape
    size = (classes, channels, height + options.jitter, width + options.jitter)
    canvas, generator = noise(size, seed).to(device), torch.Generator().manual_seed(seed)
    own = torch.arange(classes, device=device)
    middle = (options.jitter // 2, options.jitter // 2)
    for step in range(options.steps):
        jittered = torch.randint(options.jitter + 1, (2,), generator=generator).tolist()
        top, left = jittered if step >= options.jitter_after else middle
        window = canvas[:, :, top : top + height, left : left + width]
        gradients = []
        for part, targets in zip(
            window.split(options.batch_size), own.split(options.batch_size), strict=True
        ):
            seen = part.clone().requires_grad_()
            gap = (options.target - model(normalise(seen)).gather(1, targets[:, None])).abs().sum()
            gradients += torch.autograd.grad(gap, seen)
        sigma = options.blur * (1 - step / options.steps)
        moved = window - options.lr * torch.cat(gradients)
        window.copy_(gaussian_blur(moved, KERNEL, [sigma]) if sigma else moved)
    return canvas[:, :, middle[0] : middle[0] + height, middle[1] : middle[1] + width].contiguous()


@torch.no_grad()
def rate(
    model: RoutedModel, normalise: Normalise, images: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """What a model takes class images for: the probability of each one's own class, and the likeliest class; (classes,) each."""
    probabilities = model(normalise(images))[:, :classes].softmax(1)
    return probabilities.diagonal(), probabilities.argmax(1)


def measure(
    config: ClassImagesConfig,
    data: Path,
    weights: Path,
    judge: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Class-maximising inputs of one model, shown to another training of it. Writes `rows.csv`, a row a class, and `arrays.npz` with
    `images` (classes, C, H, W).

    Raises:
        UserError: the weights or the data do not fit.
    """
    model, normalise = open_frozen(config, data, weights)
    names, (channels, side) = read_meta(data)["classes"], input_size(model, config.model)
    images = maximise(
        model, normalise, (channels, side, side), len(names), config.options, config.seed
    )
    rows = pd.DataFrame(
        {"class": names, "probability": rate(model, normalise, images, len(names))[0].cpu().numpy()}
    )
    if judge is not None:
        other = build(config.model, len(names), config.variant, judge).to(images.device).eval()
        probability, seen = rate(other, normalise, images, len(names))
        rows = rows.assign(
            judge_probability=probability.cpu().numpy(),
            judge_sees=[names[i] for i in seen.tolist()],
        )
    else:
        rows = rows.assign(judge_probability=np.nan, judge_sees="")
    rows.to_csv(folder / ROWS, index=False, float_format="%.6g", lineterminator="\n")
    np.savez_compressed(
        folder / ARRAYS, images=images.cpu().numpy().astype(np.float16), classes=np.array(names)
    )
    report({"text": f"{len(names)} class images"})
