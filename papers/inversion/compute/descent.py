"""What an image must have been to give a state along a route (representation, "Vision Transformer hidden layer representation")."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from lsvit.routed import RoutedModel
from lsvit.routes import ENDED, Order, Route, arbitrary, generator
from papers.inversion.compute.ablation import ablate, patch_embedding, transplant
from papers.inversion.section import ClassImagesConfig, Descent, InversionConfig
from pipeline.data.splits import Split
from pipeline.jobs.files import ARRAYS, ROWS, read_meta
from pipeline.models.weights import build, normalisation
from pipeline.training.scoring import open_model, open_split

START = (0.7, 1 / 20)  # mean and standard deviation of the noise that an input is found from
KERNEL = [3, 3]  # pixels, of the Gaussian blur
INVERTIBLE, APPROXIMATE, NON_UNIQUE = (
    "invertible here",
    "approximately non-invertible",
    "non-unique",
)
Normalise = Callable[[Tensor], Tensor]  # pixels in [0, 1] -> what the model takes


class Points(NamedTuple):
    """What is inverted: states along a route by depth, and the outputs of layers alone."""

    names: list[str]  # "patch_embed", "first 4", "layer 3"
    depths: list[int]  # layers executed
    routes: Tensor  # (points * images, L), a route each, padded with -1; all images of a point lie together


def make_points(
    num_layers: int,
    depths: list[int] | None,
    alone: bool,
    order: Order,
    images: int,
    seeds: tuple[int, int],
) -> Points:
    """The patch embedding, the first layers of a route, and layers alone (representation: "the first l blocks", "only that encoder").

    Args:
        num_layers: of the model.
        depths: after which numbers of layers, of those there are; None: 1, a third, two thirds, all.
        alone: each of these numbers' last layer alone, too: right behind the embedding.
        order: of the layers; in arbitrary order every image has an order of its own.
        images: how many.
        seeds: of the orders.
    """
    chosen = sorted(
        {
            d
            for d in depths or (1, num_layers // 3, 2 * num_layers // 3, num_layers)
            if 1 <= d <= num_layers
        }
    )
    draw = generator("inversion", *seeds)
    orders = [
        tuple(range(num_layers)) if order == "sequential" else arbitrary(draw, num_layers)
        for _ in range(images)
    ]
    found: list[tuple[str, int, list[Route]]] = [("patch_embed", 0, [()] * images)]
    found += [(f"first {depth}", depth, [own[:depth] for own in orders]) for depth in chosen]
    found += (
        [(f"layer {depth - 1}", 1, [(depth - 1,)] * images) for depth in chosen] if alone else []
    )
    routes = [
        [*route, *[ENDED] * (num_layers - len(route))] for _, _, table in found for route in table
    ]
    return Points(
        [name for name, *_ in found], [depth for _, depth, _ in found], torch.tensor(routes)
    )


def normaliser(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> Normalise:
    """(B, C, H, W) in [0, 1] -> normalised, as :class:`pipeline.data.splits.Split` does."""
    shift, scale = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (mean, std))
    return lambda images: (images - shift) / scale


def read_states(model: RoutedModel, images: Tensor, routes: Tensor) -> Tensor:
    """The states at the end of routes: of images (B, C, H, W), a route each (B, L) as :meth:`RoutedModel.forward` takes them, and in
    addition empty ones (all -1), whose state is the embedding. (B, N, D)."""
    empty = routes[:, 0] == ENDED
    if not empty.any():
        return model.tokens(images, routes)
    if empty.all():
        return model.embed(images)
    own = torch.cat([(~empty).nonzero(), empty.nonzero()])[:, 0]
    order = own.to(images.device)
    run = int((~empty).sum())
    states = torch.cat(
        [model.tokens(images[order[:run]], routes[own[:run]]), model.embed(images[order[run:]])]
    )
    return states[order.argsort()]


def distance(a: Tensor, b: Tensor) -> Tensor:
    """||a - b||_2 of every sample: (B, ...) -> (B,)."""
    return torch.linalg.vector_norm((a - b).flatten(1), dim=1)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of the pixels of two images: (B, C, H, W) -> (B,); 0 where one of them has no variation."""
    a, b = a.flatten(1), b.flatten(1)
    varies = (a != a[:, :1]).any(1) & (b != b[:, :1]).any(
        1
    )  # else what rounding leaves would correlate
    return varies * torch.nn.functional.cosine_similarity(
        a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True), dim=1
    )


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels: (B, C, H, W) -> (B,)."""
    return sum(images.diff(dim=dim).abs().flatten(1).mean(1) for dim in (2, 3))  # type: ignore[return-value]


class Yardstick(NamedTuple):
    """How far apart an image and a slightly shifted one a' = a + N(0, sigma) are: (B,) each, means over the draws."""

    embedding: Tensor
    tokens: Tensor
    pixels: Tensor


@torch.no_grad()
def yardstick(
    model: RoutedModel,
    normalise: Normalise,
    images: Tensor,
    routes: Tensor,
    sigma: float,
    draws: int,
    generator: torch.Generator,
) -> Yardstick:
    """The source's yardstick of distances: after the route, after the embedding, and of the pixels themselves.

    Args:
        images: (B, C, H, W) in [0, 1].
        routes: as :func:`read_states`.
        sigma: of the shift; the source has 1/18 and 1/20.
        draws: shifted images of every image.
        generator: on the CPU.
    """
    target, tokens = read_states(model, normalise(images), routes), model.embed(normalise(images))
    found = []
    for _ in range(draws):
        shifted = images + sigma * torch.randn(images.shape, generator=generator).to(images.device)
        state, embedded = (
            read_states(model, normalise(shifted), routes),
            model.embed(normalise(shifted)),
        )
        found.append(
            torch.stack(
                [distance(state, target), distance(embedded, tokens), distance(shifted, images)]
            )
        )
    return Yardstick(*torch.stack(found).mean(0))


class Inversion(NamedTuple):
    """The inputs that were found, and how far they were from what was to be found."""

    images: Tensor  # (B, C, H, W)
    lr: Tensor  # (B,) the learning rate that came nearest
    steps: Tensor  # (T,) after which distances were taken; the first 0, the last all
    embedding: Tensor  # (B, T) ||O(a_g) - O(a)||_2
    pixels: Tensor  # (B, T) ||a_g - a||_2


def invert(
    model: RoutedModel,
    normalise: Normalise,
    images: Tensor,
    routes: Tensor,
    start: Tensor,
    descent: Descent,
    records: int,
) -> Inversion:
    """Descend from noise on ||O(a_g) - O(a)||_2, for many images and routes at once, each on its own.

    Of several learning rates each image and route keeps the one that ends nearest in embedding distance: how well the descent
    does whatever its rate.

    Args:
        images: (B, C, H, W) in [0, 1], the inputs a whose states are to be met.
        routes: (B, L), as :func:`read_states`.
        start: (B, C, H, W), the noise.
        descent: method, rates, steps, schedule and priors.
        records: how many times distances are taken, evenly over the steps, beside those of the start.
    """
    with torch.no_grad():
        target = read_states(model, normalise(images), routes)
    rates = len(descent.lrs)
    inputs = [start.clone().requires_grad_() for _ in range(rates)]
    groups: Any = [{"params": [x], "lr": lr} for x, lr in zip(inputs, descent.lrs, strict=True)]
    optimizer = torch.optim.Adam(groups) if descent.method == "adam" else torch.optim.SGD(groups)
    cosine = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, descent.steps)
        if descent.schedule == "cosine"
        else None
    )
    targets, all_routes, originals = (
        target.repeat(rates, 1, 1),
        routes.repeat(rates, 1),
        images.repeat(rates, 1, 1, 1),
    )
    when = sorted({round(i * descent.steps / records) for i in range(records + 1)})
    curves: list[Tensor] = []
    for step in range(descent.steps + 1):
        found = torch.cat(inputs)
        gap = distance(read_states(model, normalise(found), all_routes), targets)
        if step in when:
            curves.append(torch.stack([gap.detach(), distance(found.detach(), originals)]))
        if step == descent.steps:
            break
        optimizer.zero_grad()
        prior = descent.total_variation * total_variation(found) if descent.total_variation else 0
        (gap + prior).sum().backward()
        optimizer.step()
        if cosine:
            cosine.step()
        if descent.blur:
            with torch.no_grad():
                for x in inputs:
                    x.copy_(gaussian_blur(x, KERNEL, [descent.blur]))
    embedding, pixels = torch.stack(curves, -1).unflatten(1, (rates, -1))  # (rates, B, T) each
    best = embedding[..., -1].nan_to_num(torch.inf, torch.inf).argmin(0)
    own = torch.arange(len(images), device=images.device)
    lr = torch.tensor(descent.lrs, device=images.device)[best]
    return Inversion(
        torch.stack(inputs).detach()[best, own],
        lr,
        torch.tensor(when),
        embedding[best, own],
        pixels[best, own],
    )


def verdict(embedding: float, pixels: float, met: float) -> str:
    """What the final distances, relative to the yardstick's, say of a layer, as far as a descent tells
    (representation, "Attention does not transmit most input information").

    "invertible here": its output was met more nearly than the shifted image meets it, by an input nearer than that.
    "non-unique": by an input farther than that, and exactly: the embedding distance has gone to 0, the other one has not.
    "approximately non-invertible": neither; a far input comes near, but not there, or none does: the layer is badly conditioned.

    Args:
        embedding, pixels: both distances relative to those of the shifted image.
        met: below it an embedding distance counts as 0.
    """
    if embedding < 1 and pixels < 1:
        return INVERTIBLE
    return NON_UNIQUE if embedding < met else APPROXIMATE


def noise(shape: tuple[int, ...], seed: int) -> Tensor:
    """N(0.7, 1/20) of a shape, that inputs are found from."""
    return START[0] + START[1] * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def open_frozen(
    config: InversionConfig | ClassImagesConfig, data: Path, weights: Path | None
) -> tuple[RoutedModel, Normalise]:
    """The model, frozen, without weights in its random initialisation of the seed, and how it wants pixels normalised."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    model, execution = open_model(config, data, weights)
    model.eval().requires_grad_(False)
    return model, normaliser(*normalisation(config.model, read_meta(data)), execution.device)


def pixels(split: Split, index: Tensor, config: InversionConfig, data: Path) -> Tensor:
    """Images of a split in [0, 1]: (B, C, H, W)."""
    mean, std = (
        torch.tensor(v, device=split.device).view(1, -1, 1, 1)
        for v in normalisation(config.model, read_meta(data))
    )
    return split.take(index)[0] * std + mean


def measure(
    config: InversionConfig,
    data: Path,
    weights: Path | None,
    donor: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Invert the points of one model for some validation images. Writes `rows.csv`, a row a point and image, and `arrays.npz`.

    The arrays: `originals` (I, C, H, W), `found` (P, I, C, H, W), `steps` (T,), `embedding` and `input` (P, I, T), distances
    relative to the yardstick's; `points` (P,) names; `filters` (D, C, h, w), the patch embedding's weights.

    Raises:
        UserError: the weights or the data do not fit, or the model has no such part to take out or to put in.
    """
    model, normalise = open_frozen(config, data, weights)
    split, options, backbone = (
        open_split(config, data, "validation", model),
        config.options,
        model.backbone,
    )
    if donor is not None:
        transplant(
            backbone,
            build(config.model, backbone.num_classes, config.variant, donor).backbone,
            config.transplant,
        )
    filters = patch_embedding(backbone).proj.weight
    if config.ablation:
        ablate(backbone, config.ablation)
    images = pixels(split, torch.from_numpy(split.subset(options.images)), config, data)
    points = make_points(
        model.num_layers,
        options.depths,
        config.alone,
        config.order,
        len(images),
        (options.seed, config.seed),
    )
    count, (_, *shape) = len(points.names), images.shape
    everything = images.repeat(count, 1, 1, 1)
    start = noise((len(images), *shape), options.seed).to(images.device).repeat(count, 1, 1, 1)
    draws = torch.Generator().manual_seed(options.seed)
    reference = yardstick(
        model, normalise, everything, points.routes, options.sigma, options.shifts, draws
    )
    split_up = zip(
        *(values.split(options.batch_size) for values in (everything, points.routes, start)),
        strict=True,
    )
    parts = [
        invert(model, normalise, a, r, noisy, config.descent, options.records)
        for a, r, noisy in split_up
    ]
    found = Inversion(
        *(
            torch.cat([part[i] for part in parts]) if name != "steps" else parts[0].steps
            for i, name in enumerate(Inversion._fields)
        )
    )
    with torch.no_grad():
        tokens = distance(*(model.embed(normalise(x)) for x in (found.images, everything)))
    columns = {
        "lr": found.lr,
        "embedding_distance": found.embedding[:, -1],
        "yardstick": reference.embedding,
        "input_distance": found.pixels[:, -1],
        "input_yardstick": reference.pixels,
        "token_distance": tokens,
        "token_yardstick": reference.tokens,
        "pixel_correlation": correlation(found.images, everything),
    }
    rows = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
    rows.insert(0, "point", np.repeat(points.names, len(images)))
    rows.insert(1, "depth", np.repeat(points.depths, len(images)))
    rows.insert(2, "image", np.tile(np.arange(len(images)), count))
    rows["num_layers"], rows["overcomplete"] = (
        model.num_layers,
        filters.shape[0] >= filters[0].numel(),
    )
    embedding, inputs = (
        rows["embedding_distance"] / rows["yardstick"],
        rows["input_distance"] / rows["input_yardstick"],
    )
    rows["verdict"] = [
        verdict(*ratios, options.met) for ratios in zip(embedding, inputs, strict=True)
    ]
    rows.to_csv(folder / ROWS, index=False, float_format="%.6g", lineterminator="\n")
    curves = {
        "embedding": found.embedding / reference.embedding[:, None],
        "input": found.pixels / reference.pixels[:, None],
    }
    np.savez_compressed(
        folder / ARRAYS,
        originals=images.cpu().numpy(),
        points=np.array(points.names),
        steps=found.steps.numpy(),
        found=found.images.unflatten(0, (count, -1)).cpu().numpy().astype(np.float16),
        filters=filters.cpu().numpy(),
        **{name: curve.unflatten(0, (count, -1)).cpu().numpy() for name, curve in curves.items()},
    )
    report({"text": f"{len(rows)} inputs found"})
