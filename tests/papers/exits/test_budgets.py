"""Which exit to take: answers worked out by hand, and what must hold of any confidences."""

import numpy as np
import pytest

from papers.exits.compute.budgets import (
    calibration_error,
    cumulative_cost,
    exit_thresholds,
    leave,
    pick,
    practical,
)
from papers.exits.compute.in_use import InUse

CONFIDENCE = np.array([[0.9, 0.8, 0.3, 0.2], [0.5, 0.6, 0.7, 0.4], [0.1, 0.1, 0.1, 0.1]])
COST = np.array([1.0, 2.0, 4.0])


def draw(
    seed: int, exits: int = 4, images: int = 50, digits: int = 9
) -> tuple[np.ndarray, np.ndarray]:
    """Random confidences (E, n), with ties if they have few digits, and ascending costs (E,)."""
    rng = np.random.default_rng(seed)
    return rng.random((exits, images)).round(digits), np.sort(rng.random(exits))


def spent(confidence: np.ndarray, cost: np.ndarray, budget: float) -> float:
    """The average cost under the thresholds found for a budget."""
    return float(cost[leave(confidence, exit_thresholds(confidence, cost, budget))].mean())


@pytest.mark.parametrize("places", [slice(None), slice(None, None, -1)])
def test_practical(places: slice) -> None:
    """Not if a cheaper exit is as good, nor if one of the same cost is better."""
    cost = np.array([1, 2, 3, 3, 3, 4, 5])[places]
    score = np.array([0.5, 0.4, 0.6, 0.7, 0.7, 0.7, 0.8])[places]
    expected = [True, False, False, True, True, False, True]
    assert practical(cost, score).tolist() == expected[places]


@pytest.mark.parametrize(
    ("budget", "exit"), [(0.9, None), (1, 1), (2.5, 2), (3, 2), (4, 0), (np.inf, 0)]
)
def test_pick(budget: float, exit: int | None) -> None:
    """The cheaper one of equals; scores may be negative errors."""
    cost = np.array([4, 1, 2, 3])
    assert pick(cost, np.array([0.9, 0.5, 0.7, 0.7]), budget) == exit
    assert pick(cost, np.array([-1, -9, -5, -5]), budget) == exit


def test_cumulative_cost() -> None:
    assert cumulative_cost(np.array([10, 20, 30]), np.array([1, 2, 4])).tolist() == [10, 21, 33]


def test_leave() -> None:
    """The last exit takes all that are left, whatever its threshold."""
    assert leave(CONFIDENCE, np.array([0.8, 0.6, 0.0])).tolist() == [0, 0, 1, 2]
    assert leave(CONFIDENCE, np.array([np.inf, np.inf, 0.5])).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("budget", "thresholds", "exits"),
    [
        (0.5, [0.0, 0.0, 0.0], [0, 0, 0, 0]),  # too small for any exit
        (1.0, [0.0, 0.0, 0.0], [0, 0, 0, 0]),
        # How many have left after exits 1 and 2, rounded, as q grows, and the average cost:
        # 4 4 1, 3 4 1.25, 2 4 1.5, 2 3 2, 1 3 2.25 (q = 1: thirds), 1 2 2.75, 0 2 3, 0 1 3.5, 0 0 4
        (1.3, [0.3, 0.0, 0.0], [0, 0, 0, 1]),
        (1.99, [0.8, 0.0, 0.0], [0, 0, 1, 1]),
        (2.0, [0.8, 0.7, 0.0], [0, 0, 1, 2]),
        (2.7, [0.9, 0.6, 0.0], [0, 1, 1, 2]),
        (2.75, [0.9, 0.7, 0.0], [0, 2, 1, 2]),
        (3.0, [np.inf, 0.6, 0.0], [2, 1, 1, 2]),
        (4.0, [np.inf, np.inf, 0.0], [2, 2, 2, 2]),
        (np.inf, [np.inf, np.inf, 0.0], [2, 2, 2, 2]),
    ],
)
def test_thresholds_known_by_hand(budget: float, thresholds: list[float], exits: list[int]) -> None:
    found = exit_thresholds(CONFIDENCE, COST, budget)
    assert found.tolist() == thresholds
    assert leave(CONFIDENCE, found).tolist() == exits


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_the_budget_holds_on_the_calibration_images(digits: int) -> None:
    """Without ties more budget is never spent on less, and all but two images' cost is spent."""
    for seed in range(8):
        confidence, cost = draw(seed, digits=digits)
        budgets = np.linspace(cost[0], cost[-1], 5)
        costs = np.array([spent(confidence, cost, budget) for budget in budgets])
        assert (costs <= budgets + 1e-12).all()
        assert costs[[0, -1]] == pytest.approx(cost[[0, -1]])
        if digits == 9:
            assert (np.diff(costs) >= 0).all()
            assert (budgets - costs).max() < 2 * cost[-1] / confidence.shape[1]


@pytest.mark.parametrize(
    ("confidence", "correct", "bins", "error"),
    [
        # (0, 1/2]: confidence 0.3, accuracy 1/2, of two; (1/2, 1]: 0.9 and 2/3, of three
        ([0.1, 0.5, 0.8, 0.9, 1.0], [1, 0, 1, 1, 0], 2, (2 * 0.2 + 3 * (0.9 - 2 / 3)) / 5),
        ([0.61, 0.69], [1, 0], 15, (0.39 + 0.69) / 2),
        ([0.0, 1.0], [0, 1], 15, 0),
        ([1, 1, 1, 1], [1, 1, 1, 0], 15, 0.25),
    ],
)
def test_calibration_error(
    confidence: list[float], correct: list[int], bins: int, error: float
) -> None:
    is_correct = np.array(correct, dtype=bool)
    assert calibration_error(np.array(confidence), is_correct, bins) == pytest.approx(error)
    assert calibration_error.__defaults__ == (15,)


def test_what_an_exit_is_said_to_cost() -> None:
    """Alone, or with the branches of those before it, where each was tried on the way."""
    flops, spent, latency, accuracy = np.array([[10, 20], [10, 23], [0.5, 0.75], [0.25, 0.875]])
    costs = (flops, spent, latency, accuracy, np.zeros((2, 3)))
    used = InUse("sequential", ["mlp", "own"], [1, 4], *costs)
    about = {"branch": "own", "depth": 4, "latency_ms": 0.75, "accuracy": 0.875}
    assert used.describe(1, tried=False) == about | {"flops": 20}
    assert used.describe(1, tried=True) == about | {"flops": 23}
