"""Routed models: equal to timm along the identity route, right along every other."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from lsvit.errors import UserError
from lsvit.losses import position_hits, position_loss
from lsvit.models import PositionLogits, RoutedModel
from lsvit.routes import arbitrary, drop, generator, per_sample
from lsvit.sections import Encode, ModelPreset, Position, Predict
from lsvit.weights import build, create_backbone, load_weights, save_weights

SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 4, "num_classes": 7}
FAMILIES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": SMALL | {"num_heads": 2},
    "deit_tiny_distilled_patch16_224": SMALL | {"num_heads": 2},
    "deit3_small_patch16_224": SMALL | {"num_heads": 2},
    "vit_small_patch14_dinov2": SMALL | {"num_heads": 2},
    "vit_small_patch16_224.augreg_in21k": SMALL | {"num_heads": 2, "global_pool": "avg"},
    "mixer_s16_224": {"img_size": 32, "num_classes": 7},
    "resmlp_12_224": {"img_size": 32, "num_classes": 7},
    "test_vit": {"num_classes": 7},
}


@pytest.fixture(params=FAMILIES)
def backbone(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    model = timm.create_model(request.param, **FAMILIES[request.param]).eval()
    with torch.no_grad():  # some families start with a head of zeros, whose outputs would all be equal
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def images_for(backbone: Any, n: int = 3) -> Tensor:
    size = (getattr(backbone, "stem", None) or backbone.patch_embed).img_size
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(1))


def test_identity_route_is_timms_forward_bit_for_bit(backbone: Any) -> None:
    images, model = images_for(backbone), RoutedModel(backbone)
    with torch.no_grad():
        expected = backbone(images)
        assert torch.equal(model(images), expected)
        assert torch.equal(model(images, tuple(range(model.num_layers))), expected)


def test_route_is_executed_in_order(backbone: Any) -> None:
    """Any route, with repetitions and gaps, equals the blocks applied by hand; a layer not in it is not executed."""
    images, model = images_for(backbone), RoutedModel(backbone)
    calls: list[int] = []
    for layer, block in enumerate(backbone.blocks):
        block.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
    route = (3, 0, 0, 2)
    with torch.no_grad():
        found = model(images, route)
        assert calls == list(route)
        state = model.embed(images)
        for layer in route:
            state = backbone.blocks[layer](state)
        assert torch.equal(found, backbone.forward_head(backbone.norm(state)))
        assert not torch.equal(found, model(images))


def test_trained_weights_load_into_stock_timm_and_back(backbone: Any, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["backbone"]
    save_weights(RoutedModel(backbone), tmp_path / "w.safetensors")
    kwargs = FAMILIES[name] | {"pretrained": True, "pretrained_cfg_overlay": {"file": str(tmp_path / "w.safetensors"), "num_classes": 7}}
    stock = timm.create_model(name.partition(".")[0], **kwargs)
    assert stock.state_dict().keys() == backbone.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(stock.state_dict().values(), backbone.state_dict().values(), strict=True))
    other = RoutedModel(timm.create_model(name, **FAMILIES[name]))
    load_weights(other, tmp_path / "w.safetensors")
    images = images_for(backbone)
    with torch.no_grad():
        assert torch.equal(other.eval()(images), backbone(images))


@pytest.mark.parametrize("route", [(0, 4), (-1,), (99,)])
def test_layer_out_of_range(pico: ModelPreset, route: tuple[int, ...]) -> None:
    with pytest.raises(IndexError, match="does not exist, the model has layers 0 to 3"):
        build(pico, 10)(torch.zeros(1, 1, 28, 28), route)


@pytest.mark.parametrize("name", ["test_resnet", "test_byobnet", "eva02_tiny_patch14_224"])
def test_other_models_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="not routable, accepted: timm's VisionTransformer and MlpMixer"):
        RoutedModel(timm.create_model(name))


def test_position_encoding_knows_the_position(pico: ModelPreset) -> None:
    torch.manual_seed(0)
    model = build(pico, 10, Position(encode=Encode(dim=8))).eval()
    encode = model.position["encode"]
    state = torch.randn(2, 5, 16)
    embedding = encode.embeddings[1].weight[2].expand(2, 5, -1)
    norm, linear, gelu, _ = encode.projections[1]
    expected = gelu(linear(norm(torch.cat([state, embedding], -1)))) + state  # section 3.2
    assert torch.equal(encode(state, 1, 2), expected)
    assert not torch.equal(encode(state, 1, 3), expected)


def test_shared_position_encoding_starts_at_zero(pico: ModelPreset) -> None:
    """The published code's reading: one embedding for all layers, initialised to zero."""
    encode = build(pico, 10, Position(encode=Encode(shared=True, init="zeros"))).position["encode"]
    assert [embedding.weight.shape for embedding in encode.embeddings] == [(4, 32)]
    assert not encode.embeddings[0].weight.any()


def rows(routes: Tensor) -> list[tuple[int, ...]]:
    """Per-sample routes as tuples, without the -1s that end shorter ones."""
    return [tuple(layer for layer in route if layer >= 0) for route in routes.tolist()]


@pytest.mark.parametrize("sampler", [arbitrary, drop(0.5)], ids=["permutations", "of different lengths"])
def test_per_sample_routes_equal_running_each_sample_alone(backbone: Any, sampler: Any) -> None:
    """All families, with both position parts: outputs, position predictions, taps and gradients, in double precision."""
    model = RoutedModel(backbone, Position(encode=Encode(dim=8), predict=Predict())).double()
    images = images_for(backbone, 7).double()
    routes = torch.from_numpy(per_sample(sampler, generator("samples", 3), model.num_layers, 7))
    labels = torch.arange(7) % 7

    def gradients() -> list[Tensor]:
        found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        return found

    together = PositionLogits(model)
    states: dict[tuple[int, int], Tensor] = {}

    def tap(depth: int, layer: int, before: Tensor, after: Tensor, samples: Any) -> None:
        states.update({(int(i), depth): state for i, state in zip(samples, after, strict=True)})
        assert all(routes[i, depth] == layer for i in samples)

    logits = model(images, routes, [together, tap])
    (torch.nn.functional.cross_entropy(logits, labels) + position_loss(together.logits)).backward()
    found = gradients()

    hits, count = 0.0, 0
    for i, route in enumerate(rows(routes)):
        alone = PositionLogits(model)
        last: list[Tensor] = []
        expected = model(images[i : i + 1], route, [alone, lambda *a, last=last: last.append(a[3])])
        assert torch.allclose(logits[i], expected[0], atol=1e-11, rtol=1e-9)
        assert all(torch.allclose(states[i, depth], state[0], atol=1e-11, rtol=1e-9) for depth, state in enumerate(last))
        ((torch.nn.functional.cross_entropy(expected, labels[i : i + 1]) + position_loss(alone.logits)) / 7).backward()
        hits, count = hits + float(position_hits(alone.logits)) * len(route), count + len(route)
    assert len(states) == count  # a layer not in a sample's route is not executed for it
    for a, b in zip(found, gradients(), strict=True):
        assert torch.allclose(a, b, atol=1e-10, rtol=1e-8)
    assert float(position_hits(together.logits)) == pytest.approx(hits / count)


def test_per_sample_routes_that_all_agree_are_one_route(pico: ModelPreset) -> None:
    model = build(pico, 10).eval()
    images = torch.randn(5, 1, 28, 28)
    for route in ((2, 0, 3), (1, 1), ()):
        assert torch.equal(model(images, torch.tensor([route] * 5, dtype=torch.int32).reshape(5, -1)), model(images, route))


@pytest.mark.parametrize(
    ("routes", "error", "said"),
    [
        ([[0, 4]], IndexError, r"route \(0, 4\): layer 4 does not exist, the model has layers 0 to 3"),
        ([[0, -2]], IndexError, "layer -2 does not exist"),
        ([[0.0, 1.0]], ValueError, "accepted: integers"),
        ([[0, 1], [1, 0]], ValueError, r"accepted: integers \(1, length\)"),
        ([[0, -1, 1]], ValueError, "found -1 before a layer"),
        ([[-1, -1]], ValueError, "or an empty route"),
    ],
)
def test_wrong_per_sample_routes(pico: ModelPreset, routes: list, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        build(pico, 10)(torch.zeros(1, 1, 28, 28), torch.tensor(routes))


@pytest.mark.parametrize("token", ["mean", "class_token"])
def test_position_prediction(pico: ModelPreset, token: Any) -> None:
    model = build(pico, 10, Position(predict=Predict(token=token)))
    tap, states = PositionLogits(model), []
    model(torch.randn(2, 1, 28, 28), (2, 0, 3), [tap, lambda depth, layer, before, after, samples: states.append((layer, after))])
    assert [logits.shape for logits in tap.logits] == [(2, 4)] * 3
    for logits, (layer, state) in zip(tap.logits, states, strict=True):
        read = state.mean(1) if token == "mean" else state[:, 0]
        assert torch.equal(logits, model.position["predict"].heads[layer](read))


def test_class_token_prediction_needs_a_class_token() -> None:
    mixer = timm.create_model("mixer_s16_224", **FAMILIES["mixer_s16_224"])
    with pytest.raises(UserError, match="no class token"):
        RoutedModel(mixer, Position(predict=Predict(token="class_token")))


def test_route_longer_than_the_positions(pico: ModelPreset) -> None:
    model = build(pico, 10, Position(encode=Encode()))
    with pytest.raises(IndexError, match="know 4 positions"):
        model(torch.zeros(1, 1, 28, 28), (0, 1, 2, 3, 0))


def test_position_parts_travel_with_the_weights(pico: ModelPreset, tmp_path: Path) -> None:
    position = Position(encode=Encode(), predict=Predict())
    model = build(pico, 10, position).eval()
    save_weights(model, tmp_path / "w.safetensors")
    again = build(pico, 10, position, weights=tmp_path / "w.safetensors").eval()
    images = torch.randn(2, 1, 28, 28)
    assert torch.equal(again(images, (3, 1)), model(images, (3, 1)))
    plain = build(pico, 10)
    with pytest.raises(RuntimeError):
        load_weights(build(pico, 5), tmp_path / "w.safetensors")  # another head
    save_weights(plain, tmp_path / "plain.safetensors")
    build(pico, 10, position, weights=tmp_path / "plain.safetensors")  # new parts keep their initialisation


def test_first_layers_alone(pico: ModelPreset, tmp_path: Path) -> None:
    """A refit-k model is the first k layers of the starting weights."""
    full = build(pico, 10).eval()
    save_weights(full, tmp_path / "w.safetensors")
    cut = build(pico, 10, layers=2, weights=tmp_path / "w.safetensors").eval()
    images = torch.randn(2, 1, 28, 28)
    assert cut.num_layers == 2
    assert torch.equal(cut(images), full(images, (0, 1)))
    save_weights(cut, tmp_path / "cut.safetensors")
    assert torch.equal(build(pico, 10, layers=2, weights=tmp_path / "cut.safetensors").eval()(images), cut(images))


def test_scratch_weights_have_the_declared_scale(pico: ModelPreset) -> None:
    wide = pico.model_copy(update={"kwargs": pico.kwargs | {"embed_dim": 64}, "init_std": 0.07})
    weight = create_backbone(wide, 10).blocks[1].mlp.fc1.weight
    assert 0.068 < weight.std() < 0.072


def test_layers_depend_on_their_order(pico: ModelPreset) -> None:
    """Why init_std: with timm's 0.02 a narrow model's output hardly changes with the order."""

    def change(init_std: float | None) -> float:
        torch.manual_seed(0)
        model = build(pico.model_copy(update={"init_std": init_std}), 10).eval()
        outputs: list[Tensor] = []
        for route in ((0, 1, 2, 3), (3, 2, 1, 0)):
            states: list[Tensor] = []
            model(torch.randn(8, 1, 28, 28, generator=torch.Generator().manual_seed(0)), route, [lambda *a, s=states: s.append(a[3])])
            outputs.append(states[-1])
        return float((outputs[0] - outputs[1]).norm() / outputs[0].norm())

    with torch.no_grad():
        assert change(0.14) > 5 * change(None)


def test_weights_that_cannot_be_had(pico: ModelPreset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no model 'vit_tinny'"):
        create_backbone(pico.model_copy(update={"timm": "vit_tinny"}), 10)
    with pytest.raises(UserError, match="no weights tagged 'orig'"):
        create_backbone(pico.model_copy(update={"timm": "vit_tiny_patch16_224.orig"}), 10)
    with pytest.raises(UserError, match="does not exist"):
        create_backbone(pico.model_copy(update={"weights": "none.safetensors"}), 10)
    (tmp_path / "bad.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"bad\.safetensors"):
        create_backbone(pico.model_copy(update={"weights": str(tmp_path / "bad.safetensors")}), 10)
    with pytest.raises(UserError, match="its sha256 is"):
        create_backbone(pico.model_copy(update={"weights": str(tmp_path / "bad.safetensors"), "sha256": "0" * 64}), 10)
    monkeypatch.setattr("timm.models._builder.load_pretrained", lambda *_, **__: (_ for _ in ()).throw(OSError("offline")))
    with pytest.raises(UserError, match=r"three ways .*HF_HOME.*\.safetensors") as error:
        create_backbone(ModelPreset(timm="vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights="hub"), 10)
    assert "\n" not in str(error.value)


def test_local_weights_that_do_not_fit(pico: ModelPreset, tmp_path: Path) -> None:
    """Partial or foreign weights are refused, not silently left at their initialisation."""
    deeper = build(pico.model_copy(update={"kwargs": pico.kwargs | {"depth": 3}}), 10)
    save_weights(deeper, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=r"w\.safetensors: does not fit VisionTransformer: 12 tensors .* 'blocks\.3\."):
        create_backbone(pico.model_copy(update={"weights": str(tmp_path / "w.safetensors")}), 10)


def test_local_weights_keep_a_fitting_head(pico: ModelPreset, tmp_path: Path) -> None:
    model = build(pico, 10)
    save_weights(model, tmp_path / "w.safetensors")
    local = create_backbone(pico.model_copy(update={"weights": str(tmp_path / "w.safetensors")}), 10)
    assert torch.equal(local.head.weight, model.backbone.head.weight)


def test_local_weights_get_a_head_for_the_data(pico: ModelPreset, tmp_path: Path) -> None:
    model = build(pico, 1000)
    save_weights(model, tmp_path / "w.safetensors")
    local = create_backbone(pico.model_copy(update={"weights": str(tmp_path / "w.safetensors")}), 10)
    assert local.head.weight.shape == (10, 16)
    assert torch.equal(local.blocks[0].mlp.fc1.weight, model.backbone.blocks[0].mlp.fc1.weight)
