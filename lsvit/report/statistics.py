"""Means with their interval over seeds, and paired differences. No p-values: five seeds cannot give p < 0.0625 (sign-flip)."""

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


def estimate(values: Sequence[float] | np.ndarray) -> Estimate:
    """The estimate from one value a seed, (n,); of paired differences between two variants, if those are given."""
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    n, mean = len(values), float(values.mean())
    if n < 2:
        return Estimate(mean, math.nan, n, math.nan, math.nan)
    std = float(values.std(ddof=1))
    low, high = t.interval(LEVEL, n - 1, loc=mean, scale=std / math.sqrt(n)) if std else (mean, mean)
    return Estimate(mean, std, n, float(low), float(high))
