"""Early-exit branches: what each reads of the tokens; models with exits, and inference that stops
at them.
"""

from typing import Any

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer
from torch import nn

from lsvit.routed import RoutedModel
from lsvit.taps import ExitLogits
from papers.exits.branches import Pool, make_branch
from papers.exits.compute.dynamic import anytime, leave_early
from papers.exits.section import BRANCHES, BranchSizes, ExitHeads
from papers.exits.training import exit_objective
from pipeline.errors import UserError
from pipeline.models.tokens import TokenShape, token_shape
from pipeline.training.objectives import is_right, task_loss
from tests.conftest import cases_of
from tests.models import images, small, with_parts

CASES = cases_of(__file__)
SIZES = BranchSizes(channels=8, hidden=12, dropout=0.3)
READS_CLASS = ("cnn_add", "cnn_project")
REGISTERS: dict[str, Any] = {"class_token": False, "reg_tokens": 4, "global_pool": "avg"}
SHAPE = TokenShape(16, 1, (2, 3), 2)
FAMILIES: dict[str, dict[str, Any]] = {
    "class token": {},
    "distilled": {"kind": VisionTransformerDistilled},
    "average pooling": {"global_pool": "avg"},
    "attention pooling": {"global_pool": "map", "class_token": False},
    "mixer": {"kind": MlpMixer},
}


def heads(branch: Any = "cnn_add", depths: tuple[int, ...] = (1, 3), **changes: Any) -> ExitHeads:
    return ExitHeads(branch=branch, depths=list(depths), **(SIZES.model_dump() | changes))


@pytest.fixture
def model() -> RoutedModel:
    return with_parts(small(), exits=heads()).eval()


def count_calls(model: RoutedModel) -> list[tuple[str, int]]:
    """Blocks and exits as they are executed, with how many samples: ("2", 6), ("exit 1", 6)."""
    calls: list[tuple[str, int]] = []

    def watch(name: str, part: nn.Module) -> None:
        part.register_forward_hook(lambda module, args, out: calls.append((name, len(args[0]))))

    for i, block in enumerate(model.backbone.blocks):
        watch(str(i), block)
    for depth, exit in model.exits.items():
        watch(f"exit {depth}", exit)
    return calls


# ---- branches ------------------------------------------------------------------------------------


def test_a_pool_gives_the_first_token_or_the_mean_of_the_tokens() -> None:
    tokens = torch.randn(2, 5, 3)
    assert torch.equal(Pool("token")(tokens), tokens[:, 0])
    assert torch.allclose(Pool("avg")(tokens), tokens.mean(1))
    assert torch.allclose(Pool("avg", 2)(tokens), tokens[:, 2:].mean(1))


@pytest.mark.parametrize("kind", BRANCHES)
@pytest.mark.parametrize(
    "shape",
    [
        SHAPE,
        TokenShape(16, 0, (3, 3), 2),
        TokenShape(16, 2, (3, 5), 2),
        TokenShape(16, 1, (1, 1), 2),
        TokenShape(16, 4, (2, 3), 2, first_is_class=False),
    ],
)
def test_what_each_branch_reads(shape: TokenShape, kind: Any) -> None:
    """Answers (B, C) depend on exactly these tokens, and train every parameter.

    Those at the rim of an odd grid are among them. Register tokens are no class token.
    """
    torch.manual_seed(0)
    if kind in READS_CLASS and not shape.class_token:
        with pytest.raises(UserError, match=f"'{kind}' on a model without a class token, accepted"):
            make_branch(kind, shape, 10, SIZES)
        return
    patches = set(range(shape.prefix, shape.length))
    expected = {
        "mlp": {0} if shape.class_token else patches,
        "cnn_ignore": patches,
        "cnn_add": {0, *patches},
        "cnn_project": {0, *patches},
    }
    for outputs in (10, 1):
        branch = make_branch(kind, shape, outputs, SIZES).eval()
        tokens = torch.randn(64, shape.length, 16, requires_grad=True)
        answers = branch(tokens)
        assert answers.shape == (64, outputs)
        answers.square().sum().backward()
        assert tokens.grad is not None
        read = tokens.grad.abs().sum(dim=(0, 2)).nonzero()[:, 0].tolist()
        assert set(read) == expected.get(kind, set(range(shape.length)))
        assert all(p.grad is not None and p.grad.any() for p in branch.parameters())


@pytest.mark.parametrize(
    ("backbone", "shape"),
    [
        ({}, SHAPE),
        ({"kind": VisionTransformerDistilled}, TokenShape(16, 2, (2, 3), 2)),
        (REGISTERS, TokenShape(16, 4, (2, 3), 2, first_is_class=False)),
        ({"kind": MlpMixer}, TokenShape(16, 0, (2, 3), 1, first_is_class=False)),
        ({"kind": MlpMixer, "embed_dim": 384}, TokenShape(384, 0, (2, 3), 6, first_is_class=False)),
        ({"kind": MlpMixer, "embed_dim": 512}, TokenShape(512, 0, (2, 3), 8, first_is_class=False)),
    ],
)
def test_the_tokens_of_a_model(backbone: dict[str, Any], shape: TokenShape) -> None:
    """Without attention a `vit` branch has 64 channels a head, as all ViTs have; at least one."""
    assert token_shape(small(**backbone)) == shape


@pytest.mark.parametrize("kind", ["cnn_ignore", *READS_CLASS])
def test_convolution_sees_neighbours_on_the_grid(kind: Any) -> None:
    """As the same layers on a grid laid by hand."""
    torch.manual_seed(0)
    branch = make_branch(kind, TokenShape(4, 2, (2, 3), 1), 5, SIZES).eval()
    tokens = torch.randn(3, 8, 4)
    class_token = tokens[:, 0]
    grid = torch.empty(3, 8 if kind == "cnn_project" else 4, 2, 3)
    for patch in range(6):
        value = tokens[:, 2 + patch]
        if kind == "cnn_add":
            value = value + class_token
        elif kind == "cnn_project":
            value = torch.cat([value, class_token], 1)
        grid[:, :, patch // 3, patch % 3] = value
    assert torch.allclose(branch(tokens), branch[1:](grid), atol=1e-6)


@pytest.mark.parametrize("kind", BRANCHES)
def test_every_branch_ends_in_three_dense_layers_with_two_dropouts(kind: Any) -> None:
    head: Any = make_branch(kind, SHAPE, 10, SIZES)[-1]
    widths = [layer.out_features for layer in head if isinstance(layer, nn.Linear)]
    dropouts = [layer.p for layer in head if isinstance(layer, nn.Dropout)]
    assert widths == [12, 12, 10]
    assert dropouts == [0.3, 0.3]
    assert isinstance(head[-1], nn.Linear)


def test_mlp_normalises_what_it_reads() -> None:
    branch = make_branch("mlp", SHAPE, 10, SIZES).eval()
    tokens = torch.randn(3, 7, 16)
    assert torch.allclose(branch(tokens), branch(7 * tokens + 2), atol=1e-5)


def test_layers_of_timm() -> None:
    """ViT's have biases. ResMLP's start of 1e-4 is for deep stacks: a single layer is whole."""
    vit: Any = make_branch("vit", SHAPE, 10, SIZES)[0]
    resmlp: Any = make_branch("resmlp", SHAPE, 10, SIZES)[0]
    assert vit.attn.qkv.bias is not None
    assert (resmlp.ls1 == 1).all()
    assert (resmlp.ls2 == 1).all()


# ---- models with exits ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_exits_on_all_families(family: str) -> None:
    """With exits attached the model's own answer is still timm's, bit for bit; an exit's is its
    branch's on the tokens there.
    """
    backbone, batch, route = small(**FAMILIES[family]), images(), (3, 0, 0, 2)
    model = with_parts(backbone, exits=heads("cnn_ignore")).eval()
    expected = backbone(batch)
    assert torch.equal(model(batch), expected)
    assert torch.equal(model(batch, None, [ExitLogits(model)]), expected)
    answer = model(batch, route, exit=3)
    assert answer.shape == (6, 7)
    assert torch.equal(answer, model.exits["3"](model.tokens(batch, route[:3])))


def test_a_model_that_drops_patches_gets_no_exits() -> None:
    with pytest.raises(UserError, match="found a model with patch dropout, accepted: "):
        with_parts(small(patch_drop_rate=0.5), exits=heads())


@pytest.mark.parametrize(("route", "exit", "executed"), CASES["executed"])
def test_an_exit_executes_no_later_layer(
    route: Any, exit: int | None, executed: list[str], model: RoutedModel
) -> None:
    calls = count_calls(model)
    model(images(), route, exit=exit)
    assert calls == [(name, 6) for name in executed]


def test_an_exit_of_routes_per_sample_executes_no_later_layer(model: RoutedModel) -> None:
    calls = count_calls(model)
    found = model(images(), torch.tensor([[0, 1, 2, 3], [2, 1, 0, 3]] * 3), exit=1)
    assert calls == [("0", 3), ("2", 3), ("exit 1", 6)]
    for first in (0, 1):
        alone = model(images()[first::2], (2 * first,), exit=1)
        assert torch.allclose(found[first::2], alone, atol=1e-5)


@pytest.mark.parametrize(
    ("route", "exit", "message"),
    [
        (None, 2, "exit 2 does not exist, .*: 1, 3"),
        (torch.tensor([[0, 1, 2], [0, 1, -1]]), 3, "route of 2 layers"),
    ],
)
def test_wrong_exits(model: RoutedModel, route: Any, exit: int, message: str) -> None:
    calls = count_calls(model)
    with pytest.raises(IndexError, match=message):
        model(images(2), route, exit=exit)
    assert not calls
    with pytest.raises(IndexError, match=f"exit {exit} does not exist, .*: none"):
        RoutedModel(small())(images(2), exit=exit)


def test_states_are_computed_when_asked_for_and_for_those_that_go_on(model: RoutedModel) -> None:
    model.double()
    batch, calls, index = images().double(), count_calls(model), torch.tensor([4, 1])
    states = model.states(batch)
    assert next(states)[0] == 0
    assert calls == []
    next(states)
    depth, state = states.send(index)
    assert calls == [("0", 6), ("1", 2)]
    assert torch.allclose(model.answer(state), model(batch[index], (0, 1)), atol=1e-12)
    *_, (depth, state) = states
    assert depth == 4
    assert torch.allclose(model.answer(state), model(batch[index]), atol=1e-12)


# ---- inference that stops at exits ---------------------------------------------------------------


def test_anytime_answers(model: RoutedModel) -> None:
    batch = images()
    answers = dict(anytime(model, batch))
    assert list(answers) == [1, 3, 4]
    for depth, logits in answers.items():
        assert torch.equal(logits, model(batch, exit=depth if depth < 4 else None))
    route = (3, 1)
    expected = {1: model(batch, route, exit=1), 2: model(batch, route)}
    torch.testing.assert_close(dict(anytime(model, batch, route)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("route", [None, (2, 3, 1, 0)])
@torch.no_grad()
def test_every_image_has_the_answer_of_the_exit_it_left_at(model: RoutedModel, route: Any) -> None:
    """Half leave at each exit; later layers run for the others alone."""
    batch = images(20)
    answers = {depth: model(batch, route, exit=depth) for depth in (1, 3)}
    confidence = {depth: answers[depth].softmax(-1).amax(-1) for depth in (1, 3)}
    # Equal to a confidence, as the stage sets them; the next exit's answers are of another batch.
    thresholds = {1: float(confidence[1].sort()[0][10]), 3: float(confidence[3].median()) + 1e-6}
    answers[4] = model(batch, route)
    calls = count_calls(model)
    logits, left = leave_early(model, batch, thresholds, route)
    expected = []
    for i in range(20):
        sure = [depth for depth in (1, 3) if confidence[depth][i] >= thresholds[depth]]
        expected.append(sure[0] if sure else 4)
    assert left.tolist() == expected
    assert set(expected) == {1, 3, 4}
    for i, depth in enumerate(expected):
        assert torch.allclose(logits[i], answers[depth][i], atol=1e-5)
    rows = [20, 10, 10, expected.count(4)]
    assert [n for name, n in calls if "exit" not in name] == rows
    with pytest.raises(ValueError, match="one output"):
        leave_early(RoutedModel(small(num_classes=1)), batch, {})


@pytest.mark.parametrize(("changes", "exits", "expected"), CASES["objectives"])
def test_objective(changes: dict[str, Any], exits: dict[int, float], expected: float) -> None:
    """l_t = 2 l + the sum of the others' (sections II-A, IV-B); layer-wise the step's alone."""
    assert exit_objective(heads(**changes), 3.0, exits) == expected


def test_one_output_is_a_regression_and_several_are_classes() -> None:
    counts = torch.tensor([[1.4], [3.0], [-0.2]])
    labels = torch.tensor([1, 5, 0])
    assert float(task_loss(counts, labels)) == pytest.approx(2.6 / 3)
    assert float(task_loss(counts, labels, "sum")) == pytest.approx(2.6)
    assert is_right(counts, labels).tolist() == [True, False, True]
    assert is_right(torch.eye(7)[[1, 2, 0]], labels).tolist() == [True, False, True]
