"""Intervals, p-values and numbers of seeds, against scipy's own and against simulations."""

import math

import numpy as np
import pytest
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from pipeline.report.statistics import estimate, holm, n_to_decide, p_value


def test_interval_is_students_t() -> None:
    """scipy's own example of a t interval: 2.776 = t(0.975, 4 df)."""
    interval = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.7764451 * math.sqrt(2.5) / math.sqrt(5)
    assert interval.mean == 3
    assert interval.std == pytest.approx(math.sqrt(2.5))
    assert (interval.low, interval.high) == pytest.approx((3 - half, 3 + half))
    assert math.isnan(estimate([1.0]).low)
    assert estimate([2.0, 2.0])[3:] == (2, 2)


def test_a_count_of_few_things_is_as_uncertain_as_its_step() -> None:
    """Unless its spread is larger."""
    half = student.ppf(0.975, 2) / math.sqrt(12) / math.sqrt(3)
    interval = estimate([7.0, 7.0, 7.0], step=1)
    assert (interval.low, interval.high) == pytest.approx((7 - half, 7 + half))
    assert estimate([1.0, 7.0], step=1) == estimate([1.0, 7.0])


def test_the_interval_at_one_less_p_reaches_the_border() -> None:
    """p-values of scipy's own test of a mean."""
    values = [4.9, 5.1, 5.3, 5.6]
    assert p_value(estimate(values), 5) == pytest.approx(ttest_1samp(values, 5).pvalue)
    assert p_value(estimate([2.0, 2.0]), 1) == 0
    assert p_value(estimate([2.0, 2.0]), 2) == 1


def test_holm() -> None:
    """Sorted, times those left, never falling."""
    assert holm([0.04, 0.01, 0.03, 0.5]) == pytest.approx([0.09, 0.04, 0.09, 0.5])
    assert holm([]) == []


@pytest.mark.parametrize(("border", "n"), [(2.09, 4), (2.07, 5)])
def test_few_seeds_have_few_degrees_of_freedom(border: float, n: int) -> None:
    """Student's t with 3 of them gives (3.1824 + 0.9785) / sqrt(4) = 2.080, between the two."""
    interval = estimate([-1.0, 0.0, 1.0])
    assert n_to_decide(interval, border) == n


def test_seeds_that_would_decide() -> None:
    """Of 4,000 experiments with so many seeds four of five intervals leave the border out."""
    interval = estimate([0.0, 1.0, 2.0])
    n = n_to_decide(interval, 0.2)
    assert n
    drawn = np.random.default_rng(0).normal(interval.mean, interval.std, (4000, n))
    half = student.ppf(0.975, n - 1) * drawn.std(axis=1, ddof=1) / math.sqrt(n)
    assert abs(np.mean(np.abs(drawn.mean(axis=1) - 0.2) > half) - 0.8) < 0.04
    assert n_to_decide(interval, interval.mean) is None
    enough = [n_to_decide(interval, interval.mean - gap) for gap in np.linspace(0.3, 0.5, 200)]
    assert max(n or 0 for n in enough) == 20 * interval.n
