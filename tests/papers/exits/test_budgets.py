"""Which exit to take: answers worked out by hand, and what must hold of any confidences."""

import numpy as np
import pytest

from papers.exits.compute.budgets import leave, pick, practical, threshold_within
from tests.conftest import cases_of

CASES = cases_of(__file__)
CONFIDENCE = np.array([[0.9, 0.8, 0.3, 0.2], [0.5, 0.6, 0.7, 0.4], [0.1, 0.1, 0.1, 0.1]])
COST = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize("step", [1, -1])
def test_practical(step: int) -> None:
    """Every lead over a cheaper exit is beyond noise; what costs the same does not matter."""
    cost, answers, beyond_noise, without_noise = zip(*CASES["exits"][::step], strict=True)
    right = np.array([list(of_exit) for of_exit in answers], float)
    assert practical(np.array(cost), right).tolist() == list(beyond_noise)
    assert practical(np.array(cost), right, noise=0.0).tolist() == list(without_noise)


@pytest.mark.parametrize(("noise", "beyond"), [(0.99, True), (1.01, False)])
def test_a_lead_is_compared_with_its_standard_error(noise: float, beyond: bool) -> None:
    """The lead is 0.5 over four images, its standard deviation 1, so its standard error 0.5."""
    right = np.array([[0, 0, 0, 1], [1, 1, 1, 0]], float)
    found = practical(COST[:2], right, noise)
    assert (found.tolist(), found.dtype) == ([True, beyond], bool)


@pytest.mark.parametrize(("budget", "exit"), CASES["picks"])
def test_pick(budget: float, exit: int) -> None:
    """The cheaper one of equals; scores may be negative errors."""
    cost = np.array([4, 1, 2, 3])
    for scores in ([0.9, 0.5, 0.7, 0.7], [-1, -9, -5, -5]):
        assert pick(cost, np.array(scores), budget) == exit


@pytest.mark.parametrize(("budget", "threshold", "exits"), CASES["thresholds"])
def test_thresholds_known_by_hand(budget: float, threshold: float, exits: list[int]) -> None:
    """The last exit takes all that are left, whatever the threshold."""
    found = threshold_within(CONFIDENCE, COST, budget)
    assert found == threshold
    assert leave(CONFIDENCE, found).tolist() == exits


@pytest.mark.parametrize("digits", [9, 1, 0])
def test_the_budget_holds_on_the_calibration_images(digits: int) -> None:
    """More budget is never spent on less; without ties all but one image's cost is spent."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        confidence = rng.random((4, 50)).round(digits)  # with ties if there are few digits
        cost = np.sort(rng.random(4))
        budgets = np.linspace(cost[0], cost[-1], 5)
        thresholds = [threshold_within(confidence, cost, budget) for budget in budgets]
        spent = np.array([cost[leave(confidence, threshold)].mean() for threshold in thresholds])
        assert (spent <= budgets + 1e-12).all()
        assert spent[[0, -1]] == pytest.approx(cost[[0, -1]])
        assert (np.diff(spent) >= 0).all()
        if digits == 9:
            assert (budgets - spent).max() < cost[-1] / 50
    assert threshold_within(confidence[:1], cost[:1], 1.0) == np.inf  # the only exit
