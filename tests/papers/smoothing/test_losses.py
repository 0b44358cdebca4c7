"""The losses against over-smoothing: their formulas, and their keys in params.yaml."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy, one_hot

from papers import Variant
from papers.smoothing.losses import patch_classification, patch_contrastive, patch_cosine
from papers.smoothing.section import Losses
from pipeline.training.objectives import is_right, task_loss
from tests.conftest import cases_of
from tests.papers.smoothing.by_hand import (
    LOSSES,
    PLAIN,
    contrastive_as_written,
    cosine_by_pairs,
    random,
    unit,
)

CASES = cases_of(__file__)
pytestmark = pytest.mark.usefixtures("one_thread")


def test_patch_cosine_is_the_mean_over_pairs() -> None:
    """Of directions alone."""
    patches = random(5, 7, 16) + 1
    expected = [float(cosine_by_pairs(image)) for image in patches]
    for scaled in (patches, patches * random(5, 7, 1).exp()):
        assert patch_cosine(scaled).tolist() == pytest.approx(expected, abs=1e-6)
    assert max(expected) - min(expected) > 0.01


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
        (gradient,) = torch.autograd.grad(loss, patches)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("normalized", [False, True])
def test_patch_contrastive_is_the_sources(normalized: bool) -> None:
    """Values and gradients; none to the early patches."""
    early = random(3, 6, 4, value=1).double().requires_grad_()
    late = random(3, 6, 4, value=2).double().requires_grad_()
    loss = patch_contrastive(early, late, normalized)
    read = [unit(early.detach()), unit(late)] if normalized else [early.detach(), late]
    losses = [contrastive_as_written(e, h) for e, h in zip(*read, strict=True)]
    expected = torch.stack(losses).mean()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    unused, gradient = torch.autograd.grad(loss, [early, late], allow_unused=True)
    (reference,) = torch.autograd.grad(expected, late)
    assert unused is None
    assert torch.allclose(gradient, reference, atol=1e-6)
    assert reference.abs().max() > 0.01


def test_labels_of_patches() -> None:
    """They have their own, or those of their image: its shares of classes, or its one class."""
    logits, labels = random(3, 4, 5), torch.tensor([[0, 1, 2, 3], [4, 4, 0, 1], [2, 2, 2, 3]])
    expected = cross_entropy(logits.transpose(1, 2), labels)
    assert torch.isclose(patch_classification(logits, labels), expected)
    shares = random(3, 5, value=1).softmax(-1)
    expected = -(shares[:, None] * logits.log_softmax(-1)).sum(-1).mean()
    assert torch.isclose(patch_classification(logits, shares), expected)
    whole = labels[:, 1]
    expected = patch_classification(logits, whole[:, None].expand(3, 4))
    assert torch.equal(patch_classification(logits, whole), expected)
    # Of as many patches as classes both forms of labels have one shape.
    logits, labels = random(4, 4, 4), torch.arange(4)[:, None].expand(4, 4)
    expected = patch_classification(logits, torch.eye(4))
    assert torch.isclose(patch_classification(logits, labels), expected)


def test_shares_of_classes_as_labels() -> None:
    logits = random(6, 5)
    shares = random(6, 5, value=1).softmax(-1)
    expected = -(shares * logits.log_softmax(-1)).sum()
    assert torch.isclose(task_loss(logits, shares), expected / 6)
    assert torch.isclose(task_loss(logits, shares, "sum"), expected)


def test_the_largest_share_is_the_right_answer() -> None:
    logits = random(6, 5)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    certain = one_hot(labels, 5).float()
    mixed = 0.6 * certain + 0.4 * certain.roll(1, 1)
    assert torch.equal(is_right(logits, mixed), is_right(logits, labels))
    assert is_right(mixed, mixed).all()


# ---- the section of params.yaml ------------------------------------------------------------------


def test_a_number_is_a_weight() -> None:
    numbers, words = (Losses.model_validate(keys) for keys in CASES["alike"])
    assert numbers == words


@pytest.mark.parametrize(
    ("losses", "name"),
    [(LOSSES, "cosine+contrastive_cosines+mixing"), (PLAIN, "contrastive"), (Losses(), "none")],
)
def test_losses_are_named_and_read_as_they_are_written(losses: Losses, name: str) -> None:
    assert str(losses) == name
    assert Losses.model_validate_json(losses.model_dump_json()) == losses


@pytest.mark.parametrize("zero", CASES["absent"])
def test_weight_zero_is_absent(zero: dict[str, Any]) -> None:
    variant = Variant.model_validate({"route": "arbitrary", "losses": zero})
    assert variant.model_dump_json() == Variant(route="arbitrary").model_dump_json()


@pytest.mark.parametrize("wrong", CASES["wrong"])
def test_wrong_losses_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Losses.model_validate(wrong)
