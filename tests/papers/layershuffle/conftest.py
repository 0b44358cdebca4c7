"""Result rows of a small cell."""

import itertools

import numpy as np
import pandas as pd
import pytest

from tests.papers.conftest import VARIANTS


@pytest.fixture
def rows() -> pd.DataFrame:
    """Rows of prune_eval.csv: seeds 0.01 apart, routes 0.001, with a little noise."""
    rng = np.random.default_rng(0)
    records = []
    for variant, seed in itertools.product(VARIANTS, range(5)):
        keeps = [3] if variant == "refit_3" else [3, 6, 12]
        for keep, order in itertools.product(keeps, ("sequential", "arbitrary")):
            count = 6 if variant == "refit_3" else 20
            if order == "sequential" and keep == 12:
                count = 1
            for route in range(count):
                accuracy = 0.5 + 0.01 * seed + 0.001 * route + 0.0001 * rng.random()
                records.append((variant, seed, keep, order, str(route), accuracy))
    columns = ["variant", "seed", "keep", "order", "route", "accuracy"]
    rows = pd.DataFrame(records, columns=columns)
    named = rows["variant"] == "ls_pred"
    return rows.assign(
        dataset="d",
        model="m",
        routes=1,
        images=200,
        loss=1.0,
        position_accuracy=np.where(named, 0.6, np.nan),
        std_images=0.4,
    )
