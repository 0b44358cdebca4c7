"""Trainings that learn a teacher's answers, and orders that grow."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, log_softmax

from lsvit.routes import OneRoute, kendall_distance
from lsvit.weights import save_weights
from papers import Variant
from papers.smoothing.section import Recipe
from pipeline.config.variant import PLAIN
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build
from pipeline.training import loop
from pipeline.training.loop import Run, draw_route
from pipeline.training.objectives import Batch

Config = Callable[..., TrainConfig]
ROUTE = (2, 0, 1)


def soft_loss(logits: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """-sum of p(teacher) log p(student), mean over images."""
    return -(teacher.softmax(-1) * log_softmax(logits, -1)).sum(-1).mean()


@pytest.mark.parametrize("weight", [0.0, 0.7])
@pytest.mark.parametrize("by", ["original", "baseline"])
def test_the_loss_and_its_gradients(
    train_config: Config, prepared: Path, tmp_path: Path, by: str, weight: float
) -> None:
    config = train_config(teacher=by, teacher_weight=weight)
    weights = None
    torch.manual_seed(5)
    teacher = build(config.model, 10, PLAIN)
    if by == "baseline":
        weights = tmp_path / "teacher.safetensors"
        save_weights(teacher, weights)
        dropping = Variant(route="sequential", recipe=Recipe(drop_path=0.9))  # only in training
        config = config.model_copy(update={"teacher": dropping})
    run = Run(config, prepared, None, lambda event: None, weights)
    images, labels = run.train_split.take(torch.arange(6))
    found = run.step(Batch(images, labels), OneRoute(ROUTE))
    found["loss"].backward()
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    run.model.zero_grad()

    logits = run.model(images, ROUTE)
    expected = cross_entropy(logits, labels)
    if by == "original":
        answers = run.model(images)
        expected = expected + cross_entropy(answers, labels)
    else:
        answers = teacher.eval()(images)
    expected = expected + weight * soft_loss(logits, answers.detach())
    expected.backward()
    torch.testing.assert_close(found["loss"], expected)
    wanted = [p.grad for p in run.model.parameters() if p.grad is not None]
    torch.testing.assert_close(gradients, wanted)
    assert ("original_loss" in found) == (by == "original")


@pytest.mark.parametrize("swaps", [33, 0.5])
def test_disorder_grows_over_the_training(train_config: Config, swaps: float) -> None:
    config = train_config(route={"swap": swaps, "schedule": "growing"})
    for progress, distance in ((0.0, 0), (0.25, 8), (0.5, 16), (1.0, 33)):
        (route,) = draw_route(config, 12, 1, 0, progress).rows(1)
        assert kendall_distance(tuple(route.tolist())) == distance


def test_orders_know_how_much_of_the_training_is_done(
    train_config: Config, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(train_config(epochs=2), prepared, None, lambda event: None)
    spy = Mock(side_effect=draw_route)
    monkeypatch.setattr(loop, "draw_route", spy)
    loop.train_epoch(run, 2)
    progress = [call.args[-1] for call in spy.call_args_list]
    assert progress == pytest.approx(np.linspace(0.5, 1, run.steps, endpoint=False))
