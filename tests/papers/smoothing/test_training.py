"""Over-smoothing's losses, recipe and talking heads in training, along any route."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from timm.models.cait import TalkingHeadAttn
from torch import Tensor
from torch.nn.functional import cross_entropy

from lsvit.position import Encode, Position, Predict, position_loss
from lsvit.routed import RoutedModel
from lsvit.routes import arbitrary, drop
from lsvit.taps import PositionLogits
from lsvit.weights import load_weights, save_weights
from papers import Variant
from papers.exits.training import exit_objective
from papers.smoothing.augmentation import mix_patches
from papers.smoothing.compute.measures import attention_scores
from papers.smoothing.losses import patch_contrastive, patch_cosine
from papers.smoothing.talking_heads import use_talking_heads
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS
from pipeline.models.weights import build
from pipeline.training.loop import seed_libraries
from pipeline.training.objectives import Batch, task_loss
from tests.models import images, small, step_of, with_parts
from tests.papers.exits.test_branches import heads
from tests.papers.smoothing.by_hand import (
    FAMILIES,
    LOSSES,
    PLAIN,
    RECIPE,
    alone,
    changed,
    noisy,
    random,
    table,
    talking,
)
from tests.pipeline.training.test_loop import outcome, run

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


# ---- a training step -----------------------------------------------------------------------------

POSITION = Position(encode=Encode(dim=4), predict=Predict())
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "position parts": {"position": POSITION},
    "both": {"position": POSITION, "exits": heads("cnn_ignore")},
}


def equipped(backbone: Any = None, **parts: Any) -> Any:
    return noisy(with_parts(backbone or small(), **({"losses": LOSSES} | parts))).eval()


def mixed(n: int = 6) -> Batch:
    """A batch with mixed patches of the grid of 2 x 3."""
    seed_libraries("test", 1)
    batch = mix_patches(images(n), torch.arange(n), 7, (2, 3), 1.0)
    # Else this shows nothing.
    assert (batch.extras["patch_labels"] != torch.arange(n)[:, None]).any()
    return batch


def gradients_of(model: RoutedModel) -> dict[str, Tensor]:
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return gradients


@pytest.mark.slow
@pytest.mark.parametrize("route", [(2, 0, 3, 1), (1,)], ids=["arbitrary", "one layer"])
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_steps_loss_is_the_weighted_sum_of_its_parts(
    family: str, parts: str, route: tuple[int, ...]
) -> None:
    """Of e after the first layer run and h after the last LayerNorm."""
    keys = PARTS[parts]
    model, batch = equipped(FAMILIES[family](), **keys), mixed()
    found = step_of(model, 0.7, losses=LOSSES, exits=keys.get("exits"))(batch, route)
    states = [state for _, state in model.states(batch.images, route)]
    last = model.backbone.norm(states[-1])
    prefix = getattr(model.backbone, "num_prefix_tokens", 0)
    e, h = states[1][:, prefix:], last[:, prefix:]
    assert h.shape == (6, 6, 16)
    labels = batch.extras["patch_labels"].flatten()
    expected = {
        "cosine_loss": patch_cosine(h).mean(),
        "contrastive_loss": patch_contrastive(e, h, normalized=True),
        "mixing_loss": cross_entropy(model.patch_head(h).flatten(0, 1), labels),
        "class_loss": task_loss(model.backbone.forward_head(last), batch.labels),
    }
    total = expected["class_loss"]
    if "exits" in keys:
        reached = {}
        for depth in (1, 3):
            if depth <= len(route):
                reached[depth] = task_loss(model(batch.images, route, exit=depth), batch.labels)
        total = expected["objective"] = exit_objective(keys["exits"], total, reached)
    if "predict" in model.position:
        model(batch.images, route, [tap := PositionLogits(model)])
        expected["position_loss"] = position_loss(tap.logits)
        total = total + 0.7 * expected["position_loss"]
    total = total + 0.5 * expected["cosine_loss"] + 0.3 * expected["contrastive_loss"]
    expected["loss"] = total + 2 * expected["mixing_loss"]
    for name in ("accuracy", "position_accuracy"):
        found.pop(name, None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("sampler", [arbitrary, drop(0.5)], ids=["arbitrary", "layerdrop"])
@pytest.mark.parametrize("parts", PARTS)
def test_a_step_with_a_route_a_sample_is_the_mean_of_its_images(parts: str, sampler: Any) -> None:
    """Every part of the loss, and the gradients."""
    model, batch, routes = equipped(**PARTS[parts]), mixed(), table(sampler)
    assert len({alone(route) for route in routes}) > 2
    step = step_of(model, 0.7, losses=LOSSES, exits=PARTS[parts].get("exits"))
    found = step(batch, routes)
    found["loss"].backward()
    together = gradients_of(model)
    steps = [step(one, alone(route)) for one, route in zip(batch.split(6), routes, strict=True)]
    means = {name: torch.stack([one[name] for one in steps]).mean() for name in found}
    means["loss"].backward()
    torch.testing.assert_close(together, gradients_of(model), rtol=1e-3, atol=1e-5)
    for parts_of_it in (found, means):
        parts_of_it.pop("position_accuracy", None)  # a mean over layers rather than images
    torch.testing.assert_close(found, means, rtol=1e-4, atol=0)


@torch.no_grad()
def test_dot_products_in_a_step() -> None:
    model, batch = equipped(losses=PLAIN), mixed()
    model.backbone.norm.weight.mul_(0.02)  # else the products saturate
    found = step_of(model, losses=PLAIN)(batch, (2, 1))["contrastive_loss"]
    e = model.tokens(batch.images, (2,))[:, 1:]
    h = model.backbone.norm(model.tokens(batch.images, (2, 1)))[:, 1:]
    torch.testing.assert_close(found, patch_contrastive(e, h), rtol=1e-4, atol=0)


# ---- trainings -----------------------------------------------------------------------------------


def test_each_part_alone_changes_a_training_and_weight_zero_none(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    zero = {"cosine": 0.0, "contrastive": 0, "mixing": {"weight": 0}}
    variants: dict[str, dict[str, Any]] = {
        "absent": {},
        "zero": {"losses": zero},
        "cosine": {"losses": {"cosine": 0.1}},
        "mixing": {"losses": {"mixing": 0.1}},
    }
    for part, value in RECIPE.model_dump().items():
        variants[part] = {"recipe": {part: value}}
    for name, keys in variants.items():
        run(changed(train_config(epochs=1), **keys), prepared, tmp_path / name)
    assert outcome(tmp_path / "zero") == outcome(tmp_path / "absent")
    assert len({outcome(tmp_path / name) for name in variants}) == len(variants) - 1
    tensors = {name: load_file(tmp_path / name / WEIGHTS).keys() for name in variants}
    assert tensors["zero"] == tensors["cosine"]
    assert tensors["mixing"] - tensors["zero"] == {"patch_head.weight", "patch_head.bias"}


EVERYTHING = {"losses": LOSSES.model_dump(), "recipe": RECIPE.model_dump(), "talking_heads": True}
LAYERDROP = {"route": {"drop": 0.5}, "position": {"encode": {"dropout": 0.1}, "predict": {}}}
A_SAMPLE = {"per": "sample", "schedule": "cosine", "warmup_epochs": 2, "micro_batch_size": 16}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"route": "sequential", "schedule": "cosine", "optimizer": "adamw"}, {}),
        (LAYERDROP | {"checkpointing": True}, {}),
        (A_SAMPLE, {"exits": heads("mlp")}),
    ],
    ids=["sequential", "layerdrop with position parts", "a route a sample with exits"],
)
def test_resumed_training_equals_an_undisturbed_one(
    train_config: Config,
    prepared: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    keys: dict[str, Any],
) -> None:
    config = changed(train_config(**changes), **EVERYTHING, **keys)
    for row in run(config, prepared, tmp_path / "whole"):
        expected = row["train/objective" if keys else "train/class_loss"]
        expected += row.get("train/position_loss", 0) + 0.5 * row["train/cosine_loss"]
        expected += 0.3 * row["train/contrastive_loss"] + 2 * row["train/mixing_loss"]
        assert row["train/loss"] == pytest.approx(expected, rel=1e-5)
    for stop_after in (1, 2):
        folder = tmp_path / f"stopped_{stop_after}"
        run(config, prepared, folder, stop_after)
        seed_libraries("test", 17)  # generators in another state must not matter
        assert len(run(config, prepared, folder)) == 3 - stop_after
        assert outcome(folder) == outcome(tmp_path / "whole")


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"patch_size": 28}, "losses: found a model with 1 patch, accepted: 2 or more"),
        ({"patch_drop_rate": 0.5}, "patch dropout"),
    ],
)
@pytest.mark.parametrize("part", ["cosine", "contrastive", "mixing"])
def test_losses_need_all_patches_and_two(
    pico: ModelPreset, part: str, kwargs: dict[str, Any], said: str
) -> None:
    preset = pico.model_copy(update={"kwargs": pico.kwargs | kwargs})
    with pytest.raises(UserError, match=said):
        build(preset, 10, Variant.model_validate({"route": "arbitrary", "losses": {part: 1}}))
    build(preset, 10, Variant(route="arbitrary"))


# ---- talking heads -------------------------------------------------------------------------------

TALKING = Variant(route="arbitrary", talking_heads=True)


@pytest.mark.parametrize("kind", ["vit", "distilled", "average pooling"])
@torch.no_grad()
def test_talking_heads_begin_as_the_plain_model(kind: str) -> None:
    backbone = FAMILIES[kind]()
    plain, model = RoutedModel(deepcopy(backbone)), RoutedModel(backbone)
    use_talking_heads(backbone)
    assert all(isinstance(block.attn, TalkingHeadAttn) for block in backbone.blocks)
    for route in (None, (2, 0, 0, 3), table(arbitrary)):
        expected = plain(images(), route)
        assert torch.allclose(model(images(), route), expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_talking_heads_mix_before_and_after_the_softmax() -> None:
    """Shazeer et al.: J = Q K^T, L = softmax(J P_l), U = L P_w, O = U V, over the heads."""
    attention = talking().blocks[0].attn
    tokens = random(2, 7, 16)
    q, k, v = attention.qkv(tokens).view(2, 7, 3, 2, 8).unbind(2)  # (B, N, heads, 8)

    def mix(projection: Any, products: Tensor) -> Tensor:
        heads = torch.einsum("gh,bhnm->bgnm", projection.weight, products)
        return heads + projection.bias[:, None, None]

    products = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(8)
    scores = mix(attention.proj_l, products).softmax(-1)
    values = torch.einsum("bhnm,bmhd->bnhd", mix(attention.proj_w, scores), v).flatten(2)
    assert torch.allclose(attention(tokens), attention.proj(values), atol=1e-5)
    assert torch.allclose(attention_scores(attention, tokens), scores, atol=1e-6)
    for masked in ({"attn_mask": torch.ones(7, 7)}, {"is_causal": True}):
        with pytest.raises(ValueError, match="no mask"):
            attention(tokens, **masked)


@torch.no_grad()
def test_talking_heads_travel_with_the_weights(pico: ModelPreset, tmp_path: Path) -> None:
    """They also start from plain weights; a plain model has no place for them."""
    file = tmp_path / "w.safetensors"
    batch = random(3, 1, 28, 28)
    plain = noisy(build(pico, 10)).eval()
    save_weights(plain, file)
    model = build(pico, 10, TALKING, file).eval()
    assert torch.allclose(model(batch, (3, 1)), plain(batch, (3, 1)), atol=1e-5)
    save_weights(noisy(model), file)
    again = build(pico, 10, TALKING, file).eval()
    assert torch.equal(again(batch, (3, 1, 0)), model(batch, (3, 1, 0)))
    with pytest.raises(RuntimeError, match="proj_l"):
        load_weights(plain, file)


def test_talking_heads_keep_dropout_and_bias(pico: ModelPreset) -> None:
    kwargs = pico.kwargs | {"attn_drop_rate": 0.1, "proj_drop_rate": 0.2, "qkv_bias": False}
    for block in build(pico.model_copy(update={"kwargs": kwargs}), 10, TALKING).backbone.blocks:
        assert (block.attn.attn_drop.p, block.attn.proj_drop.p) == (0.1, 0.2)
        assert block.attn.qkv.bias is None


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("mixer_s16_224", {}), ("resmlp_12_224", {}), ("vit_tiny_patch16_224", {"qk_norm": True})],
)
def test_models_without_plain_attention_cannot_talk(name: str, kwargs: dict[str, Any]) -> None:
    preset = ModelPreset(timm=name, kwargs=kwargs, weights="scratch")
    accepted = r"talking_heads: found .*accepted: timm's ViTs"
    with torch.device("meta"), pytest.raises(UserError, match=accepted):
        build(preset, 10, TALKING)
