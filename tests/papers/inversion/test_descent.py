"""Inputs found for a state and for a class: formulas, descents and schedules by hand, and what the jobs write."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import pad

from lsvit.routed import RoutedModel
from lsvit.routes import generator
from papers.inversion.compute import class_images
from papers.inversion.compute import descent as inversion
from papers.inversion.compute.ablation import ablate, transplant
from papers.inversion.compute.class_images import maximise, rate
from papers.inversion.compute.descent import (
    APPROXIMATE,
    INVERTIBLE,
    NON_UNIQUE,
    correlation,
    distance,
    invert,
    make_points,
    noise,
    normaliser,
    read_states,
    total_variation,
    verdict,
    yardstick,
)
from papers.inversion.section import (
    ClassImages,
    ClassImagesConfig,
    Descent,
    InversionConfig,
    InversionMeasure,
)
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import Encode, Position, Variant
from pipeline.data.shards import Maps
from pipeline.data.splits import Split
from pipeline.jobs.files import ARRAYS, ROWS, read_meta, sha256
from pipeline.models.weights import build, normalisation, save_weights
from tests.conftest import PICO
from tests.papers.exits.test_branches import images, small

MEAN, STD = 0.4, 0.5  # of the pixels of `square` images
SIZE = (2, 8, 8)  # of these
normalise = normaliser((MEAN,) * 2, (STD,) * 2, torch.device("cpu"))


pytestmark = pytest.mark.usefixtures("one_thread")


def square(n: int = 2, seed: int = 1) -> Tensor:
    """Images (n, 2, 8, 8) in [0, 1]."""
    return torch.rand(n, *SIZE, generator=torch.Generator().manual_seed(seed))


def isometric(depth: int = 3) -> RoutedModel:
    """Patches of 2 x 4 x 4 pixels in a width of 40: distances of embeddings are those of pixels, divided by STD."""
    torch.manual_seed(0)
    backbone: Any = VisionTransformer(
        img_size=8, patch_size=4, in_chans=2, embed_dim=40, depth=depth, num_heads=2, num_classes=5
    )
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        weight = torch.empty(40, 32)
        backbone.patch_embed.proj.weight.copy_(nn.init.orthogonal_(weight).view(40, 2, 4, 4))
    return RoutedModel(backbone).eval().requires_grad_(False)


def routes_of(*routes: Sequence[int], length: int = 3) -> Tensor:
    """Padded with -1."""
    return torch.tensor([[*route, *[-1] * (length - len(route))] for route in routes])


def descent(
    method: Any = "gd", lrs: Sequence[float] = (0.1,), steps: int = 4, **changes: Any
) -> Descent:
    return Descent(method=method, lrs=list(lrs), steps=steps, **changes)


def by_hand(model: RoutedModel, image: Tensor, route: Sequence[int]) -> Tensor:
    """The state of one image: (C, H, W) -> (N, D)."""
    state = model.embed(image[None])
    for depth, layer in enumerate(route):
        encoded = (
            model.position["encode"](state, layer, depth) if "encode" in model.position else state
        )
        state = model.backbone.blocks[layer](encoded)
    return state[0]


def blurred(image: Tensor, sigma: float) -> Tensor:
    """Weighted means of 3 x 3 pixels, mirrored at the rim: (B, C, H, W) -> (B, C, H, W)."""
    side = math.exp(-0.5 / sigma**2)
    weights = [side / (1 + 2 * side), 1 / (1 + 2 * side), side / (1 + 2 * side)]
    height, width = image.shape[-2:]
    wide = pad(image, (1, 1, 1, 1), mode="reflect")
    parts = [
        weights[i] * weights[j] * wide[..., i : i + height, j : j + width]
        for i in range(3)
        for j in range(3)
    ]
    return torch.stack(parts).sum(0)


# ---- states and distances ---------------------------------------------------------------------------------------------

TABLES = {
    "mixed": routes_of((), (2, 0), (), (3, 2, 1, 0), (1,), (1, 1), length=4),
    "one alone": routes_of((), (), (), (), (2, 0, 1), (), length=4),
    "empty": routes_of(*[()] * 6, length=4),
    "none empty": routes_of(*[(3, 2, 1, 0), (1,), (0, 2), (1,), (3,), (2, 0)], length=4),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("kind", ["vit", "mixer", "position"])
def test_states_at_the_end_of_routes(
    kind: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every image by itself, and what they give back to its pixels. Every image is embedded once."""
    position = (
        Position(encode=Encode(dim=4, dropout=0.1, shared=False))
        if kind == "position"
        else Position()
    )
    model, routes = (
        RoutedModel(small(MlpMixer if kind == "mixer" else VisionTransformer), position).eval(),
        TABLES[table],
    )
    pixels, embedded, embed = images(6).requires_grad_(), [], RoutedModel.embed

    def counted(model: RoutedModel, own: Tensor) -> Tensor:
        embedded.append(len(own))
        return embed(model, own)

    monkeypatch.setattr(RoutedModel, "embed", counted)
    states = read_states(model, pixels, routes)
    empty = sum(route[0] < 0 for route in routes.tolist())
    assert embedded == [count for count in (6 - empty, empty) if count]
    own = [[layer for layer in route if layer >= 0] for route in routes.tolist()]
    expected = [by_hand(model, image, route) for image, route in zip(pixels, own, strict=True)]
    assert torch.allclose(states, torch.stack(expected), atol=1e-5)
    if table == "empty":
        assert torch.equal(states, model.embed(pixels))
    if table == "none empty":
        assert torch.equal(states, model.tokens(pixels, routes))
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(2))
    found, reference = (
        torch.autograd.grad((weights * each).sum(), pixels)[0]
        for each in (states, torch.stack(expected))
    )
    assert torch.allclose(found, reference, rtol=1e-3, atol=1e-4)
    assert (reference.abs().flatten(1).amax(1) > 0.01).all()


def test_distance() -> None:
    a = torch.tensor([[[3.0, 0.0], [0.0, 5.0]], [[1.0, 1.0], [1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]])
    b = torch.tensor([[[0.0, 0.0], [4.0, 5.0]], [[0.0, 0.0], [0.0, 0.0]], [[2.0, 2.0], [2.0, 2.0]]])
    assert distance(a, b).tolist() == pytest.approx([5, 2, 0])
    same = b.clone().requires_grad_()
    distance(same, b).sum().backward()
    assert same.grad is not None
    assert not same.grad.any()  # a descent that has arrived stays


def test_correlation() -> None:
    a, b = square(3, 1), square(3, 2)
    expected = [
        np.corrcoef(x.flatten(), y.flatten())[0, 1]
        for x, y in zip(a.numpy(), b.numpy(), strict=True)
    ]
    assert correlation(a, b).tolist() == pytest.approx(expected, abs=1e-5)
    assert correlation(a, 0.3 * a + 2).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert correlation(1 - a, a).tolist() == pytest.approx([-1, -1, -1], abs=1e-5)
    assert max(map(abs, expected)) < 0.5


@pytest.mark.parametrize("level", [0.0, 0.1, 0.25, 0.7])
def test_a_constant_image_correlates_with_none(level: float) -> None:
    """Not even with another constant one."""
    constant = torch.full((1, 1, 28, 28), level)
    others = [
        torch.rand(1, 1, 28, 28),
        torch.full((1, 1, 28, 28), 0.3),
        torch.full((1, 1, 28, 28), 0.9),
        constant,
    ]
    for other in others:
        assert float(correlation(constant, other)) == 0
        assert float(correlation(other, constant)) == 0


def test_total_variation() -> None:
    """A ramp's slopes, a chessboard's edges in both directions, a constant's none; else neighbour by neighbour."""
    rows, columns = torch.arange(4.0)[:, None], torch.arange(6.0)
    ramp, board = (2 * rows - 3 * columns).expand(2, 4, 6), ((rows + columns) % 2).expand(2, 4, 6)
    assert total_variation(
        torch.stack([ramp, board, torch.ones(2, 4, 6)])
    ).tolist() == pytest.approx([5, 2, 0])
    image = torch.rand(1, 2, 4, 6)
    down = [
        abs(float(image[0, c, i + 1, j] - image[0, c, i, j]))
        for c in range(2)
        for i in range(3)
        for j in range(6)
    ]
    right = [
        abs(float(image[0, c, i, j + 1] - image[0, c, i, j]))
        for c in range(2)
        for i in range(4)
        for j in range(5)
    ]
    assert float(total_variation(image)) == pytest.approx(
        sum(down) / len(down) + sum(right) / len(right), rel=1e-5
    )


def test_normaliser() -> None:
    made = normaliser((0.2, 0.6), (0.5, 0.25), torch.device("cpu"))
    image = torch.tensor([0.7, 0.1]).view(1, 2, 1, 1).expand(1, 2, 3, 3)
    assert made(image)[0, :, 1, 2].tolist() == pytest.approx([1, -2], abs=1e-6)


def test_noise() -> None:
    """N(0.7, 1/20), of the seed alone."""
    found = noise((4, 1, 100, 100), 3)
    assert (float(found.mean()), float(found.std())) == pytest.approx((0.7, 0.05), abs=1e-3)
    assert torch.equal(noise((4, 1, 100, 100), 3), found)
    assert not torch.equal(noise((4, 1, 100, 100), 4), found)


def test_yardsticks_expectations() -> None:
    """Pixels: sigma times the mean of a chi distribution; embeddings: by their model's isometry."""
    model, n = isometric(), math.prod(SIZE)
    found = yardstick(
        model,
        normalise,
        square(4),
        routes_of(*[()] * 4),
        0.05,
        200,
        torch.Generator().manual_seed(0),
    )
    chi = math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
    assert found.pixels.tolist() == pytest.approx([0.05 * chi] * 4, rel=0.02)
    assert float(found.pixels.mean()) == pytest.approx(0.05 * math.sqrt(n), rel=0.01)
    assert found.tokens.tolist() == pytest.approx((found.pixels / STD).tolist(), rel=1e-4)
    assert torch.equal(found.embedding, found.tokens)
    wider = yardstick(
        model,
        normalise,
        square(4),
        routes_of(*[()] * 4),
        0.1,
        200,
        torch.Generator().manual_seed(0),
    )
    assert torch.allclose(wider.pixels, 2 * found.pixels, rtol=1e-3)


@torch.no_grad()
def test_yardsticks_are_means_over_the_draws() -> None:
    model, a, routes = isometric(), square(3), [(), (2, 0), (1,)]
    found = yardstick(
        model, normalise, a, routes_of(*routes), 0.07, 4, torch.Generator().manual_seed(5)
    )
    draws = torch.Generator().manual_seed(5)
    shifted = [a + 0.07 * torch.randn(a.shape, generator=draws) for _ in range(4)]
    for i, route in enumerate(routes):
        for name, state in {
            "embedding": by_hand,
            "tokens": lambda m, x, _: m.embed(x[None])[0],
            "pixels": lambda m, x, _: x,
        }.items():
            reading = (lambda x: x) if name == "pixels" else normalise
            target = state(model, reading(a[i : i + 1])[0], route)
            each = [
                float(
                    (state(model, reading(b[i : i + 1])[0], route) - target).square().sum().sqrt()
                )
                for b in shifted
            ]
            assert float(getattr(found, name)[i]) == pytest.approx(sum(each) / 4, rel=1e-4), (
                route,
                name,
            )


# ---- descents ---------------------------------------------------------------------------------------------------------


def start_of(a: Tensor, seed: int = 0) -> Tensor:
    return noise(tuple(a.shape), seed)


def test_an_invertible_map_is_inverted() -> None:
    """The embedding, in which nothing is lost; the distances fall together."""
    model, a = isometric(), square(3)
    found = invert(
        model,
        normalise,
        a,
        routes_of((), (), ()),
        start_of(a),
        descent("adam", steps=150, schedule="cosine"),
        3,
    )
    assert torch.allclose(found.images, a, atol=2e-3)
    assert (found.embedding[:, -1] < 0.01 * found.embedding[:, 0]).all()
    assert torch.allclose(found.embedding, found.pixels / STD, rtol=1e-3, atol=1e-5)
    assert found.lr.tolist() == pytest.approx([0.1] * 3)


@pytest.mark.parametrize("method", ["gd", "adam"])
def test_curves(method: str) -> None:
    """From the start's distances to those of the images that are returned; between them those of a shorter descent."""
    model, a, routes = isometric(), square(3), [(), (2, 0), (1,)]
    start, table = start_of(a), routes_of(*routes)
    found = invert(model, normalise, a, table, start, descent(method, steps=12), 5)
    assert found.steps.tolist() == [0, 2, 5, 7, 10, 12]
    assert found.embedding.shape == found.pixels.shape == (3, 6)
    assert invert(
        model, normalise, a, table, start, descent(method, steps=3), 10
    ).steps.tolist() == [0, 1, 2, 3]
    short = invert(model, normalise, a, table, start, descent(method, steps=5), 1)
    assert short.steps.tolist() == [0, 5]
    for at, x in ((0, start), (-1, found.images), (2, short.images)):
        for i, route in enumerate(routes):
            state, target = (
                by_hand(model, normalise(each[i : i + 1])[0], route) for each in (x, a)
            )
            assert float(found.embedding[i, at]) == pytest.approx(
                float((state - target).norm()), rel=1e-3
            )
            assert float(found.pixels[i, at]) == pytest.approx(
                float((x[i] - a[i]).norm()), rel=1e-4
            )
    assert (found.embedding[:, -1] < found.embedding[:, 0]).all()
    assert not found.images.requires_grad


@pytest.mark.parametrize("method", ["gd", "adam"])
def test_images_and_points_are_found_each_on_its_own(method: str) -> None:
    """Whatever is found beside them, and under several rates."""
    model, a, routes = isometric(), square(4), routes_of((), (2, 0), (2, 0), (0, 1, 2))
    start, how = (
        start_of(a),
        descent(method, (0.05, 0.02), 8, schedule="cosine", blur=0.3, total_variation=0.1),
    )
    together = invert(model, normalise, a, routes, start, how, 4)
    for i in range(4):
        own = slice(i, i + 1)
        alone = invert(model, normalise, a[own], routes[own], start[own], how, 4)
        assert torch.equal(alone.lr, together.lr[own])
        for name in ("images", "embedding", "pixels"):
            assert torch.allclose(getattr(alone, name), getattr(together, name)[own], atol=1e-5), (
                name
            )


def test_the_best_of_several_rates_is_kept() -> None:
    """Of every image and point its own; a diverging one never, wherever it stands."""
    model, a, routes = (
        isometric(),
        square(6),
        routes_of((), (0,), (0, 1, 2), (2,), (2, 1), (1, 0, 2)),
    )
    away = torch.tensor([0.001, 1, 0.001, 1, 0.05, 0.05]).view(-1, 1, 1, 1)
    start, rates = a + away * (start_of(a) - a), (1e30, 0.001, 0.02, 0.3, 1e25)
    found = invert(model, normalise, a, routes, start, descent("gd", rates, 10), 2)
    each = {
        lr: invert(model, normalise, a, routes, start, descent("gd", [lr], 10), 2) for lr in rates
    }
    final = torch.stack([each[lr].embedding[:, -1] for lr in rates])
    assert not final[[0, 4]].isfinite().any()  # else nothing diverged
    best = final.nan_to_num(torch.inf).argmin(0)
    assert found.lr.tolist() == pytest.approx([rates[i] for i in best.tolist()])
    assert len(set(best.tolist())) > 1  # else it may be one for all
    for i, which in enumerate(best.tolist()):
        for name in ("images", "embedding", "pixels"):
            assert torch.allclose(
                getattr(found, name)[i], getattr(each[rates[which]], name)[i], atol=1e-4
            ), name


def gradient_at(
    model: RoutedModel, a: Tensor, route: Sequence[int], x: Tensor, weight: float = 0
) -> Tensor:
    """Of the distance of states and of the prior, for one image."""
    x = x.clone().requires_grad_()
    state, target = (by_hand(model, normalise(each[None])[0], route) for each in (x, a))
    loss = (state - target).square().sum().sqrt() + weight * sum(
        x.diff(dim=d).abs().mean() for d in (1, 2)
    )
    return torch.autograd.grad(loss, x)[0]


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_a_step_of_plain_descent(weight: float) -> None:
    """Start - lr * gradient of the norm and the prior; of the embedding the norm's is known in closed form."""
    model, a, routes = isometric(), square(3), [(), (2, 0), (1,)]
    start = start_of(a)
    found = invert(
        model,
        normalise,
        a,
        routes_of(*routes),
        start,
        descent(lrs=[0.2], steps=1, total_variation=weight),
        1,
    )
    for i, route in enumerate(routes):
        moved = start[i] - 0.2 * gradient_at(model, a[i], route, start[i], weight)
        assert torch.allclose(found.images[i], moved, atol=1e-5)
    if not weight:
        closed = start[0] - 0.2 * (start[0] - a[0]) / (STD * (start[0] - a[0]).norm())
        assert torch.allclose(found.images[0], closed, atol=1e-5)


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_schedules(schedule: Any) -> None:
    """A cosine from the rate to 0, with the gradient that is known in closed form."""
    model, a = isometric(), square(1)
    x = start = start_of(a)
    for step in range(4):
        lr = 0.2 * (0.5 * (1 + math.cos(math.pi * step / 4)) if schedule == "cosine" else 1)
        x = x - lr * (x - a) / (STD * (x - a).norm())
    found = invert(
        model, normalise, a, routes_of(()), start, descent(lrs=[0.2], schedule=schedule), 1
    )
    assert torch.allclose(found.images, x, atol=1e-5)


def test_adam_moves_every_pixel_by_the_rate_at_first() -> None:
    model, a = isometric(), square(2)
    start = start_of(a)
    found = invert(model, normalise, a, routes_of((), (1,)), start, descent("adam", [0.05], 1), 1)
    expected = torch.stack(
        [
            -0.05 * gradient_at(model, a[i], route, start[i]).sign()
            for i, route in enumerate([(), (1,)])
        ]
    )
    assert torch.allclose(found.images - start, expected, atol=1e-4)


def test_blur_follows_a_step() -> None:
    """And is part of the image that is returned, whose distances the curves end in."""
    model, a, routes = isometric(), square(2), routes_of((), (2, 0))
    start = start_of(a)
    plain, found = (
        invert(model, normalise, a, routes, start, descent(lrs=[0.2], steps=1, blur=blur), 1)
        for blur in (0, 0.6)
    )
    expected = blurred(plain.images, 0.6)
    assert torch.allclose(found.images, expected, atol=1e-5)
    assert (total_variation(found.images) < 0.8 * total_variation(plain.images)).all()
    assert found.pixels[:, -1].tolist() == pytest.approx(
        (expected - a).flatten(1).norm(dim=1).tolist(), rel=1e-4
    )
    assert found.pixels[:, 0].tolist() == pytest.approx(
        (start - a).flatten(1).norm(dim=1).tolist(), rel=1e-4
    )


@pytest.mark.parametrize("method", ["gd", "adam"])
def test_the_prior_makes_images_smoother(method: str) -> None:
    """The more the heavier it is."""
    model, a, routes = isometric(), square(2), routes_of((), (2, 0))
    weights = (0.0, 1.0, 30.0)
    found = [
        invert(
            model,
            normalise,
            a,
            routes,
            start_of(a),
            descent(method, [0.03], 20, total_variation=w),
            1,
        )
        for w in weights
    ]
    none, light, heavy = (total_variation(each.images) for each in found)
    assert (heavy < light).all()
    assert (light < none).all()


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0.9, 0.9), INVERTIBLE),
        ((0.999, 0.999), INVERTIBLE),
        ((0.0, 0.0), INVERTIBLE),
        ((0.01, 0.9), INVERTIBLE),  # met or not
        ((0.0, 1.0), NON_UNIQUE),
        ((0.0, 1.1), NON_UNIQUE),
        ((0.0099, 1.0), NON_UNIQUE),
        ((0.0099, 50.0), NON_UNIQUE),
        ((0.0099, math.inf), NON_UNIQUE),
        ((0.0099, math.nan), NON_UNIQUE),
        ((0.01, 1.0), APPROXIMATE),  # the border is not met
        ((0.0101, 1.0), APPROXIMATE),
        ((0.9, 1.1), APPROXIMATE),  # nearer than the shifted image, but not there
        ((0.999, 1.0), APPROXIMATE),
        ((1.0, 0.9), APPROXIMATE),
        ((1.0, 0.0), APPROXIMATE),
        ((1.1, 1.1), APPROXIMATE),
        ((math.nan, 0.9), APPROXIMATE),
        ((math.nan, math.nan), APPROXIMATE),
        ((math.inf, math.inf), APPROXIMATE),
        ((0.9, math.nan), APPROXIMATE),
    ],
)
def test_verdicts(ratios: tuple[float, float], expected: str) -> None:
    assert verdict(*ratios, 0.01) == expected
    assert len({INVERTIBLE, NON_UNIQUE, APPROXIMATE}) == 3


@pytest.mark.parametrize(
    ("met", "expected"), [(0.5, NON_UNIQUE), (0.3, APPROXIMATE), (0.2, APPROXIMATE)]
)
def test_what_counts_as_met_decides(met: float, expected: str) -> None:
    """Between outputs met by a far input; whether a near one is found does not depend on it."""
    assert verdict(0.3, 2.0, met) == expected
    assert verdict(0.3, 0.9, met) == INVERTIBLE
    assert verdict(1.0, 2.0, 1.5) == NON_UNIQUE


# ---- points -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [
        (24, [1, 8, 16, 24]),
        (12, [1, 4, 8, 12]),
        (6, [1, 2, 4, 6]),
        (3, [1, 2, 3]),
        (2, [1, 2]),
        (1, [1]),
    ],
)
def test_default_depths(num_layers: int, expected: list[int]) -> None:
    """Each once, although thirds of few layers coincide."""
    points = make_points(num_layers, None, False, "sequential", 1, (0, 0))
    assert points.depths == [0, *expected]
    assert points.names == ["patch_embed", *(f"first {depth}" for depth in expected)]


def test_points_with_layers_alone() -> None:
    """Names, numbers of layers and routes; depths in order, each once, and none that the model does not have."""
    points = make_points(6, [4, 2, 4, 7], True, "sequential", 2, (0, 0))
    assert points.names == ["patch_embed", "first 2", "first 4", "layer 1", "layer 3"]
    assert points.depths == [0, 2, 4, 1, 1]
    each = [(), (0, 1), (0, 1, 2, 3), (1,), (3,)]
    assert (
        points.routes.tolist()
        == routes_of(*(route for route in each for _ in range(2)), length=6).tolist()
    )


def test_points_in_arbitrary_order() -> None:
    """Every image runs the first layers of an order of its own, the same at every depth; layers alone are none's."""
    points = make_points(6, [1, 3, 6], True, "arbitrary", 4, (5, 1))
    assert points.names == [
        "patch_embed",
        "first 1",
        "first 3",
        "first 6",
        "layer 0",
        "layer 2",
        "layer 5",
    ]
    table = points.routes.unflatten(0, (7, 4))
    orders = table[3].tolist()
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    for at, depth in enumerate(points.depths[:4]):
        assert (
            table[at].tolist() == routes_of(*(order[:depth] for order in orders), length=6).tolist()
        )
    for at, layer in zip((4, 5, 6), (0, 2, 5), strict=True):
        assert table[at].tolist() == routes_of(*[(layer,)] * 4, length=6).tolist()
    assert torch.equal(
        make_points(6, [1, 3, 6], True, "arbitrary", 4, (5, 1)).routes, points.routes
    )
    assert torch.equal(make_points(6, [1, 6], False, "arbitrary", 4, (5, 1)).routes[-4:], table[3])
    for seeds in ((6, 1), (5, 2), (1, 5)):
        assert not torch.equal(
            make_points(6, [1, 3, 6], True, "arbitrary", 4, seeds).routes, points.routes
        )


# ---- the job of an inversion ------------------------------------------------------------------------------------------

TINY = ModelPreset(
    timm="vit_tiny_patch16_224", kwargs=PICO | {"depth": 3}, weights="scratch", init_std=0.14
)
MIXER = ModelPreset(
    timm="mixer_custom",
    kwargs={"img_size": 28, "patch_size": 14, "in_chans": 1, "embed_dim": 16, "num_blocks": 2},
    weights="scratch",
)
OPTIONS = InversionMeasure(
    images=2, depths=None, sigma=0.05, shifts=2, met=0.01, batch_size=200, records=3, seed=7
)
COLUMNS = [
    "point",
    "depth",
    "image",
    "lr",
    "embedding_distance",
    "yardstick",
    "input_distance",
    "input_yardstick",
    "token_distance",
    "token_yardstick",
    "pixel_correlation",
    "num_layers",
    "overcomplete",
    "verdict",
]


class Outcome:
    """What a job wrote."""

    def __init__(self, folder: Path, texts: list[str]) -> None:
        self.text, self.texts = (folder / ROWS).read_text(), texts
        self.rows = pd.read_csv(folder / ROWS)
        with np.load(folder / ARRAYS) as file:
            self.arrays = dict(file)

    def __eq__(self, other: object) -> bool:
        if (
            not isinstance(other, Outcome)
            or self.text != other.text
            or self.arrays.keys() != other.arrays.keys()
        ):
            return False
        return all(np.array_equal(array, other.arrays[name]) for name, array in self.arrays.items())


@pytest.fixture
def inverted(prepared: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Runs an inversion of a tiny model with other keys of its configuration."""

    def run(weights: Path | None = None, donor: Path | None = None, **changes: Any) -> Outcome:
        how = descent("adam", [0.01, 0.1], 4, schedule="cosine")
        defaults = {
            "model": TINY,
            "options": OPTIONS,
            "descent": how,
            "alone": False,
            "order": "sequential",
            "ablation": [],
            "transplant": [],
            "seed": 0,
        }
        config = InversionConfig(
            title="test",
            dataset="bars",
            model_name="pico",
            variant=Variant(route="sequential"),
            device="cpu",
            data_sha256=read_meta(prepared)["sha256"],
            weights_sha256=weights and sha256(weights),
            **(defaults | changes),
        )
        folder = tmp_path / f"run_{len(list(tmp_path.glob('run_*')))}"
        folder.mkdir()
        events: list[dict] = []
        torch.rand(3)  # a generator in another state must not matter
        inversion.measure(config, prepared, weights, donor, folder, events.append)
        return Outcome(folder, [event["text"] for event in events])

    return run


def saved(path: Path, seed: int, preset: ModelPreset = TINY) -> Path:
    torch.manual_seed(seed)
    model = build(preset, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_weights(model, path)
    return path


def validation_pixels(prepared: Path) -> Tensor:
    """Of the two images that are always the same, (2, 1, 28, 28) in [0, 1]."""
    maps = Maps([prepared / "validation.arrow"])
    index = np.sort(generator("subset", "training").permutation(len(maps))[:2])
    return torch.from_numpy(maps[index][0]).float()[:, None] / 255


def test_pixels_of_a_model_with_a_normalisation_of_its_own(
    pico: ModelPreset, prepared: Path
) -> None:
    """Published weights have a mean and a deviation a channel."""
    preset = pico.model_copy(
        update={"kwargs": pico.kwargs | {"in_chans": 3}, "weights": "published"}
    )
    mean, std = normalisation(preset, read_meta(prepared))
    assert len(mean) == len(std) == 3
    split = Split(prepared, "validation", torch.device("cpu"), 3, 28, mean, std)
    found = inversion.pixels(split, torch.arange(2), Mock(model=preset), prepared)
    expected = (
        torch.from_numpy(Maps([prepared / "validation.arrow"])[np.arange(2)][0]).float()[:, None]
        / 255
    )
    assert torch.allclose(found, expected.expand(2, 3, 28, 28), atol=1e-5)


@torch.no_grad()
def check_final_distances(
    outcome: Outcome, model: RoutedModel, prepared: Path, routes: Sequence[Sequence[int]]
) -> None:
    """That the rows hold the yardsticks, and the distances of the found images from the originals, under this model.

    A route a point and image.
    """
    meta = read_meta(prepared)
    own = normaliser(meta["mean"], meta["std"], torch.device("cpu"))
    found = torch.from_numpy(outcome.arrays["found"]).float().flatten(0, 1)
    originals = validation_pixels(prepared).repeat(len(found) // 2, 1, 1, 1)
    model.eval()
    table = routes_of(*routes, length=model.num_layers)
    gauge = yardstick(
        model,
        own,
        originals,
        table,
        OPTIONS.sigma,
        OPTIONS.shifts,
        torch.Generator().manual_seed(OPTIONS.seed),
    )
    for name, column in {
        "embedding": "yardstick",
        "tokens": "token_yardstick",
        "pixels": "input_yardstick",
    }.items():
        assert outcome.rows[column].tolist() == pytest.approx(
            getattr(gauge, name).tolist(), rel=1e-4
        )
    for i, (row, route) in enumerate(zip(outcome.rows.itertuples(), routes, strict=True)):
        states = [by_hand(model, own(x[i : i + 1])[0], route) for x in (found, originals)]
        assert row.embedding_distance == pytest.approx(
            float((states[0] - states[1]).norm()), rel=0.005
        )
        tokens = [by_hand(model, own(x[i : i + 1])[0], ()) for x in (found, originals)]
        assert row.token_distance == pytest.approx(float((tokens[0] - tokens[1]).norm()), rel=0.005)
        assert row.input_distance == pytest.approx(
            float((found[i] - originals[i]).norm()), rel=0.01
        )
        pixels = np.corrcoef(found[i].flatten(), originals[i].flatten())[0, 1]
        assert row.pixel_correlation == pytest.approx(pixels, abs=2e-3)


def verdicts(rows: pd.DataFrame, met: float) -> list[str]:
    embedding, pixels = (
        rows["embedding_distance"] / rows["yardstick"],
        rows["input_distance"] / rows["input_yardstick"],
    )
    return [verdict(*ratios, met) for ratios in zip(embedding, pixels, strict=True)]


def test_measure_writes_rows_and_arrays(
    inverted: Callable[..., Outcome], prepared: Path, tmp_path: Path
) -> None:
    """A row a point and image; curves relative to the yardsticks end in the distances of the rows. Twice the same."""
    weights = saved(tmp_path / "w.safetensors", 1)
    found = inverted(weights, alone=True)
    rows, arrays = found.rows, found.arrays
    names = ["patch_embed", "first 1", "first 2", "first 3", "layer 0", "layer 1", "layer 2"]
    assert list(rows.columns) == COLUMNS
    assert rows["point"].tolist() == [name for name in names for _ in range(2)]
    assert rows["depth"].tolist() == [depth for depth in (0, 1, 2, 3, 1, 1, 1) for _ in range(2)]
    assert rows["image"].tolist() == [0, 1] * 7
    assert set(rows["lr"]) <= {0.01, 0.1}
    shapes = {
        "originals": (2, 1, 28, 28),
        "found": (7, 2, 1, 28, 28),
        "steps": (4,),
        "embedding": (7, 2, 4),
        "input": (7, 2, 4),
        "points": (7,),
        "filters": (16, 1, 14, 14),
    }
    assert {name: array.shape for name, array in arrays.items()} == shapes
    assert arrays["points"].tolist() == names
    assert arrays["steps"].tolist() == [0, 1, 3, 4]
    assert np.allclose(arrays["originals"], validation_pixels(prepared), atol=1e-5)
    model = build(TINY, 10, weights=weights)
    assert np.array_equal(
        arrays["filters"], model.backbone.patch_embed.proj.weight.detach().numpy()
    )
    each: list[tuple[int, ...]] = [(), (0,), (0, 1), (0, 1, 2), (0,), (1,), (2,)]
    check_final_distances(found, model, prepared, [route for route in each for _ in range(2)])
    final = (
        arrays["embedding"][..., -1].flatten() * rows["yardstick"],
        arrays["input"][..., -1].flatten() * rows["input_yardstick"],
    )
    assert final[0].tolist() == pytest.approx(rows["embedding_distance"].tolist(), rel=1e-4)
    assert final[1].tolist() == pytest.approx(rows["input_distance"].tolist(), rel=1e-4)
    start = noise((2, 1, 28, 28), 7) - validation_pixels(prepared)
    first = (arrays["input"][..., 0] * rows["input_yardstick"].to_numpy().reshape(7, 2)).tolist()
    assert first == [pytest.approx(start.flatten(1).norm(dim=1).tolist(), rel=1e-4)] * 7
    assert (rows["input_yardstick"] / (0.05 * 28)).tolist() == pytest.approx([1] * 14, abs=0.1)
    assert rows["verdict"].tolist() == verdicts(rows, 0.01)
    met = float((rows["embedding_distance"] / rows["yardstick"]).median())
    other = inverted(weights, alone=True, options=OPTIONS.model_copy(update={"met": met})).rows[
        "verdict"
    ]
    assert other.nunique() > 1
    assert other.tolist() == verdicts(rows, met)
    assert (rows["num_layers"] == 3).all()
    assert not rows["overcomplete"].any()  # 16 numbers of 14 x 14 pixels
    embedded = rows[rows["point"] == "patch_embed"]
    assert np.allclose(embedded["embedding_distance"], embedded["token_distance"], rtol=1e-4)
    assert np.allclose(embedded["yardstick"], embedded["token_yardstick"], rtol=1e-4)
    assert found.texts == ["14 inputs found"]
    assert inverted(weights, alone=True) == found
    assert (
        inverted(weights, alone=True, seed=3) == found
    )  # with weights and in sequential order nothing is drawn from it
    assert inverted(weights, alone=True, options=OPTIONS.model_copy(update={"seed": 8})) != found


def test_verdicts_of_rows_are_relative_and_follow_met(
    inverted: Callable[..., Outcome], tmp_path: Path
) -> None:
    """Nothing but the verdicts depends on what counts as met; here no far input meets an output, until everything counts."""
    weights = saved(tmp_path / "w.safetensors", 1)
    found = {
        met: inverted(weights, options=OPTIONS.model_copy(update={"met": met}))
        for met in (0.01, 1e9)
    }
    assert APPROXIMATE in set(found[0.01].rows["verdict"])
    assert NON_UNIQUE not in set(found[0.01].rows["verdict"])
    assert NON_UNIQUE in set(found[1e9].rows["verdict"])
    assert APPROXIMATE not in set(found[1e9].rows["verdict"])
    for met, outcome in found.items():
        assert outcome.rows["verdict"].tolist() == verdicts(outcome.rows, met)
    first, second = (outcome.rows.drop(columns="verdict") for outcome in found.values())
    pd.testing.assert_frame_equal(first, second)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch_size", "order"),
    [(1, "sequential"), (3, "sequential"), (3, "arbitrary"), (14, "sequential")],
)
def test_measure_in_parts(
    inverted: Callable[..., Outcome], tmp_path: Path, batch_size: int, order: str
) -> None:
    """How many inputs are found at once changes nothing, also where parts end within a point and the last is smaller."""
    weights = saved(tmp_path / "w.safetensors", 1)
    options = OPTIONS.model_copy(update={"batch_size": batch_size})
    whole, parts = (
        inverted(weights, alone=order == "sequential", order=order, options=each)
        for each in (OPTIONS, options)
    )
    assert len(whole.rows) == (14 if order == "sequential" else 8)
    pd.testing.assert_frame_equal(parts.rows, whole.rows, rtol=1e-5, atol=1e-5)
    assert parts.arrays.keys() == whole.arrays.keys()
    for name in ("points", "steps", "originals", "filters"):
        assert np.array_equal(parts.arrays[name], whole.arrays[name]), name
    for name in ("embedding", "input"):
        assert np.allclose(parts.arrays[name], whole.arrays[name], rtol=1e-5, atol=1e-5), name
    assert np.allclose(parts.arrays["found"], whole.arrays["found"], atol=1e-3)  # half precision


def test_parts_are_no_larger_than_asked(
    inverted: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, real = [], inversion.invert

    def spied(model: RoutedModel, own: Any, originals: Tensor, *others: Any) -> Any:
        seen.append(len(originals))
        return real(model, own, originals, *others)

    monkeypatch.setattr(inversion, "invert", spied)
    inverted(
        saved(tmp_path / "w.safetensors", 1), options=OPTIONS.model_copy(update={"batch_size": 3})
    )
    assert seen == [3, 3, 2]


@pytest.mark.parametrize(("width", "overcomplete"), [(192, False), (196, True), (200, True)])
def test_measure_tells_wide_patch_embeddings(
    inverted: Callable[..., Outcome], width: int, overcomplete: bool
) -> None:
    """As many numbers a patch as it has values, 14 x 14, are enough."""
    preset = TINY.model_copy(update={"kwargs": TINY.kwargs | {"embed_dim": width, "depth": 1}})
    found = inverted(
        model=preset,
        options=OPTIONS.model_copy(update={"depths": [1], "images": 1}),
        descent=descent(steps=1),
    )
    assert found.rows["overcomplete"].tolist() == [overcomplete] * 2
    assert found.rows["num_layers"].tolist() == [1] * 2


def test_measure_of_untrained_models(inverted: Callable[..., Outcome], prepared: Path) -> None:
    """Initialised from the seed alone."""
    found = inverted(seed=4)
    torch.manual_seed(4)
    model = build(TINY, 10)
    assert np.array_equal(
        found.arrays["filters"], model.backbone.patch_embed.proj.weight.detach().numpy()
    )
    each: list[tuple[int, ...]] = [(), (0,), (0, 1), (0, 1, 2)]
    check_final_distances(found, model, prepared, [route for route in each for _ in range(2)])
    assert inverted(seed=4) == found
    assert inverted(seed=5) != found


def test_measure_in_arbitrary_order(
    inverted: Callable[..., Outcome], prepared: Path, tmp_path: Path
) -> None:
    """Along the orders of the points, which depend on both seeds."""
    weights = saved(tmp_path / "w.safetensors", 1)
    found = inverted(weights, order="arbitrary", seed=7)
    routes = make_points(3, None, False, "arbitrary", 2, (OPTIONS.seed, 7)).routes.tolist()
    assert routes[-1] != routes[-2]
    check_final_distances(
        found,
        build(TINY, 10, weights=weights),
        prepared,
        [[x for x in route if x >= 0] for route in routes],
    )
    assert inverted(weights, order="arbitrary", seed=7) == found


@pytest.mark.parametrize("preset", [TINY, MIXER], ids=["vit", "mixer"])
def test_measure_of_edited_models(
    inverted: Callable[..., Outcome], prepared: Path, tmp_path: Path, preset: ModelPreset
) -> None:
    """Parts taken out of the trained model, or put into the untrained one."""
    weights = saved(tmp_path / "w.safetensors", 1, preset)
    options = OPTIONS.model_copy(update={"depths": [2]})
    routes: list[tuple[int, ...]] = [(), (), (0, 1), (0, 1)]
    whole = build(preset, 10, weights=weights)
    found = inverted(weights, model=preset, ablation=["residuals", "mlp"], options=options)
    without = build(preset, 10, weights=weights)
    ablate(without.backbone, ["residuals", "mlp"])
    check_final_distances(found, without, prepared, routes)
    assert found != inverted(weights, model=preset, options=options)
    torch.manual_seed(6)
    mixed = build(preset, 10)
    transplant(mixed.backbone, whole.backbone, ["patch_embed", "norm1"])
    found = inverted(
        None, weights, model=preset, transplant=["patch_embed", "norm1"], seed=6, options=options
    )
    check_final_distances(found, mixed, prepared, routes)
    stem = "stem" if preset is MIXER else "patch_embed"
    assert np.array_equal(
        found.arrays["filters"], getattr(whole.backbone, stem).proj.weight.detach().numpy()
    )
    assert found != inverted(None, model=preset, seed=6, options=options)


# ---- class images -----------------------------------------------------------------------------------------------------

SHAPE = (3, 16, 24)
wide = normaliser((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), torch.device("cpu"))


def schedule(**changes: Any) -> ClassImages:
    return ClassImages(
        **(
            {
                "steps": 6,
                "lr": 0.05,
                "target": 30.0,
                "blur": 0.8,
                "jitter": 3,
                "jitter_after": 3,
                "batch_size": 9,
            }
            | changes
        )
    )


@pytest.fixture
def pictured() -> RoutedModel:
    """Seven outputs, of images that are not square."""
    return RoutedModel(small()).eval().requires_grad_(False)


def maximised(model: RoutedModel, classes: int, options: ClassImages, seed: int) -> Tensor:
    """As documented, a class at a time."""
    jitter, (_, height, width) = options.jitter, SHAPE
    canvases = noise((classes, 3, height + jitter, width + jitter), seed)
    crops = torch.Generator().manual_seed(seed)
    offsets = [
        torch.randint(jitter + 1, (2,), generator=crops).tolist() for _ in range(options.steps)
    ]
    offsets[: options.jitter_after] = [[jitter // 2] * 2] * min(options.jitter_after, options.steps)
    for i in range(classes):
        for step, (top, left) in enumerate(offsets):
            seen = (
                canvases[i : i + 1, :, top : top + height, left : left + width]
                .clone()
                .requires_grad_()
            )
            output = model.backbone(wide(seen))[0, i]
            (gradient,) = torch.autograd.grad((options.target - output).abs(), seen)
            moved, sigma = (
                seen.detach() - options.lr * gradient,
                options.blur * (1 - step / options.steps),
            )
            canvases[i, :, top : top + height, left : left + width] = (
                blurred(moved, sigma) if sigma else moved
            )[0]
    rim = jitter // 2
    return canvases[:, :, rim : rim + height, rim : rim + width]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"jitter_after": 6},
        {},
        {"jitter": 4, "jitter_after": 0},
        {"jitter": 0},
        {"blur": 0.0},
        {"jitter": 0, "blur": 0.0},
        {"batch_size": 1},
        {"batch_size": 2},
        {"target": -30.0},
        {"steps": 2},
    ],
    ids=str,
)
def test_class_images_by_hand(pictured: RoutedModel, changes: dict[str, Any]) -> None:
    """Before the crops move, with them, and without a blur; of the first classes alone."""
    options = schedule(**changes)
    found = maximise(pictured, wide, SHAPE, 5, options, 2)
    assert found.shape == (5, *SHAPE)
    assert torch.allclose(found, maximised(pictured, 5, options, 2), atol=2e-4)
    assert (found - noise((5, *SHAPE), 2)).abs().amax() > 0.01


def test_class_images_depend_on_the_seed_alone(pictured: RoutedModel) -> None:
    found = maximise(pictured, wide, SHAPE, 3, schedule(), 0)
    torch.rand(7)
    assert torch.equal(maximise(pictured, wide, SHAPE, 3, schedule(), 0), found)
    assert not torch.equal(maximise(pictured, wide, SHAPE, 3, schedule(), 1), found)


@pytest.mark.parametrize("target", [30.0, -30.0])
@pytest.mark.parametrize("blur", [0.0, 0.3])
@torch.no_grad()
def test_outputs_are_drawn_to_the_constant(
    pictured: RoutedModel, blur: float, target: float
) -> None:
    """That of every image's own class."""
    options = schedule(steps=40, lr=0.1, blur=blur, target=target, jitter=0)
    with torch.enable_grad():
        found = maximise(pictured, wide, SHAPE, 7, options, 0)
    before, after = (pictured(wide(each)).diagonal() for each in (noise((7, *SHAPE), 0), found))
    gain = (after - before) * math.copysign(1, target)
    assert (gain > 0.2).all()
    if target > 0 and not blur:
        assert (
            rate(pictured, wide, found, 7)[0] > rate(pictured, wide, noise((7, *SHAPE), 0), 7)[0]
        ).all()


def test_crops_of_the_canvas(pictured: RoutedModel) -> None:
    """Of one that a vanishing rate leaves as it was: its middle at first, then all over it, one crop for all classes."""
    canvas, seen = noise((2, 3, 16 + 3, 24 + 3), 9), []
    pictured.backbone.patch_embed.register_forward_pre_hook(
        lambda _, args: seen.append(args[0].detach())
    )
    found = maximise(
        pictured, wide, SHAPE, 2, schedule(steps=60, lr=1e-12, blur=0.0, jitter_after=10), 9
    )
    places = [(top, left) for top in range(4) for left in range(4)]
    crops = {
        (top, left): wide(canvas[:, :, top : top + 16, left : left + 24]) for top, left in places
    }
    shown = [
        [place for place, crop in crops.items() if torch.allclose(crop, each, atol=1e-5)]
        for each in seen
    ]
    assert [len(each) for each in shown] == [1] * 60
    assert shown[:10] == [[(1, 1)]] * 10
    later = {each[0] for each in shown[10:]}
    assert len(later) > 10
    assert {top for top, _ in later} == {left for _, left in later} == {0, 1, 2, 3}
    assert torch.allclose(found, canvas[:, :, 1:17, 1:25], atol=1e-6)


def test_what_a_model_takes_images_for() -> None:
    """Shares of the first outputs, which are the classes; a further output has none."""
    outputs = torch.tensor([[2.0, 0.0, 1.0, 9.0], [0.0, 1.0, 3.0, 9.0], [1.0, 1.0, 1.0, 9.0]])
    model: Any = lambda x: outputs + x  # noqa: E731
    probability, seen = rate(model, lambda x: x - 1, torch.ones(3, 4), 3)
    shares = [
        math.exp(row[i]) / sum(map(math.exp, row[:3])) for i, row in enumerate(outputs.tolist())
    ]
    assert probability.tolist() == pytest.approx(shares)
    assert seen.tolist() == [0, 2, 0]


@pytest.mark.parametrize("outputs", [None, 12])
def test_measure_writes_class_images(prepared: Path, tmp_path: Path, outputs: int | None) -> None:
    """With and without another training that judges them; twice the same. Also of a model with more outputs than classes."""
    preset = TINY.model_copy(update={"num_classes": outputs})
    weights, judge = (
        saved(tmp_path / "w.safetensors", 1, preset),
        saved(tmp_path / "judge.safetensors", 2, preset),
    )
    meta = read_meta(prepared)
    options = schedule(steps=5, lr=0.3, jitter_after=2)

    def run(name: str, judge: Path | None, seed: int = 0) -> Outcome:
        config = ClassImagesConfig(
            title="test",
            dataset="bars",
            model_name="pico",
            model=preset,
            variant=Variant(route="sequential"),
            device="cpu",
            data_sha256=meta["sha256"],
            weights_sha256=sha256(weights),
            options=options,
            judge_sha256=judge and sha256(judge),
            seed=seed,
        )
        (tmp_path / name).mkdir()
        events: list[dict] = []
        class_images.measure(config, prepared, weights, judge, tmp_path / name, events.append)
        return Outcome(tmp_path / name, [event["text"] for event in events])

    judged, alone = run("judged", judge), run("alone", None)
    own = normaliser(meta["mean"], meta["std"], torch.device("cpu"))
    model, other = (
        build(preset, 10, weights=file).eval().requires_grad_(False) for file in (weights, judge)
    )
    expected = maximise(model, own, (1, 28, 28), 10, options, 0)
    for outcome in (judged, alone):
        assert list(outcome.rows.columns) == [
            "class",
            "probability",
            "judge_probability",
            "judge_sees",
        ]
        assert outcome.rows["class"].astype(str).tolist() == [str(name) for name in meta["classes"]]
        assert outcome.texts == ["10 class images"]
        assert outcome.arrays.keys() == {"images", "classes"}
        assert outcome.arrays["classes"].tolist() == meta["classes"]
        assert outcome.arrays["images"].shape == (10, 1, 28, 28)
        assert np.allclose(outcome.arrays["images"], expected, atol=2e-3)
        shares = model(own(expected))[:, :10].softmax(1).diagonal()
        assert outcome.rows["probability"].tolist() == pytest.approx(shares.tolist(), rel=1e-3)
    answers = other(own(expected))[:, :10].softmax(1)
    assert judged.rows["judge_probability"].tolist() == pytest.approx(
        answers.diagonal().tolist(), rel=1e-3
    )
    assert judged.rows["judge_sees"].astype(str).tolist() == [
        str(meta["classes"][i]) for i in answers.argmax(1).tolist()
    ]
    assert alone.rows[["judge_probability", "judge_sees"]].isna().all(axis=None)
    assert run("again", judge) == judged
    assert run("other", judge, seed=1) != judged
