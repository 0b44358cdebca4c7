"""Evaluation: which routes give the mean, which the spread, and what a pass with an order per
sample is worth.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lsvit.latin import Latin
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, RouteTable, arbitrary, generator, per_sample
from lsvit.weights import save_weights
from papers import Variant
from papers.exits.section import ExitHeads
from papers.layershuffle.compute import analysis, evaluation
from papers.layershuffle.compute.analysis import Contributions, record
from papers.layershuffle.compute.evaluation import evaluate
from papers.layershuffle.section import SAMPLER_ROWS, AnalysisConfig, EvalConfig, PruneEval
from papers.smoothing.section import Recipe
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.data.resize import Resize, resizing
from pipeline.data.splits import Split
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import ARRAYS, ROWS, WEIGHTS, read_meta
from pipeline.models.weights import build
from pipeline.training import scoring
from pipeline.training.devices import Execution
from pipeline.training.loop import train
from pipeline.training.objectives import is_right, task_loss
from pipeline.training.scoring import InTurn, Score, open_model, open_split, score
from tests.models import small
from tests.papers.exits.test_branches import FAMILIES


@pytest.fixture
def weights(pico: ModelPreset, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_weights(build(pico, 10), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def config(
    params: Params, pico: ModelPreset, layers: int | None = None, **options: object
) -> EvalConfig:
    values = (
        params.prune_eval.model_dump()
        | {"keep": [2], "orders": 5, "batch_size": 16, "samplers": ["reversed"]}
        | options
    )
    return EvalConfig(
        title="test",
        dataset="bars",
        model_name="pico",
        model=pico,
        variant=Variant(route="arbitrary", layers=layers),
        device="cpu",
        data_sha256="",
        weights_sha256=None,
        seed=0,
        options=PruneEval(**values),
        precision="fp32",
    )


def rows(
    config: EvalConfig, data: Path, weights: Path, tmp_path: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    evaluate(config, data, weights, tmp_path, lambda event: None)
    return pd.read_csv(tmp_path / ROWS, dtype={"route": str}), pd.read_csv(tmp_path / SAMPLER_ROWS)


def test_mean_and_spread_have_rows_of_their_own(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    """40 images: one pass with an order each gives the mean; 5 single orders on 10 images give the
    spread.
    """
    found, _ = rows(config(params, pico, images=10), prepared, weights, tmp_path)
    cell = found[(found["keep"] == 4) & (found["order"] == "arbitrary")]
    assert list(cell["routes"]) == [1] * 5 + [40]
    assert list(cell["images"]) == [10] * 5 + [40]
    assert cell["route"].nunique() == 6
    complete = found[(found["keep"] == 4) & (found["order"] == "sequential")]
    assert complete[["route", "routes", "images"]].values.tolist() == [
        ["0-1-2-3", 1, 40]
    ]  # the only route, on all images
    pruned = found[(found["keep"] == 2) & (found["order"] == "sequential")]
    assert len(pruned) == 5 + 1  # 5 of the 6 there are; with orders: 6 all of them, and no pass
    all_six, _ = rows(config(params, pico, images=10, orders=6), prepared, weights, tmp_path)
    assert (
        list(all_six[(all_six["keep"] == 2) & (all_six["order"] == "sequential")]["images"])
        == [40] * 6
    )


def test_other_readings(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    """per: pass runs every image under every order; per: batch, as published, one order a batch."""
    every, _ = rows(config(params, pico, per="pass"), prepared, weights, tmp_path)
    assert list(every[(every["keep"] == 4) & (every["order"] == "arbitrary")]["images"]) == [40] * 5
    batch, _ = rows(config(params, pico, per="batch"), prepared, weights, tmp_path)
    assert list(batch[(batch["keep"] == 4) & (batch["order"] == "arbitrary")]["route"]) == [
        "3 routes, one a batch"
    ]
    two, _ = rows(config(params, pico, per="batch", batch_size=20), prepared, weights, tmp_path)
    assert list(two[(two["keep"] == 4) & (two["order"] == "arbitrary")]["route"]) == [
        "2 routes, one a batch"
    ]
    whole, _ = rows(config(params, pico, per="batch", batch_size=40), prepared, weights, tmp_path)
    (route,) = whole[(whole["keep"] == 4) & (whole["order"] == "arbitrary")]["route"]
    assert sorted(route.split("-")) == ["0", "1", "2", "3"]


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Score]]:
    """Which routes were scored, and what that gave."""
    found: list[tuple[Any, Score]] = []

    def spy(
        model: RoutedModel, split: Split, routes: Any, batch_size: int, execution: Execution
    ) -> Score:
        result = score(model, split, routes, batch_size, execution)
        if isinstance(routes, InTurn) and isinstance(routes.routes[0], Latin):
            table = RouteTable(routes.rows(len(split)))
            alone = score(model, split, table, batch_size, execution)
            assert alone.loss == pytest.approx(result.loss, rel=1e-6)
            assert torch.equal(alone.correct, result.correct)
        found.append((routes, result))
        return result

    monkeypatch.setattr(evaluation, "score", spy)
    return found


def test_latin_routes(
    params: Params,
    pico: ModelPreset,
    prepared: Path,
    weights: Path,
    tmp_path: Path,
    scored: list[tuple[Any, Score]],
) -> None:
    """40 images in batches of 16 and 8: three Latin squares of 4 routes, which give what their rows
    give sample by sample; all other rows are as under `per: sample`.
    """
    latin, _ = rows(config(params, pico, images=10, per="latin"), prepared, weights, tmp_path)
    squares = [
        (routes, result)
        for routes, result in scored
        if isinstance(routes, InTurn) and isinstance(routes.routes[0], Latin)
    ]
    sample, _ = rows(config(params, pico, images=10, per="sample"), prepared, weights, tmp_path)
    is_latin = latin["route"] == "12 routes, Latin"
    assert latin[is_latin][["keep", "order", "routes", "images"]].values.tolist() == [
        [2, "arbitrary", 12, 40],
        [4, "arbitrary", 12, 40],
    ]
    for (routes, result), (_, row), length in zip(
        squares, latin[is_latin].iterrows(), (2, 4), strict=True
    ):
        shapes = [np.shape(each.routes) for each in routes.routes]  # type: ignore[attr-defined]
        assert shapes == [(4, length)] * 3
        assert len(set(routes.routes)) == 3
        assert (row["accuracy"], row["loss"]) == (
            pytest.approx(result.accuracy, abs=1e-6),
            pytest.approx(result.loss, abs=1e-6),
        )
    rest, _ = rows(
        config(params, pico, images=10, per="latin", batch_size=19), prepared, weights, tmp_path
    )
    assert (
        rest[rest["keep"] == 4]["route"].tolist()[-1] == "10 routes, Latin"
    )  # the last two images have one each
    one_a_sample = sample["route"] == "40 routes, one a sample"
    assert one_a_sample.sum() == 3  # the third is pruned and sequential, which no Latin square is
    pd.testing.assert_frame_equal(latin[~is_latin], sample[~is_latin])
    assert sample[is_latin]["route"].tolist() == ["40 routes, one a sample"] * 2


def test_cells_with_few_routes_have_no_latin_ones(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    """All 24 orders of 4 layers, and all ways to keep 2 of them, are rows of their own under either
    reading.
    """
    found = [
        rows(config(params, pico, orders=24, per=per), prepared, weights, tmp_path)[0]
        for per in ("latin", "sample")
    ]
    pd.testing.assert_frame_equal(*found)
    assert (found[0]["routes"] == 1).all()
    assert len(found[0]) == 6 + 12 + 1 + 24


def test_samplers_with_latin_routes(
    params: Params,
    pico: ModelPreset,
    prepared: Path,
    weights: Path,
    tmp_path: Path,
    scored: list[tuple[Any, Score]],
) -> None:
    """Those that shuffle what they do not leave in place; all others run an order a sample, as
    under `per: sample`.
    """
    shuffling = ["arbitrary", {"fix_first": 0}, {"fix_first": 2}, {"fix_last": 1}, {"fix_first": 4}]
    specs = [*shuffling, "reversed", {"swap": 3}, {"drop": 0.5}]
    one = config(params, pico, samplers=specs, images=10, per="latin")
    _, latin = rows(one, prepared, weights, tmp_path)
    drawn = [routes for routes, _ in scored[-len(specs) :]]
    assert [isinstance(routes, InTurn) for routes in drawn] == [True] * 5 + [False] * 3
    ends = [{(each.first, each.last) for each in routes.routes} for routes in drawn[:4]]
    assert ends == [{(0, 0)}, {(0, 0)}, {(2, 0)}, {(0, 1)}]
    assert [[len(each.routes) for each in routes.routes] for routes in drawn[:5]] == [
        [4] * 3,
        [4] * 3,
        [2] * 3,
        [3] * 3,
        [1] * 3,
    ]
    assert {route for each in drawn[4].routes for route in each.routes} == {(0, 1, 2, 3)}
    _, sample = rows(
        config(params, pico, samplers=specs, images=10, per="sample"), prepared, weights, tmp_path
    )
    pd.testing.assert_frame_equal(
        latin[4:], sample[4:], check_exact=False, atol=2e-6, rtol=0
    )  # the layers in place, all of them, too
    table = latin.set_index("sampler")
    assert table.loc["fix_first 4", "distance"] == 0
    assert (table["length"][:5] == 4).all()
    assert 0 < table.loc["fix_first 2", "distance"] <= 1  # of the two last layers


def test_samplers_that_fit(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    """Every sampler that the model is deep enough for, the distance beside it; a sampler of one
    order equals that order.
    """
    specs = [
        "sequential",
        "reversed",
        "arbitrary",
        {"swap": 3},
        {"swap": 7},
        {"drop": 0.5},
        {"skip": [1]},
        {"fix_first": 2},
    ]
    found, sampled = rows(config(params, pico, samplers=specs), prepared, weights, tmp_path)
    table = sampled.set_index("sampler")
    assert list(table.index) == [
        "sequential",
        "reversed",
        "arbitrary",
        "swap 3",
        "drop 0.5",
        "skip 1",
        "fix_first 2",
    ]
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
) -> None:
    """A model that depends on its order, same images, 30 draws of orders: the estimate spreads
    less, around the same mean.
    """
    setting = train_config(route="sequential", epochs=24)
    train(setting, prepared, None, tmp_path, lambda row: None)
    model, execution = open_model(setting, prepared, tmp_path / WEIGHTS)
    split = open_split(setting, prepared, "validation", model)
    losses: dict[str, list[float]] = {"batch": [], "sample": []}
    for draw in range(30):
        rng = generator("samples", draw)
        batches = InTurn([OneRoute(arbitrary(rng, 4)) for _ in range(2)], 20)
        losses["batch"].append(score(model, split, batches, 20, execution).loss)
        table = RouteTable(per_sample(arbitrary, rng, 4, len(split)))
        losses["sample"].append(score(model, split, table, 20, execution).loss)
    assert np.std(losses["sample"]) < 0.6 * np.std(losses["batch"])
    assert abs(np.mean(losses["sample"]) - np.mean(losses["batch"])) < 3 * np.std(
        losses["batch"]
    ) / np.sqrt(30)


@torch.no_grad()
def test_a_score_has_the_means_of_every_exit(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path
) -> None:
    opened, execution = open_model(asked := config(params, pico), prepared, weights)
    split = open_split(asked, prepared, "validation", opened)
    model = build(
        pico,
        10,
        Variant(
            route="sequential",
            exits=ExitHeads(branch="mlp", depths=[1, 3], channels=4, hidden=4, dropout=0.0),
        ),
    ).eval()
    route = (2, 0, 3)
    result = score(model, split, OneRoute(route), 16, execution)
    found = result.exits
    images, labels = split.take(slice(0, len(split)))
    for depth in (1, 3):
        answers = model(images, route, exit=depth)
        assert found[depth] == (
            pytest.approx(task_loss(answers, labels).item(), rel=1e-5),
            is_right(answers, labels).double().mean().item(),
        )


@pytest.mark.parametrize("family", ["class token", "average pooling", "attention pooling"])
def test_a_contribution_is_that_to_what_is_classified(family: str) -> None:
    """How far a layer moves the class token or, without one, the mean of all tokens, for the
    samples that it ran for.
    """
    model = RoutedModel(small(**FAMILIES[family]))
    before, after = torch.randn(2, 2, 7, 16)
    contributions = Contributions(model, 3)
    contributions(0, 2, before, after, torch.tensor([2, 0]))
    change = (after - before)[:, 0] if model.has_class_token else after.mean(1) - before.mean(1)
    expected = torch.zeros(3, 4)
    expected[[2, 0], 2] = change.norm(dim=1)
    assert torch.allclose(contributions.norms, expected, atol=1e-6)


def test_recording_drops_nothing(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path
) -> None:
    """Also of a model that was being trained."""
    asked = config(params, pico)
    asked = asked.model_copy(
        update={"variant": Variant(route="arbitrary", recipe=Recipe(drop_path=0.9))}
    )
    model, execution = open_model(asked, prepared, weights)
    split = open_split(asked, prepared, "validation", model)
    chosen, routes = np.arange(20), np.tile(np.arange(4), (20, 1))
    found = []
    for _ in range(2):
        model.train()
        found.append(record(model, split, chosen, routes, 1, execution))
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


def test_an_analysis_keeps_what_its_figures_are_drawn_from(
    params: Params,
    pico: ModelPreset,
    prepared: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the images drawn: their plane, where each layer ran in each one's order, and how much it
    added.
    """
    monkeypatch.setattr(analysis, "project", lambda vectors, options: vectors[:, :2])
    options, asked = (
        params.analysis.model_copy(update={"images": 40, "layer": 1}),
        config(params, pico),
    )
    of = AnalysisConfig(**asked.model_dump(exclude={"seed", "options"}), options=options)
    analysis.analyse(of, prepared, weights, tmp_path, lambda event: None)
    with np.load(tmp_path / ARRAYS) as kept:
        arrays = dict(kept)
    routes = np.array([arbitrary(generator("analysis", options.seed, i), 4) for i in range(40)])
    model, execution = open_model(asked, prepared, weights)
    chosen = generator("analysis", options.seed).permutation(40)
    vectors, norms = record(
        model, open_split(asked, prepared, "validation", model), chosen, routes, 1, execution
    )
    assert np.array_equal(arrays["plane"], vectors[:, :2])
    assert np.array_equal(arrays["norms"], norms)
    assert np.array_equal(
        np.take_along_axis(routes, arrays["positions"].astype(int), 1),
        np.tile(np.arange(4), (40, 1)),
    )


def test_shards_are_not_resized_again(
    params: Params,
    pico: ModelPreset,
    prepared: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They were when they were decoded; other images are as their data set asks."""
    asked, meta = config(params, pico), read_meta(prepared) | {"resize": "timm"}
    model, _ = open_model(asked, prepared, weights)
    plain = Resize(28, "bilinear", 28)
    for now, expected in ((meta, resizing(pico, "timm")), (meta | {"shards": []}, plain)):
        monkeypatch.setattr(scoring, "read_meta", lambda _, now=now: now)
        assert open_split(asked, prepared, "validation", model).resize == expected
    assert resizing(pico, "timm") != plain
