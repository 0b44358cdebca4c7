"""Over-smoothing's losses, recipe and talking heads in training, along any route."""

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models.cait import TalkingHeadAttn
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor
from torch.nn.functional import cross_entropy

from lsvit.position import Encode, Position, Predict, position_loss
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, RouteTable, arbitrary, drop
from lsvit.taps import PositionLogits
from lsvit.weights import load_weights, save_weights
from papers import Variant
from papers.exits.training import exit_objective
from papers.smoothing.augmentation import mix_patches
from papers.smoothing.compute.measures import attention_scores, measure
from papers.smoothing.losses import patch_cosine
from papers.smoothing.section import Losses, ProfileConfig, SmoothingProfiles
from papers.smoothing.talking_heads import use_talking_heads
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS
from pipeline.models.weights import build
from pipeline.training.loop import CHECKPOINT
from pipeline.training.loop import seed_libraries as seed
from pipeline.training.objectives import Batch, task_loss
from pipeline.training.scoring import open_model, open_split
from pipeline.training.step import backward_in_parts
from tests.models import images, small, step_of, with_parts
from tests.papers.exits.test_branches import heads
from tests.papers.smoothing.by_hand import (
    LOSSES,
    PLAIN,
    RECIPE,
    alone,
    changed,
    contrastive_as_written,
    cosine_by_pairs,
    noisy,
    random,
    table,
    talking,
    unit,
)
from tests.pipeline.training.test_loop import Killed, outcome, run

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


# ---- a training step -----------------------------------------------------------------------------

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
    """Every part computed again with loops, from states by hand: e after the first layer run, h
    after the last LayerNorm.
    """
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
    """With one layer run, e and h come from the same layer: the gradient says that it flows through
    h alone.
    """
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


# ---- trainings -----------------------------------------------------------------------------------


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
    """Along routes a sample: every layer's matrices get gradients, and a training moves them away
    from the identity.
    """
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
