"""Measures of over-smoothing: profiles of models along any route."""

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from timm.models.mlp_mixer import MlpMixer, ResBlock
from torch import Tensor

from lsvit.position import Encode, Position
from lsvit.routed import RoutedModel
from lsvit.routes import arbitrary, drop, generator, per_sample
from lsvit.weights import save_weights
from papers import Variant
from papers.smoothing.compute.measures import Smoothness, measure
from papers.smoothing.section import PROFILE, ProfileConfig, SmoothingProfiles
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build
from pipeline.training.scoring import open_model, open_split
from tests.models import images, small
from tests.papers.smoothing.by_hand import (
    FAMILIES,
    LOSSES,
    RECIPE,
    alone,
    cosine_by_pairs,
    table,
    talking,
)

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")

MODELS: dict[str, Callable[[], Any]] = FAMILIES | {
    "qk norm": lambda: small(qk_norm=True),
    "no class token": lambda: small(global_pool="avg", class_token=False),
    "talking heads": talking,
    "resmlp": lambda: small(MlpMixer, block_layer=ResBlock, mlp_ratio=4),
}
KINDS = [*MODELS, "position"]
TWENTY = SmoothingProfiles(images=20, batch_size=8, seed=0)
ROUTES: dict[str, Any] = {
    "repeated layers": (2, 0, 0, 3),
    "of different lengths": table(drop(0.5), 7),
}


def opened(kind: str) -> RoutedModel:
    """One of these models, or one that knows positions."""
    if kind == "position":
        return RoutedModel(small(), Position(encode=Encode(dim=4))).eval()
    return RoutedModel(MODELS[kind]())


def take_profile(model: RoutedModel, route: Any, batch_size: int) -> dict[str, list[Any]]:
    """The profile over 7 images, whose forward pass stays as it is."""
    with Smoothness(model) as smoothness:
        for some in torch.arange(7).split(batch_size):
            routes = route[some] if isinstance(route, Tensor) else route
            answers = model(images(7)[some], routes, [smoothness])
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(answers, model(images(7)[some], routes))
    return smoothness.profile()


def by_hand(model: RoutedModel, image: Tensor, route: Any) -> tuple[list[float], list[float]]:
    """Cosines by depth and deviations by layer of one image, from timm's own unfused attention."""
    model = deepcopy(model)
    scores: list[Tensor] = []  # each (heads, N, N)
    prefix = model.num_prefix_tokens
    for module in model.modules():
        if isinstance(module, Attention):
            module.fused_attn = False  # type: ignore[misc]
            module.attn_drop.register_forward_pre_hook(lambda _, args: scores.append(args[0][0]))
        elif isinstance(module, TalkingHeadAttn):  # its second mix has the heads last
            module.proj_w.register_forward_pre_hook(
                lambda _, args: scores.append(args[0][0].permute(2, 0, 1))
            )
    state = model.embed(image)
    cosines = [float(cosine_by_pairs(state[0, prefix:]))]
    for depth, layer in enumerate(route):
        state = model.run_step(state, layer, depth)
        cosines.append(float(cosine_by_pairs(state[0, prefix:])))
    deviations = []
    for score in scores:
        patches = score[:, prefix:, prefix:]
        deviations.append(float(patches.std(-1, correction=0).mean()))
    return cosines, deviations


def mean_by_depth(lists: Iterable[list[float]]) -> list[Any]:
    """Over the images that reach a depth."""
    by_depth = zip_longest(*lists, fillvalue=np.nan)
    return [np.nanmean(values) for values in by_depth]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_profiles_are_means_of_images_measured_alone(kind: str, route: str) -> None:
    """With the scores that timm's modules themselves compute; whatever the batches."""
    model, routes = opened(kind), ROUTES[route]
    profiles = []
    for i, image in enumerate(images(7).split(1)):
        own_route = alone(routes[i]) if isinstance(routes, Tensor) else routes
        profiles.append(by_hand(model, image, own_route))
    cosines, deviations = map(mean_by_depth, zip(*profiles, strict=True))
    if kind in ("mixer", "resmlp"):
        deviations = [None] * (len(cosines) - 1)
    for batch_size in (7, 3):
        found = take_profile(model, routes, batch_size)
        assert found["patch_cosine"] == pytest.approx(cosines, abs=1e-5)
        assert found["attention_std"] == pytest.approx(deviations, abs=1e-6)
    assert max(cosines) - min(cosines) > 0.005  # else this shows little


@pytest.fixture
def measured(pico: ModelPreset, prepared: Path, tmp_path: Path) -> Callable[..., Any]:
    """Measures a model as a job does."""
    fields: dict[str, Any] = {"title": "test", "dataset": "bars", "model_name": "pico"}
    fields |= {"device": "cpu", "data_sha256": "", "precision": "fp32", "weights_sha256": None}

    def run(
        seed: int,
        weights: Path | None = None,
        model: ModelPreset = pico,
        order: str = "sequential",
        options: SmoothingProfiles = TWENTY,
        **keys: Any,
    ) -> Any:
        config = ProfileConfig.model_validate(
            fields
            | {"model": model, "seed": seed, "order": order, "options": options}
            | {"variant": Variant(route="arbitrary", **keys)}
        )
        measure(config, prepared, weights, tmp_path, lambda event: None)
        return json.loads((tmp_path / PROFILE).read_text())

    return run


@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
def test_profile_of_a_split(
    train_config: Config, prepared: Path, measured: Any, order: Any
) -> None:
    """Always the same images, in arbitrary order each along a route of its own."""
    torch.manual_seed(0)
    model, _ = open_model(config := train_config(), prepared, None)
    model.eval()
    split = open_split(config, prepared, "train", model)
    routes = per_sample(arbitrary, generator("profiles", 5), 4, 9)
    profiles = []
    with torch.no_grad():
        for place, route in zip(split.subset(9).tolist(), routes.tolist(), strict=True):
            image, _ = split.take(torch.tensor([place]))
            own_route = route if order == "arbitrary" else range(4)
            profiles.append(by_hand(model, image, own_route))
    cosines, deviations = map(mean_by_depth, zip(*profiles, strict=True))
    for batch_size in (9, 4):
        options = SmoothingProfiles(images=9, batch_size=batch_size, seed=5)
        found = measured(0, order=order, options=options)
        assert found["patch_cosine"] == pytest.approx(cosines, abs=1e-5)
        assert found["attention_std"] == pytest.approx(deviations, abs=1e-6)
    options = SmoothingProfiles(images=9, batch_size=4, seed=6)
    others = measured(0, order=order, options=options)
    assert (others == found) == (order == "sequential")


def test_measure_writes_a_profile(measured: Any, pico: ModelPreset, tmp_path: Path) -> None:
    """Without weights of an initialisation that depends on the seed alone, else of the weights."""
    first = measured(0)
    assert (len(first["patch_cosine"]), len(first["attention_std"])) == (5, 4)
    torch.manual_seed(99)
    assert measured(0, losses=LOSSES, recipe=RECIPE) == first
    assert measured(1) != first
    save_weights(build(pico, 10), tmp_path / "w.safetensors")
    of_weights = measured(0, tmp_path / "w.safetensors")
    assert measured(1, tmp_path / "w.safetensors") == of_weights != first


def test_a_profile_needs_two_patches(measured: Any, pico: ModelPreset) -> None:
    one = pico.model_copy(update={"kwargs": pico.kwargs | {"patch_size": 28}})
    with pytest.raises(UserError, match="smoothing: found a model with 1 patch, accepted: 2"):
        measured(0, model=one)
