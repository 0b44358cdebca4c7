"""Losses and measures of over-smoothing: their formulas, in training along any route, talking heads, and profiles."""

import json
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer, ResBlock
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, one_hot

from lsvit.position import Encode, Position, Predict, position_loss
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, RouteTable, arbitrary, drop, generator, per_sample
from lsvit.taps import PositionLogits
from lsvit.weights import load_weights, save_weights
from papers import Variant
from papers.exits.training import exit_objective
from papers.smoothing.augmentation import mix_patches
from papers.smoothing.compute.measures import Smoothness, attention_scores, measure, profile
from papers.smoothing.losses import patch_classification, patch_contrastive, patch_cosine
from papers.smoothing.section import PROFILE, Losses, ProfileConfig, Recipe, SmoothingProfiles
from papers.smoothing.talking_heads import use_talking_heads
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS, read_meta
from pipeline.models.weights import build
from pipeline.training.devices import Execution
from pipeline.training.loop import CHECKPOINT
from pipeline.training.loop import seed_libraries as seed
from pipeline.training.objectives import Batch, is_right, task_loss
from pipeline.training.scoring import open_model, open_split
from pipeline.training.step import backward_in_parts
from tests.models import images, small, step_of, with_parts
from tests.papers.exits.test_branches import heads
from tests.pipeline.training.test_loop import Killed, outcome, run

Config = Callable[..., TrainConfig]
LOSSES = Losses.model_validate(
    {"cosine": 0.5, "contrastive": {"weight": 0.3, "normalize": True}, "mixing": 2.0}
)
PLAIN = Losses.model_validate({"contrastive": {"weight": 1.0, "normalize": False}})
RECIPE = Recipe(repeats=2, erasing=0.5, mixup=0.8, drop_path=0.5)


pytestmark = pytest.mark.usefixtures("one_thread")


def random(*shape: int, value: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(value))


def changed(config: TrainConfig, **keys: Any) -> TrainConfig:
    """The configuration with other keys of its variant."""
    return config.model_copy(
        update={"variant": Variant.model_validate(config.variant.model_dump() | keys)}
    )


def noisy(module: Any) -> Any:
    """With parameters that differ enough for layers, tokens and heads to differ."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module


# ---- the losses' formulas ---------------------------------------------------------------------------------------------


def cosine_by_pairs(patches: Tensor) -> Tensor:
    """CosSim of one image's patches (N, D), as the source writes it."""
    pairs = [(i, j) for i in range(len(patches)) for j in range(len(patches)) if i != j]
    return torch.stack(
        [cosine_similarity(patches[i], patches[j], dim=0) for i, j in pairs]
    ).sum() / len(pairs)


def unit(patches: Tensor) -> Tensor:
    return patches / patches.norm(dim=-1, keepdim=True)


def contrastive_as_written(early: Tensor, late: Tensor) -> Tensor:
    """l_cons of one image's patches (N, D), as the source writes it."""
    mean, losses = sum(late) / len(late), []
    for e, h in zip(early, late, strict=True):
        losses.append(-torch.log(torch.exp(e @ h) / (torch.exp(e @ h) + torch.exp(e @ mean))))
    return torch.stack(losses).mean()


SIMPLEX = torch.eye(4) - 0.25
LENGTHS = torch.tensor([0.01, 1.0, 30.0, 400.0])[:, None]


@pytest.mark.parametrize(
    ("patches", "expected"),
    [
        (LENGTHS * torch.tensor([1.0, -2.0, 0.5]), 1.0),
        (LENGTHS * torch.eye(4), 0.0),
        (torch.tensor([[3.0, 4.0], [-0.3, -0.4]]), -1.0),
        (torch.tensor([[1.0, 0.0], [1.0, 1.0]]), math.sqrt(0.5)),
        (SIMPLEX, -1 / 3),
        (torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), -1 / 3),
    ],
    ids=[
        "identical",
        "orthogonal",
        "opposite",
        "45 degrees",
        "as far apart as four can be",
        "two against one",
    ],
)
def test_patch_cosine_of_known_patches(patches: Tensor, expected: float) -> None:
    assert patch_cosine(patches[None]).tolist() == pytest.approx([expected], abs=1e-6)


def test_patch_cosine_is_the_mean_over_pairs() -> None:
    patches = random(5, 7, 16) + 1
    expected = [float(cosine_by_pairs(image)) for image in patches]
    assert patch_cosine(patches).tolist() == pytest.approx(expected, abs=1e-6)
    assert patch_cosine(patches * random(5, 7, 1).exp()).tolist() == pytest.approx(
        expected, abs=1e-6
    )
    assert max(expected) - min(expected) > 0.01


@pytest.mark.parametrize("count", [2, 3, 16])
def test_patch_cosine_has_bounds(count: int) -> None:
    """For whatever patches, also after descending to the lower one."""
    patches = random(50, count, 4).requires_grad_()
    found = patch_cosine(patches)
    assert ((found >= -1 / (count - 1) - 1e-6) & (found <= 1 + 1e-6)).all()
    optimizer = torch.optim.Adam([patches], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        patch_cosine(patches).sum().backward()
        optimizer.step()
    assert patch_cosine(patches).tolist() == pytest.approx([-1 / (count - 1)] * 50, abs=1e-3)
    assert (patch_cosine(patches) >= -1 / (count - 1) - 1e-6).all()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e15])
def test_patch_losses_stay_finite(scale: float) -> None:
    """Some patches zero, and all very short or very long."""
    patches, early = scale * random(2, 5, 8), random(2, 5, 8, value=1)
    patches[:, :2] = 0
    patches.requires_grad_()
    for loss in (
        patch_cosine(patches).mean(),
        patch_contrastive(early, patches),
        patch_contrastive(early, patches, normalized=True),
    ):
        patches.grad = None
        loss.backward()
        assert loss.isfinite()
        assert patches.grad is not None
        assert patches.grad.isfinite().all()


def test_patch_contrastive_of_two_patches() -> None:
    """By hand: the mean of h is (1, 1.5), so e_1 (mean - h_1) = 1 - 3 and e_2 (mean - h_2) = 2 (1.5 - 2)."""
    early, late = (
        torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]),
        torch.tensor([[[3.0, 1.0], [-1.0, 2.0]]]),
    )
    plain = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1))) / 2
    assert float(patch_contrastive(early, late)) == pytest.approx(plain)
    # h_1 = (3, 1) / sqrt(10), h_2 = (-1, 2) / sqrt(5), e_2 = (0, 1); of two, mean - h_1 = (h_2 - h_1) / 2
    first, second = (
        (-1 / math.sqrt(5) - 3 / math.sqrt(10)) / 2,
        (1 / math.sqrt(10) - 2 / math.sqrt(5)) / 2,
    )
    cosines = (math.log(1 + math.exp(first)) + math.log(1 + math.exp(second))) / 2
    assert float(patch_contrastive(early, late, normalized=True)) == pytest.approx(cosines)
    assert float(patch_contrastive(early, late[:, :1].expand(1, 2, 2))) == pytest.approx(
        math.log(2)
    )  # all patches equal


def test_patch_contrastive_is_the_sources() -> None:
    """Values and gradients; none to the early patches."""
    early, late = (random(3, 6, 4, value=i).double().requires_grad_() for i in (1, 2))
    for normalized in (False, True):
        found = patch_contrastive(early, late, normalized)
        read = [unit(x) if normalized else x for x in (early.detach(), late)]
        expected = torch.stack(
            [contrastive_as_written(e, h) for e, h in zip(*read, strict=True)]
        ).mean()
        assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
        gradient, reference = (torch.autograd.grad(loss, late)[0] for loss in (found, expected))
        assert torch.allclose(gradient, reference, atol=1e-6)
        assert reference.abs().max() > 0.01
    patch_contrastive(early, late).backward()
    assert early.grad is None


def test_patch_contrastive_of_huge_products() -> None:
    """Where the exponentials of the formula overflow, a difference decides: its positive part remains."""
    early, late = 1e3 * random(2, 6, 4, value=1), 1e3 * random(2, 6, 4, value=2)
    late.requires_grad_()
    assert not contrastive_as_written(early[0], late[0]).isfinite()
    found = patch_contrastive(early, late)
    expected = (early * (late.mean(1, keepdim=True) - late)).sum(-1).clamp(min=0).mean()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    found.backward()
    assert late.grad is not None
    assert late.grad.isfinite().all()


def test_lengths_matter_to_plain_products_alone() -> None:
    early, late = random(3, 6, 4, value=1), random(3, 6, 4, value=2)
    lengths = random(2, 3, 6, 1, value=3).exp()
    plain, cosines = (
        [
            float(patch_contrastive(*each, normalized))
            for each in ((early, late), (early * lengths[0], late * lengths[1]))
        ]
        for normalized in (False, True)
    )
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
    assert abs(plain[0] - plain[1]) > 0.05


def test_patch_classification() -> None:
    """Of each patch its own label; of an image without them, its shares at every patch."""
    logits, labels = random(3, 4, 5), torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1], [2, 2, 2, 3]])
    each = [
        cross_entropy(logits[i, j][None], labels[i, j][None]) for i in range(3) for j in range(4)
    ]
    assert torch.isclose(patch_classification(logits, labels), torch.stack(each).mean())
    shares = random(3, 5, value=1).softmax(-1)
    soft = [-(shares[i] * logits[i, j].log_softmax(-1)).sum() for i in range(3) for j in range(4)]
    assert torch.isclose(patch_classification(logits, shares), torch.stack(soft).mean())
    same = torch.tensor([1, 4, 0])
    assert torch.isclose(
        patch_classification(logits, one_hot(same, 5).float()),
        patch_classification(logits, same[:, None].expand(3, 4)),
    )
    square = random(
        4, 4, 4
    )  # as many patches as classes, where the two kinds of labels have one shape
    hard, mixed = torch.arange(4)[:, None].expand(4, 4), torch.eye(4)
    assert torch.isclose(patch_classification(square, hard), patch_classification(square, mixed))


def test_shares_of_classes_as_labels() -> None:
    logits, labels = random(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    shares = random(6, 5, value=1).softmax(-1)
    losses = [-float((shares[i] * logits[i].log_softmax(-1)).sum()) for i in range(6)]
    assert float(task_loss(logits, shares)) == pytest.approx(sum(losses) / 6)
    assert float(task_loss(logits, shares, "sum")) == pytest.approx(sum(losses))
    assert torch.isclose(task_loss(logits, one_hot(labels, 5).float()), task_loss(logits, labels))
    sure = 0.6 * one_hot(labels, 5).float() + 0.4 * one_hot((labels + 1) % 5, 5).float()
    assert torch.equal(is_right(logits, sure), is_right(logits, labels))
    assert is_right(sure, sure).all()
    assert not is_right(sure.roll(1, 1), sure).any()


# ---- the section of params.yaml ---------------------------------------------------------------------------------------


def test_a_number_is_a_weight() -> None:
    numbers = Losses.model_validate({"cosine": 0.5, "contrastive": "3e-1", "mixing": 2})
    assert numbers == Losses.model_validate(
        {"cosine": {"weight": 0.5}, "contrastive": {"weight": 0.3}, "mixing": {"weight": 2.0}}
    )
    assert numbers.mixing is not None
    assert (numbers.mixing.weight, numbers.mixing.alpha) == (2.0, 1.0)
    full = Losses.model_validate({"contrastive": {"normalize": True}, "mixing": {"alpha": 0.2}})
    assert full.contrastive is not None
    assert (full.contrastive.weight, full.contrastive.normalize) == (1.0, True)
    for losses in (LOSSES, full, Losses()):
        assert Losses.model_validate_json(losses.model_dump_json()) == losses
        assert Losses.model_validate(losses.model_dump()) == losses


@pytest.mark.parametrize(
    "zero",
    [
        {"cosine": 0},
        {"contrastive": {"weight": 0.0, "normalize": True}, "mixing": 0},
        {"mixing": None},
    ],
)
def test_weight_zero_is_absent(zero: dict[str, Any]) -> None:
    assert Losses.model_validate(zero) == Losses()
    assert Losses.model_validate(zero).model_dump() == Losses().model_dump()
    assert (
        Variant.model_validate({"route": "arbitrary", "losses": zero}).model_dump_json()
        == Variant(route="arbitrary").model_dump_json()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"kosine": 1},
        {"cosine": {"weights": 1}},
        {"cosine": {"normalize": True}},
        {"contrastive": {"alpha": 1}},
        {"cosine": -0.1},
        {"mixing": {"weight": -1}},
        {"mixing": {"alpha": 0}},
        {"cosine": True},
        {"cosine": ""},
        {"cosine": float("inf")},
        {"cosine": [1]},
    ],
)
def test_wrong_losses_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Losses.model_validate(wrong)


def test_names_of_losses() -> None:
    assert str(Losses()) == str(Losses.model_validate({"cosine": 0})) == "none"
    assert str(LOSSES) == "cosine+contrastive+mixing"
    assert str(Losses.model_validate({"mixing": 1, "contrastive": 0.1})) == "contrastive+mixing"


# ---- a training step --------------------------------------------------------------------------------------------------

POSITION = Position(encode=Encode(dim=4), predict=Predict())
PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "position parts": {"position": POSITION},
    "exits": {"exits": heads()},
    "both": {"position": POSITION, "exits": heads()},
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "vit": small,
    "distilled": lambda: small(VisionTransformerDistilled),
    "average pooling": lambda: small(global_pool="avg"),
    "mixer": lambda: small(MlpMixer),
}


def equipped(backbone: Any = None, **parts: Any) -> Any:
    keys = {"losses": LOSSES} | parts
    return noisy(with_parts(backbone or small(), **keys)).eval()


def mixed(n: int = 6) -> Batch:
    """A batch with mixed patches of the grid of 2 x 3."""
    seed(4)
    batch = mix_patches(images(n), torch.arange(n), 7, (2, 3), 1.0)
    assert (
        batch.extras["patch_labels"] != torch.arange(n)[:, None]
    ).any()  # else this shows nothing
    return batch


def table(sampler: Any, n: int = 6) -> Tensor:
    return torch.from_numpy(per_sample(sampler, generator("samples", 3), 4, n))


def alone(route: Tensor) -> tuple[int, ...]:
    return tuple(layer for layer in route.tolist() if layer >= 0)


def scalars(found: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value.detach()) for name, value in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "route",
    [(0, 1, 2, 3), (2, 0, 3, 1), (1,), (3, 1)],
    ids=["sequential", "arbitrary", "one layer", "pruned"],
)
@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_steps_loss_is_the_weighted_sum_of_its_parts(
    family: str, parts: str, route: tuple[int, ...]
) -> None:
    """Every part computed again with loops, from states by hand: e after the first layer run, h after the last LayerNorm."""
    own = PARTS[parts] | (
        {"exits": heads("cnn_ignore")} if family == "mixer" and "exits" in PARTS[parts] else {}
    )
    model, batch = equipped(FAMILIES[family](), **own), mixed()
    found = scalars(step_of(model, 0.7, losses=LOSSES, exits=own.get("exits"))(batch, route))
    state, first = model.embed(batch.images), None
    for depth, layer in enumerate(route):
        encoded = (
            model.position["encode"](state, layer, depth) if "encode" in model.position else state
        )
        state = model.backbone.blocks[layer](encoded)
        first = state if first is None else first
    assert first is not None
    prefix = model.backbone.num_prefix_tokens if hasattr(model.backbone, "num_prefix_tokens") else 0
    e, h = first[:, prefix:], model.backbone.norm(state)[:, prefix:]
    assert h.shape == (6, 6, 16)
    each = [
        cross_entropy(model.patch_head(x)[None], y[None])
        for x, y in zip(h.flatten(0, 1), batch.extras["patch_labels"].flatten(), strict=True)
    ]
    expected = {
        "cosine_loss": torch.stack([cosine_by_pairs(x) for x in h]).mean(),
        "contrastive_loss": torch.stack(
            [contrastive_as_written(unit(x), unit(y)) for x, y in zip(e, h, strict=True)]
        ).mean(),
        "mixing_loss": torch.stack(each).mean(),
        "class_loss": task_loss(
            model.backbone.forward_head(model.backbone.norm(state)), batch.labels
        ),
    }
    final = expected["class_loss"]
    if "exits" in own:
        reached = {
            d: task_loss(model(batch.images, route, exit=d), batch.labels)
            for d in (1, 3)
            if d <= len(route)
        }
        final = expected["objective"] = exit_objective(own["exits"], final, reached)
    if "predict" in model.position:
        model(batch.images, route, [tap := PositionLogits(model)])
        expected["position_loss"] = position_loss(tap.logits)
    total = final + 0.7 * expected.get("position_loss", torch.zeros(()))
    total = (
        total
        + 0.5 * expected["cosine_loss"]
        + 0.3 * expected["contrastive_loss"]
        + 2 * expected["mixing_loss"]
    )
    assert found.keys() - {"accuracy", "position_accuracy"} == {"loss", *expected}
    for name, value in (expected | {"loss": total}).items():
        assert found[name] == pytest.approx(float(value), rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize("name", Losses.model_fields)
@torch.no_grad()
def test_a_loss_alone_is_what_it_is_among_others(name: str) -> None:
    model, batch, one = (
        equipped(),
        mixed(),
        LOSSES.model_copy(update={each: None for each in Losses.model_fields if each != name}),
    )
    every, found = (
        scalars(step_of(model, 0.0, losses=losses)(batch, (1, 0))) for losses in (LOSSES, one)
    )
    assert found[f"{name}_loss"] == every[f"{name}_loss"]
    assert found["loss"] == pytest.approx(
        found["class_loss"] + getattr(LOSSES, name).weight * every[f"{name}_loss"]
    )


@pytest.mark.parametrize("sampler", [arbitrary, drop(0.5)], ids=["arbitrary", "layerdrop"])
@pytest.mark.parametrize("parts", PARTS)
def test_a_step_with_a_route_a_sample_is_the_mean_of_its_images(parts: str, sampler: Any) -> None:
    """Every part of the loss, and the gradients."""
    model, batch, routes = equipped(**PARTS[parts]), mixed(), table(sampler)
    assert len({alone(route) for route in routes}) > 2
    step = step_of(model, 0.7, losses=LOSSES, exits=PARTS[parts].get("exits"))
    found = step(batch, routes)
    found["loss"].backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    each = [step(part, alone(route)) for part, route in zip(batch.split(6), routes, strict=True)]
    torch.stack([one["loss"] for one in each]).mean().backward()
    expected = {
        name: sum(float(one[name].detach()) for one in each) / 6
        for name in found
        if name != "position_accuracy"
    }
    assert {name: scalars(found)[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    again = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert gradients.keys() == again.keys()
    assert all(torch.allclose(gradients[name], again[name], rtol=1e-3, atol=1e-5) for name in again)


def test_shares_reach_the_patch_head_where_patches_are_not_mixed() -> None:
    """A batch of mixup: the labels of every patch are its image's."""
    model, labels = equipped(), random(6, 7).softmax(-1)
    found = step_of(model, losses=LOSSES)(Batch(images(), labels), (1, 0))
    h = model.backbone.norm(model.tokens(images(), (1, 0)))[:, 1:]
    expected = -(labels[:, None] * model.patch_head(h).log_softmax(-1)).sum(-1).mean()
    assert float(found["mixing_loss"]) == pytest.approx(float(expected.detach()), rel=1e-5)


def test_plain_products_in_a_step() -> None:
    """With one layer run, e and h come from the same layer: the gradient says that it flows through h alone."""
    model, batch = equipped(), mixed()
    with torch.no_grad():
        model.backbone.norm.weight.mul_(0.02)  # else the products saturate
    found = step_of(model, losses=PLAIN)(batch, (2,))
    (gradient,) = torch.autograd.grad(
        found["loss"] - task_loss(model(batch.images, (2,)), batch.labels), model.backbone.pos_embed
    )
    state = model.tokens(batch.images, (2,))
    e, h = state[:, 1:].detach(), model.backbone.norm(state)[:, 1:]
    expected = torch.stack([contrastive_as_written(x, y) for x, y in zip(e, h, strict=True)]).mean()
    (reference,) = torch.autograd.grad(expected, model.backbone.pos_embed)
    assert float(found["contrastive_loss"]) == pytest.approx(float(expected.detach()), rel=1e-4)
    assert torch.allclose(gradient, reference, atol=1e-5)
    assert reference.abs().max() > 1e-3


def gradients_of(
    model: RoutedModel, params: Params, route: Any, **options: Any
) -> dict[str, Tensor]:
    """Of one training step on 6 images."""
    own = params.finetune.model_copy(
        update={"batch_size": 6, "micro_batch_size": options.get("micro_batch_size")}
    )
    model.zero_grad()
    model.checkpointing = options.get("checkpointing", False)
    seed(9)
    step = step_of(model, 0.7, losses=LOSSES, exits=options.get("exits"))
    routes: Any = RouteTable(route.numpy()) if isinstance(route, Tensor) else OneRoute(route)
    backward_in_parts(step, mixed(), routes, own)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_size": 2},
        {"micro_batch_size": 4, "checkpointing": True},
        {"checkpointing": True},
    ],
)
@pytest.mark.parametrize(
    "route",
    [(2, 0, 3, 1), table(arbitrary), table(drop(0.5))],
    ids=["batch", "sample", "layerdrop"],
)
@pytest.mark.parametrize("parts", ["plain", "both"])
def test_less_memory_gives_the_same_gradients(
    params: Params, parts: str, route: Any, options: dict[str, Any]
) -> None:
    model = equipped(**PARTS[parts])
    exits = {"exits": PARTS[parts].get("exits")}
    plain, less = (gradients_of(model, params, route, **exits, **each) for each in ({}, options))
    assert plain.keys() == less.keys()
    assert all(torch.allclose(plain[name], less[name], rtol=1e-3, atol=1e-5) for name in plain)
    assert {"patch_head.weight", "backbone.norm.weight"} <= plain.keys()


@pytest.mark.parametrize("route", [(2, 0, 3, 1), table(arbitrary)], ids=["batch", "sample"])
def test_checkpointing_draws_the_same_drop_path_again(params: Params, route: Any) -> None:
    model = with_parts(small(drop_path_rate=0.5), losses=LOSSES)
    still = gradients_of(model.eval(), params, route)
    plain, again = (
        gradients_of(model.train(), params, route, checkpointing=checkpointing)
        for checkpointing in (False, True)
    )
    assert plain.keys() == again.keys()
    assert all(torch.allclose(plain[name], again[name], rtol=1e-4, atol=1e-6) for name in plain)
    assert not torch.allclose(
        plain["patch_head.weight"], still["patch_head.weight"], rtol=1e-2
    )  # paths are dropped


# ---- trainings --------------------------------------------------------------------------------------------------------


def test_weight_zero_trains_as_none(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    """The very same weights and history; with a weight, others."""
    zero = {
        "cosine": 0.0,
        "contrastive": {"weight": 0, "normalize": True},
        "mixing": {"weight": 0, "alpha": 3.0},
    }
    for name, losses in (
        ("absent", {}),
        ("zero", zero),
        ("cosine", {"cosine": 0.1}),
        ("mixing", {"mixing": 0.1}),
    ):
        run(changed(train_config(epochs=1), losses=losses), prepared, tmp_path / name)
    assert outcome(tmp_path / "zero") == outcome(tmp_path / "absent")
    assert (
        load_file(tmp_path / "zero" / WEIGHTS).keys()
        == load_file(tmp_path / "cosine" / WEIGHTS).keys()
    )
    assert load_file(tmp_path / "mixing" / WEIGHTS).keys() - load_file(
        tmp_path / "zero" / WEIGHTS
    ).keys() == {"patch_head.weight", "patch_head.bias"}
    assert len({outcome(tmp_path / name) for name in ("zero", "cosine", "mixing")}) == 3


EVERYTHING = {"losses": LOSSES.model_dump(), "recipe": RECIPE.model_dump(), "talking_heads": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "variant"),
    [
        ({}, {"recipe": {"drop_path": 0.5}}),
        (
            {"route": "sequential", "schedule": "cosine", "warmup_epochs": 1, "optimizer": "adamw"},
            EVERYTHING,
        ),
        (
            {
                "route": {"drop": 0.5},
                "position": {"encode": {"dropout": 0.1}, "predict": {}},
                "checkpointing": True,
            },
            EVERYTHING,
        ),
        (
            {"per": "sample", "schedule": "cosine", "warmup_epochs": 2, "micro_batch_size": 16},
            EVERYTHING | {"exits": heads("mlp")},
        ),
    ],
    ids=["drop path", "sequential", "layerdrop with position parts", "a route a sample with exits"],
)
def test_resumed_training_equals_an_undisturbed_one(
    train_config: Config,
    prepared: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    variant: dict[str, Any],
) -> None:
    config = changed(train_config(**changes), **variant)
    rows = run(config, prepared, tmp_path / "whole")
    if "losses" in variant:
        for row in rows:
            own = row["train/objective" if "exits" in variant else "train/class_loss"] + row.get(
                "train/position_loss", 0
            )
            weighted = (
                0.5 * row["train/cosine_loss"]
                + 0.3 * row["train/contrastive_loss"]
                + 2 * row["train/mixing_loss"]
            )
            assert row["train/loss"] == pytest.approx(own + weighted, rel=1e-5)
    for stop_after in (1, 2):
        folder = tmp_path / f"stopped_{stop_after}"
        with pytest.raises(Killed):
            run(config, prepared, folder, stop_after)
        assert (folder / CHECKPOINT).exists()
        seed(17)  # generators in another state must not matter
        assert len(run(config, prepared, folder)) == 3 - stop_after
        assert outcome(folder) == outcome(tmp_path / "whole")


def test_drop_path_and_recipe_change_a_training(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    """Each part alone."""
    for name, recipe in (
        ("none", {}),
        *((part, {part: value}) for part, value in RECIPE.model_dump().items()),
    ):
        run(changed(train_config(epochs=1), recipe=recipe), prepared, tmp_path / name)
    assert len({outcome(tmp_path / name) for name in ("none", *RECIPE.model_dump())}) == 5


@pytest.mark.slow
def test_the_cosine_loss_turns_patches_apart(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    last = {}
    for name, losses in (("without", {}), ("with", {"cosine": 3.0})):
        config = changed(train_config(epochs=6), losses=losses)
        run(config, prepared, tmp_path / name)
        model, _ = open_model(config, prepared, tmp_path / name / WEIGHTS)
        images, _ = open_split(config, prepared, "validation", model).take(slice(0, 20))
        with torch.no_grad():
            last[name] = float(
                patch_cosine(model.patches(model.backbone.norm(model.eval().tokens(images)))).mean()
            )
    assert last["with"] < last["without"] - 0.05


def test_stock_timm_loads_a_model_trained_with_the_mixing_loss(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    config = changed(train_config(epochs=1), losses=LOSSES.model_dump())
    run(config, prepared, tmp_path / "run")
    tensors = load_file(tmp_path / "run" / WEIGHTS)
    stock: Any = timm.create_model(
        "vit_tiny_patch16_224", num_classes=10, **config.model.kwargs
    ).eval()
    with pytest.raises(RuntimeError, match="patch_head"):
        stock.load_state_dict(tensors)
    stock.load_state_dict(
        {name: tensor for name, tensor in tensors.items() if not name.startswith("patch_head.")}
    )
    model, _ = open_model(config, prepared, tmp_path / "run" / WEIGHTS)
    assert torch.equal(model.patch_head.weight, tensors["patch_head.weight"])
    plain = build(
        config.model, 10, Variant(route="arbitrary"), tmp_path / "run" / WEIGHTS
    )  # by a variant without the loss
    with torch.no_grad():
        batch = random(4, 1, 28, 28)
        assert torch.equal(stock(batch), model.eval()(batch))
        assert torch.equal(stock(batch), plain.eval()(batch))


def test_a_fresh_patch_head_on_plain_weights(pico: ModelPreset, tmp_path: Path) -> None:
    save_weights(build(pico, 10), tmp_path / "plain.safetensors")
    torch.manual_seed(0)
    model = build(
        pico, 10, Variant(route="arbitrary", losses=LOSSES), tmp_path / "plain.safetensors"
    )
    assert model.patch_head.weight.any()
    assert torch.equal(
        model.backbone.head.weight, load_file(tmp_path / "plain.safetensors")["head.weight"]
    )


def test_a_profile_needs_two_patches(pico: ModelPreset, prepared: Path, tmp_path: Path) -> None:
    one = pico.model_copy(update={"kwargs": pico.kwargs | {"patch_size": 28}})
    config = ProfileConfig(
        title="test",
        dataset="bars",
        model_name="pico",
        model=one,
        variant=Variant(route="arbitrary"),
        device="cpu",
        data_sha256="",
        weights_sha256=None,
        precision="fp32",
        order="sequential",
        seed=0,
        options=SmoothingProfiles(images=20, batch_size=8, seed=0),
    )
    with pytest.raises(
        UserError, match="smoothing: found a model with 1 patch, accepted: 2 or more"
    ):
        measure(config, prepared, None, tmp_path, lambda event: None)


@pytest.mark.parametrize("losses", [{"cosine": 1}, {"contrastive": 1}, {"mixing": 1}])
def test_losses_need_two_patches(pico: ModelPreset, losses: dict[str, Any]) -> None:
    one = pico.model_copy(update={"kwargs": pico.kwargs | {"patch_size": 28}})
    with pytest.raises(
        UserError, match="losses: found a model with 1 patch, accepted: 2 or more"
    ) as error:
        build(one, 10, Variant.model_validate({"route": "arbitrary", "losses": losses}))
    assert "\n" not in str(error.value)
    build(
        one, 10, Variant.model_validate({"route": "arbitrary", "losses": dict.fromkeys(losses, 0)})
    )


def test_losses_need_all_patches(pico: ModelPreset) -> None:
    dropping = pico.model_copy(update={"kwargs": pico.kwargs | {"patch_drop_rate": 0.5}})
    with pytest.raises(UserError, match="patch dropout"):
        build(dropping, 10, Variant.model_validate({"route": "arbitrary", "losses": {"mixing": 1}}))


# ---- talking heads ----------------------------------------------------------------------------------------------------

TALKING = Variant(route="arbitrary", talking_heads=True)


def talking() -> Any:
    """A backbone whose heads talk, in matrices far from the identity."""
    use_talking_heads(backbone := small())
    return noisy(backbone).eval()


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
    noisy(backbone.blocks[1].attn.proj_w)
    assert not torch.allclose(model(images()), plain(images()), rtol=1e-2)


@torch.no_grad()
def test_talking_heads_mix_before_and_after_the_softmax() -> None:
    """Shazeer et al.: J = Q K^T, L = softmax(J P_l), U = L P_w, O = U V, over the heads."""
    attention = talking().blocks[0].attn
    tokens = random(2, 7, 16)
    q, k, v = attention.qkv(tokens).view(2, 7, 3, 2, 8).unbind(2)  # (B, N, heads, 8)
    products = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(8)
    mixed = (
        torch.einsum("gh,bhnm->bgnm", attention.proj_l.weight, products)
        + attention.proj_l.bias[:, None, None]
    )
    weights = (
        torch.einsum("gh,bhnm->bgnm", attention.proj_w.weight, mixed.softmax(-1))
        + attention.proj_w.bias[:, None, None]
    )
    expected = attention.proj(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2))
    assert torch.allclose(attention(tokens), expected, atol=1e-5)
    assert torch.allclose(attention_scores(attention, tokens), mixed.softmax(-1), atol=1e-6)
    for masked in ({"attn_mask": torch.ones(7, 7)}, {"is_causal": True}):
        with pytest.raises(ValueError, match="no mask"):
            attention(tokens, **masked)


def test_talking_heads_learn(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    """Along routes a sample: every layer's matrices get gradients, and a training moves them away from the identity."""
    use_talking_heads(backbone := small())
    RoutedModel(backbone)(images(), table(arbitrary)).square().sum().backward()
    for block in backbone.blocks:
        for gradient in (
            block.attn.proj_l.weight.grad,
            block.attn.proj_w.weight.grad,
            block.attn.proj_w.bias.grad,
            block.attn.qkv.weight.grad,
        ):
            assert gradient.abs().max() > 1e-6
    run(
        changed(train_config(epochs=1, per="sample"), talking_heads=True),
        prepared,
        tmp_path / "run",
    )
    tensors = load_file(tmp_path / "run" / WEIGHTS)
    for layer in range(4):
        for name in ("proj_l", "proj_w"):
            matrix = tensors[f"blocks.{layer}.attn.{name}.weight"]
            assert 1e-4 < (matrix - torch.eye(2)).abs().max() < 0.5


def test_talking_heads_travel_with_the_weights(pico: ModelPreset, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = noisy(build(pico, 10, TALKING)).eval()
    save_weights(model, tmp_path / "w.safetensors")
    again = build(pico, 10, TALKING, tmp_path / "w.safetensors").eval()
    batch = random(3, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(again(batch, (3, 1, 0)), model(batch, (3, 1, 0)))
        cut = build(
            pico, 10, TALKING.model_copy(update={"layers": 2}), tmp_path / "w.safetensors"
        ).eval()
        assert torch.equal(cut(batch), model(batch, (0, 1)))
    with pytest.raises(RuntimeError, match="proj_l"):
        load_weights(
            build(pico, 10), tmp_path / "w.safetensors"
        )  # the plain model has no place for them


def test_talking_heads_start_from_plain_weights(pico: ModelPreset, tmp_path: Path) -> None:
    plain = noisy(build(pico, 10)).eval()
    save_weights(plain, tmp_path / "plain.safetensors")
    model = build(pico, 10, TALKING, tmp_path / "plain.safetensors").eval()
    batch = random(3, 1, 28, 28)
    with torch.no_grad():
        for route in ((0, 1, 2, 3), (3, 1)):
            assert torch.allclose(model(batch, route), plain(batch, route), atol=1e-5)


def test_talking_heads_keep_dropout_and_bias(pico: ModelPreset) -> None:
    other = pico.model_copy(
        update={
            "kwargs": pico.kwargs
            | {"attn_drop_rate": 0.1, "proj_drop_rate": 0.2, "qkv_bias": False}
        }
    )
    for block in build(other, 10, TALKING).backbone.blocks:
        assert (block.attn.attn_drop.p, block.attn.proj_drop.p, block.attn.qkv.bias) == (
            0.1,
            0.2,
            None,
        )


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("mixer_s16_224", {}), ("resmlp_12_224", {}), ("vit_tiny_patch16_224", {"qk_norm": True})],
)
def test_models_without_plain_attention_cannot_talk(name: str, kwargs: dict[str, Any]) -> None:
    with (
        torch.device("meta"),
        pytest.raises(UserError, match=r"talking_heads: found .*accepted: timm's ViTs") as error,
    ):
        build(ModelPreset(timm=name, kwargs=kwargs, weights="scratch"), 10, TALKING)
    assert "\n" not in str(error.value)


# ---- measures ---------------------------------------------------------------------------------------------------------

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
    """Every image by itself, with loops, and with the scores that timm's modules themselves compute; whatever the batches."""
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
    model = noisy(RoutedModel(small(), POSITION)).eval()
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
    """After more images it holds as many numbers as after a few, each a sum; a failing pass leaves no hook behind."""
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
    """The images of a subset that is always the same, in arbitrary order each along a route of its own, whatever the batches."""
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
