"""Metrics, merges and pruned models by hand; jobs, rows and figures; wrong parameters."""

import itertools
from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torchvision.transforms.v2.functional import resize

from lsvit.routed import RoutedModel
from lsvit.routes import (
    OneRoute,
    Route,
    Routes,
    RouteTable,
    arbitrary,
    evaluation_routes,
    generator,
    per_sample,
)
from lsvit.weights import save_weights
from papers.questions.compute import merging, passes, pruning
from papers.questions.compute.confidence import area_under_rejection, calibration_error, judge
from papers.questions.compute.merging import merge
from papers.questions.compute.passes import dropped_out, held_out, mended, routes_of, tried
from papers.questions.compute.plan import Plan
from papers.questions.compute.pruning import Pruner, collapse, fit_linear
from papers.questions.section import (
    Merges,
    MergesConfig,
    Passes,
    PassesConfig,
    Pruning,
    PruningConfig,
    Questions,
)
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN
from pipeline.data.splits import Split
from pipeline.errors import UserError
from pipeline.jobs.files import sha256
from pipeline.models.weights import build
from pipeline.training.devices import Execution
from pipeline.training.scoring import open_model, open_split, score
from tests.conftest import cases_of, run_fields
from tests.papers.conftest import Evaluated

CASES = cases_of(__file__)
PASSES = Passes.model_validate(CASES["passes"])
MERGES = Merges.model_validate(CASES["merges"])
PRUNING = Pruning.model_validate(CASES["pruning"])
Opened = Callable[..., tuple[RoutedModel, Split, Execution]]


@pytest.fixture
def opened(six: ModelPreset, prepared: Path, six_weights: Path) -> Opened:
    """Opens the model of :func:`evaluated` and the first 20 images of a split."""

    def open_both(
        kind: Any, options: Any, source: str = "validation"
    ) -> tuple[RoutedModel, Split, Execution]:
        config = kind(**run_fields(prepared, six, PLAIN, precision="fp32", options=options))
        model, execution = open_model(config, prepared, six_weights)
        return model, open_split(config, prepared, source, model, 20), execution

    return open_both


# ---- confidence ----

LABELS = np.array([0, 1, 1])
EVERY = np.ones((3, 2), dtype=bool)  # answers count


def test_calibration_error_by_hand() -> None:
    """Bins [0.4, 0.467) and [0.933, 1]: 2 of 4 images at gaps |0.45 - 1/2|, two at |0.95 - 1|."""
    confidence = np.array([0.44, 0.46, 0.94, 0.96])
    right = np.array([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx((0.1 + 0.1) / 4)
    assert calibration_error(np.ones(3), np.ones(3, dtype=bool)) == 0


def test_area_under_rejection_by_hand() -> None:
    """The most confident is right, the next wrong, the last right: 1, 1/2, 2/3."""
    found = area_under_rejection(np.array([0.2, 0.9, 0.5]), np.array([True, True, False]))
    assert found == pytest.approx((1 + 1 / 2 + 2 / 3) / 3)


def test_images_of_another_kind_are_told_by_confidence() -> None:
    inside = np.array([[0.9, 0.1], [0.3, 0.7]])
    found = judge(inside, np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0, 0]))
    assert (found["accuracy"], found["auroc"]) == (0.5, 0.75)


def test_what_tries_are_right() -> None:
    """The control is the mean over all permutations of the labels."""
    rows = tried("way", 2, np.array([[0, 0, 1], [1, 1, 1]]), LABELS, EVERY)
    shares = {name: value for _, _, name, value in rows}
    expected = {"single": 4 / 6, "some": 1, "control": (1 + 1 + 2 / 3) / 3}
    assert shares == pytest.approx(expected)


def test_only_wrong_answers_are_mended() -> None:
    """Of images 1 and 2, both wrong, the orders mend one. Their labels exchanged they mend none."""
    first = np.array([0, 0, 0])
    answers = np.array([[9, 1, 0]])
    rows = mended("mend", 1, answers, first, np.array([0, 1, 2]))
    assert [value for *_, value in rows] == [0.5, 0.5, 0.25]
    assert mended("mend", 1, answers, first, first) == []


def test_the_held_out_order_is_tried_on_other_images() -> None:
    """Order 0 is best on even images and answers half of the odd ones. Order 1 is best on odd
    images and answers none of the even ones.
    """
    answers = np.array([[0, 0, 0, 1], [1, 0, 1, 0]])
    rows = held_out(answers, np.zeros(4, dtype=int))
    assert rows == [("held_out", 2, "single", 5 / 8), ("held_out", 2, "some", 1 / 4)]


# ---- passes ----


def test_fewer_passes_are_the_first_of_many() -> None:
    many = routes_of(6, PASSES.model_copy(update={"routes": 7}))
    for way, routes in routes_of(6, PASSES).items():
        assert routes == many[way][: len(routes)]


def test_dropout_is_on_within_the_block_alone(six: ModelPreset) -> None:
    model = build(six, 10).eval()
    images = torch.randn(2, 1, 28, 28)
    before = model(images)
    with dropped_out(model, 0.5, 0):
        first = model(images)
        assert not torch.equal(first, model(images))
    with dropped_out(model, 0.5, 0):
        assert torch.equal(first, model(images))
    assert torch.equal(before, model(images))


def test_digits_have_the_range_of_the_images(opened: Opened) -> None:
    """Pixels from 0 to 16 become 0 to 255, then are shifted and scaled as the split's."""
    _, split, _ = opened(PassesConfig, PASSES)
    side = split.resize.crop
    grey = torch.from_numpy(load_digits().images[:5, None] * 255 / 16).float()
    expected = resize(grey, [side, side]) * split.scale + split.shift
    torch.testing.assert_close(passes.digits(split, 5), expected, atol=1e-4, rtol=0)


def test_dropout_scales_what_it_keeps_by_1_over_its_share(six: ModelPreset) -> None:
    model = build(six, 10).eval()
    block = model.backbone.blocks[2]
    tokens = torch.randn(4, 9, 16)
    expected = block(tokens)
    with dropped_out(model, 0.25, 0):
        found = block(tokens)
    kept = found != 0
    assert torch.allclose(found[kept], expected[kept] / 0.75)
    assert 0.65 < kept.float().mean() < 0.85


@torch.inference_mode()
def test_rows_of_passes(evaluated: Evaluated, opened: Opened) -> None:
    """Each row equals one recomputed from the model's own answers."""
    _, rows = evaluated(passes, PassesConfig, PASSES)
    assert (rows["images"] == 20).all()
    model, split, _ = opened(PassesConfig, PASSES)
    images, labels = split.take(slice(0, 20))
    others = passes.digits(split, 20)
    targets = labels.numpy()
    first = model(images).argmax(1).numpy()

    def answers_of(routes: Iterable[Route]) -> np.ndarray:
        return np.stack([model(images, route).argmax(1).numpy() for route in routes])

    expected: list[Any] = []
    ways = routes_of(6, PASSES)
    assert ways["one"] == [tuple(range(6))]
    assert ways["orders"] == evaluation_routes(6, 6, "arbitrary", 3, 0)
    assert all(list(route) == sorted(route) for route in ways["drop"])
    assert any(len(route) < 6 for route in ways["drop"])
    for way in ("one", "orders", "drop"):
        for count in range(1, len(ways[way]) + 1):
            means = []
            for part in (images, others):
                every = [model(part, route).softmax(1) for route in ways[way][:count]]
                means.append(torch.stack(every).double().mean(0).numpy())
            found = judge(means[0], means[1], targets)
            expected += [(way, count, *pair) for pair in found.items()]
    sums = [np.zeros((20, 10)), np.zeros((20, 10))]
    with dropped_out(model, PASSES.dropout, PASSES.seed):
        for count in (1, 2, 3):
            for total, part in zip(sums, (images, others), strict=True):
                answers = [model(batch).softmax(1) for batch in part.split(PASSES.batch_size)]
                total += torch.cat(answers).numpy()
            found = judge(sums[0] / count, sums[1] / count, targets)
            expected += [("dropout", count, *pair) for pair in found.items()]
    orders = answers_of(ways["orders"])
    for count in (1, 2, 3):
        expected += mended("mend", count, orders[:count], first, targets)
    expected += held_out(orders, targets)
    every_label = np.ones((20, 10), dtype=bool)
    up_to = np.empty((0, 20), dtype=int)
    for keep in (2, 4):
        shorter = answers_of(evaluation_routes(6, keep, "sequential", 3, 0))
        up_to = np.concatenate([up_to, shorter])
        expected += tried("shorter", keep, shorter, targets, every_label)
        expected += tried("shortest", keep, up_to, targets, every_label)
        expected += mended("mend_shorter", keep, up_to, first, targets)
    numbers = rows.set_index(["way", "count", "measure"])["value"]
    assert len(numbers) == len(expected)
    assert numbers.between(0, 1).all()
    for way, count, measure, value in expected:
        assert numbers[way, count, measure] == pytest.approx(value, abs=2e-6), (way, count, measure)


# ---- merges ----


def test_a_merge_of_one_or_of_equal_ones_is_the_same_bit_for_bit(six: ModelPreset) -> None:
    tensors = build(six, 10).state_dict()
    for count in (1, 2, 3, 5):
        for outside in ("first", "mean"):
            found = merge([tensors] * count, [count - 1] * 6, outside)
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_each_layer_comes_from_its_member(six: ModelPreset) -> None:
    first = build(six, 10).state_dict()
    second = {name: tensor + 1 for name, tensor in first.items()}
    members = [0, 1, 0, 1, 1, 0]
    found = merge([first, second], members, "mean")
    for layer, member in enumerate(members):
        weight = f"backbone.blocks.{layer}.mlp.fc1.weight"
        assert torch.equal(found[weight], (first, second)[member][weight])
    head = "backbone.head.weight"
    assert torch.allclose(found[head], first[head] + 0.5)


def test_rows_of_merges(evaluated: Evaluated, six_weights: Path) -> None:
    """Equal trainings, merged, are as good as one; of three there is no merge of four."""
    others = dict.fromkeys(("weights_1", "weights_2"), six_weights)
    _, rows = evaluated(merging, MergesConfig, MERGES, **others)
    ways = rows.groupby("way")
    counts = ways["count"].agg(list).to_dict()
    assert counts == {"arbitrary": [1, 2, 3], "sequential": [1, 2, 3]}
    assert (ways["value"].nunique() == 1).all()


def test_rows_are_means_over_merges(
    six: ModelPreset, evaluated: Evaluated, opened: Opened, six_weights: Path, tmp_path: Path
) -> None:
    """The trainings differ, and each merge takes each layer from a random one of them."""
    files = [six_weights, tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    for seed, file in enumerate(files[1:], 1):
        torch.manual_seed(seed)
        save_weights(build(six, 10), file)
    others = {"weights_1": files[1], "weights_2": files[2]}
    _, rows = evaluated(merging, MergesConfig, MERGES, **others)
    numbers = rows.set_index(["way", "count"])["value"]
    members = [build(six, 10, weights=file).state_dict() for file in files]
    model, split, execution = opened(PassesConfig, PASSES)
    table = per_sample(arbitrary, generator("merged orders", MERGES.seed), 6, 20)
    routes: dict[str, Routes] = {
        "sequential": OneRoute(tuple(range(6))),
        "arbitrary": RouteTable(table),
    }
    for count, way in itertools.product((1, 2, 3), routes):
        accuracies = []
        for draw in range(MERGES.draws if count > 1 else 1):
            rng = generator("merge", MERGES.seed, count, draw)
            merged = merge(members[:count], rng.integers(count, size=6).tolist(), "first")
            model.load_state_dict(merged)
            accuracies.append(score(model, split, routes[way], 16, execution).accuracy)
        assert numbers[way, count] == pytest.approx(np.mean(accuracies), abs=1e-6)


# ---- pruning ----


def test_layers_merge_into_the_first_and_what_others_differ_by() -> None:
    blocks: Any = [nn.Sequential(nn.Linear(1, 1)) for _ in range(3)]
    for value, block in zip((1.0, 3.0, 4.0), blocks, strict=True):
        for numbers in block.parameters():
            nn.init.constant_(numbers, value)
    merged = collapse(blocks)
    assert [numbers.item() for numbers in merged.parameters()] == [1 + (3 - 1) + (4 - 1)] * 2
    assert blocks[0][0].weight.item() == 1


def test_the_patch_of_an_affine_block_is_exact() -> None:
    block = nn.Linear(8, 8)
    pairs = [(states, block(states).detach()) for states in torch.randn(3, 20, 5, 8)]
    found = fit_linear(pairs)
    assert torch.allclose(found.weight, block.weight, atol=1e-5)
    assert torch.allclose(found.bias, block.bias, atol=1e-5)


class Turn(nn.Module):
    """Turns tokens by 180 degrees."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return -tokens


@torch.no_grad()
def draw_blocks(block: nn.Module, count: int, seed: int) -> list[nn.Module]:
    """Copies of a block with weights drawn anew."""
    torch.manual_seed(seed)
    blocks = [deepcopy(block) for _ in range(count)]
    for numbers in itertools.chain(*(each.parameters() for each in blocks)):
        numbers.normal_(std=0.3)
    return blocks


@pytest.fixture
def pruner(opened: Opened) -> Pruner:
    """Of a model whose layers 1, 3 and 4 do nothing, and layer 5 turns tokens."""
    model, images, execution = opened(PruningConfig, PRUNING, "train")
    for layer in (1, 3, 4):
        model.backbone.blocks[layer] = nn.Identity()
    model.backbone.blocks[5] = Turn()
    return Pruner(model, images, PRUNING, execution)


def test_influence_of_a_block_that_does_nothing_is_0(pruner: Pruner) -> None:
    influence = pruner.influence()
    assert influence[[1, 3, 4]].abs().max() < 1e-6
    assert influence[5].item() == pytest.approx(2)
    assert influence[[0, 2]].min() > 1e-4


def test_similarity_is_the_mean_over_tokens_of_their_cosines(pruner: Pruner) -> None:
    total = 0.0
    for before, after, *_ in pruner.states(pruner.blocks):
        lengths = before.norm(dim=-1) * after.norm(dim=-1)
        total += ((before * after).sum(-1) / lengths).mean(1).sum().item()
    assert pruner.similarity[0, 1].item() == pytest.approx(total / len(pruner.images), abs=1e-6)


def test_the_merge_that_changes_the_last_tokens_least_is_taken(pruner: Pruner) -> None:
    """The third and fourth of five layers do nothing. They merge, with the fourth's weights."""
    first, second = pruner.blocks[0], pruner.blocks[2]
    idle: Any = deepcopy(first)
    for layer in (idle.attn.proj, idle.mlp.fc2):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    pruner.blocks = [first, second, idle, deepcopy(idle), deepcopy(first)]
    nn.init.constant_(pruner.blocks[3].get_parameter("norm1.weight"), 2.0)
    merged = pruner.merge_most_alike(pruner.blocks, 2)
    assert [*merged[:2], merged[3]] == [first, second, pruner.blocks[4]]
    wanted = pruner.blocks[3].state_dict()
    assert all(torch.allclose(merged[2].state_dict()[name], wanted[name]) for name in wanted)


def test_layers_that_are_left(pruner: Pruner) -> None:
    """Each way leaves the layers that it should, and a patch adds one linear layer."""
    blocks = pruner.blocks
    assert dict(pruner.prune("first"))[2] == [blocks[:2]]
    assert dict(pruner.prune("spaced"))[4] == [[blocks[i] for i in (0, 2, 3, 5)]]
    (left,) = dict(pruner.prune("influence"))[4]
    assert {0, 2, 5} <= {blocks.index(block) for block in left}
    assert len(dict(pruner.prune("random"))[2]) == 3
    patched = {keep: left for keep, (left,) in pruner.prune("patch")}
    assert list(patched) == [4, 2]
    for keep, left in patched.items():
        assert sum(isinstance(block, nn.Linear) for block in left) == 1
        assert len(left) == keep + 1


@torch.inference_mode()
def test_cosines_of_the_last_tokens_choose_what_merges(pruner: Pruner) -> None:
    """Ten models with random blocks each merge where the last tokens stay most alike."""
    images, _ = pruner.images.take(slice(0, 20))
    for seed in range(10):
        blocks = draw_blocks(pruner.blocks[0], 4, seed)
        pruner.blocks = blocks
        merges = [[*blocks[:i], collapse(blocks[i : i + 2]), *blocks[i + 2 :]] for i in range(3)]
        state = pruner.model.backbone.patch_embed(images)
        state = pruner.model.backbone._pos_embed(state)
        ends = [nn.Sequential(*each)(state) for each in (blocks, *merges)]
        alike = []
        for end in ends[1:]:
            lengths = ends[0].norm(dim=2) * end.norm(dim=2)
            cosines = (ends[0] * end).sum(2) / lengths  # (B, N)
            alike.append(cosines.mean().item())
        best = merges[int(np.argmax(alike))]
        merged = pruner.merge_most_alike(blocks, 2)
        assert [block in blocks for block in merged] == [block in blocks for block in best]
    assert [len(left) for _, (left,) in pruner.prune("laco")] == [4, 2]


def test_greedy_leaves_out_one_layer_after_another(pruner: Pruner) -> None:
    """Each step drops the layer whose absence gives the least loss."""
    pruner.blocks = draw_blocks(pruner.blocks[0], 5, 0)
    left = pruner.blocks
    by_keep = {}
    while len(left) > 2:
        fewer = [[block for block in left if block is not out] for out in left]
        losses = []
        for blocks in fewer:
            pruner.model.backbone.blocks = nn.Sequential(*blocks)
            route = OneRoute(tuple(range(len(blocks))))
            losses.append(score(pruner.model, pruner.images, route, 16, pruner.execution).loss)
        assert len(set(losses)) == len(losses)
        left = fewer[int(np.argmin(losses))]
        by_keep[len(left)] = left
    found = {keep: blocks for keep, (blocks,) in pruner.prune("greedy")}
    assert found == {4: by_keep[4], 2: by_keep[2]}


def test_four_layers_at_most_become_one(pruner: Pruner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As LaCo does, a merge takes four layers, or fewer if four would leave too few."""
    counts = []

    def merge_first(blocks: list[nn.Module], count: int) -> list[nn.Module]:
        counts.append(count)
        return blocks[count - 1 :]

    monkeypatch.setattr(pruner, "merge_most_alike", merge_first)
    pruner.blocks = [nn.Identity() for _ in range(12)]
    assert [(keep, len(left)) for keep, (left,) in pruner.prune("laco")] == [(4, 4), (2, 2)]
    assert counts == [4, 4, 3, 3]


def test_a_patch_replaces_layers_that_do_nothing_by_identity(pruner: Pruner) -> None:
    blocks = pruner.blocks
    patched: Any = pruner.patch(2)
    patch = patched.pop(3)
    assert patched == blocks[:3] + blocks[5:]
    assert torch.allclose(patch.weight, torch.eye(len(patch.weight)), atol=1e-3)


def test_rows_of_pruning(
    six: ModelPreset, evaluated: Evaluated, opened: Opened, tmp_path: Path
) -> None:
    """Every way keeps so many layers. The saved weights have the least calibration loss."""
    _, rows = evaluated(pruning, PruningConfig, PRUNING)
    numbers = rows.set_index(["measure", "way", "count"])["value"].sort_index()
    for way in (*PRUNING.ways, "chosen"):
        assert sorted(numbers.loc["accuracy", way].index) == [2, 4]
    flops = numbers.loc["flops"]
    _, tokens, width = build(six, 10).backbone.pos_embed.shape
    assert flops["patch", 2] - flops["greedy", 2] == 2 * tokens * width**2
    assert flops["patch", 2] < flops["first", 4]
    losses = numbers.loc["calibration_loss"].drop("random").unstack("way")
    best = losses.idxmin(axis=1)
    _, images, execution = opened(PruningConfig, PRUNING, "train")
    for keep in (2, 4):
        assert numbers["accuracy", "chosen", keep] == numbers["accuracy", best[keep], keep]
        variant = PLAIN.model_copy(update={"layers": keep})
        kept = build(six, 10, variant, tmp_path / f"pruned_{keep}.safetensors")
        found = score(kept, images, OneRoute(tuple(range(keep))), 16, execution)
        least = losses.drop(columns="patch").loc[keep].min()
        assert found.loss == pytest.approx(least, abs=2e-6)


# ---- jobs, figures, parameters ----


@pytest.fixture
def plan(params: Params) -> Plan:
    """Of LS in two seeds."""
    plan = Plan(params)
    plan.options = params.resolve(Questions).model_copy(update=CASES["plan"])
    plan.seeds = plan.seeds[:2]
    return plan


@pytest.mark.usefixtures("keys")
def test_jobs(plan: Plan) -> None:
    """Every training is once the first of its merges."""
    jobs = plan.jobs()
    parts = itertools.product(("passes", "pruning", "separate"), (0, 1))
    assert [(part, seed) for part, _, seed in jobs] == list(parts)
    job: Any = jobs["separate", "ls", 1]
    files = [plan.weights_of("ls", seed) for seed in (1, 2, 3, 4, 0)]
    assert [file for name, file in job.inputs.items() if name != "data"] == files
    assert job.config.others_sha256 == [sha256(file) for file in files[1:]]


@pytest.mark.usefixtures("keys")
def test_from_common_starts_merges_wait_for_more(plan: Plan) -> None:
    plan.options = plan.options.model_copy(update={"common": {"ls": 1}})
    with pytest.raises(UserError, match="no weights of seed 0"):
        plan.jobs()


@pytest.mark.parametrize(("seeds", "sets", "separate", "common"), CASES["starts"])
def test_trainings_that_share_their_start(
    seeds: list[int], sets: int | None, separate: list[int], common: list[int], params: Params
) -> None:
    pretrain = params.pretrain.model_copy(update={"seeds": sets})
    plan = Plan(params.model_copy(update={"seeds": seeds, "pretrain": pretrain}))
    plan.options = plan.options.model_copy(update={"common": {}})
    assert list(plan.members("ls", "separate")) == separate
    assert list(plan.members("ls", "common")) == common
