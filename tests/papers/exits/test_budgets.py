"""Which exit to take: answers worked out by hand, and what must hold of any confidences."""

import numpy as np
import pytest

from papers.exits.compute.budgets import (
    cumulative_cost,
    leave,
    pick,
    practical,
    threshold_within,
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
    """The average cost under the threshold found for a budget."""
    return float(cost[leave(confidence, threshold_within(confidence, cost, budget))].mean())


@pytest.mark.parametrize("places", [slice(None), slice(None, None, -1)])
def test_practical(places: slice) -> None:
    """Every lead over a cheaper exit is beyond noise; what costs the same does not matter."""
    right = [
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],  # the cheapest
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],  # no lead
        [1, 1, 1, 1, 1, 1, 0, 0, 0, 0],  # leads by 0.4, noise is 2 * 0.163
        [0, 0, 1, 1, 1, 1, 1, 1, 0, 0],  # the same lead over the first, another noise: 2 * 0.267
        [1, 1, 1, 1, 1, 1, 1, 1, 0, 0],  # by 0.2 over the third, noise is 2 * 0.133
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1],  # by 0.4 over the third and the fourth
    ]
    cost = np.array([1, 2, 3, 3, 4, 5])[places]
    found = practical(cost, np.array(right, float)[places])
    assert found[places].tolist() == [True, False, True, False, False, False]
    plain = practical(cost, np.array(right, float)[places], noise=0.0)
    assert plain[places].tolist() == [True, False, True, True, True, True]
    better = np.array(right, float)
    better[4, 8] = 1
    assert practical(np.arange(6), better)[4:].tolist() == [False, False]
    assert practical(np.array([1, 3]), better[[2, 5]]).tolist() == [True, True]


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
    """The last exit takes all that are left, whatever the threshold."""
    assert leave(CONFIDENCE, 0.7).tolist() == [0, 0, 1, 2]
    assert leave(CONFIDENCE, np.inf).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("budget", "threshold", "exits"),
    [
        (0.5, 0.0, [0, 0, 0, 0]),  # too small for any exit
        (1.0, 0.2, [0, 0, 0, 0]),
        # The average cost as the threshold rises through the confidences of the first two exits:
        # 0.2: 1, 0.3: 1.25, 0.4: 1.5, 0.5: 2, 0.6: 2, 0.7: 2, 0.8: 2.5, 0.9: 3.25, inf: 4
        (1.3, 0.3, [0, 0, 0, 1]),
        (1.5, 0.4, [0, 0, 1, 1]),
        (1.99, 0.4, [0, 0, 1, 1]),
        (2.2, 0.7, [0, 0, 1, 2]),
        (2.5, 0.8, [0, 0, 2, 2]),
        (3.5, 0.9, [0, 2, 2, 2]),
        (4.0, np.inf, [2, 2, 2, 2]),
        (np.inf, np.inf, [2, 2, 2, 2]),
    ],
)
def test_thresholds_known_by_hand(budget: float, threshold: float, exits: list[int]) -> None:
    found = threshold_within(CONFIDENCE, COST, budget)
    assert found == threshold
    assert leave(CONFIDENCE, found).tolist() == exits


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_the_budget_holds_on_the_calibration_images(digits: int) -> None:
    """More budget is never spent on less; without ties all but one image's cost is spent."""
    for seed in range(8):
        confidence, cost = draw(seed, digits=digits)
        budgets = np.linspace(cost[0], cost[-1], 5)
        costs = np.array([spent(confidence, cost, budget) for budget in budgets])
        assert (costs <= budgets + 1e-12).all()
        assert costs[[0, -1]] == pytest.approx(cost[[0, -1]])
        assert (np.diff(costs) >= 0).all()
        if digits == 9:
            assert (budgets - costs).max() < cost[-1] / confidence.shape[1]
    assert threshold_within(confidence[:1], cost[:1], 1.0) == np.inf  # the only exit


def test_what_an_exit_is_said_to_cost() -> None:
    """Alone, or with the branches of those before it, where each was tried on the way."""
    flops, spent, accuracy = np.array([[10, 20], [10, 23], [0.25, 0.875]])
    costs = (flops, spent, accuracy, np.zeros((2, 3)))
    used = InUse("", {}, "sequential", [0, 5], ["mlp", "own"], [1, 4], *costs)
    about = {"branch": "own", "depth": 4, "accuracy": 0.875}
    assert used.describe(1, tried=False) == about | {"flops": 20}
    assert used.describe(1, tried=True) == about | {"flops": 23}
