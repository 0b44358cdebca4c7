"""Numbers of the analysis are those of their definitions."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import r2_score

from papers.layershuffle.compute.analysis import (
    analysis_numbers,
    contribution_numbers,
    project,
    tell_positions,
)
from papers.layershuffle.compute.rows import summarise_analysis
from pipeline.config.params import Params


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
