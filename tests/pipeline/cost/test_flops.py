"""FLOPs up to an exit: against formulas, against real models and branches as they run, and against the paper's Table I."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from papers.exits.branches import TokenShape, make_branch, token_shape
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import BRANCHES, BranchName, BranchSizes, ExitHeads
from pipeline.cost.flops import (
    FLOPS,
    ExitFlops,
    count_branch,
    count_exits,
    count_forward,
    meta_backbone,
)
from pipeline.errors import UserError
from pipeline.models.weights import build

SIZES = BranchSizes(channels=5, hidden=24)
SMALL = {
    "img_size": 28,
    "patch_size": 14,
    "in_chans": 1,
    "embed_dim": 32,
    "depth": 3,
    "num_heads": 2,
}
NO_CLASS_TOKEN: list[BranchName] = ["mlp", "cnn_ignore", "vit", "mixer", "resmlp"]
# multi-exit ViT, Table I, last column: G multiply-adds up to and including the branch after layer 6
PUBLISHED: dict[BranchName, float] = {
    "mlp": 28.04,
    "cnn_ignore": 28.10,
    "cnn_add": 28.10,
    "cnn_project": 28.16,
    "vit": 32.65,
    "mixer": 31.11,
    "resmlp": 31.02,
}


def encoder(tokens: int, width: int, hidden: int) -> int:
    """A transformer layer: queries, keys, values, projection; attention; MLP."""
    return 2 * tokens * 4 * width**2 + 2 * 2 * tokens**2 * width + 2 * 2 * tokens * width * hidden


def mixer(tokens: int, width: int) -> int:
    return 2 * 2 * width * tokens * (width // 2) + 2 * 2 * tokens * width * 4 * width


def resmlp(tokens: int, width: int) -> int:
    return 2 * width * tokens**2 + 2 * 2 * tokens * width * 4 * width


def expected_branch(kind: BranchName, shape: TokenShape, outputs: int, sizes: BranchSizes) -> int:
    """What precedes the MLP of three dense layers, and that."""
    (height, width), inputs = shape.grid, shape.width
    before = {
        "vit": encoder(shape.length, inputs, 4 * inputs),
        "mixer": mixer(shape.length, inputs),
        "resmlp": resmlp(shape.length, inputs),
    }
    if kind.startswith("cnn"):
        concatenated = 2 if kind == "cnn_project" else 1
        before[kind] = 2 * height * width * 3 * 3 * concatenated * shape.width * sizes.channels
        inputs = sizes.channels * ((height + 1) // 2) * ((width + 1) // 2)
    return before.get(kind, 0) + 2 * (
        inputs * sizes.hidden + sizes.hidden**2 + sizes.hidden * outputs
    )


@cache
def vit_b16_at_384() -> ExitFlops:
    """The paper's backbone: 24 x 24 patches and a class token."""
    return count_exits(
        ModelPreset(timm="vit_base_patch16_384", weights="scratch"), 10, BRANCHES, BranchSizes()
    )


@pytest.mark.parametrize(
    "shape",
    [
        TokenShape(32, 1, (2, 2), 2),
        TokenShape(48, 1, (3, 5), 4),
        TokenShape(16, 2, (4, 3), 2),
        TokenShape(64, 5, (1, 4), 1),
    ],
    ids=str,
)
def test_flops_of_a_branch_are_the_formulas(shape: TokenShape) -> None:
    for kind in BRANCHES:
        for outputs in (1, 7):
            assert count_branch(kind, shape, outputs, SIZES)[FLOPS] == expected_branch(
                kind, shape, outputs, SIZES
            ), kind


@pytest.mark.parametrize(
    ("timm", "kwargs"),
    [
        ("vit_tiny_patch16_224", SMALL),
        ("vit_tiny_patch16_224", SMALL | {"patch_size": 4, "mlp_ratio": 3, "in_chans": 3}),
        ("deit_tiny_distilled_patch16_224", SMALL),
        ("deit_tiny_distilled_patch16_224", SMALL | {"patch_size": 7}),
    ],
)
def test_flops_of_a_vit_and_its_exits_are_the_formulas(timm: str, kwargs: dict[str, Any]) -> None:
    distilled = "distilled" in timm
    found = count_exits(
        ModelPreset(timm=timm, kwargs=kwargs, weights="scratch"), 7, BRANCHES, SIZES
    )
    side, prefix = kwargs["img_size"] // kwargs["patch_size"], 2 if distilled else 1
    assert found.embed == 2 * side**2 * kwargs["patch_size"] ** 2 * kwargs["in_chans"] * 32
    assert found.block == encoder(side**2 + prefix, 32, 32 * kwargs.get("mlp_ratio", 4))
    assert found.head == 2 * 32 * 7 * (2 if distilled else 1)
    shape = TokenShape(32, prefix, (side, side), 2)
    assert found.branches == {kind: expected_branch(kind, shape, 7, SIZES) for kind in BRANCHES}


@pytest.mark.parametrize(
    ("timm", "block"), [("mixer_s16_224", mixer(9, 512)), ("resmlp_12_224", resmlp(9, 384))]
)
def test_flops_of_an_mlp_backbone_and_its_exits_are_the_formulas(timm: str, block: int) -> None:
    preset = ModelPreset(timm=timm, kwargs={"img_size": 48, "in_chans": 1}, weights="scratch")
    found, shape = (
        count_exits(preset, 7, NO_CLASS_TOKEN, SIZES),
        token_shape(meta_backbone(preset, 7)),
    )
    assert (shape.prefix, shape.grid) == (0, (3, 3))
    assert (found.embed, found.block, found.head) == (
        2 * 9 * 16**2 * shape.width,
        block,
        2 * shape.width * 7,
    )
    assert found.branches == {
        kind: expected_branch(kind, shape, 7, SIZES) for kind in NO_CLASS_TOKEN
    }


def test_flops_of_vit_b16_and_its_exits_are_the_formulas() -> None:
    found = vit_b16_at_384()
    assert found.embed == 2 * 576 * 16**2 * 3 * 768
    assert (found.block, found.head) == (encoder(577, 768, 3072), 2 * 768 * 10)
    shape = TokenShape(768, 1, (24, 24), 12)
    assert found.branches == {
        kind: expected_branch(kind, shape, 10, BranchSizes()) for kind in BRANCHES
    }


def test_attention_is_included() -> None:
    """Twice the tokens take more than twice the FLOPs, by what attention takes, in a block as in a branch."""
    few, many = (
        int(count_branch("vit", TokenShape(32, 0, grid, 2), 7, SIZES)[FLOPS])
        for grid in ((4, 4), (4, 8))
    )
    mlp = expected_branch("mlp", TokenShape(32, 0, (4, 4), 2), 7, SIZES)
    assert (many - mlp) - 2 * (few - mlp) == 8 * 16**2 * 32
    blocks = [
        count_exits(
            ModelPreset(
                timm="vit_tiny_patch16_224", kwargs=SMALL | {"img_size": side}, weights="scratch"
            ),
            7,
            [],
            SIZES,
        ).block
        for side in (14, 28, 42)  # 2, 5, 10 tokens
    ]
    assert blocks[2] - 2 * blocks[1] == 8 * 5**2 * 32
    assert blocks[2] - 5 * blocks[0] == 4 * (10**2 - 5 * 2**2) * 32


@pytest.mark.slow
@pytest.mark.parametrize("timm", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_flops_up_to_an_exit_are_those_of_a_real_run(timm: str) -> None:
    preset = ModelPreset(timm=timm, kwargs=SMALL, weights="scratch")
    found, model = count_exits(preset, 7, BRANCHES, SIZES), build(preset, 7).eval()
    branches = {
        kind: make_branch(kind, token_shape(model.backbone), 7, SIZES).eval() for kind in BRANCHES
    }
    for part in (part for module in (model, *branches.values()) for part in module.modules()):
        if hasattr(part, "fused_attn"):
            setattr(part, "fused_attn", False)  # noqa: B010

    def run(depth: int, then: Callable[[Tensor], Tensor]) -> int:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            then(model.backbone.blocks[:depth](model.embed(torch.zeros(1, 1, 28, 28))))
        return counter.get_total_flops()

    for kind, branch in branches.items():
        assert [found.at(kind, depth) for depth in (0, 3)] == [
            run(depth, branch) for depth in (0, 3)
        ], kind
    assert found.final(3) == run(
        3, lambda tokens: model.backbone.forward_head(model.backbone.norm(tokens))
    )


def test_the_published_flops() -> None:
    """Table I within 1 %, and what one branch takes more than another within 0.05 G."""
    found = {kind: vit_b16_at_384().at(kind, 6) / 2 / 1e9 for kind in PUBLISHED}
    assert found == pytest.approx(PUBLISHED, rel=0.01)
    more = {kind: found[kind] - found["mlp"] for kind in found}
    assert more == pytest.approx(
        {kind: published - PUBLISHED["mlp"] for kind, published in PUBLISHED.items()}, abs=0.05
    )


def test_counting_leaves_no_trace_and_adds_up() -> None:
    preset = ModelPreset(
        timm="deit_tiny_distilled_patch16_224", kwargs=SMALL, weights="scratch", head="class_token"
    )
    backbone = meta_backbone(preset, 7)
    assert {parameter.device.type for parameter in backbone.parameters()} == {"meta"}
    forward, found = count_forward(backbone, preset), count_exits(preset, 7, [], SIZES)
    assert found.final(3) == (forward.outside + 3 * forward.block)[FLOPS]
    assert found.head == 2 * 32 * 7  # one head of two
    assert all(isinstance(value, int) for value in found[:3])
    more = preset.model_copy(
        update={"num_classes": 70}
    )  # of the model and of its exits, as RoutedModel makes them
    assert (
        count_exits(more, 7, ["mlp"], SIZES).branches["mlp"]
        - count_exits(preset, 7, ["mlp"], SIZES).branches["mlp"]
        == 2 * 24 * 63
    )


def test_a_model_with_exits_runs_all_of_them() -> None:
    preset = ModelPreset(timm="vit_tiny_patch16_224", kwargs=SMALL, weights="scratch")
    backbone = meta_backbone(preset, 7)
    exits = ExitHeads(branch="cnn_add", depths=[1, 2], **SIZES.model_dump())
    plain, found = count_forward(backbone, preset), count_forward(backbone, preset, exits=exits)
    branch = count_branch("cnn_add", TokenShape(32, 1, (2, 2), 2), 7, SIZES)
    assert (found.outside - plain.outside).tolist() == (2 * branch).tolist()
    assert (found.block == plain.block).all()


def test_what_cannot_be_counted_is_refused() -> None:
    mixer_preset = ModelPreset(timm="mixer_s16_224", kwargs={"img_size": 32}, weights="scratch")
    with pytest.raises(UserError, match="found branch 'cnn_add' on a model without a class token"):
        count_exits(mixer_preset, 7, ["cnn_add"], SIZES)
    dropping = ModelPreset(
        timm="vit_tiny_patch16_224", kwargs=SMALL | {"patch_drop_rate": 0.5}, weights="scratch"
    )
    with pytest.raises(UserError, match="patch dropout"):
        count_exits(dropping, 7, ["mlp"], SIZES)
    with pytest.raises(KeyError):
        vit_b16_at_384().at("none", 6)  # type: ignore[arg-type]
