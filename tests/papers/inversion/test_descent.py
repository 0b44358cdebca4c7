"""Inputs found for a state and for a class: formulas and descents by hand, what the jobs write."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from lsvit.routed import RoutedModel
from lsvit.routes import ORDERS, Order
from lsvit.weights import save_weights
from papers.inversion.compute import class_images
from papers.inversion.compute import descent as inversion
from papers.inversion.compute.ablation import ablate, transplant
from papers.inversion.compute.class_images import maximise, rate
from papers.inversion.compute.descent import (
    Normaliser,
    choose_images,
    correlation,
    distance,
    invert,
    make_points,
    noise,
    pad_routes,
    read_states,
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
from pipeline.data.shards import Maps
from pipeline.jobs.files import ARRAYS, ROWS, read_meta, sha256
from pipeline.models.weights import build
from tests.conftest import cases_of, run_fields
from tests.models import small

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = cases_of(__file__)
SHAPE = (3, 16, 24)  # of the images that `small` models take
ROUTES = [(), (2, 0), (3, 2, 1, 0), (), (1, 1), (0,)]
normalise = Normaliser((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), torch.device("cpu"))


def pixels(n: int = 6, seed: int = 1) -> Tensor:
    """Images (n, 3, 16, 24) in [0, 1]."""
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


def table(routes: Sequence[Sequence[Any]], length: int = 4) -> Tensor:
    """Routes padded with -1."""
    return torch.tensor([[*route, *[-1] * (length - len(route))] for route in routes])


@pytest.fixture
def model() -> RoutedModel:
    return RoutedModel(small()).eval().requires_grad_(False)


def blurred(image: Tensor, sigma: float) -> Tensor:
    """Weighted means of 3 x 3 pixels, mirrored at the rim: (B, C, H, W) -> (B, C, H, W)."""
    side = math.exp(-0.5 / sigma**2)
    weights = torch.tensor([side, 1, side]) / (1 + 2 * side)
    channels = image.shape[1]
    kernel = torch.outer(weights, weights).expand(channels, 1, 3, 3)
    return conv2d(pad(image, (1, 1, 1, 1), mode="reflect"), kernel, groups=channels)


# ---- states and distances ------------------------------------------------------------------------


@pytest.mark.parametrize("routes", [ROUTES, [()] * 6, [(2, 0, 1), *[(1,)] * 5]], ids=str)
@torch.no_grad()
def test_states_at_the_end_of_routes(model: RoutedModel, routes: list[tuple[int, ...]]) -> None:
    """They are those of every image by itself."""
    batch = pixels()
    expected = torch.cat([model.tokens(batch[i : i + 1], routes[i]) for i in range(6)])
    assert torch.allclose(read_states(model, batch, table(routes)), expected, atol=1e-5)


def test_a_descent_that_has_arrived_stays() -> None:
    b = torch.full((1, 2, 2), 2.0, requires_grad=True)
    (gradient,) = torch.autograd.grad(distance(torch.full((1, 2, 2), 2.0), b).sum(), b)
    assert not gradient.any()


def test_correlation() -> None:
    """Constant images correlate with none, not even with another constant one."""
    a, b = pixels(3, 1), pixels(3, 2)
    expected = [np.corrcoef(a[i].flatten(), b[i].flatten())[0, 1] for i in range(3)]
    assert correlation(a, b).tolist() == pytest.approx(expected, abs=1e-5)
    constant = torch.full_like(a, 0.1)
    for other in (a, constant, constant + 0.1):
        assert not correlation(constant, other).any()
        assert not correlation(other, constant).any()


def test_normaliser() -> None:
    image = torch.tensor([0.6, 0.2, 0.6]).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    normalised = normalise(image)
    assert normalised[0, :, 1, 0].tolist() == pytest.approx([1, -1, 0], abs=1e-6)
    assert torch.allclose(normalise.undo(normalised), image)


def test_noise() -> None:
    shape = (4, 1, 100, 100)
    start = noise(shape, 3)
    assert start.mean().item() == pytest.approx(0.7, abs=1e-3)
    assert start.std().item() == pytest.approx(0.05, abs=1e-3)
    assert torch.equal(noise(shape, 3), start)
    assert not torch.equal(noise(shape, 4), start)


@torch.no_grad()
def test_yardsticks_are_means_over_the_draws(model: RoutedModel) -> None:
    images = pixels()
    routes = table(ROUTES)
    found = yardstick(model, normalise, images, routes, 0.07, 4, torch.Generator().manual_seed(5))
    draws = torch.Generator().manual_seed(5)
    embedding = read_states(model, normalise(images), routes)
    tokens = model.embed(normalise(images))
    apart = []
    for _ in range(4):
        moved = images + 0.07 * torch.randn(images.shape, generator=draws)
        states = read_states(model, normalise(moved), routes)
        gaps = [distance(embedding, states), distance(tokens, model.embed(normalise(moved)))]
        apart.append(torch.stack([*gaps, distance(images, moved)]))
    assert torch.allclose(torch.stack(found), torch.stack(apart).mean(0), rtol=1e-4)


# ---- descents ------------------------------------------------------------------------------------


def descent(**changes: Any) -> Descent:
    return Descent(**{"method": "gd", "lrs": [0.2], "steps": 6} | changes)


def by_hand(
    model: RoutedModel, a: Tensor, route: Sequence[int], x: Tensor, how: Descent
) -> list[tuple[Tensor, float, float]]:
    """The input, and both distances, after every step of a descent for one image (1, C, H, W)."""
    target = model.tokens(normalise(a), route)
    x = x.clone().requires_grad_()
    method = torch.optim.Adam if how.method == "adam" else torch.optim.SGD
    optimizer: torch.optim.Optimizer = method([x], how.lrs[0])
    states = []
    for step in range(how.steps + 1):
        gap = (model.tokens(normalise(x), route) - target).norm()
        states.append((x.detach().clone(), gap.item(), (x - a).norm().item()))
        if how.schedule == "cosine":
            share = (1 + math.cos(math.pi * step / how.steps)) / 2
            optimizer.param_groups[0]["lr"] = share * how.lrs[0]
        optimizer.zero_grad()
        gap.backward()
        optimizer.step()
        if how.blur:
            x.data = blurred(x.data, how.blur)
    return states


@pytest.mark.parametrize("changes", CASES["descents"], ids=str)
def test_descents_by_hand(model: RoutedModel, changes: dict[str, Any]) -> None:
    """Every image is found on its own; the curves hold the distances of recorded steps."""
    images = pixels()
    how = descent(**changes)
    start = noise(tuple(images.shape), 0)
    found = invert(model, normalise, images, table(ROUTES), start, how, 4)
    recorded = [0, 2, 3, 4, 6] if how.steps == 6 else [0, 1]
    for i, route in enumerate(ROUTES):
        steps = by_hand(model, images[[i]], route, start[[i]], how)
        assert torch.allclose(found.images[i], steps[-1][0][0], atol=2e-4)
        gaps = [steps[step][1] for step in recorded]
        assert found.embedding[i].tolist() == pytest.approx(gaps, rel=2e-3)
        offs = [steps[step][2] for step in recorded]
        assert found.pixels[i].tolist() == pytest.approx(offs, rel=1e-3)
    assert found.lr.tolist() == pytest.approx(how.lrs * 6)


def test_the_best_of_several_rates_is_kept(model: RoutedModel) -> None:
    """Every image and point has its own; one that diverges is never kept, wherever it stands."""
    images = pixels()
    away = torch.tensor([0.001, 1, 0.001, 1, 0.05, 0.05]).view(-1, 1, 1, 1)
    start = images + away * (noise(tuple(images.shape), 0) - images)
    rates = [1e30, 0.001, 0.02, 0.3, 1e25]
    problem = (model, normalise, images, table(ROUTES), start)
    found = invert(*problem, descent(lrs=rates), 2)
    alone = [invert(*problem, descent(lrs=[lr]), 2) for lr in rates]
    final = torch.stack([outcome.embedding[:, -1] for outcome in alone])
    best = final.nan_to_num(torch.inf).argmin(0).tolist()
    assert len(set(best)) > 1  # else it may be one for all
    assert found.lr.tolist() == pytest.approx([rates[which] for which in best])
    for i, which in enumerate(best):
        kept = alone[which]
        assert torch.allclose(found.images[i], kept.images[i], atol=1e-4)
        assert torch.allclose(found.embedding[i], kept.embedding[i], atol=1e-4)
        assert torch.allclose(found.pixels[i], kept.pixels[i], atol=1e-4)


@pytest.mark.parametrize(("embedding", "input", "met", "expected"), CASES["verdicts"])
def test_verdicts(embedding: float, input: float, met: float, expected: str) -> None:
    assert verdict(embedding, input, met) == expected


# ---- points --------------------------------------------------------------------------------------


def points_of(num_layers: int, depths: list[int] | None, drawn: int, **keys: Any) -> Any:
    """The points of a model for three images; `drawn` is the seed of the section."""
    options = OPTIONS.model_copy(update={"depths": depths, "images": 3, "seed": drawn})
    fields: dict[str, Any] = {"options": options, "alone": False} | keys
    config = InversionConfig.model_construct(None, **fields)
    return make_points(num_layers, config)


@pytest.mark.parametrize("order", ORDERS)
def test_points(order: Order) -> None:
    """Every image runs the first layers of one order at all depths; layers alone are none's.

    Arbitrary orders depend on both seeds.
    """
    points = points_of(6, [4, 2, 4, 6, 7], 5, alone=True, order=order, seed=1)
    depths = [[name, len(routes[0])] for name, routes in points.items()]
    assert depths == CASES["points"]
    first, alone = list(points.values())[:4], list(points.values())[4:]
    orders = first[3]
    assert all(sorted(route) == list(range(6)) for route in orders)
    assert len(set(orders)) == (1 if order == "sequential" else 3)
    for (_, depth), routes in zip(depths[:4], first, strict=True):
        assert routes == [route[:depth] for route in orders]
    for routes, layer in zip(alone, (1, 3, 5), strict=True):
        assert routes == [(layer,)] * 3
    assert list(points_of(6, [2, 4, 6], 5, order=order, seed=1).values()) == first
    for own, other in ((6, 1), (5, 2), (1, 5)):
        others = list(points_of(6, [2, 4, 6], own, order=order, seed=other).values())
        assert (others == first) == (order == "sequential")
    padded = table([route for routes in points.values() for route in routes], 6)
    assert torch.equal(pad_routes(points), padded)


def test_depths_where_none_are_asked_for() -> None:
    points = points_of(12, None, 0, order="sequential", seed=0)
    assert [len(routes[0]) for routes in points.values()] == [0, 1, 4, 8, 12]


@pytest.mark.parametrize(("labels", "count", "seed", "places"), CASES["chosen images"])
def test_images_of_different_classes(
    labels: list[int], count: int, seed: int, places: list[int]
) -> None:
    """Each seed goes on where the one before ends: another class, then another image of it."""
    assert choose_images(np.array(labels), count, seed).tolist() == places


# ---- the job of an inversion ---------------------------------------------------------------------

TINY, MIXER = (ModelPreset(**CASES[name]) for name in ("vit", "mixer"))
OPTIONS = InversionMeasure.model_validate(CASES["options"])


class Outcome:
    """What a job writes.

    Args:
        folder: a new one for it.
        measure: the job, called with its configuration and files.
    """

    def __init__(self, folder: Path, measure: Callable[..., None], *arguments: Any) -> None:
        folder.mkdir()
        torch.rand(3)  # a generator in another state must not matter
        measure(*arguments, folder, lambda event: None)
        self.text = (folder / ROWS).read_text()
        self.rows = pd.read_csv(folder / ROWS)
        six_digits = self.rows.to_csv(index=False, float_format="%.6g", lineterminator="\n")
        assert self.text == six_digits
        with np.load(folder / ARRAYS) as file:
            self.arrays = dict(file)

    def same(self, other: "Outcome") -> bool:
        arrays = all(np.array_equal(self.arrays[name], other.arrays[name]) for name in self.arrays)
        return self.text == other.text and arrays


@pytest.fixture
def inverted(prepared: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """Runs an inversion of a tiny model with other options and other keys of its configuration."""

    def run(
        weights: Path | None = None,
        donor: Path | None = None,
        preset: ModelPreset = TINY,
        options: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Outcome:
        keys: dict[str, Any] = {
            "options": OPTIONS.model_copy(update=options or {}),
            "descent": descent(method="adam", lrs=[0.01, 0.1], steps=4, schedule="cosine"),
            "alone": False,
            "order": "sequential",
            "ablation": [],
            "transplant": [],
            "seed": 0,
        }
        config = InversionConfig(**run_fields(prepared, preset), **keys | changes)
        folder = tmp_path / f"run_{len(list(tmp_path.iterdir()))}"
        return Outcome(folder, inversion.measure, config, prepared, weights, donor)

    return run


def saved(path: Path, seed: int, preset: ModelPreset = TINY) -> Path:
    torch.manual_seed(seed)
    model = build(preset, 10)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    save_weights(model, path)
    return path


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return saved(tmp_path / "weights.safetensors", 1)


def own_normaliser(data: Path) -> Normaliser:
    meta = read_meta(data)
    return Normaliser(tuple(meta["mean"]), tuple(meta["std"]), torch.device("cpu"))


@torch.no_grad()
def check(outcome: Outcome, model: RoutedModel, data: Path, routes: Sequence[Any]) -> None:
    """The rows hold the yardsticks and the distances of the found images under this model.

    Args:
        outcome: of a job with OPTIONS.
        model: as the job should have run it.
        data: prepared.
        routes: one a point and image.
    """
    rows, arrays = outcome.rows, outcome.arrays
    normalise = own_normaliser(data)
    found = torch.from_numpy(arrays["found"]).float().flatten(0, 1)
    points = len(found) // 2
    originals = torch.from_numpy(arrays["originals"]).repeat(points, 1, 1, 1)
    draws = torch.Generator().manual_seed(OPTIONS.seed)
    padded = table(routes, model.eval().num_layers)
    gauge = yardstick(model, normalise, originals, padded, OPTIONS.sigma, OPTIONS.shifts, draws)
    images = [normalise(found), normalise(originals)]
    expected = {
        "yardstick": gauge.embedding,
        "token_yardstick": gauge.tokens,
        "input_yardstick": gauge.pixels,
        "embedding_distance": distance(*(read_states(model, x, padded) for x in images)),
        "token_distance": distance(*map(model.embed, images)),
        "input_distance": distance(found, originals),
        "pixel_correlation": correlation(found, originals),
    }
    for column, values in expected.items():  # found images are kept in half precision
        assert rows[column].tolist() == pytest.approx(values.tolist(), rel=0.01, abs=2e-3), column
    embedding = rows["embedding_distance"] / rows["yardstick"]
    pixels = rows["input_distance"] / rows["input_yardstick"]
    assert arrays["embedding"][..., -1].flatten() == pytest.approx(embedding.to_numpy(), rel=1e-4)
    assert arrays["input"][..., -1].flatten() == pytest.approx(pixels.to_numpy(), rel=1e-4)
    verdicts = [verdict(*ratios, OPTIONS.met) for ratios in zip(embedding, pixels, strict=True)]
    assert rows["verdict"].tolist() == verdicts
    start = noise(tuple(originals[:2].shape), OPTIONS.seed).repeat(points, 1, 1, 1)
    first = (distance(start, originals) / gauge.pixels).tolist()
    assert arrays["input"][..., 0].flatten().tolist() == pytest.approx(first, rel=1e-4)


def twice(*values: Any) -> list[Any]:
    """What two images have at each point."""
    return [value for value in values for _ in range(2)]


def test_measure(inverted: Callable[..., Outcome], prepared: Path, weights: Path) -> None:
    """A row a point and image, the same again; the seed chooses images, all else is drawn alike."""
    outcome = inverted(weights, alone=True)
    rows, arrays = outcome.rows, outcome.arrays
    names = ["patch_embed", "first 1", "first 2", "first 3", "layer 0", "layer 1", "layer 2"]
    assert arrays["points"].tolist() == names
    assert arrays["steps"].tolist() == [0, 1, 3, 4]
    for column, values in {
        "point": twice(*names),
        "depth": twice(0, 1, 2, 3, 1, 1, 1),
        "image": [0, 1] * 7,
        "num_layers": [3] * 14,
    }.items():
        assert rows[column].tolist() == values
    maps = Maps([prepared / "validation.arrow"])
    images = maps[choose_images(maps.labels, 2, 0)][0]
    assert np.allclose(arrays["originals"][:, 0] * 255, images, atol=1e-3)
    model = build(TINY, 10, weights=weights)
    filters = model.backbone.patch_embed.proj.weight.detach().numpy()
    assert np.array_equal(arrays["filters"], filters)
    check(outcome, model, prepared, twice((), (0,), (0, 1), (0, 1, 2), (0,), (1,), (2,)))
    assert inverted(weights, alone=True).same(outcome)
    others = inverted(weights, seed=3)
    assert not np.array_equal(others.arrays["originals"], arrays["originals"])
    check(others, model, prepared, twice((), (0,), (0, 1), (0, 1, 2)))
    assert not inverted(weights, alone=True, options={"seed": 8}).same(outcome)


@pytest.mark.parametrize(("width", "expected"), [(192, False), (196, True)])
def test_wide_patch_embeddings(
    inverted: Callable[..., Outcome], width: int, expected: bool
) -> None:
    """As many numbers a patch as it has values, 14 x 14, are enough."""
    kwargs = TINY.kwargs | {"embed_dim": width, "depth": 1}
    options = {"depths": [1], "images": 1}
    preset = TINY.model_copy(update={"kwargs": kwargs})
    assert inverted(preset=preset, options=options).rows["overcomplete"].eq(expected).all()


def test_filters_with_a_pattern(inverted: Callable[..., Outcome], tmp_path: Path) -> None:
    """Four of sixteen filters are gradients, the others noise."""
    model = build(TINY, 10)
    with torch.no_grad():
        model.backbone.patch_embed.proj.weight[:4] = torch.linspace(-1, 1, 14)
    save_weights(model, tmp_path / "weights.safetensors")
    outcome = inverted(tmp_path / "weights.safetensors", options={"depths": [1], "images": 1})
    assert outcome.rows["patterned"].eq(0.25).all()


def test_measure_of_untrained_models(inverted: Callable[..., Outcome], prepared: Path) -> None:
    """They are initialised from the seed, of which arbitrary orders depend too."""
    outcome = inverted(seed=4, order="arbitrary")
    torch.manual_seed(4)
    model = build(TINY, 10)
    fields: dict[str, Any] = {"options": OPTIONS, "alone": False, "order": "arbitrary", "seed": 4}
    points = make_points(3, InversionConfig.model_construct(None, **fields))
    check(outcome, model, prepared, [route for routes in points.values() for route in routes])
    assert not inverted(seed=5, order="arbitrary").same(outcome)


@pytest.mark.parametrize("preset", [TINY, MIXER], ids=["vit", "mixer"])
def test_measure_of_edited_models(
    inverted: Callable[..., Outcome], prepared: Path, tmp_path: Path, preset: ModelPreset
) -> None:
    """Parts are taken out of the trained model, or put into the untrained one."""
    file = saved(tmp_path / "w.safetensors", 1, preset)
    routes = twice((), (0, 1))
    options = {"depths": [2]}
    trained = build(preset, 10, weights=file)
    filters = trained.backbone.get_parameter(
        "stem.proj.weight" if preset is MIXER else "patch_embed.proj.weight"
    ).detach()
    removed = ["residuals", "mlp"]
    outcome = inverted(file, preset=preset, ablation=removed, options=options)
    torch.manual_seed(6)
    mixed = build(preset, 10)
    parts = ["patch_embed", "norm1"]
    transplant(mixed.backbone, trained.backbone, parts)
    ablate(trained.backbone, removed)
    check(outcome, trained, prepared, routes)
    outcome = inverted(None, file, preset, options, transplant=parts, seed=6)
    check(outcome, mixed, prepared, routes)
    assert np.array_equal(outcome.arrays["filters"], filters.numpy())


# ---- class images --------------------------------------------------------------------------------

SCHEDULE = ClassImages.model_validate(CASES["schedule"])


def maximised(model: RoutedModel, classes: int, options: ClassImages, seed: int) -> Tensor:
    """Class images as documented, a class at a time."""
    jitter, (_, height, width) = options.jitter, SHAPE
    canvases = noise((classes, 3, height + jitter, width + jitter), seed)
    crops = torch.Generator().manual_seed(seed)
    for step in range(options.steps):
        top, left = torch.randint(jitter + 1, (2,), generator=crops).tolist()
        if step < options.jitter_after:
            top = left = jitter // 2
        sigma = options.blur * (1 - step / options.steps)
        for i in range(classes):
            window = canvases[i : i + 1, :, top : top + height, left : left + width]
            seen = window.clone().requires_grad_()
            output = model.backbone(normalise(seen))[0, i]
            (gradient,) = torch.autograd.grad((options.target - output).abs(), seen)
            moved = seen.detach() - options.lr * gradient
            window.copy_(blurred(moved, sigma) if sigma else moved)
    rim = jitter // 2
    return canvases[:, :, rim : rim + height, rim : rim + width]


@pytest.mark.parametrize("changes", CASES["class images"], ids=str)
def test_class_images_by_hand(model: RoutedModel, changes: dict[str, Any]) -> None:
    options = SCHEDULE.model_copy(update=changes)
    found = maximise(model, normalise, SHAPE, 5, options, 2)
    assert torch.allclose(found, maximised(model, 5, options, 2), atol=2e-4)
    assert (found - noise((5, *SHAPE), 2)).abs().amax() > 0.01


def test_what_a_model_takes_images_for() -> None:
    """Shares are among the first outputs, which are the classes."""
    outputs = torch.tensor([[2.0, 0.0, 1.0, 9.0], [0.0, 1.0, 3.0, 9.0], [1.0, 1.0, 1.0, 9.0]])

    def model(images: Tensor) -> Tensor:
        return outputs + images

    def normalise(images: Tensor) -> Tensor:
        return images - 1

    images: Any = torch.ones(3, 4)
    probability, seen = rate(model, normalise, images)  # type: ignore[arg-type]
    exponentials = outputs[:, :3].exp()
    shares = exponentials / exponentials.sum(1, keepdim=True)
    assert probability.tolist() == pytest.approx(shares.diagonal().tolist())
    assert seen.tolist() == [0, 2, 0]


def test_measure_of_class_images(prepared: Path, tmp_path: Path) -> None:
    """With and without another training that judges them; 2 of 12 outputs are no classes."""
    preset = TINY.model_copy(update={"num_classes": 12})
    weights = saved(tmp_path / "w.safetensors", 1, preset)
    judge = saved(tmp_path / "judge.safetensors", 2, preset)
    options = SCHEDULE.model_copy(update={"lr": 0.3, "jitter_after": 2})

    def run(name: str, judge: Path | None, seed: int = 0) -> Outcome:
        digest = judge and sha256(judge)
        fields = run_fields(prepared, preset, options=options, judge_sha256=digest, seed=seed)
        config = ClassImagesConfig(**fields)
        return Outcome(tmp_path / name, class_images.measure, config, prepared, weights, judge)

    judged, alone = run("judged", judge), run("alone", None)
    own = own_normaliser(prepared)
    classes = read_meta(prepared)["classes"]
    model, other = (
        build(preset, 10, weights=file).eval().requires_grad_(False) for file in (weights, judge)
    )
    expected = maximise(model, own, (1, 28, 28), 10, options, 0)
    probability, _ = rate(model, own, expected)
    for outcome in (judged, alone):
        assert list(outcome.rows) == ["class", "probability", "judge_probability", "judge_sees"]
        assert outcome.arrays["classes"].tolist() == outcome.rows["class"].tolist() == classes
        assert np.allclose(outcome.arrays["images"], expected, atol=2e-3)
        assert np.allclose(outcome.rows["probability"], probability, rtol=1e-3)
    probability, seen = rate(other, own, expected)
    assert np.allclose(judged.rows["judge_probability"], probability, rtol=1e-3)
    assert judged.rows["judge_sees"].tolist() == [classes[i] for i in seen.tolist()]
    assert alone.rows[["judge_probability", "judge_sees"]].isna().all(axis=None)
    assert run("again", judge).same(judged)
    assert not run("other", judge, seed=1).same(judged)
