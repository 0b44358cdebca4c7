"""Measures of over-smoothing: profiles of models along any route."""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer, ResBlock
from torch import Tensor

from lsvit.position import Encode, Position, Predict
from lsvit.routed import RoutedModel
from lsvit.routes import arbitrary, drop, generator, per_sample
from lsvit.weights import save_weights
from papers import Variant
from papers.smoothing.compute.measures import Smoothness, attention_scores, measure, profile
from papers.smoothing.losses import patch_cosine
from papers.smoothing.section import PROFILE, ProfileConfig, SmoothingProfiles
from pipeline.config.presets import ModelPreset
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import read_meta
from pipeline.models.weights import build
from pipeline.training.devices import Execution
from pipeline.training.loop import seed_libraries as seed
from pipeline.training.scoring import open_model, open_split
from tests.models import images, small
from tests.papers.smoothing.by_hand import (
    LOSSES,
    RECIPE,
    alone,
    cosine_by_pairs,
    noisy,
    random,
    table,
    talking,
)

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


# ---- measures ------------------------------------------------------------------------------------

MODELS: dict[str, Callable[[], Any]] = {
    "vit": small,
    "distilled": lambda: small(VisionTransformerDistilled),
    "qk norm": lambda: small(qk_norm=True),
    "no class token": lambda: small(global_pool="avg", class_token=False),
    "talking heads": talking,
    "mixer": lambda: small(MlpMixer),
    "resmlp": lambda: small(MlpMixer, block_layer=ResBlock, mlp_ratio=4),
}
ROUTES: dict[str, Any] = {
    "sequential": None,
    "repeated layers": (2, 0, 0, 3, 2),
    "a route a sample": table(arbitrary, 7),
    "of different lengths": table(drop(0.5), 7),
}


def taken(model: RoutedModel, route: Any, batch_size: int = 7) -> dict[str, list[float | None]]:
    """The profile over 7 images."""
    with Smoothness(model) as found, torch.no_grad():
        for part in torch.arange(7).split(batch_size):
            model(images(7)[part], route[part] if isinstance(route, Tensor) else route, [found])
    return found.profile()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_measuring_leaves_the_forward_pass_as_it_is(kind: str, route: str) -> None:
    model = RoutedModel(MODELS[kind]())
    expected = model(images(7), ROUTES[route])
    with Smoothness(model) as found:
        assert torch.equal(model(images(7), ROUTES[route], [found]), expected)
    assert torch.equal(model(images(7), ROUTES[route]), expected)
    assert not any(module._forward_pre_hooks for module in model.modules())


def by_hand(backbone: Any, image: Tensor, route: Any) -> tuple[list[float], list[float]]:
    """Cosines by depth and deviations by layer of one image, from timm's own unfused attention."""
    backbone, scores, deviations = deepcopy(backbone), [], []
    prefix = getattr(backbone, "num_prefix_tokens", 0)
    for module in backbone.modules():
        if isinstance(module, Attention):
            module.fused_attn = False  # type: ignore[misc]
            module.attn_drop.register_forward_pre_hook(lambda _, args: scores.append(args[0][0]))
        elif isinstance(
            module, TalkingHeadAttn
        ):  # what follows the softmax mixes the heads, which are its last dimension
            module.proj_w.register_forward_pre_hook(
                lambda _, args: scores.append(args[0][0].permute(2, 0, 1))
            )
    state = RoutedModel(backbone).embed(image)
    cosines = [float(cosine_by_pairs(state[0, prefix:]))]
    for layer in route:
        state = backbone.blocks[layer](state)
        cosines.append(float(cosine_by_pairs(state[0, prefix:])))
    for score in scores:
        rows = [row[prefix:] for head in score for row in head[prefix:]]
        deviations.append(
            sum(math.sqrt(float(((row - row.mean()) ** 2).sum()) / len(row)) for row in rows)
            / len(rows)
        )
    return cosines, deviations


def mean_by_depth(lists: list[list[float]]) -> list[float]:
    """Over the images that reach a depth."""
    longest = max(map(len, lists))
    return [
        sum(each[d] for each in lists if len(each) > d) / sum(len(each) > d for each in lists)
        for d in range(longest)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_profiles_are_means_of_images_measured_alone(kind: str, route: str) -> None:
    """Every image by itself, with loops, and with the scores that timm's modules themselves
    compute; whatever the batches.
    """
    backbone, routes = MODELS[kind](), ROUTES[route]
    each = [
        by_hand(
            backbone,
            images(7)[i : i + 1],
            alone(routes[i]) if isinstance(routes, Tensor) else routes or range(4),
        )
        for i in range(7)
    ]
    cosines, deviations = (mean_by_depth([one[which] for one in each]) for which in (0, 1))
    for batch_size in (7, 3):
        found = taken(RoutedModel(backbone), routes, batch_size)
        assert found["patch_cosine"] == pytest.approx(cosines, abs=1e-5)
        if kind in ("mixer", "resmlp"):
            assert found["attention_std"] == [None] * (len(cosines) - 1)
            assert not deviations
        else:
            assert found["attention_std"] == pytest.approx(deviations, abs=1e-6)
            assert len(deviations) == len(cosines) - 1
    assert max(cosines) - min(cosines) > 0.005  # else this shows little


def test_profiles_with_position_parts() -> None:
    """What attention reads is what the position part made; depth 0 is the embedding before it."""
    model = noisy(RoutedModel(small(), Position(encode=Encode(dim=4), predict=Predict()))).eval()
    found = taken(model, (2, 1))
    with torch.no_grad():
        state = model.embed(images(7))
        expected = [float(patch_cosine(state[:, 1:]).mean())]
        for depth, layer in enumerate((2, 1)):
            encoded, block = (
                model.position["encode"](state, layer, depth),
                model.backbone.blocks[layer],
            )
            scores = attention_scores(block.attn, block.norm1(encoded))[..., 1:, 1:]
            assert found["attention_std"][depth] == pytest.approx(
                float(scores.std(-1, correction=0).mean()), abs=1e-6
            )
            state = block(encoded)
            expected.append(float(patch_cosine(state[:, 1:]).mean()))
    assert found["patch_cosine"] == pytest.approx(expected, abs=1e-6)


def test_uniform_and_sharp_attention() -> None:
    """Equal scores have no deviation; a score of 1 among n patches has sqrt(n - 1) / n."""
    backbone = small(global_pool="avg", class_token=False)
    with torch.no_grad():
        backbone.blocks[1].attn.qkv.weight.zero_()
        for parameter in (backbone.blocks[2].attn.qkv.weight, backbone.blocks[2].attn.qkv.bias):
            parameter.mul_(1e4)
    found = taken(RoutedModel(backbone), (0, 1, 2))["attention_std"]
    assert found[1] == pytest.approx(0, abs=1e-7)
    assert found[2] == pytest.approx(math.sqrt(5) / 6, abs=1e-3)
    assert found[0] is not None
    assert 0.001 < found[0] < 0.3


@pytest.mark.parametrize("kind", ["vit", "qk norm", "talking heads"])
@torch.no_grad()
def test_attention_scores_are_shares(kind: str) -> None:
    attention, tokens = MODELS[kind]().blocks[0].attn, random(3, 7, 16)
    scores = attention_scores(attention, tokens)
    assert scores.shape == (3, 2, 7, 7)
    assert torch.allclose(scores.sum(-1), torch.ones(3, 2, 7))
    assert scores.min() >= 0


def test_measuring_keeps_sums_alone() -> None:
    """After more images it holds as many numbers as after a few, each a sum; a failing pass leaves
    no hook behind.
    """
    model = RoutedModel(small())
    kept: list[int] = []
    with torch.no_grad(), Smoothness(model) as found:
        for n in (2, 30):
            model(images(n), None, [found])
            model(images(n), table(arbitrary, n), [found])
            sums = [*found.cosine.values(), *found.attention.values()]
            assert [total.numel() for total, _ in sums] == [1] * 9
            assert [count for _, count in sums] == [2 * n + sum(kept)] * 9
            assert not found._deviations
            kept.append(2 * n)
    with pytest.raises(IndexError), Smoothness(model) as found:
        model(images(2), (7,), [found])
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_checks_in_low_precision() -> None:
    """Under bf16 the sums are still of single precision and near the ones of fp32."""
    model = RoutedModel(small())
    exact = taken(model, None)
    with Execution(torch.device("cpu"), "bf16").context():
        rough = taken(model, None)
    assert rough["patch_cosine"] == pytest.approx(exact["patch_cosine"], abs=0.02)
    assert rough["attention_std"] == pytest.approx(exact["attention_std"], abs=0.02)


@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
def test_profile_of_a_split(train_config: Config, prepared: Path, order: Any) -> None:
    """The images of a subset that is always the same, in arbitrary order each along a route of its
    own, whatever the batches.
    """
    torch.manual_seed(0)
    model, execution = open_model(config := train_config(), prepared, None)
    split = open_split(config, prepared, "train", model)
    routes = per_sample(arbitrary, generator("profiles", 5), 4, 9)
    with torch.no_grad():
        each = [
            by_hand(
                model.backbone,
                split.take(torch.tensor([place]))[0],
                range(4) if order == "sequential" else route.tolist(),
            )
            for place, route in zip(split.subset(9).tolist(), routes, strict=True)
        ]
    for batch_size in (9, 4):
        found = profile(model, split, 9, batch_size, order, 5, execution)
        assert found["patch_cosine"] == pytest.approx(
            mean_by_depth([one for one, _ in each]), abs=1e-5
        )
        assert found["attention_std"] == pytest.approx(
            mean_by_depth([one for _, one in each]), abs=1e-6
        )
    others = profile(model, split, 9, 4, order, 6, execution)
    assert (others == found) == (order == "sequential")


def test_measure_writes_a_profile(pico: ModelPreset, prepared: Path, tmp_path: Path) -> None:
    """Without weights, of an initialisation that depends on the seed alone; with weights, of these."""

    def measured(
        name: str, value: int, weights: Path | None = None, variant: Variant | None = None
    ) -> dict[str, list[float]]:
        config = ProfileConfig(
            title="test",
            dataset="bars",
            model_name="pico",
            model=pico,
            variant=variant or Variant(route="arbitrary"),
            device="cpu",
            data_sha256=read_meta(prepared)["sha256"],
            weights_sha256=None,
            precision="fp32",
            order="sequential",
            seed=value,
            options=SmoothingProfiles(images=20, batch_size=8, seed=0),
        )
        (tmp_path / name).mkdir()
        events: list[dict] = []
        measure(config, prepared, weights, tmp_path / name, events.append)
        assert events[-1]["text"].startswith("runs on ")
        return json.loads((tmp_path / name / PROFILE).read_text())

    first = measured("first", 0)
    assert (len(first["patch_cosine"]), len(first["attention_std"])) == (5, 4)
    assert all(-1 <= value <= 1 for value in first["patch_cosine"])
    assert all(0 < value < 0.5 for value in first["attention_std"])
    seed(99)
    assert measured("again", 0) == first
    assert (
        measured("losses", 0, variant=Variant(route="arbitrary", losses=LOSSES, recipe=RECIPE))
        == first
    )
    assert measured("other", 1) != first
    save_weights(build(pico, 10), tmp_path / "w.safetensors")
    assert (
        measured("a", 0, tmp_path / "w.safetensors")
        == measured("b", 1, tmp_path / "w.safetensors")
        != first
    )
