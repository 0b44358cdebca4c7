"""Numbers of the analysis are those of their definitions."""

from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score, silhouette_samples
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lsvit.routed import RoutedModel
from lsvit.routes import generator
from papers.layershuffle.compute.analysis import (
    RIDGE,
    Recording,
    analysis_numbers,
    contribution_numbers,
    project,
    tell_positions,
)
from papers.layershuffle.compute.rows import summarise_analysis
from pipeline.config.params import Params
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
    assert RIDGE.tolist() == ridge.alphas
    linear = cross_val_predict(make_pipeline(StandardScaler(), ridge), vectors, positions, cv=folds)
    assert np.array_equal(tell_positions(vectors, positions, linear=True), linear)


def test_the_output_of_a_layer_is_recorded_wherever_it_runs() -> None:
    model = RoutedModel(small())
    routes = [(2, 0, 3, 1), (0, 1, 2, 3), (3, 1, 0, 2)]
    recording = Recording(model, 2, 3)
    model(images(3), torch.tensor(routes), [recording])
    for i, route in enumerate(routes):
        states = [state[0] for _, state in model.states(images(3)[i : i + 1], route)]
        output = states[route.index(2) + 1].flatten()
        torch.testing.assert_close(recording.outputs[i], output, rtol=1e-4, atol=1e-5)


def test_numbers_of_the_analysis_are_those_of_their_definitions() -> None:
    """Values of all, and errors of the contributions' numbers: of 200 resamples."""
    rng = np.random.default_rng(0)
    positions = np.argsort(rng.random((60, 4)), axis=1)
    places = positions[:, 2]
    plane = rng.normal(size=(60, 2)) + places[:, None]
    vectors = rng.normal(size=(60, 9)) + 0.5 * places[:, None]
    norms = rng.random((60, 4))
    numbers = analysis_numbers(plane, vectors, positions, norms, 2)
    values = {
        "position_r2": r2_score(places, tell_positions(plane, places)),
        "position_r2_whole": r2_score(places, tell_positions(vectors, places, linear=True)),
        "early_detached": silhouette_samples(plane, places == 0)[places == 0].mean(),
    }
    values |= contribution_numbers(positions, norms)
    assert {name: number["value"] for name, number in numbers.items()} == {
        name: round(float(value), 6) for name, value in values.items()
    }
    again = generator("analysis bootstrap")
    resamples = [again.integers(60, size=60) for _ in range(200)]
    resampled = pd.DataFrame(contribution_numbers(positions[i], norms[i]) for i in resamples)
    for name, error in resampled.std(ddof=1).items():
        assert numbers[name]["error"] == pytest.approx(error, abs=1e-6)


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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of what umap misses
def test_umap_gets_the_options_and_exact_neighbours(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    reducer = Mock()
    monkeypatch.setattr("umap.UMAP", reducer)
    reducer.return_value.fit_transform.return_value = vectors[:, :2]
    values = {"neighbors": 7, "min_dist": 0.3, "seed": 4}
    assert np.array_equal(
        project(vectors, params.analysis.model_copy(update=values)), vectors[:, :2]
    )
    arguments: Any = reducer.call_args.kwargs
    neighbours, distances = arguments.pop("precomputed_knn")
    assert arguments == {"n_neighbors": 7, "min_dist": 0.3, "random_state": 4, "n_jobs": 1}
    apart = np.linalg.norm(vectors[:, None] - vectors, axis=2)
    assert np.array_equal(neighbours, apart.argsort(axis=1)[:, :7])
    assert distances == pytest.approx(np.sort(apart, axis=1)[:, :7], abs=1e-6)


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
