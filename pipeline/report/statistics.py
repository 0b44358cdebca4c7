"""Means with their interval over seeds, paired differences, and what many intervals together ask for."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
METHOD = "95 % Student's t over seeds"


class Estimate(NamedTuple):
    """A mean over `n` seeds, its sample standard deviation (n - 1) and its interval by METHOD; nan where n = 1 has none."""

    mean: float
    std: float
    n: int
    low: float
    high: float


def from_error(mean: float, error: float, n: int) -> Estimate:
    """The estimate from a mean over `n` and its standard error."""
    from scipy.stats import t

    low, high = t.interval(LEVEL, n - 1, loc=mean, scale=error) if error else (mean, mean)
    return Estimate(mean, error * math.sqrt(n), n, float(low), float(high))


def p_value(found: Estimate, border: float) -> float:
    """Two-sided, Student's t: the interval at the level 1 - p just reaches the border. Few seeds: it leans on normal differences."""
    from scipy.stats import t

    error = found.std / math.sqrt(found.n)
    distance = abs(found.mean - border)
    return float(2 * t.sf(distance / error, found.n - 1)) if error else float(not distance)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(raised), 1)
    return corrected.tolist()


def n_to_decide(found: Estimate, border: float) -> int | None:
    """How many would bring the border outside the interval with a power of 80 %, if mean and spread stay; None: over 20 times as many."""
    from scipy.stats import t

    n = np.arange(found.n + 1, 20 * found.n + 1)
    widths = t.ppf((1 + LEVEL) / 2, n - 1) + t.ppf(0.8, n - 1)
    enough = n[widths * found.std / np.sqrt(n) < abs(found.mean - border)]
    return int(enough[0]) if len(enough) else None


def estimate(values: Sequence[float] | np.ndarray, step: float = 0) -> Estimate:
    """The estimate from one value a seed, (n,); of paired differences between two variants, if those are given.

    A count of few things, in which few seeds may agree by chance, has a `step` from value to value, and at least the standard deviation
    of what is rounded to it.
    """
    values = np.asarray(values, dtype=float)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan)
    return from_error(mean, max(float(values.std(ddof=1)), step / math.sqrt(12)) / math.sqrt(n), n)
