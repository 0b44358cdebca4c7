"""Blocks without some parts, parts put into another model, and timm's mixers of any size."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
from timm.layers import GatedMlp
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock, SpatialGatingBlock
from timm.models.vision_transformer import Block, ParallelScalingBlock, VisionTransformer
from torch import Tensor

import pipeline.models.mixers  # noqa: F401 (registers names)
from lsvit.routed import RoutedModel
from papers.inversion.compute.ablation import Ablated, ablate, transplant
from pipeline.errors import UserError
from pipeline.models.tokens import patch_embed
from tests.models import images, small

RESMLP: dict[str, Any] = {
    "kind": MlpMixer,
    "block_layer": ResBlock,
    "norm_layer": Affine,
    "mlp_ratio": 4,
}
KINDS: dict[str, dict[str, Any]] = {
    "vit": {},
    "layer scale": {"init_values": 0.5},
    "distilled": {"kind": VisionTransformerDistilled},
    "mixer": {"kind": MlpMixer},
    "resmlp": RESMLP,
}
GMLP: dict[str, Any] = {
    "num_blocks": 2,
    "block_layer": SpatialGatingBlock,
    "mlp_layer": GatedMlp,
    "mlp_ratio": 4,
}
DROPPING: dict[str, Any] = {"drop_path_rate": 0.5, "proj_drop_rate": 0.3}
Branch = Callable[[Tensor], Tensor]


pytestmark = pytest.mark.usefixtures("one_thread")


def tokens(backbone: Any) -> Tensor:
    """What its first block takes."""
    with torch.no_grad():
        return RoutedModel(backbone).embed(images(3))


def branches(block: Any) -> tuple[Branch, Branch]:
    """The attention and the MLP of a block, behind their norms, in weights and timm's layers."""
    if isinstance(block, Block):
        scales = [getattr(scale, "gamma", torch.ones(())) for scale in (block.ls1, block.ls2)]
        return lambda x: scales[0] * block.attn(x), lambda x: scales[1] * block.mlp(x)
    if isinstance(block, ResBlock):
        weight, bias = block.linear_tokens.weight, block.linear_tokens.bias
        return (
            lambda x: block.ls1 * (torch.einsum("nm,bmd->bnd", weight, x) + bias[:, None]),
            lambda x: block.ls2 * block.mlp_channels(x),
        )
    return lambda x: torch.stack([block.mlp_tokens(one.T).T for one in x]), block.mlp_channels


# Of x, attention a, MLP m, and their norms n and k.
Formula = Callable[[Tensor, Branch, Branch, Branch, Branch], Tensor]
FORMULAS: dict[str, Formula] = {
    "": lambda x, a, m, n, k: (y := x + a(n(x))) + m(k(y)),
    "residuals": lambda x, a, m, n, k: m(k(a(n(x)))),
    "norms": lambda x, a, m, n, k: (y := x + a(x)) + m(y),
    "attention": lambda x, a, m, n, k: x + m(k(x)),
    "mlp": lambda x, a, m, n, k: x + a(n(x)),
    "residuals mlp": lambda x, a, m, n, k: a(n(x)),
    "attention mlp": lambda x, a, m, n, k: x,
    "residuals norms mlp": lambda x, a, m, n, k: a(x),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_block_is_timms_bit_for_bit(kind: str) -> None:
    """Also in training, where the same branches and values are dropped."""
    for changes in ({}, DROPPING):
        backbone = small(**(KINDS[kind] | changes)).train(bool(changes))
        x = tokens(backbone)
        for block in backbone.blocks:
            torch.manual_seed(3)
            expected = block(x)
            torch.manual_seed(3)
            found = Ablated(block, ())(x)
            assert torch.equal(found, expected)
            assert not torch.equal(found, x)
    torch.manual_seed(4)
    assert not torch.equal(Ablated(block, ())(x), expected)  # else nothing was dropped


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_removals_are_these_formulas(kind: str) -> None:
    """Whatever the order in which the parts are named."""
    backbone = small(**KINDS[kind])
    x, block = tokens(backbone), backbone.blocks[2]
    for name, formula in FORMULAS.items():
        expected = formula(x, *branches(block), block.norm1, block.norm2)
        for without in (name.split(), name.split()[::-1]):
            assert torch.allclose(Ablated(block, without)(x), expected, atol=1e-5), name


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (VisionTransformer, {"depth": 2, "block_fn": ParallelScalingBlock}),
        (VisionTransformer, {"depth": 2, "block_fn": type("Own", (Block,), {})}),
        (MlpMixer, GMLP),
    ],
)
def test_other_blocks_are_refused(kind: type, changes: dict[str, Any]) -> None:
    """The model stays as it was."""
    with torch.device("meta"):
        backbone: Any = kind(embed_dim=12, **changes)
    blocks = list(backbone.blocks)
    name = type(blocks[0]).__name__
    with pytest.raises(UserError, match=rf"^ablations: found blocks of {name}, accepted: "):
        ablate(backbone, ["mlp"])
    assert all(a is b for a, b in zip(backbone.blocks, blocks, strict=True))


@pytest.mark.parametrize("kind", ["vit", "mixer", "resmlp"])
@torch.no_grad()
def test_every_block_of_a_model_is_ablated(kind: str) -> None:
    backbone = small(**KINDS[kind])
    blocks, x = list(backbone.blocks), tokens(backbone)
    ablate(backbone, ["residuals", "mlp"])
    for block, whole in zip(backbone.blocks, blocks, strict=True):
        x, expected = block(x), Ablated(whole, ["residuals", "mlp"])(x)
        assert torch.equal(x, expected)
    assert torch.equal(RoutedModel(backbone).tokens(images(3)), x)


# ---- transplants --------------------------------------------------------------------------------


def other(backbone: Any) -> Any:
    """Another model of the same architecture, which has no value in common."""
    found = deepcopy(backbone)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.add_(1 + torch.rand_like(parameter))
    return found


@pytest.mark.parametrize("parts", [["pos_embed"], ["norm1", "patch_embed"], []], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_transplants_copy_these_parts_alone(kind: str, parts: list[str]) -> None:
    """Values, not storage; the target's parameters are still its own."""
    target = small(**KINDS[kind]).requires_grad_(False)
    source = other(target)
    if "pos_embed" in parts and kind in ("mixer", "resmlp"):
        with pytest.raises(UserError, match=r"^transplants: found 'pos_embed', accepted: "):
            transplant(target, source, parts)
        return
    before, given = (deepcopy(model.state_dict()) for model in (target, source))
    parameters = dict(target.named_parameters())
    stem = "stem." if kind in ("mixer", "resmlp") else "patch_embed."
    prefixes = {"patch_embed": stem, "pos_embed": "pos_embed", "norm1": "blocks.0.norm1."}
    moved = tuple(prefixes[part] for part in parts)
    transplant(target, source, parts)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.zero_()
    for name, value in target.state_dict().items():
        expected = given if name.startswith(moved) else before
        assert torch.equal(value, expected[name]), name
    assert all(p is parameters[name] for name, p in target.named_parameters())


def test_blocks_without_a_first_norm_are_refused() -> None:
    with torch.device("meta"):
        gmlp = MlpMixer(embed_dim=12, **GMLP)
    with pytest.raises(UserError, match=r"^transplants: found 'norm1', accepted: "):
        transplant(gmlp, gmlp, ["norm1"])


# ---- mixers of any size --------------------------------------------------------------------------

SIZES: dict[str, Any] = {"img_size": 16, "patch_size": 8, "in_chans": 1, "num_blocks": 2}
SIZES |= {"embed_dim": 12, "num_classes": 5}


def assert_parts_are_found(model: Any) -> None:
    """They are where loading looks for them."""
    first, last = (model.pretrained_cfg[part] for part in ("first_conv", "classifier"))
    assert model.get_submodule(first) is patch_embed(model).proj
    assert model.get_submodule(last) is model.get_classifier()


CUSTOM: dict[str, dict[str, Any]] = {"mixer_custom": {}, "resmlp_custom": RESMLP}


@pytest.mark.parametrize("name", CUSTOM)
@torch.no_grad()
def test_custom_mixers_take_any_size(name: str) -> None:
    """Weights fit timm's class and give the same answers there; parts are where loading looks."""
    own: Any = timm.create_model(name, **SIZES).eval()
    expected: Any = small(**SIZES | {"kind": MlpMixer} | CUSTOM[name])
    expected.load_state_dict(own.state_dict())
    x = torch.randn(3, 1, 16, 16)
    assert torch.equal(own(x), expected(x))
    assert_parts_are_found(own)


PLAIN: dict[str, dict[str, Any]] = {
    "vit_plain": {"depth": 2, "num_heads": 3},
    "mixer_plain": {"num_blocks": 2},
}


@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_plain_models_have_no_residual_connections(name: str) -> None:
    """They are timm's models, weight for weight, with the residual connections taken out."""
    sizes = {key: value for key, value in SIZES.items() if key != "num_blocks"} | PLAIN[name]
    torch.manual_seed(0)
    plain: Any = timm.create_model(name, **sizes).eval()
    kind = VisionTransformer if name == "vit_plain" else MlpMixer
    torch.manual_seed(0)
    expected: Any = kind(**sizes).eval()
    for key, value in plain.state_dict().items():
        assert torch.equal(value, expected.state_dict()[key]), key
    x = torch.randn(3, 1, 16, 16)
    assert not torch.allclose(plain.forward_features(x), expected.forward_features(x))
    ablate(expected, ["residuals"])
    assert torch.equal(plain.forward_features(x), expected.forward_features(x))
    assert_parts_are_found(plain)
