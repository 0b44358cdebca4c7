"""The losses against over-smoothing: their formulas, and their keys in params.yaml."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from papers import Variant
from papers.smoothing.losses import patch_classification, patch_contrastive, patch_cosine
from papers.smoothing.section import Losses
from pipeline.jobs.configs import TrainConfig
from pipeline.training.objectives import is_right, task_loss
from tests.papers.smoothing.by_hand import (
    LOSSES,
    contrastive_as_written,
    cosine_by_pairs,
    random,
    unit,
)

Config = Callable[..., TrainConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


# ---- the losses' formulas ------------------------------------------------------------------------


SIMPLEX = torch.eye(4) - 0.25
LENGTHS = torch.tensor([0.01, 1.0, 30.0, 400.0])[:, None]


@pytest.mark.parametrize(
    ("patches", "expected"),
    [
        (LENGTHS * torch.tensor([1.0, -2.0, 0.5]), 1.0),
        (LENGTHS * torch.eye(4), 0.0),
        (torch.tensor([[3.0, 4.0], [-0.3, -0.4]]), -1.0),
        (torch.tensor([[1.0, 0.0], [1.0, 1.0]]), math.sqrt(0.5)),
        (SIMPLEX, -1 / 3),
        (torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]), -1 / 3),
    ],
    ids=[
        "identical",
        "orthogonal",
        "opposite",
        "45 degrees",
        "as far apart as four can be",
        "two against one",
    ],
)
def test_patch_cosine_of_known_patches(patches: Tensor, expected: float) -> None:
    assert patch_cosine(patches[None]).tolist() == pytest.approx([expected], abs=1e-6)


def test_patch_cosine_is_the_mean_over_pairs() -> None:
    patches = random(5, 7, 16) + 1
    expected = [float(cosine_by_pairs(image)) for image in patches]
    assert patch_cosine(patches).tolist() == pytest.approx(expected, abs=1e-6)
    assert patch_cosine(patches * random(5, 7, 1).exp()).tolist() == pytest.approx(
        expected, abs=1e-6
    )
    assert max(expected) - min(expected) > 0.01


@pytest.mark.parametrize("count", [2, 3, 16])
def test_patch_cosine_has_bounds(count: int) -> None:
    """For whatever patches, also after descending to the lower one."""
    patches = random(50, count, 4).requires_grad_()
    found = patch_cosine(patches)
    assert ((found >= -1 / (count - 1) - 1e-6) & (found <= 1 + 1e-6)).all()
    optimizer = torch.optim.Adam([patches], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        patch_cosine(patches).sum().backward()
        optimizer.step()
    assert patch_cosine(patches).tolist() == pytest.approx([-1 / (count - 1)] * 50, abs=1e-3)
    assert (patch_cosine(patches) >= -1 / (count - 1) - 1e-6).all()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e15])
def test_patch_losses_stay_finite(scale: float) -> None:
    """Some patches zero, and all very short or very long."""
    patches, early = scale * random(2, 5, 8), random(2, 5, 8, value=1)
    patches[:, :2] = 0
    patches.requires_grad_()
    for loss in (
        patch_cosine(patches).mean(),
        patch_contrastive(early, patches),
        patch_contrastive(early, patches, normalized=True),
    ):
        patches.grad = None
        loss.backward()
        assert loss.isfinite()
        assert patches.grad is not None
        assert patches.grad.isfinite().all()


def test_patch_contrastive_of_two_patches() -> None:
    """By hand: the mean of h is (1, 1.5), so e_1 (mean - h_1) = 1 - 3 and e_2 (mean - h_2) = 2 (1.5
    - 2).
    """
    early, late = (
        torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]),
        torch.tensor([[[3.0, 1.0], [-1.0, 2.0]]]),
    )
    plain = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(-1))) / 2
    assert float(patch_contrastive(early, late)) == pytest.approx(plain)
    # h_1 = (3, 1) / sqrt(10), h_2 = (-1, 2) / sqrt(5), e_2 = (0, 1); of two, mean - h_1 = (h_2 -
    # h_1) / 2
    first, second = (
        (-1 / math.sqrt(5) - 3 / math.sqrt(10)) / 2,
        (1 / math.sqrt(10) - 2 / math.sqrt(5)) / 2,
    )
    cosines = (math.log(1 + math.exp(first)) + math.log(1 + math.exp(second))) / 2
    assert float(patch_contrastive(early, late, normalized=True)) == pytest.approx(cosines)
    assert float(patch_contrastive(early, late[:, :1].expand(1, 2, 2))) == pytest.approx(
        math.log(2)
    )  # all patches equal


def test_patch_contrastive_is_the_sources() -> None:
    """Values and gradients; none to the early patches."""
    early, late = (random(3, 6, 4, value=i).double().requires_grad_() for i in (1, 2))
    for normalized in (False, True):
        found = patch_contrastive(early, late, normalized)
        read = [unit(x) if normalized else x for x in (early.detach(), late)]
        expected = torch.stack(
            [contrastive_as_written(e, h) for e, h in zip(*read, strict=True)]
        ).mean()
        assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
        gradient, reference = (torch.autograd.grad(loss, late)[0] for loss in (found, expected))
        assert torch.allclose(gradient, reference, atol=1e-6)
        assert reference.abs().max() > 0.01
    patch_contrastive(early, late).backward()
    assert early.grad is None


def test_patch_contrastive_of_huge_products() -> None:
    """Where the exponentials of the formula overflow, a difference decides: its positive part
    remains.
    """
    early, late = 1e3 * random(2, 6, 4, value=1), 1e3 * random(2, 6, 4, value=2)
    late.requires_grad_()
    assert not contrastive_as_written(early[0], late[0]).isfinite()
    found = patch_contrastive(early, late)
    expected = (early * (late.mean(1, keepdim=True) - late)).sum(-1).clamp(min=0).mean()
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    found.backward()
    assert late.grad is not None
    assert late.grad.isfinite().all()


def test_lengths_matter_to_plain_products_alone() -> None:
    early, late = random(3, 6, 4, value=1), random(3, 6, 4, value=2)
    lengths = random(2, 3, 6, 1, value=3).exp()
    plain, cosines = (
        [
            float(patch_contrastive(*each, normalized))
            for each in ((early, late), (early * lengths[0], late * lengths[1]))
        ]
        for normalized in (False, True)
    )
    assert cosines[0] == pytest.approx(cosines[1], abs=1e-6)
    assert abs(plain[0] - plain[1]) > 0.05


def test_patch_classification() -> None:
    """Of each patch its own label; of an image without them, its shares at every patch."""
    logits, labels = random(3, 4, 5), torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1], [2, 2, 2, 3]])
    each = [
        cross_entropy(logits[i, j][None], labels[i, j][None]) for i in range(3) for j in range(4)
    ]
    assert torch.isclose(patch_classification(logits, labels), torch.stack(each).mean())
    shares = random(3, 5, value=1).softmax(-1)
    soft = [-(shares[i] * logits[i, j].log_softmax(-1)).sum() for i in range(3) for j in range(4)]
    assert torch.isclose(patch_classification(logits, shares), torch.stack(soft).mean())
    same = torch.tensor([1, 4, 0])
    assert torch.isclose(
        patch_classification(logits, one_hot(same, 5).float()),
        patch_classification(logits, same[:, None].expand(3, 4)),
    )
    square = random(
        4, 4, 4
    )  # as many patches as classes, where the two kinds of labels have one shape
    hard, mixed = torch.arange(4)[:, None].expand(4, 4), torch.eye(4)
    assert torch.isclose(patch_classification(square, hard), patch_classification(square, mixed))


def test_shares_of_classes_as_labels() -> None:
    logits, labels = random(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    shares = random(6, 5, value=1).softmax(-1)
    losses = [-float((shares[i] * logits[i].log_softmax(-1)).sum()) for i in range(6)]
    assert float(task_loss(logits, shares)) == pytest.approx(sum(losses) / 6)
    assert float(task_loss(logits, shares, "sum")) == pytest.approx(sum(losses))
    assert torch.isclose(task_loss(logits, one_hot(labels, 5).float()), task_loss(logits, labels))
    sure = 0.6 * one_hot(labels, 5).float() + 0.4 * one_hot((labels + 1) % 5, 5).float()
    assert torch.equal(is_right(logits, sure), is_right(logits, labels))
    assert is_right(sure, sure).all()
    assert not is_right(sure.roll(1, 1), sure).any()


# ---- the section of params.yaml ------------------------------------------------------------------


def test_a_number_is_a_weight() -> None:
    numbers = Losses.model_validate({"cosine": 0.5, "contrastive": "3e-1", "mixing": 2})
    assert numbers == Losses.model_validate(
        {"cosine": {"weight": 0.5}, "contrastive": {"weight": 0.3}, "mixing": {"weight": 2.0}}
    )
    assert numbers.mixing is not None
    assert (numbers.mixing.weight, numbers.mixing.alpha) == (2.0, 1.0)
    full = Losses.model_validate({"contrastive": {"normalize": True}, "mixing": {"alpha": 0.2}})
    assert full.contrastive is not None
    assert (full.contrastive.weight, full.contrastive.normalize) == (1.0, True)
    for losses in (LOSSES, full, Losses()):
        assert Losses.model_validate_json(losses.model_dump_json()) == losses
        assert Losses.model_validate(losses.model_dump()) == losses


@pytest.mark.parametrize(
    "zero",
    [
        {"cosine": 0},
        {"contrastive": {"weight": 0.0, "normalize": True}, "mixing": 0},
        {"mixing": None},
    ],
)
def test_weight_zero_is_absent(zero: dict[str, Any]) -> None:
    assert Losses.model_validate(zero) == Losses()
    assert Losses.model_validate(zero).model_dump() == Losses().model_dump()
    assert (
        Variant.model_validate({"route": "arbitrary", "losses": zero}).model_dump_json()
        == Variant(route="arbitrary").model_dump_json()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"kosine": 1},
        {"cosine": {"weights": 1}},
        {"cosine": {"normalize": True}},
        {"contrastive": {"alpha": 1}},
        {"cosine": -0.1},
        {"mixing": {"weight": -1}},
        {"mixing": {"alpha": 0}},
        {"cosine": True},
        {"cosine": ""},
        {"cosine": float("inf")},
        {"cosine": [1]},
    ],
)
def test_wrong_losses_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Losses.model_validate(wrong)


def test_names_of_losses() -> None:
    assert str(Losses()) == str(Losses.model_validate({"cosine": 0})) == "none"
    assert str(LOSSES) == "cosine+contrastive+mixing"
    assert str(Losses.model_validate({"mixing": 1, "contrastive": 0.1})) == "contrastive+mixing"
