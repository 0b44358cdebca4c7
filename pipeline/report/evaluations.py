"""Means over seeds of the rows of stage prune-eval, which more than one paper reads."""

import numpy as np
import pandas as pd

from lsvit.routes import count_routes
from pipeline.jobs.rows import cell_keys, mean_rows, single_rows
from pipeline.report.statistics import estimate


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """Average the rows of prune_eval.csv.

    Returns:
        A row a (data set, model, variant, order, keep, choose). `mean`, `std`, `low`, `high` and
        `n` are of the seeds' means over their routes, see
        :class:`pipeline.report.statistics.Estimate`.
        `std_orders` is over the `spread_orders` single routes of one seed, averaged over the seeds.
        `se_images` is the standard error from the finite number of images, of one seed, averaged
        over the seeds; an image's value is its share of correct answers over the single routes.
        Standard deviations are of samples (n - 1), and absent for a single value. `orders`:
        different routes a seed, drawn or all there are. `full`: all layers.
    """
    keys = cell_keys(rows)
    means, single = mean_rows(rows), single_rows(rows)
    seeds = means.groupby([*keys, "seed"], sort=False).agg(
        mean=("accuracy", "mean"), orders=("routes", "sum")
    )
    singles = single.groupby([*keys, "seed"], sort=False).agg(
        std_orders=("accuracy", "std"),
        spread_orders=("routes", "sum"),
        std_images=("std_images", "first"),
    )
    by_cell = seeds.groupby(keys, sort=False)
    estimates = by_cell["mean"].apply(lambda values: pd.Series(estimate(values)._asdict()))
    spread = singles.groupby(keys, sort=False).agg(
        {"std_orders": "mean", "spread_orders": "first", "std_images": "mean"}
    )
    others = means.groupby(keys, sort=False)[["position_accuracy", "images"]].mean()
    cells = estimates.unstack(sort=False).join([spread, by_cell[["orders"]].first(), others])
    cells = cells.reset_index()
    cells["n"] = cells["n"].astype(int)
    cells["se_images"] = cells.pop("std_images") / np.sqrt(cells["images"])

    most = cells.groupby("variant")["keep"].transform("max")
    pools = most
    if "choose" in cells:
        pools = most.where(cells["choose"] == "random", cells["keep"])
    existing = list(map(count_routes, pools, cells["keep"], cells["order"]))
    cells["orders"] = np.minimum(cells["orders"], existing)
    cells["full"] = cells["keep"] == most
    return cells


def count_orders(cells: pd.DataFrame, noun: str) -> str:
    """How many orders a mean is over: "20 random orders", "2000 random orders (one an image)"."""
    most = cells.loc[cells["orders"].idxmax()]  # in small cells fewer may exist
    text = f"{most['orders']:.0f} {noun}"
    if 1 < most["orders"] == most["images"]:
        text += " (one an image)"
    return text
