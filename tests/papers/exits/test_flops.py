"""FLOPs up to an exit: against formulas, real models and branches, and the paper's Table I."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from papers import Variant
from papers.exits.branches import make_branch
from papers.exits.compute.flops import count_branch, count_exits
from papers.exits.section import BRANCHES, BranchName, BranchSizes
from papers.exits.tables import PUBLISHED
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN
from pipeline.flops import countable
from pipeline.models.tokens import TokenShape, token_shape
from pipeline.models.weights import build
from tests.conftest import cases_of

TALKING = Variant(route="sequential", talking_heads=True)
SIZES = BranchSizes(channels=5, hidden=24)
CASES = cases_of(__file__)
PRESET = ModelPreset(timm="vit_tiny_patch16_224", kwargs=CASES["small"], weights="scratch")


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
    dense = inputs * sizes.hidden + sizes.hidden**2 + sizes.hidden * outputs
    return before.get(kind, 0) + 2 * dense


@pytest.mark.parametrize(("width", "prefix", "grid", "heads"), CASES["tokens"])
def test_flops_of_a_branch_are_the_formulas(
    width: int, prefix: int, grid: list[int], heads: int
) -> None:
    height, across = grid
    shape = TokenShape(width, prefix, (height, across), heads)
    for kind in BRANCHES:
        for outputs in (1, 7):
            expected = expected_branch(kind, shape, outputs, SIZES)
            assert count_branch(kind, shape, outputs, SIZES) == expected, kind


@pytest.mark.slow
@pytest.mark.parametrize(
    ("timm", "variant"),
    [
        ("vit_tiny_patch16_224", PLAIN),
        ("deit_tiny_distilled_patch16_224", PLAIN),
        ("vit_tiny_patch16_224", TALKING),
    ],
)
def test_flops_up_to_an_exit_are_those_of_a_real_run(timm: str, variant: Variant) -> None:
    preset = PRESET.model_copy(update={"timm": timm})
    counted = count_exits(preset, 7, BRANCHES, SIZES, variant)
    model = countable(build(preset, 7, variant))
    shape = token_shape(model.backbone)

    for kind in BRANCHES:
        branch = countable(make_branch(kind, shape, 7, SIZES))
        for depth in (0, 3):
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                branch(model.backbone.blocks[:depth](model.embed(torch.zeros(1, 1, 28, 28))))
            assert counted.at(kind, depth) == counter.get_total_flops(), kind


def test_predicted_positions_cost_an_exit_nothing() -> None:
    predicts = Variant(route="arbitrary", position={"predict": {"token": "mean"}})
    plain = count_exits(PRESET, 7, ["mlp"], SIZES)
    assert count_exits(PRESET, 7, ["mlp"], SIZES, predicts) == plain


def test_the_published_flops() -> None:
    """Table I within 1 %, and what one branch takes more than another within 0.05 G."""
    preset = ModelPreset(timm="vit_base_patch16_384", weights="scratch")
    counted = count_exits(preset, 10, BRANCHES, BranchSizes())
    assert counted.model.block == encoder(577, 768, 3072)
    published = PUBLISHED["multiply_adds"]
    ours = {branch: counted.at(branch, 6) / 2 / 1e9 for branch in BRANCHES}
    assert ours == pytest.approx(published, rel=0.01)
    for branch in BRANCHES:
        more = published[branch] - published["mlp"]
        assert ours[branch] - ours["mlp"] == pytest.approx(more, abs=0.05)


def test_a_branch_has_as_many_outputs_as_the_model() -> None:
    preset = PRESET.model_copy(update={"num_classes": 70})
    counted = count_exits(preset, 7, ["mlp"], SIZES)
    assert counted.branches["mlp"] == 2 * (32 * 24 + 24 * 24 + 24 * 70)
