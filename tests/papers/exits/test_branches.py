"""Early-exit branches: what each reads of the tokens; models with exits, and inference that stops
at them.
"""

import itertools
from typing import Any

import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from lsvit.routed import RoutedModel
from lsvit.taps import ExitLogits
from papers.exits.branches import make_branch
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
CNNS = ("cnn_ignore", *READS_CLASS)
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


def all_but_refused(classless: Any, *others: Any) -> list[tuple[Any, str]]:
    """Every case with every branch that can be on it."""
    cases = [(classless, kind) for kind in BRANCHES if kind not in READS_CLASS]
    return cases + list(itertools.product(others, BRANCHES))


@pytest.mark.parametrize(
    ("layout", "kind"), all_but_refused((0, (3, 3)), (1, (2, 2)), (2, (3, 5)), (1, (1, 1))), ids=str
)
def test_what_each_branch_reads(layout: tuple[int, tuple[int, int]], kind: Any) -> None:
    """Answers (B, C) depend on exactly these tokens, and train every parameter.

    Those at the rim of an odd grid are among them.
    """
    torch.manual_seed(0)
    prefix, grid = layout
    shape = TokenShape(16, prefix, grid, 2)
    expected = set(range(shape.length))
    if kind.startswith("cnn"):
        expected = set(range(prefix, shape.length))
    if kind in READS_CLASS:
        expected.add(0)
    if kind == "mlp" and prefix:
        expected = {0}
    for outputs in (10, 1):
        branch = make_branch(kind, shape, outputs, SIZES).eval()
        tokens = torch.randn(64, shape.length, 16, requires_grad=True)
        answers = branch(tokens)
        assert answers.shape == (64, outputs)
        answers.square().sum().backward()
        assert tokens.grad is not None
        assert set(tokens.grad.abs().sum(dim=(0, 2)).nonzero()[:, 0].tolist()) == expected
        assert all(p.grad is not None and p.grad.any() for p in branch.parameters())


def test_the_grid_of_an_image_that_is_not_square() -> None:
    shape = token_shape(small())
    assert (shape.grid, shape.prefix) == ((2, 3), 1)


@pytest.mark.parametrize("kind", CNNS)
def test_convolution_sees_neighbours_on_the_grid(kind: Any) -> None:
    """As the same layers on a grid laid by hand, also when two patches change places."""
    torch.manual_seed(0)
    branch = make_branch(kind, TokenShape(4, 2, (2, 3), 1), 5, SIZES).eval()
    tokens = torch.randn(3, 8, 4)
    class_token = tokens[:, 0]
    answers = []
    for order in ([0, 1, 2, 3, 4, 5], [5, 1, 2, 3, 4, 0]):
        grid = torch.empty(3, 8 if kind == "cnn_project" else 4, 2, 3)
        for cell, patch in enumerate(order):
            value = tokens[:, 2 + patch]
            if kind == "cnn_add":
                value = value + class_token
            elif kind == "cnn_project":
                value = torch.cat([value, class_token], 1)
            grid[:, :, cell // 3, cell % 3] = value
        places = [0, 1, *(2 + patch for patch in order)]
        answers.append(branch(tokens[:, places]))
        assert torch.allclose(answers[-1], branch[1:](grid), atol=1e-6)
    assert not torch.allclose(answers[0], answers[1], atol=1e-3)


@pytest.mark.parametrize("kind", BRANCHES)
def test_every_branch_ends_in_three_dense_layers_with_two_dropouts(kind: Any) -> None:
    branch: Any = make_branch(kind, TokenShape(16, 1, (2, 2), 2), 10, SIZES)
    head = branch[-1]
    widths = [layer.out_features for layer in head if isinstance(layer, nn.Linear)]
    dropouts = [layer.p for layer in head if isinstance(layer, nn.Dropout)]
    assert widths == [12, 12, 10]
    assert dropouts == [0.3, 0.3]
    assert isinstance(head[-1], nn.Linear)
    if kind == "vit":
        assert branch[0].attn.qkv.bias is not None


def test_mlp_normalises_what_it_reads() -> None:
    branch = make_branch("mlp", TokenShape(16, 1, (2, 2), 2), 10, SIZES).eval()
    tokens = torch.randn(3, 5, 16)
    assert torch.allclose(branch(tokens), branch(7 * tokens + 2), atol=1e-5)


def test_a_resmlp_branch_starts_with_its_whole_layer() -> None:
    """timm's own start, 1e-4, is for deep stacks."""
    layer: Any = make_branch("resmlp", TokenShape(16, 1, (2, 2), 2), 10, SIZES)[0]
    for scale in (layer.ls1, layer.ls2):
        assert torch.equal(scale, torch.ones(16))


REGISTERS: dict[str, Any] = {"class_token": False, "reg_tokens": 4, "global_pool": "avg"}


@pytest.mark.parametrize(
    ("backbone", "kind", "message"),
    [
        ({"kind": MlpMixer}, "cnn_add", "'cnn_add' on a model without a class token, accepted: "),
        ({"kind": MlpMixer}, "cnn_project", "'cnn_project' on a model without a class token"),
        (REGISTERS, "cnn_add", "without a class token"),
        ({"patch_drop_rate": 0.5}, "mlp", "found a model with patch dropout, accepted: "),
    ],
)
def test_branches_that_do_not_fit_a_model(backbone: Any, kind: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        with_parts(small(**backbone), exits=heads(kind))


def test_register_tokens_are_no_class_token() -> None:
    """A model with registers alone: `mlp` reads the mean over the patches, as its head does."""
    tokens = torch.randn(2, 10, 16, requires_grad=True)
    branch = make_branch("mlp", token_shape(small(**REGISTERS)), 7, SIZES).eval()
    branch(tokens).square().sum().backward()
    assert tokens.grad is not None
    read = tokens.grad.abs().sum(dim=(0, 2)) > 0
    assert read.tolist() == [False] * 4 + [True] * 6


@pytest.mark.parametrize("width", [16, 384, 512])
def test_heads_of_a_vit_branch_where_the_model_has_no_attention(width: int) -> None:
    """64 channels a head, as all ViTs have; at least one."""
    mixer = MlpMixer(img_size=16, patch_size=8, num_blocks=1, embed_dim=width)
    assert token_shape(mixer).heads == max(1, width // 64)


# ---- models with exits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "branch"), all_but_refused(MlpMixer, VisionTransformer, VisionTransformerDistilled)
)
def test_all_branches_on_all_families(kind: type, branch: Any) -> None:
    """With exits attached the model's own answer is still timm's, bit for bit; an exit's is its
    branch's on the tokens there.
    """
    backbone = small(kind)
    model, batch, route = with_parts(backbone, exits=heads(branch)).eval(), images(), (3, 0, 0, 2)
    with torch.no_grad():
        expected = backbone(batch)
        assert torch.equal(model(batch), expected)
        assert torch.equal(model(batch, None, [ExitLogits(model)]), expected)
        answer = model(batch, route, exit=3)
        assert answer.shape == (6, 7)
        assert torch.equal(answer, model.exits["3"](model.tokens(batch, route[:3])))


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
    for depth, logits in anytime(model, batch):
        assert torch.equal(logits, model(batch, exit=depth if depth < 4 else None))
    answers = dict(anytime(model, batch, (3, 1)))
    assert answers.keys() == {1, 2}
    assert torch.equal(answers[2], model(batch, (3, 1)))
    assert [depth for depth, _ in anytime(model, batch)] == [1, 3, 4]


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
