"""Metrics, merges and pruned models by hand; jobs, rows and figures; wrong parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lsvit.weights import save_weights
from papers import PAPERS
from papers.questions.compute import merging, passes, pruning
from papers.questions.compute.confidence import (
    area_under_rejection,
    calibration_error,
    judge,
    share_by_chance,
)
from papers.questions.compute.merging import merge
from papers.questions.compute.passes import dropped_out, held_out, mended, routes_of, tried
from papers.questions.compute.plan import Plan
from papers.questions.compute.pruning import Pruner, collapse, fit_linear
from papers.questions.figures import draw
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
from pipeline.errors import UserError
from pipeline.jobs.files import ROWS, sha256
from pipeline.jobs.rows import read_rows
from pipeline.models.weights import build
from pipeline.report.results import Results
from pipeline.training.scoring import open_model, open_split
from tests.conftest import run_fields

SHARED = {"images": 20, "batch_size": 16, "seed": 0}
PASSES = Passes(**SHARED, routes=3, shorter=[2, 4], drop=0.5, dropout=0.5)
MERGES = Merges(**SHARED, members=[2, 3, 4], draws=2, outside="first")
WAYS = ["random", "first", "spaced", "influence", "greedy", "laco", "patch"]
PRUNING = Pruning(**SHARED, keep=[2, 4], ways=WAYS, subsets=3, calibration=20)


@pytest.fixture
def six(pico: ModelPreset) -> ModelPreset:
    """A 6-layer model."""
    return pico.model_copy(update={"kwargs": pico.kwargs | {"depth": 6}})


def weights_of(preset: ModelPreset, seed: int, folder: Path) -> Path:
    torch.manual_seed(seed)
    file = folder / f"{seed}.safetensors"
    save_weights(build(preset, 10), file)
    return file


def fields(preset: ModelPreset, prepared: Path) -> dict[str, Any]:
    return run_fields(prepared, preset, PLAIN, precision="fp32")


# ---- confidence ----


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


def test_chance_is_the_mean_over_all_permutations_of_labels() -> None:
    labels = np.array([0, 1, 1])
    answered = np.array([[True, False], [True, True], [False, False]])
    every = np.ones((3, 2), dtype=bool)
    assert share_by_chance(answered, labels, every) == pytest.approx((1 / 3 + 1 + 0) / 3)
    rows = tried("way", 2, np.array([[0, 0, 1], [1, 1, 1]]), labels, every)
    assert {name: value for _, _, name, value in rows} == pytest.approx(
        {"single": 4 / 6, "some": 1, "control": (1 + 1 + 2 / 3) / 3}
    )


def test_only_wrong_answers_are_mended() -> None:
    """Of images 1 and 2, both wrong, the orders mend one. Their labels exchanged they mend none."""
    first = np.array([0, 0, 0])
    answers = np.array([[9, 1, 0]])
    rows = mended("mend", 1, answers, first, np.array([0, 1, 2]))
    assert [value for *_, value in rows] == [0.5, 0.5, 0.25]
    assert mended("mend", 1, answers, first, first) == []


def test_the_held_out_order_is_tried_on_other_images() -> None:
    """Order 0 is best on even images, order 1 on odd ones: both fail on the others."""
    answers = np.array([[0, 1, 0, 1], [1, 0, 1, 0]])
    rows = held_out(answers, np.zeros(4, dtype=int))
    assert [value for *_, value in rows] == [0.5, 0]


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


def test_rows_of_passes(six: ModelPreset, prepared: Path, tmp_path: Path) -> None:
    weights = weights_of(six, 0, tmp_path)
    config = PassesConfig(**fields(six, prepared), options=PASSES)
    passes.evaluate(config, prepared, weights, tmp_path, lambda event: None)
    rows = read_rows(tmp_path / ROWS)
    numbers = rows.set_index(["way", "measure", "count"])["value"].sort_index()
    assert list(numbers.loc["dropout", "accuracy"].index) == [1, 2, 3]
    assert list(numbers.loc["one", "auroc"].index) == [1]
    assert (rows["images"] == 20).all()
    assert numbers.loc["mend", "some"].is_monotonic_increasing
    assert numbers.loc["shortest", "some"].is_monotonic_increasing
    assert numbers["shorter", "single", 2] <= numbers["shorter", "some", 2]
    assert rows["value"].between(0, 1).all()


# ---- merges ----


def test_a_merge_of_one_or_of_equal_ones_is_the_same_bit_for_bit(six: ModelPreset) -> None:
    tensors = build(six, 10).state_dict()
    for count in (1, 2, 3, 5):
        for outside in ("first", "mean"):
            found = merge([tensors] * count, [count - 1] * 6, outside)
            assert found.keys() == tensors.keys()
            assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_each_layer_comes_from_its_member(six: ModelPreset) -> None:
    first, second = (build(six, 10).state_dict() for _ in range(2))
    second = {name: tensor + 1 for name, tensor in first.items()}
    found = merge([first, second], [0, 1, 0, 1, 1, 0], "mean")
    weight = "backbone.blocks.{}.mlp.fc1.weight"
    taken = [found[weight.format(i)].equal(second[weight.format(i)]) for i in range(6)]
    assert taken == [False, True, False, True, True, False]
    head = "backbone.head.weight"
    assert torch.allclose(found[head], first[head] + 0.5)


def test_rows_of_merges(six: ModelPreset, prepared: Path, tmp_path: Path) -> None:
    """Equal trainings, merged, are as good as one; of three there is no merge of four."""
    weights = weights_of(six, 0, tmp_path)
    digests = [sha256(weights)] * 2
    config = MergesConfig(**fields(six, prepared), options=MERGES, others_sha256=digests)
    others = {"weights_1": weights, "weights_2": weights}
    merging.evaluate(config, prepared, weights, tmp_path, lambda event: None, **others)
    rows = read_rows(tmp_path / ROWS)
    assert rows.groupby("way")["count"].agg(list).to_dict() == {
        "arbitrary": [1, 2, 3],
        "sequential": [1, 2, 3],
    }
    assert (rows.groupby("way")["value"].nunique() == 1).all()


# ---- pruning ----


def test_equal_layers_merge_into_one_of_them(six: ModelPreset) -> None:
    block: Any = build(six, 10).backbone.blocks[0]
    merged = collapse([block] * 4)
    for name, tensor in block.state_dict().items():
        assert torch.allclose(merged.state_dict()[name], tensor, atol=1e-6)


def test_layers_merge_into_the_first_and_what_others_differ_by() -> None:
    blocks: Any = [nn.Linear(1, 1) for _ in range(3)]
    for value, block in zip((1.0, 3.0, 4.0), blocks, strict=True):
        nn.init.constant_(block.weight, value)
    merged: Any = collapse(blocks)
    assert merged.weight.item() == 1 + (3 - 1) + (4 - 1)
    assert blocks[0].weight.item() == 1


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


@pytest.fixture
def pruner(six: ModelPreset, prepared: Path, tmp_path: Path) -> Pruner:
    """Of a model whose layers 1, 3 and 4 do nothing, and layer 5 turns tokens."""
    weights = weights_of(six, 0, tmp_path)
    config = PruningConfig(**fields(six, prepared), options=PRUNING)
    model, execution = open_model(config, prepared, weights)
    for layer in (1, 3, 4):
        model.backbone.blocks[layer] = nn.Identity()
    model.backbone.blocks[5] = Turn()
    images = open_split(config, prepared, "train", model, 20)
    return Pruner(model, images, PRUNING, execution)


def test_influence_of_a_block_that_does_nothing_is_0(pruner: Pruner) -> None:
    influence = pruner.influence()
    assert influence[[1, 3, 4]].abs().max() < 1e-6
    assert influence[5].item() == pytest.approx(2)
    assert influence[[0, 2]].min() > 1e-4


def test_what_is_left(pruner: Pruner) -> None:
    """By influence layers that do nothing go first; a patch replaces two of them by identity."""
    blocks = pruner.blocks
    left = {way: dict(pruner.prune(way)) for way in ("first", "spaced", "influence", "random")}
    assert left["first"][2] == [blocks[:2]]
    assert left["spaced"][4] == [[blocks[i] for i in (0, 2, 3, 5)]]
    assert {0, 2, 5} <= {blocks.index(block) for block in left["influence"][4][0]}
    assert len(left["random"][2]) == 3
    patched: Any = pruner.patch(2)
    assert len(patched) == 5
    assert patched[:3] + patched[4:] == blocks[:3] + blocks[5:]
    assert torch.allclose(patched[3].weight, torch.eye(len(patched[3].weight)), atol=1e-3)


def test_rows_of_pruning(six: ModelPreset, prepared: Path, tmp_path: Path) -> None:
    """Every way keeps so many layers; weights of those that can be trained on load."""
    weights = weights_of(six, 0, tmp_path)
    config = PruningConfig(**fields(six, prepared), options=PRUNING)
    pruning.evaluate(config, prepared, weights, tmp_path, lambda event: None)
    rows = read_rows(tmp_path / ROWS)
    numbers = rows.set_index(["measure", "way", "count"])["value"].sort_index()
    for way in (*WAYS, "chosen"):
        assert sorted(numbers.loc["accuracy", way].index) == [2, 4]
    assert (
        numbers["flops", "greedy", 2] < numbers["flops", "patch", 2] < numbers["flops", "first", 4]
    )
    losses = numbers.loc["calibration_loss"].drop("random").unstack("way")
    best = losses.idxmin(axis=1)
    for keep in (2, 4):
        chosen = numbers["accuracy", "chosen", keep]
        assert chosen == numbers["accuracy", best[keep], keep]
        variant = PLAIN.model_copy(update={"layers": keep})
        build(six, 10, variant, tmp_path / f"pruned_{keep}.safetensors")


# ---- jobs, figures, parameters ----


@pytest.mark.usefixtures("keys")
def test_jobs(params: Params) -> None:
    """Every training is once the first of its merges; from common starts merges wait for more."""
    options = params.resolve(Questions).model_copy(
        update={"common": {}, "healed": 1, "seeds": 2, "variants": ["ls"]}
    )
    plan = Plan(params)
    plan.options = options
    plan.seeds = plan.seeds[:2]
    jobs = plan.jobs()
    assert [(part, seed) for part, _, seed in jobs] == [
        *(("passes", 0), ("passes", 1), ("pruning", 0), ("pruning", 1)),
        *(("separate", 0), ("separate", 1)),
    ]
    job: Any = jobs["separate", "ls", 1]
    files = [plan.weights_of("ls", seed) for seed in (1, 2, 3, 4, 0)]
    assert [file for name, file in job.inputs.items() if name != "data"] == files
    assert job.config.others_sha256 == [sha256(file) for file in files[1:]]
    plan.options = options.model_copy(update={"common": {"ls": 1}})
    with pytest.raises(UserError, match="no weights of seed 0"):
        plan.jobs()


@pytest.mark.parametrize(
    ("seeds", "sets", "separate", "common"),
    [([0, 1, 2], None, [0, 1, 2], [0]), ([0, 1, 2], 2, [0, 1], [0, 2]), ([5, 6], 1, [5], [5, 6])],
)
def test_trainings_that_share_their_start(
    seeds: list[int], sets: int | None, separate: list[int], common: list[int], params: Params
) -> None:
    pretrain = params.pretrain.model_copy(update={"seeds": sets})
    plan = Plan(params.model_copy(update={"seeds": seeds, "pretrain": pretrain}))
    plan.options = plan.options.model_copy(update={"common": {}})
    assert list(plan.members("ls", "separate")) == separate
    assert list(plan.members("ls", "common")) == common


def test_without_rows_nothing_is_drawn(params: Params, tmp_path: Path) -> None:
    assert draw(Results(tmp_path, PAPERS), params) == {}
