"""A paper's key of variants: what its extension adds to a model and its training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lsvit.routed import RoutedModel, Tap
from lsvit.weights import save_weights
from pipeline.config.paper import Paper, VariantKey
from pipeline.config.variant import variant_class
from pipeline.data.splits import Split
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS
from pipeline.models.extensions import Extension, extensions_of
from pipeline.models.start import load_start
from pipeline.models.weights import build, create_backbone
from pipeline.training.objectives import Augment, Batch, ForwardPass, Objective, Terms
from pipeline.training.scoring import Score
from tests.pipeline.training.test_loop import run


class Mean:
    """A loss on a part of its own."""

    def taps(self, model: RoutedModel) -> Sequence[Tap]:
        return ()

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        model: Any = forward.model
        value = model.extra(forward.state.mean(1)).square().mean()
        return {"extra_loss": (model.weight, value), "noted": (None, value * 0 + 7)}


class Extra(Extension):
    """What the key `extra` does."""

    repeats = 2

    def prepare(self, backbone: Any) -> None:
        backbone.norm.weight.data.fill_(1.5)

    def attach(self, model: RoutedModel) -> None:
        model.weight = self.variant.extra
        model.extra = nn.Linear(model.backbone.embed_dim, 1)

    def freeze(self, model: RoutedModel) -> None:
        model.backbone.head.weight.requires_grad_(False)

    def objectives(self, model: RoutedModel, objectives: list[Objective]) -> list[Objective]:
        return [*objectives, Mean()]

    def augmentation(self, model: RoutedModel, split: Split) -> Augment:
        return lambda batch: Batch(torch.zeros_like(batch.images), batch.labels)

    def judge(self, score: Score) -> Score:
        return score._replace(objective=-score.loss)


KEY = VariantKey("extra", float, 0.0, f"{__name__}:Extra")
PAPER = Paper(name="made_up", title="", sections=(), rows="none", variant_keys=(KEY,))
Variant: Any = variant_class((PAPER,))


def test_a_key_that_is_not_set_does_nothing() -> None:
    assert extensions_of(Variant(route="sequential")) == []
    (extension,) = extensions_of(Variant(route="sequential", extra=2))
    assert isinstance(extension, Extra)


def test_a_paper_with_a_loss_edits_no_file_of_the_pipeline(
    train_config: Callable[..., TrainConfig], prepared: Path, tmp_path: Path
) -> None:
    """Parts, loss, frozen weights, batches and the epoch that is kept are the extension's."""
    variant = Variant(route="arbitrary", extra=0.5)
    config = train_config(epochs=2).model_copy(update={"variant": variant})
    for row in run(config, prepared, tmp_path):
        assert row["train/noted"] == pytest.approx(7)
        expected = row["train/class_loss"] + 0.5 * row["train/extra_loss"]
        assert row["train/loss"] == pytest.approx(expected, rel=1e-5)
        assert row["validation/arbitrary/objective"] == -row["validation/arbitrary/loss"]
    tensors = load_file(tmp_path / WEIGHTS)
    assert {"extra.weight", "extra.bias"} <= tensors.keys()
    torch.manual_seed(config.seed)
    start = build(config.model, 10, config.variant)
    assert torch.equal(start.backbone.norm.weight, torch.full((16,), 1.5))
    assert torch.equal(tensors["head.weight"], start.backbone.head.weight)
    # Images are black: no weight of the patch embedding has a gradient.
    start_weight = start.backbone.patch_embed.proj.weight
    assert torch.equal(tensors["patch_embed.proj.weight"], start_weight)


def test_parts_of_a_trained_model_are_no_start(
    train_config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    """Neither the library's nor a paper's: another model starts from the rest."""
    config = train_config(position={"encode": {}, "predict": {}}, losses={"mixing": 1.0})
    trained = build(config.model, 10, config.variant)
    file = tmp_path / WEIGHTS
    save_weights(trained, file)
    assert "patch_head.weight" in load_file(file)
    preset = config.model.model_copy(update={"weights": str(file)})
    backbone = create_backbone(preset, 10)
    assert load_start(backbone, preset, [*map(str, range(10))])["head"] == "loaded"
    assert torch.equal(backbone.head.weight, trained.backbone.head.weight)
