"""Evaluation: which routes give the mean, which the spread, and what a pass with an order per sample is worth."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lsvit.config.params import Params
from lsvit.config.presets import ModelPreset
from lsvit.config.variant import Variant
from lsvit.jobs.configs import TrainConfig
from lsvit.jobs.files import ROWS, WEIGHTS
from lsvit.models.weights import build, save_weights
from lsvit.papers.layershuffle.compute.evaluation import evaluate
from lsvit.papers.layershuffle.section import SAMPLER_ROWS, EvalConfig, PruneEval
from lsvit.routes import arbitrary, generator, per_sample
from lsvit.training.loop import train
from lsvit.training.scoring import open_model, open_split, score


@pytest.fixture
def weights(pico: ModelPreset, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_weights(build(pico, 10), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def config(params: Params, pico: ModelPreset, layers: int | None = None, **options: object) -> EvalConfig:
    values = params.prune_eval.model_dump() | {"keep": [2], "orders": 5, "batch_size": 16, "samplers": ["reversed"]} | options
    return EvalConfig(
        title="test", dataset="bars", model_name="pico", model=pico, variant=Variant(route="arbitrary", layers=layers), device="cpu",
        data_sha256="", weights_sha256=None, seed=0, options=PruneEval(**values), precision="fp32",
    )  # fmt: skip


def rows(config: EvalConfig, data: Path, weights: Path, tmp_path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    evaluate(config, data, weights, tmp_path, lambda event: None)
    return pd.read_csv(tmp_path / ROWS, dtype={"route": str}), pd.read_csv(tmp_path / SAMPLER_ROWS)


def test_mean_and_spread_have_rows_of_their_own(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:  # fmt: skip
    """40 images: one pass with an order each gives the mean; 5 single orders on 10 images give the spread."""
    found, _ = rows(config(params, pico, images=10), prepared, weights, tmp_path)
    cell = found[(found["keep"] == 4) & (found["order"] == "arbitrary")]
    assert list(cell["routes"]) == [1] * 5 + [40]
    assert list(cell["images"]) == [10] * 5 + [40]
    assert cell["route"].nunique() == 6
    complete = found[(found["keep"] == 4) & (found["order"] == "sequential")]
    assert complete[["route", "routes", "images"]].values.tolist() == [["0-1-2-3", 1, 40]]  # the only route, on all images
    pruned = found[(found["keep"] == 2) & (found["order"] == "sequential")]
    assert len(pruned) == 5 + 1  # 5 of the 6 there are; with orders: 6 all of them, and no pass
    all_six, _ = rows(config(params, pico, images=10, orders=6), prepared, weights, tmp_path)
    assert list(all_six[(all_six["keep"] == 2) & (all_six["order"] == "sequential")]["images"]) == [40] * 6


def test_other_readings(params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path) -> None:
    """per: pass runs every image under every order; per: batch, as published, one order a batch."""
    every, _ = rows(config(params, pico, per="pass"), prepared, weights, tmp_path)
    assert list(every[(every["keep"] == 4) & (every["order"] == "arbitrary")]["images"]) == [40] * 5
    batch, _ = rows(config(params, pico, per="batch"), prepared, weights, tmp_path)
    assert list(batch[(batch["keep"] == 4) & (batch["order"] == "arbitrary")]["route"]) == ["3 routes, one a batch"]


def test_samplers_that_fit(params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path) -> None:
    """Every sampler that the model is deep enough for, the distance beside it; a sampler of one order equals that order."""
    specs = ["sequential", "reversed", "arbitrary", {"swap": 3}, {"swap": 7}, {"drop": 0.5}, {"skip": [1]}, {"fix_first": 2}]
    found, sampled = rows(config(params, pico, samplers=specs), prepared, weights, tmp_path)
    table = sampled.set_index("sampler")
    assert list(table.index) == ["sequential", "reversed", "arbitrary", "swap 3", "drop 0.5", "skip 1", "fix_first 2"]
    assert table.loc[["sequential", "reversed", "swap 3"], "distance"].tolist() == [0, 6, 3]
    assert table.loc[["sequential", "skip 1"], "length"].tolist() == [4, 3]
    assert 1 < table.loc["drop 0.5", "length"] < 3
    alone = found[(found["keep"] == 4) & (found["order"] == "sequential")]["accuracy"].item()
    assert table.loc["sequential", "accuracy"] == alone


def test_samplers_are_of_the_variants_asked_for(params: Params) -> None:
    options = params.prune_eval.model_copy(update={"variants": ["ls"]})
    assert options.of("ls") == options
    assert options.of("baseline") == options.model_copy(update={"samplers": []})
    assert "variants" not in options.effective()  # a variant more evaluates no other one again


@pytest.mark.slow
def test_an_order_a_sample_estimates_better_than_an_order_a_batch(
    train_config: Callable[..., TrainConfig], prepared: Path, tmp_path: Path
) -> None:  # fmt: skip
    """A model that depends on its order, same images, 30 draws of orders: the estimate spreads less, around the same mean."""
    setting = train_config(route="sequential", epochs=24)
    train(setting, prepared, None, tmp_path, lambda row: None)
    model, execution = open_model(setting, prepared, tmp_path / WEIGHTS)
    split = open_split(setting, prepared, "validation", model)
    losses: dict[str, list[float]] = {"batch": [], "sample": []}
    for draw in range(30):
        rng = generator("samples", draw)
        batches = [arbitrary(rng, 4) for _ in range(2)]
        losses["batch"].append(score(model, split, batches, 20, execution).loss)
        losses["sample"].append(score(model, split, torch.from_numpy(per_sample(arbitrary, rng, 4, len(split))), 20, execution).loss)
    assert np.std(losses["sample"]) < 0.6 * np.std(losses["batch"])
    assert abs(np.mean(losses["sample"]) - np.mean(losses["batch"])) < 3 * np.std(losses["batch"]) / np.sqrt(30)
