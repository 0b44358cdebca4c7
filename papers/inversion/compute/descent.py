"""Find an image that gives a state along a route.

Source: representation, "Vision Transformer hidden layer representation".
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torchvision.transforms.functional import gaussian_blur

from lsvit.routed import RoutedModel
from lsvit.routes import ENDED, Route, arbitrary, generator, sequential
from papers.inversion.compute.ablation import ablate, transplant
from papers.inversion.compute.ratios import EMBEDDING, INPUT, neighbours, with_ratios
from papers.inversion.section import ClassImagesConfig, Descent, InversionConfig
from pipeline.jobs.files import ARRAYS, ROWS, read_meta
from pipeline.models.tokens import patch_embed
from pipeline.models.weights import build, normalisation
from pipeline.training.scoring import open_model, open_split

KERNEL = [3, 3]  # pixels, of the Gaussian blur
PATTERN = 0.25  # correlation of neighbouring weights above which a filter has a pattern


class Normaliser:
    """Converts pixels in [0, 1] to what a model takes, and back; images are (B, C, H, W).

    Args:
        mean, std: of each of the C channels.
        device: of the images.
    """

    def __init__(
        self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
    ) -> None:
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, -1, 1, 1)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise pixels in [0, 1]."""
        return (images - self.mean) / self.std

    def undo(self, images: Tensor) -> Tensor:
        """Convert normalised images to pixels in [0, 1]."""
        return images * self.std + self.mean


def make_points(num_layers: int, config: InversionConfig) -> dict[str, list[Route]]:
    """The patch embedding, the first layers of a route, and layers alone.

    Source: representation, "the first l blocks" and "only that encoder".

    Args:
        num_layers: of the model. Depths that it does not have are left out.
        config: in arbitrary order every image has an order of its own. Layers alone are the last
            of each depth's, run right behind the embedding.

    Returns:
        Routes, one an image, by name: "patch_embed", "first 4", "layer 3".
    """
    options = config.options
    count = options.images
    depths = options.depths or [1, num_layers // 3, 2 * num_layers // 3, num_layers]
    depths = sorted({depth for depth in depths if 1 <= depth <= num_layers})
    sampler = arbitrary if config.order == "arbitrary" else sequential
    draw = generator("inversion", options.seed, config.seed)
    orders = [sampler(draw, num_layers) for _ in range(count)]
    points: dict[str, list[Route]] = {"patch_embed": [()] * count}
    for depth in depths:
        points[f"first {depth}"] = [layers[:depth] for layers in orders]
    if config.alone:
        for depth in depths:
            points[f"layer {depth - 1}"] = [(depth - 1,)] * count
    return points


def pad_routes(points: dict[str, list[Route]]) -> Tensor:
    """The routes of all points and their images, point by point, padded with -1: (P * I, L)."""
    routes = [torch.tensor(route, dtype=torch.long) for point in points.values() for route in point]
    return pad_sequence(routes, batch_first=True, padding_value=ENDED)


def read_states(model: RoutedModel, images: Tensor, routes: Tensor) -> Tensor:
    """The states (B, N, D) of images (B, C, H, W) at the end of their routes (B, L).

    A route is padded with -1; the state at the end of an empty one is the embedding.
    """
    is_empty = routes[:, 0] == ENDED
    if not is_empty.any():
        return model.tokens(images, routes)
    if is_empty.all():
        return model.embed(images)
    embedded = is_empty.to(images.device)
    states = [model.tokens(images[~embedded], routes[~is_empty]), model.embed(images[embedded])]
    order = embedded.argsort(stable=True)  # of the images in `states`
    return torch.cat(states)[order.argsort()]


def distance(a: Tensor, b: Tensor) -> Tensor:
    """||a - b||_2 of every sample: (B, ...) -> (B,)."""
    return torch.linalg.vector_norm((a - b).flatten(1), dim=1)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of the pixels of two images: (B, C, H, W) -> (B,).

    It is 0 where one of them is constant, whose rounding errors would correlate otherwise.
    """
    a, b = a.flatten(1), b.flatten(1)
    varies = (a != a[:, :1]).any(1) & (b != b[:, :1]).any(1)
    similarity = torch.nn.functional.cosine_similarity(
        a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True), dim=1
    )
    return varies * similarity


class Yardstick(NamedTuple):
    """Distances (B,) between images a and a + N(0, sigma), means over the draws."""

    embedding: Tensor  # at the end of the route
    tokens: Tensor  # behind the patch embedding
    pixels: Tensor


@torch.no_grad()
def yardstick(
    model: RoutedModel,
    normalise: Normaliser,
    images: Tensor,
    routes: Tensor,
    sigma: float,
    draws: int,
    generator: torch.Generator,
) -> Yardstick:
    """Measure how far a slightly shifted image is from the original: the source's yardstick.

    Args:
        images: (B, C, H, W) in [0, 1].
        routes: as :func:`read_states`.
        sigma: of the shift; the source has 1/18 and 1/20.
        draws: shifted images of every image.
        generator: on the CPU.
    """
    target = read_states(model, normalise(images), routes)
    tokens = model.embed(normalise(images))
    measured = []
    for _ in range(draws):
        noise = torch.randn(images.shape, generator=generator).to(images.device)
        shifted = images + sigma * noise
        embedding = distance(read_states(model, normalise(shifted), routes), target)
        patches = distance(model.embed(normalise(shifted)), tokens)
        measured.append(torch.stack([embedding, patches, distance(shifted, images)]))
    return Yardstick(*torch.stack(measured).mean(0))


class Inversion(NamedTuple):
    """The inputs that were found, and how far they were from the originals at T steps."""

    images: Tensor  # (B, C, H, W)
    lr: Tensor  # (B,) the learning rate that came nearest
    embedding: Tensor  # (B, T) ||O(a_g) - O(a)||_2
    pixels: Tensor  # (B, T) ||a_g - a||_2


def recorded_steps(steps: int, records: int) -> list[int]:
    """The steps after which distances are recorded: 0, and `records` ones up to the last."""
    return sorted({round(i * steps / records) for i in range(records + 1)})


def invert(
    model: RoutedModel,
    normalise: Normaliser,
    images: Tensor,
    routes: Tensor,
    start: Tensor,
    descent: Descent,
    records: int,
) -> Inversion:
    """Descend from noise on ||O(a_g) - O(a)||_2, for many images and routes, each on its own.

    Each image and route keeps the learning rate that ends nearest in embedding distance.

    Args:
        images: (B, C, H, W) in [0, 1], the inputs a whose states are to be met.
        routes: (B, L), as :func:`read_states`.
        start: (B, C, H, W), the noise.
        descent: method, rates, steps, schedule and blur.
        records: as :func:`recorded_steps`.
    """
    rates = len(descent.lrs)
    with torch.no_grad():
        targets = read_states(model, normalise(images), routes).repeat(rates, 1, 1)
    originals = images.repeat(rates, 1, 1, 1)
    all_routes = routes.repeat(rates, 1)
    inputs = [start.clone().requires_grad_() for _ in range(rates)]
    groups: Any = [{"params": [x], "lr": lr} for x, lr in zip(inputs, descent.lrs, strict=True)]
    optimizer = torch.optim.Adam(groups) if descent.method == "adam" else torch.optim.SGD(groups)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, descent.steps)
    recorded = recorded_steps(descent.steps, records)
    curves = []
    for step in range(descent.steps + 1):
        candidates = torch.cat(inputs)
        loss = distance(read_states(model, normalise(candidates), all_routes), targets)
        if step in recorded:
            curves.append(torch.stack([loss, distance(candidates, originals)]).detach())
        if step == descent.steps:
            break
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        if descent.schedule == "cosine":
            cosine.step()
        if descent.blur:
            with torch.no_grad():
                for x in inputs:
                    x.copy_(gaussian_blur(x, KERNEL, [descent.blur]))
    embedding, pixels = torch.stack(curves, -1).unflatten(1, (rates, -1))  # (rates, B, T) each
    best = embedding[..., -1].nan_to_num(torch.inf, torch.inf).argmin(0)  # (B,)
    sample = torch.arange(len(images), device=images.device)
    return Inversion(
        images=torch.stack(inputs).detach()[best, sample],
        lr=torch.tensor(descent.lrs, device=images.device)[best],
        embedding=embedding[best, sample],
        pixels=pixels[best, sample],
    )


def verdict(embedding: float, pixels: float, met: float) -> str:
    """What the final distances say of a layer, as far as a descent tells.

    Source: representation, "Attention does not transmit most input information".

    "invertible here": an input nearer than the shifted image meets the output more nearly.
    "non-unique": an input farther than that meets it exactly.
    "approximately non-invertible": neither; the layer is badly conditioned.

    Args:
        embedding, pixels: both distances relative to those of the shifted image.
        met: below it an embedding distance counts as 0.
    """
    if embedding < 1 and pixels < 1:
        return "invertible here"
    return "non-unique" if embedding < met else "approximately non-invertible"


def noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """Draw the start of a descent: N(0.7, 1/20) of a shape."""
    return 0.7 + 1 / 20 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def open_frozen(
    config: InversionConfig | ClassImagesConfig, data: Path, weights: Path | None
) -> tuple[RoutedModel, Normaliser]:
    """Open a frozen model; without weights it is in its random initialisation of the seed."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    model, execution = open_model(config, data, weights)
    model.eval().requires_grad_(False)
    pixels = normalisation(config.model, read_meta(data))
    return model, Normaliser(*pixels, execution.device)


def choose_images(labels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Choose images that a seed inverts: (count,) indices of images with these labels (n,).

    They are of different classes, as far as there are classes. The next seed goes on where this one
    ends, so that an interval over seeds is one over images, too.
    """
    rank_in_class = pd.Series(labels).groupby(labels).cumcount()
    order = np.lexsort((labels, rank_in_class))
    return order[np.arange(seed * count, (seed + 1) * count) % len(order)]


def measure(
    config: InversionConfig,
    data: Path,
    weights: Path | None,
    donor: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Invert P points of one model for I validation images.

    Writes `rows.csv`, a row a point and image, and `arrays.npz`, what figures show: `originals`
    (I, C, H, W), `points` (P,) names, `steps` (T,), `found` (P, I, C, H, W), by step the distances
    `embedding` and `input` (P, I, T), relative to the yardstick's, and `filters` (D, C, h, w), the
    patch embedding's weights.

    Raises:
        UserError: the weights or the data do not fit, or the model has no such part to take out
            or to put in.
    """
    options = config.options
    model, normalise = open_frozen(config, data, weights)
    split = open_split(config, data, "validation", model)
    backbone = model.backbone
    if donor is not None:
        source = build(config.model, backbone.num_classes, config.variant, donor)
        transplant(backbone, source.backbone, config.transplant)
    filters = patch_embed(backbone).proj.weight
    if config.ablation:
        ablate(backbone, config.ablation)
    chosen = choose_images(split.maps.labels, options.images, config.seed)
    images = normalise.undo(split.take(torch.from_numpy(chosen))[0])

    # B = P * I inputs are found, all images of a point together.
    points = make_points(model.num_layers, config)
    routes = pad_routes(points)
    originals = images.repeat(len(points), 1, 1, 1)
    starts = noise(images.shape, options.seed).to(images.device).repeat(len(points), 1, 1, 1)
    draws = torch.Generator().manual_seed(options.seed)
    reference = yardstick(model, normalise, originals, routes, options.sigma, options.shifts, draws)
    size = options.batch_size
    batches = []
    for batch in zip(originals.split(size), routes.split(size), starts.split(size), strict=True):
        batches.append(invert(model, normalise, *batch, config.descent, options.records))
    found = Inversion(*map(torch.cat, zip(*batches, strict=True)))
    tokens = distance(model.embed(normalise(found.images)), model.embed(normalise(originals)))

    columns = {
        "point": np.repeat(list(points), len(images)),
        "depth": (routes != ENDED).sum(1),
        "image": np.tile(np.arange(len(images)), len(points)),
        "lr": found.lr.cpu(),
        "embedding_distance": found.embedding[:, -1].cpu(),
        "yardstick": reference.embedding.cpu(),
        "input_distance": found.pixels[:, -1].cpu(),
        "input_yardstick": reference.pixels.cpu(),
        "token_distance": tokens.cpu(),
        "token_yardstick": reference.tokens.cpu(),
        "pixel_correlation": correlation(found.images, originals).cpu(),
        "num_layers": model.num_layers,
        "overcomplete": filters.shape[0] >= filters[0].numel(),
        "patterned": (neighbours(filters.cpu().numpy()) > PATTERN).mean(),
    }
    rows = pd.DataFrame(columns)
    ratios = with_ratios(rows)[[EMBEDDING, INPUT]].to_numpy(float).tolist()
    rows["verdict"] = [verdict(outputs, inputs, options.met) for outputs, inputs in ratios]
    rows.to_csv(folder / ROWS, index=False, float_format="%.6g", lineterminator="\n")
    arrays: dict[str, Any] = {
        "found": found.images.half(),
        "embedding": found.embedding / reference.embedding[:, None],
        "input": found.pixels / reference.pixels[:, None],
    }
    for name, values in arrays.items():
        arrays[name] = values.unflatten(0, (len(points), -1)).cpu()
    steps = recorded_steps(config.descent.steps, options.records)
    arrays |= {"originals": images.cpu(), "points": list(points), "steps": steps}
    np.savez_compressed(folder / ARRAYS, **arrays, filters=filters.cpu())
    report({"text": f"{len(rows)} inputs found"})
