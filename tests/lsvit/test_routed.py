"""Routed models: equal to timm along the identity route, right along every other."""

from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from timm.models import mlp_mixer
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import lsvit
from lsvit.position import Position, Predict, position_loss
from lsvit.routed import RoutedModel
from lsvit.taps import PositionLogits
from lsvit.weights import load_weights, save_weights
from pipeline.config.presets import ModelPreset
from pipeline.models.tokens import patch_embed
from pipeline.models.weights import build, create_backbone
from tests.conftest import cases_of, refused
from tests.models import disturb, images, small, variant

CASES = cases_of(__file__)
SMALL: dict[str, Any] = CASES["small"]
FAMILIES: dict[str, dict[str, Any]] = CASES["families"]


def create(name: str, **kwargs: Any) -> Any:
    """A family's model, cut to four layers. Mixers, whose width timm fixes, are made narrow."""
    create_mixer = mlp_mixer._create_mixer

    def create_narrow(*args: Any, **options: Any) -> Any:
        return create_mixer(*args, **options | {"embed_dim": 32})

    torch.manual_seed(0)
    with patch.object(mlp_mixer, "_create_mixer", create_narrow):
        model: Any = timm.create_model(name, **(FAMILIES[name] | kwargs))
    model.blocks = model.blocks[:4]
    return model


@pytest.fixture(params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Any:
    model = create(request.param).eval()
    disturb(model)
    return model


def images_for(backbone: Any, n: int = 3) -> Tensor:
    size = patch_embed(backbone).img_size
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_identity_route_is_timms_forward_bit_for_bit(backbone: Any) -> None:
    images = images_for(backbone)
    model = RoutedModel(backbone)
    with torch.no_grad():
        expected = backbone(images)
        assert torch.equal(model(images), expected)
        assert torch.equal(model(images, tuple(range(model.num_layers))), expected)


@pytest.mark.slow
def test_route_is_executed_in_order(backbone: Any) -> None:
    """Any route, with repetitions and gaps, equals the blocks applied by hand; a layer not in it is
    not executed.
    """
    images, model = images_for(backbone), RoutedModel(backbone)
    calls: list[int] = []
    for layer, block in enumerate(backbone.blocks):
        block.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
    route = (3, 0, 0, 2)
    found = model(images, route)
    assert calls == list(route)
    state = model.embed(images)
    for layer in route:
        state = backbone.blocks[layer](state)
    assert torch.equal(found, backbone.forward_head(backbone.norm(state)))


@pytest.mark.slow
def test_trained_weights_load_into_stock_timm_and_back(
    backbone: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["backbone"]
    save_weights(RoutedModel(backbone), tmp_path / "w.safetensors")
    stock = create(name).eval()
    stock.load_state_dict(load_file(tmp_path / "w.safetensors"))
    images = images_for(backbone)
    with torch.no_grad():
        assert torch.equal(stock(images), backbone(images))
        for emptied in (RoutedModel(deepcopy(stock)), deepcopy(stock)):  # and timm's own
            for parameter in emptied.parameters():
                parameter.zero_()
            load_weights(emptied, tmp_path / "w.safetensors")
            assert torch.equal(emptied(images), backbone(images))


@pytest.mark.parametrize("name", CASES["others"])
def test_other_models_are_refused(name: str) -> None:
    accepted = "not routable, accepted: timm's VisionTransformer and MlpMixer"
    with torch.device("meta"), refused(accepted, ValueError):
        RoutedModel(timm.create_model(name))


def test_timms_subclasses_are_those_tested() -> None:
    """A class that timm adds to a family must be tested above before it is said to be routable."""
    found = {VisionTransformer, MlpMixer}
    for kind in list(found):
        found.update(kind.__subclasses__())
    names = {kind.__name__ for kind in found if kind.__module__.startswith("timm")}
    assert names == {"VisionTransformer", "VisionTransformerDistilled", "MlpMixer"}


class Twice(VisionTransformer):
    """It has a forward pass of its own."""

    def forward_features(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().forward_features(x, *args, **kwargs)


@pytest.mark.parametrize("other", [nn.Linear(2, 2), nn.Sequential(), None, small(Twice)])
def test_what_is_no_model_of_timm_is_refused(other: Any) -> None:
    with refused(f"model {type(other).__name__}: not routable", ValueError):
        RoutedModel(other)


@pytest.mark.parametrize("rate", ["drop_path_rate", "proj_drop_rate"])
def test_checkpointing_draws_the_same_random_numbers_again(rate: str) -> None:
    torch.manual_seed(0)
    options = SMALL | {rate: 0.5}
    backbone = timm.create_model("vit_tiny_patch16_224", **options)
    model = RoutedModel(backbone).train()
    gradients = []
    for checkpointing in (False, True):
        model.checkpointing = checkpointing
        model.zero_grad()
        torch.manual_seed(3)
        model(images_for(backbone, 8), (1, 0, 1)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)


def test_class_token_head_is_one_head_on_the_class_token() -> None:
    """Published code: a distilled DeiT read at its class token alone; timm averages it with the
    distillation token's.
    """
    name = "deit_tiny_distilled_patch16_224"
    sizes = {key: value for key, value in SMALL.items() if key != "num_classes"}
    preset = ModelPreset(timm=name, kwargs=sizes, weights="scratch")
    two, one = (
        RoutedModel(create_backbone(preset.model_copy(update={"head": head}), 7)).eval()
        for head in ("timm", "class_token")
    )
    surplus = two.state_dict().keys() - one.state_dict().keys()
    assert surplus == {"backbone.head_dist.weight", "backbone.head_dist.bias"}
    one.load_state_dict(two.state_dict(), strict=False)
    images = torch.randn(2, 3, 32, 32)
    tokens = one.backbone.norm(one.tokens(images, (1, 0)))
    first = one.backbone.head(tokens[:, 0])
    assert torch.equal(one(images, (1, 0)), first)
    both = (first + two.backbone.head_dist(tokens[:, 1])) / 2
    assert torch.equal(two(images, (1, 0)), both)
    one.train()(images).sum().backward()
    assert all(p.grad is not None for p in one.parameters())


def test_position_encoding_knows_the_position(pico: ModelPreset) -> None:
    encode = build(pico, 10, variant(position={"encode": {"dim": 8}})).eval().position["encode"]
    state = torch.randn(2, 5, 16)
    embedding = encode.embeddings[1].weight[2].expand(2, 5, -1)
    norm, linear, gelu, _ = encode.projections[1]
    expected = gelu(linear(norm(torch.cat([state, embedding], -1)))) + state  # section 3.2
    assert torch.equal(encode(state, 1, 2), expected)
    assert not torch.equal(encode(state, 1, 3), expected)


def test_shared_position_encoding_starts_at_zero(pico: ModelPreset) -> None:
    """The published code's reading: one embedding for all layers, initialised to zero."""
    spec = {"dim": 32, "shared": True, "init": "zeros"}
    (embedding,) = build(pico, 10, variant(position={"encode": spec})).position["encode"].embeddings
    assert torch.equal(embedding.weight, torch.zeros(4, 32))


def test_states_of_layers_that_do_not_exist_are_refused() -> None:
    with refused("layer -1 does not exist", IndexError):
        next(RoutedModel(small()).states(images(), (0, -1)))


@pytest.mark.parametrize("route", [(2, 0, 3), (1, 1), ()])
def test_per_sample_routes_that_all_agree_are_one_route(route: tuple[int, ...]) -> None:
    model = RoutedModel(small())
    routes = torch.tensor([route] * 6, dtype=torch.int32).reshape(6, -1)
    assert torch.equal(model(images(), routes), model(images(), route))


@pytest.mark.parametrize("route", [[2, 0, 3], np.array([2, 0, 3]), tuple(np.array([2, 0, 3]))])
def test_a_route_is_any_sequence_of_integers(route: Any) -> None:
    model = RoutedModel(small())
    assert torch.equal(model(images(), route), model(images(), (2, 0, 3)))
    *_, (depth, tokens) = model.states(images(), route)
    assert depth == 3
    assert torch.equal(tokens, model.tokens(images(), (2, 0, 3)))


MASKS: list[Any] = [[True, False], [(True, 2)], {2, 0, 1}, {0: 1}]  # no orders of layers


@pytest.mark.parametrize(
    "other", [3, [0, 0.5], [[0, 1], [1, 0]], "10", np.eye(2, dtype=int), *MASKS]
)
def test_what_is_no_route_is_refused(other: Any) -> None:
    for run in (RoutedModel(small()), lambda *given: list(RoutedModel(small()).states(*given))):
        with pytest.raises(ValueError, match=r"^.*accepted: a sequence of layers.*$"):
            run(images(), other)


def test_a_mask_as_a_tensor_is_refused() -> None:
    said = "accepted: a sequence of layers"
    with refused(said, ValueError), lsvit.in_order(small(), torch.tensor([True, False])):  # type: ignore[arg-type]
        pass


def test_a_table_of_routes_is_made_of_lists_too() -> None:
    table: Any = [[2, 0], [1, -1]]
    assert lsvit.RouteTable(table).lengths() == (1, 2)


def test_a_shuffled_backbone_is_refused() -> None:
    """A routed model does not call its backbone, so the hook would do nothing."""
    backbone = small()
    lsvit.shuffle(backbone)
    with refused(r"call lsvit.unshuffle\(model\) first", ValueError):
        RoutedModel(backbone)
    lsvit.unshuffle(backbone)
    RoutedModel(backbone)


@pytest.mark.parametrize(("routes", "said"), CASES["routes"])
def test_wrong_routes(pico: ModelPreset, routes: list[Any], said: str) -> None:
    route: Any = torch.tensor(routes) if isinstance(routes[0], list) else tuple(routes)
    error = ValueError if "accepted" in said else IndexError
    with pytest.raises(error, match=said):
        build(pico, 10, variant(position={"encode": {}}))(torch.zeros(1, 1, 28, 28), route)


@pytest.mark.parametrize("token", ["mean", "class_token"])
def test_position_prediction(pico: ModelPreset, token: str) -> None:
    model = build(pico, 10, variant(position={"predict": {"token": token}}))
    positions = PositionLogits(model)
    states: list[Tensor] = []
    route = (2, 0, 3)
    model(torch.randn(2, 1, 28, 28), route, [positions, lambda *a: states.append(a[3])])
    for logits, layer, state in zip(positions.logits, route, states, strict=True):
        read = state.mean(1) if token == "mean" else state[:, 0]
        assert torch.equal(logits, model.position["predict"].heads[layer](read))
    position_loss(positions.logits).backward()  # the blocks learn from it too
    for layer in route:
        assert model.backbone.blocks[layer].mlp.fc2.weight.grad.any()


def test_class_token_prediction_needs_a_class_token() -> None:
    with refused("no class token", ValueError):
        RoutedModel(create("mixer_s16_224"), Position(predict=Predict(token="class_token")))


def test_position_parts_travel_with_the_weights(pico: ModelPreset, tmp_path: Path) -> None:
    """Plain weights leave new parts as they were drawn; another head is refused."""
    file = tmp_path / "w.safetensors"
    both = variant(position={"encode": {}, "predict": {}})
    save_weights(build(pico, 10), file)
    model = build(pico, 10, both, weights=file).eval()
    save_weights(model, file)
    again = build(pico, 10, both, weights=file).eval()
    images = torch.randn(2, 1, 28, 28)
    assert torch.equal(again(images, (3, 1)), model(images, (3, 1)))
    with pytest.raises(RuntimeError):
        load_weights(build(pico, 5), file)


def test_first_layers_alone(pico: ModelPreset, tmp_path: Path) -> None:
    """A refit-k model is the first k layers of the starting weights, or of its own."""
    file = tmp_path / "w.safetensors"
    full = build(pico, 10).eval()
    images = torch.randn(2, 1, 28, 28)
    save_weights(full, file)
    for _ in range(2):
        cut = build(pico, 10, variant(layers=2), weights=file).eval()
        assert cut.num_layers == 2
        assert torch.equal(cut(images), full(images, (0, 1)))
        save_weights(cut, file)


def test_scratch_weights_have_the_declared_scale(pico: ModelPreset) -> None:
    wide = pico.model_copy(update={"kwargs": pico.kwargs | {"embed_dim": 64}, "init_std": 0.07})
    weight = create_backbone(wide, 10).blocks[1].mlp.fc1.weight
    assert 0.068 < weight.std() < 0.072
