"""Numbers of the analysis are those of their definitions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lsvit.routed import RoutedModel
from lsvit.routes import arbitrary, generator
from papers.layershuffle.compute.analysis import (
    Recording,
    analyse,
    analysis_numbers,
    contribution_numbers,
    project,
    record,
    tell_positions,
)
from papers.layershuffle.compute.rows import summarise_analysis
from papers.layershuffle.section import ANALYSIS_NUMBERS, AnalysisConfig
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.files import read_json
from pipeline.jobs.files import ARRAYS
from pipeline.training.scoring import open_model, open_split
from tests.conftest import refused, run_fields
from tests.models import images, small


def test_position_r2_tells_order_from_noise() -> None:
    rng = np.random.default_rng(0)
    # Sorted: folds in this order would be told from other positions alone.
    positions = np.sort(rng.integers(0, 12, 600))
    line = np.stack([positions + rng.normal(size=600), rng.normal(size=600)], axis=1)
    assert r2_score(positions, tell_positions(line, positions)) > 0.7
    assert r2_score(positions, tell_positions(positions[:, None], positions)) == 1
    assert r2_score(positions, tell_positions(rng.normal(size=(600, 2)), positions)) < 0.1


def test_whole_outputs_tell_what_a_class_hides_from_neighbours() -> None:
    """Positions lie along one of 30 directions, ten classes far apart along the others."""
    rng = np.random.default_rng(0)
    positions = rng.integers(0, 12, 600)
    classes = 20 * rng.normal(size=(10, 30))[rng.integers(0, 10, 600)]
    vectors = classes + rng.normal(size=(600, 30))
    vectors[:, 0] = positions + rng.normal(size=600)
    told = tell_positions(vectors.astype(np.float32), positions, linear=True)
    assert 0.85 < r2_score(positions, told) < 1
    assert r2_score(positions, tell_positions(classes, positions, linear=True)) < 0.1


def test_positions_are_told_by_five_folds_with_ten_neighbours_or_the_best_ridge() -> None:
    rng = np.random.default_rng(0)
    positions = rng.integers(0, 12, 60)
    vectors = rng.normal(size=(60, 30)) + 0.1 * positions[:, None]
    folds = KFold(5, shuffle=True, random_state=0)
    neighbours = cross_val_predict(KNeighborsRegressor(10), vectors, positions, cv=folds)
    assert np.array_equal(tell_positions(vectors, positions), neighbours)
    ridge = RidgeCV(alphas=[0.1, 1, 10, 100, 1000, 10_000, 100_000])
    linear = cross_val_predict(make_pipeline(StandardScaler(), ridge), vectors, positions, cv=folds)
    assert np.array_equal(tell_positions(vectors, positions, linear=True), linear)


@pytest.mark.parametrize("sizes", [{}, {"class_token": False, "global_pool": "avg"}])
def test_what_is_recorded_of_a_layer(sizes: dict[str, Any]) -> None:
    """Its output, and by how much each changes the class token, or the mean of the tokens."""
    model = RoutedModel(small(**sizes))
    routes = [(2, 0, 3, 1), (0, 1, 2, 3), (3, 1, 0, 2)]
    recording = Recording(model, 2, 3)
    model(images(3), torch.tensor(routes), [recording])
    for i, route in enumerate(routes):
        states = [state[0] for _, state in model.states(images(3)[i : i + 1], route)]
        for depth, layer in enumerate(route):
            change = states[depth + 1] - states[depth]
            change = change.mean(0) if sizes else change[0]
            assert recording.norms[i, layer].item() == pytest.approx(change.norm().item(), rel=1e-4)
        after = states[route.index(2) + 1].flatten()
        torch.testing.assert_close(recording.outputs[i], after, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what umap misses
def test_an_analysis_says_what_its_arrays_do(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    """Each image runs in an order of its own; numbers and errors are those of their definitions."""
    options = params.analysis.model_copy(update={"images": 36, "neighbors": 5, "layer": 2})
    config = AnalysisConfig(**run_fields(prepared, pico, precision="fp32"), options=options)
    analyse(config, prepared, weights, tmp_path, lambda event: None)
    with np.load(tmp_path / ARRAYS) as arrays:
        plane, positions, norms = arrays["plane"], arrays["positions"], arrays["norms"]
    numbers = read_json(tmp_path / ANALYSIS_NUMBERS)
    model, execution = open_model(config, prepared, weights)
    split = open_split(config, prepared, "validation", model)
    chosen = generator("analysis", 0).permutation(len(split))[:36]
    routes = np.argsort(positions, axis=1)
    for image, route in enumerate(routes.tolist()):
        assert tuple(route) == arbitrary(generator("analysis", 0, image), 4)
    vectors, again = record(model, split, chosen, routes, 2, execution)
    assert norms == pytest.approx(again, rel=1e-4)
    assert numbers["position_r2"]["value"] == pytest.approx(
        r2_score(positions[:, 2], tell_positions(plane, positions[:, 2])), abs=1e-6
    )
    whole = tell_positions(vectors, positions[:, 2], linear=True)
    expected = r2_score(positions[:, 2], whole)
    assert numbers["position_r2_whole"]["value"] == pytest.approx(expected, abs=1e-3)
    rng = generator("analysis bootstrap")
    drawn = [rng.integers(36, size=36) for _ in range(200)]
    ratios = [contribution_numbers(positions[i], norms[i])["near_far_ratio"] for i in drawn]
    error = numbers["near_far_ratio"]["error"]
    assert error == round(float(np.std(ratios, ddof=1)), 6)
    for value in contribution_numbers(positions, norms).values():
        assert round(value, 6) in [number["value"] for number in numbers.values()]


def test_more_images_than_there_are_cannot_be_analysed(
    params: Params, pico: ModelPreset, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    options = params.analysis.model_copy(update={"images": 41})
    config = AnalysisConfig(**run_fields(prepared, pico, precision="fp32"), options=options)
    with refused("analysis.images: found 41, accepted: at most the 40 validation images"):
        analyse(config, prepared, weights, tmp_path, lambda event: None)


def test_detached_points_are_told_from_those_among_others() -> None:
    """Of eight layers the first two positions are early."""
    rng = np.random.default_rng(0)
    positions = np.argsort(rng.random((200, 8)), axis=1)
    plane = rng.normal(size=(200, 2))
    for moved, least, most in ((0, -0.1, 0.1), (100, 0.95, 1)):
        plane[positions[:, 3] < 2] += moved
        numbers = analysis_numbers(plane, plane, positions, 1.0 + positions, layer=3)
        assert least < numbers["early_detached"]["value"] < most


def test_errors_of_the_analysis_are_those_of_other_images() -> None:
    """The bootstrap's standard error is near the number's spread over 60 draws of images."""

    def draw(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        positions = np.argsort(rng.random((300, 6)), axis=1)
        norms = 2 - 0.1 * np.abs(positions - np.arange(6)) + rng.normal(size=(300, 6))
        plane = rng.normal(size=(300, 2))
        return [plane, plane, positions, norms]

    plane, vectors, positions, norms = draw(0)
    numbers = analysis_numbers(plane, vectors, positions, norms, layer=2)
    error = numbers["distance_spearman"]["error"]
    draws = [contribution_numbers(*draw(seed)[2:])["distance_spearman"] for seed in range(60)]
    assert 0.6 < error / np.std(draws, ddof=1) < 1.6


@pytest.mark.parametrize(("layers", "quarter"), [(8, 2), (4, 1), (3, 1)])
def test_contribution_numbers_are_those_of_their_definition(layers: int, quarter: int) -> None:
    rng = np.random.default_rng(1)
    positions = np.argsort(rng.random((80, layers)), axis=1)
    norms = rng.random((80, layers))
    away = np.abs(positions - np.arange(layers))
    numbers = contribution_numbers(positions, norms)
    falls = [spearmanr(away[:, i], norms[:, i]).statistic for i in range(layers)]
    slopes = [spearmanr(positions[:, i], norms[:, i]).statistic for i in range(layers)]
    relative = norms / norms.mean(axis=0)
    assert numbers == pytest.approx(
        {
            "distance_spearman": np.mean(falls),
            "near_far_ratio": relative[away < 2].mean() / relative[away >= layers // 2].mean(),
            "slope_late_minus_early": np.mean(slopes[-quarter:]) - np.mean(slopes[:quarter]),
        }
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what umap misses
def test_the_plane_depends_on_its_options_alone(params: Params) -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    options = params.analysis
    plane = project(vectors, options)
    assert np.array_equal(project(vectors, options), plane)
    changes: list[dict[str, Any]] = [{"seed": 1}, {"min_dist": 0.9}, {"neighbors": 5}]
    for change in changes:
        assert not np.allclose(project(vectors, options.model_copy(update=change)), plane)


def test_analysis_summary(params: Params) -> None:
    values = {("pretrained", 0): 0.2, ("ls", 0): 0.5, ("ls", 1): 0.7}
    numbers = {}
    for key, value in values.items():
        numbers[key] = {"position_r2": {"value": value, "error": value / 10}}
    models = summarise_analysis(numbers, params.analysis)["models"]
    pretrained = {"mean": 0.2, "std": None, "n": 1, "seeds": {"0": 0.2}, "errors": {"0": 0.02}}
    assert models["pretrained"]["position_r2"] == pretrained
    ls = models["ls"]["position_r2"]
    assert ls["seeds"] == {"0": 0.5, "1": 0.7}
    assert (ls["mean"], ls["std"]) == (0.6, 0.141421)
