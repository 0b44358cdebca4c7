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
from papers.exits.compute.dynamic import Deployed

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


def test_practical() -> None:
    cost = np.array([1, 2, 3, 3, 3, 4, 5])
    score = np.array([0.5, 0.4, 0.6, 0.7, 0.7, 0.7, 0.8])
    # worse than a cheaper one; worse than one of the same cost; equal to one of the same cost; equal to a cheaper one
    assert practical(cost, score).tolist() == [True, False, False, True, True, False, True]
    assert practical(cost[::-1], score[::-1]).tolist() == [
        True,
        False,
        True,
        True,
        False,
        False,
        True,
    ]  # in any order
    assert practical(np.array([3]), np.array([0.1])).tolist() == [True]


def test_pick() -> None:
    cost, score = np.array([4, 1, 2, 3]), np.array([0.9, 0.5, 0.7, 0.7])
    assert [pick(cost, score, budget) for budget in (0.9, 1, 2.5, 3, 4, np.inf)] == [
        None,
        1,
        2,
        2,
        0,
        0,
    ]
    assert pick(np.array([3, 2]), np.array([0.7, 0.7]), 3) == 1  # the cheaper one of equals
    assert pick(np.array([2, 3]), np.array([-11.5, -11.0]), 3) == 1  # scores may be negative errors
    assert isinstance(pick(cost, score, 1), int)


def test_cumulative_cost() -> None:
    assert cumulative_cost(np.array([10, 20, 30]), np.array([1, 2, 4])).tolist() == [10, 21, 33]
    assert cumulative_cost(np.array([10]), np.array([3])).tolist() == [10]


def test_leave() -> None:
    assert leave(CONFIDENCE, np.array([0.8, 0.6, 0.0])).tolist() == [0, 0, 1, 2]
    assert leave(CONFIDENCE, np.array([np.inf, np.inf, 0.5])).tolist() == [
        2,
        2,
        2,
        2,
    ]  # the last takes all that are left
    assert leave(CONFIDENCE[:1], np.array([1.0])).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("budget", "thresholds", "exits"),
    [
        (0.5, [0.0, 0.0, 0.0], [0, 0, 0, 0]),  # too small for any exit
        (1.0, [0.0, 0.0, 0.0], [0, 0, 0, 0]),
        # How many have left after exits 1 and 2, rounded, as q grows, and the average cost: 4 4 1, 3 4 1.25, 2 4 1.5, 2 3 2,
        # 1 3 2.25 (q = 1: thirds of four images), 1 2 2.75, 0 2 3, 0 1 3.5, 0 0 4
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


def test_two_exits_spend_all_of_the_budget_that_whole_images_can() -> None:
    confidence = draw(0, exits=2, images=10)[0]
    for late in range(11):  # costs 0 and 1: the budget is the share of images that may go on
        exits = leave(
            confidence, exit_thresholds(confidence, np.array([0.0, 1.0]), late / 10 + 0.05)
        )
        assert set(np.flatnonzero(exits)) == set(
            np.argsort(confidence[0])[:late]
        )  # the least confident


def test_shares_are_geometric() -> None:
    confidence, _ = draw(1, exits=3, images=7000)
    cost = np.array([1.0, 2.0, 3.0])
    for shares in ([4 / 7, 2 / 7, 1 / 7], [1 / 7, 2 / 7, 4 / 7]):  # q = 1/2 and 2
        exits = leave(confidence, exit_thresholds(confidence, cost, float(shares @ cost)))
        assert np.bincount(exits) / 7000 == pytest.approx(shares, abs=3e-4)


def test_one_exit() -> None:
    confidence = np.array([[0.2, 0.0]])
    for budget in (0.5, 1.0, 2.0):
        assert exit_thresholds(confidence, np.array([1.0]), budget).tolist() == [0]


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_the_budget_holds_on_the_calibration_images(digits: int) -> None:
    for seed in range(8):
        confidence, cost = draw(seed, digits=digits)
        budgets = np.linspace(cost[0], cost[-1], 5)
        costs = [spent(confidence, cost, budget) for budget in budgets]
        assert all(cost <= budget + 1e-12 for cost, budget in zip(costs, budgets, strict=True))
        assert costs[0] == pytest.approx(cost[0])
        assert costs[-1] == pytest.approx(cost[-1])  # whatever the sum of equal costs is rounded to
        if digits == 9:  # without ties more budget is never spent on less
            assert costs == sorted(costs)
            assert (
                max(np.subtract(budgets, costs)) < 2 * cost[-1] / confidence.shape[1]
            )  # what one or two images cost


def test_an_infinite_budget_gives_the_accuracy_of_the_last_exit() -> None:
    confidence, cost = draw(3)
    correct = np.random.default_rng(4).random(confidence.shape) < 0.6
    exits = leave(confidence, exit_thresholds(confidence, cost, np.inf))
    assert correct[exits, np.arange(correct.shape[1])].mean() == correct[-1].mean()


def test_calibration_error() -> None:
    # (0, 1/2]: confidence 0.3, accuracy 0.5, of two; (1/2, 1]: confidence 0.9, accuracy 2/3, of three
    confidence = np.array([0.1, 0.5, 0.8, 0.9, 1.0])
    correct = np.array([True, False, True, True, False])
    assert calibration_error(confidence, correct, bins=2) == pytest.approx(
        (2 * 0.2 + 3 * (0.9 - 2 / 3)) / 5
    )
    assert calibration_error(np.array([0.61, 0.69]), np.array([True, False])) == pytest.approx(
        (0.39 + 0.69) / 2
    )  # 2 of 15 bins
    assert calibration_error(np.array([0.0, 1.0]), np.array([False, True])) == 0
    assert calibration_error(np.ones(4), np.array([True, True, True, False])) == pytest.approx(0.25)


def test_what_an_exit_is_said_to_cost() -> None:
    """Alone, or with the branches of those before it, where each was tried on the way."""
    flops, spent, latency, accuracy = np.array(
        [[10.0, 20.0], [10.0, 23.0], [0.5, 0.75], [0.25, 0.875]]
    )
    deployed = Deployed(
        "sequential", ["mlp", "own"], [1, 4], flops, spent, latency, accuracy, np.zeros((2, 3))
    )
    about = {"branch": "own", "depth": 4, "latency_ms": 0.75, "accuracy": 0.875}
    assert deployed.describe(1, tried=False) == about | {"flops": 20}
    assert deployed.describe(1, tried=True) == about | {"flops": 23}
