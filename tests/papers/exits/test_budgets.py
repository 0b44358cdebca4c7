"""Which exit to take: answers worked out by hand, and what must hold of any confidences."""

import numpy as np
import pytest

from papers.exits.compute.budgets import leave, pick, practical, threshold_within
from papers.exits.compute.in_use import InUse
from tests.conftest import cases_of

CASES = cases_of(__file__)
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


@pytest.fixture
def right() -> np.ndarray:
    """Which of ten answers are right, by exit: (6, 10)."""
    return np.array([list(answers) for _, answers, *_ in CASES["exits"]], float)


@pytest.mark.parametrize("places", [slice(None), slice(None, None, -1)])
@pytest.mark.parametrize(("noise", "column"), [({}, 2), ({"noise": 0.0}, 3)])
def test_practical(noise: dict[str, float], column: int, places: slice, right: np.ndarray) -> None:
    """Every lead over a cheaper exit is beyond noise; what costs the same does not matter."""
    cost = np.array([exit[0] for exit in CASES["exits"]])
    expected = [exit[column] for exit in CASES["exits"]]
    found = practical(cost[places], right[places], **noise)
    assert found[places].tolist() == expected


def test_practical_beside_a_better_one(right: np.ndarray) -> None:
    right[4, 8] = 1
    assert practical(np.arange(6), right)[4:].tolist() == [False, False]
    assert practical(np.array([1, 3]), right[[2, 5]]).tolist() == [True, True]


@pytest.mark.parametrize(("budget", "exit"), CASES["picks"])
def test_pick(budget: float, exit: int) -> None:
    """The cheaper one of equals; scores may be negative errors."""
    cost = np.array([4, 1, 2, 3])
    for scores in ([0.9, 0.5, 0.7, 0.7], [-1, -9, -5, -5]):
        assert pick(cost, np.array(scores), budget) == exit


def test_leave() -> None:
    """The last exit takes all that are left, whatever the threshold."""
    assert leave(CONFIDENCE, 0.7).tolist() == [0, 0, 1, 2]
    assert leave(CONFIDENCE, np.inf).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(("budget", "threshold", "exits"), CASES["thresholds"])
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


@pytest.mark.parametrize(("tried", "flops"), [(False, 20), (True, 23)])
def test_what_an_exit_is_said_to_cost(tried: bool, flops: int) -> None:
    """Alone, or with the branches of those before it, where each was tried on the way."""
    used = InUse(
        weights_sha256="",
        sizes={},
        order="sequential",
        places=[0, 5],
        branches=["mlp", "own"],
        depths=[1, 4],
        flops=np.array([10.0, 20.0]),
        spent=np.array([10.0, 23.0]),
        accuracy=np.array([0.25, 0.875]),
        confidence=np.zeros((2, 3)),
    )
    about = {"branch": "own", "depth": 4, "accuracy": 0.875}
    assert used.describe(1, tried=tried) == about | {"flops": flops}
