"""Means with their interval over seeds, and what many intervals together ask for."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
METHOD = "95 % Student's t over seeds"


class Estimate(NamedTuple):
    """A mean over `n` seeds, its sample standard deviation (n - 1) and its interval by METHOD.

    They are nan where n = 1 has none.
    """

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


def p_value(interval: Estimate, border: float) -> float:
    """Two-sided, Student's t: the interval at the level 1 - p just reaches the border.

    With few seeds it leans on normal differences.
    """
    from scipy.stats import t

    error = interval.std / math.sqrt(interval.n)
    distance = abs(interval.mean - border)
    if not error:
        return 0.0 if distance else 1.0
    return float(2 * t.sf(distance / error, interval.n - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979), in the order given."""
    order = np.argsort(p_values, kind="stable")
    raised = np.asarray(p_values, dtype=float)[order] * np.arange(len(order), 0, -1)
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(np.maximum.accumulate(raised), 1)
    return corrected.tolist()


def n_to_decide(interval: Estimate, border: float) -> int | None:
    """How many would bring the border outside the interval with a power of 80 %.

    Mean and spread are taken to stay. None: over 20 times as many.
    """
    from scipy.stats import t

    n = np.arange(interval.n + 1, 20 * interval.n + 1)
    widths = t.ppf((1 + LEVEL) / 2, n - 1) + t.ppf(0.8, n - 1)
    enough = n[widths * interval.std / np.sqrt(n) < abs(interval.mean - border)]
    return int(enough[0]) if len(enough) else None


def estimate(values: Sequence[float] | np.ndarray, step: float = 0) -> Estimate:
    """The estimate from one value a seed, (n,), or from paired differences.

    Args:
        values: by seed.
        step: of a count of few things, in which few seeds may agree by chance: the distance from
            value to value. Its standard deviation is at least that of what is rounded to it.
    """
    values = np.asarray(values, dtype=float)
    n = len(values)
    mean = float(values.mean())
    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan)
    std = max(float(values.std(ddof=1)), step / math.sqrt(12))
    return from_error(mean, std / math.sqrt(n), n)
