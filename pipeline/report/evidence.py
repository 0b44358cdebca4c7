"""What a claim is decided on: the result files of one cell, and why they may give no verdict."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from lsvit.routes import Order, count_routes
from pipeline.jobs.rows import mean_rows
from pipeline.report.results import Results


class NoVerdict(Exception):
    """A claim cannot be decided. The message says why."""


class NotRun(NoVerdict):
    """The results lack what the claim is about."""


class NothingToTell(NoVerdict):
    """The results have what the claim is about, but no more of it would tell."""


class NotComparable(NoVerdict):
    """The values tell nothing about each other.

    They are of another data set or model than the published figure, or all at a ceiling.
    """


def refuse_ceiling(*values: np.ndarray, above: float = math.inf, below: float = -math.inf) -> None:
    """Raise NotComparable if all values to be compared lie at a ceiling or at a floor.

    Their means over the seeds count, as one seed apart tells nothing of the others.

    Args:
        values: (seeds,) each.
        above: where all values above are as good as each other.
        below: where all values below are.
    """
    means = [value.mean() for value in values]
    if min(means) > above:
        raise NotComparable(f"all lie at a ceiling, above {above:g}: nothing to tell apart")
    if max(means) < below:
        raise NotComparable(f"all lie at a floor, below {below:g}: nothing to tell apart")


def subtract(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Seed by seed, or minus the one value that all seeds have in common.

    Raises:
        NotRun: they have no pairs, as five trainings and two starting weights.
    """
    if len(others) not in (1, len(values)):
        raise NotRun(f"values of {len(values)} and of {len(others)} seeds have no pairs")
    return values - others


class Counts(NamedTuple):
    """One value a seed, of a quantity that may count few things.

    `step` is the distance from a value to the next, 0 for a quantity of any value.
    """

    values: np.ndarray
    step: float = 0


@dataclass(eq=False)
class Evidence(Results):
    """The result files of one cell. Methods return one value a seed, or raise NotRun.

    Attributes:
        orders: numbers of orders behind the values asked for, since it was emptied.
    """

    orders: list[int] = field(default_factory=list)

    def table(self, name: str) -> pd.DataFrame:
        """The rows of `<name>.csv`, but for those of variants named by `other_methods`."""
        rows = super().table(name)
        for column in {"variant", "weights", "training"}.intersection(rows):
            rows = rows[~rows[column].isin(self.other_methods)]
        return rows

    @property
    def other_methods(self) -> list[str]:
        """Variants with the name of a published method that Latin orders trained.

        The published ones have one order a batch: claims about them are not judged on these.
        A name with the word latin is none of a published method.
        """
        return [name for name in self.cell["latin"] if "latin" not in name.split("_")]

    @property
    def num_layers(self) -> int:
        """Of the chosen model."""
        return int(self.table("prune_eval")["keep"].max())

    def rows(self, name: str, what: str, **where: object) -> pd.DataFrame:
        """Select the rows of a table with these values in its columns, maybe none.

        Raises:
            NotRun: the table is empty, or was written when it did not have such a column. `what`
                and its verb name it: "exits are".
        """
        rows = self.table(name)
        if rows.empty:
            raise NotRun(f"{what} not among the results")
        for column, value in where.items():
            if column not in rows:
                raise NotRun(f"{what} among the results, but without {column}")
            rows = rows[rows[column] == value]
        return rows

    def by_seed(self, rows: pd.DataFrame, column: str, what: str) -> np.ndarray:
        """Mean of a column over the rows of each seed."""
        if rows.empty or rows[column].isna().any():
            raise NotRun(f"{what} is not among the results")
        return rows.groupby("seed", sort=False)[column].mean().to_numpy()

    def evaluations(
        self, variant: str, order: Order, keep: int | None, choose: str = "random"
    ) -> pd.DataFrame:
        """The rows of prune_eval.csv behind an accuracy with `keep` layers (None: all).

        `choose` says which layers are kept, where some are left out.
        """
        rows = self.table("prune_eval")
        rows = rows[(rows["variant"] == variant) & (rows["order"] == order)]
        depth = rows["keep"].max()
        if keep is None:
            keep = depth
        rows = rows[rows["keep"] == keep]
        if keep < depth:
            if "choose" not in rows:  # older results have random layers alone
                rows = rows.assign(choose="random")
            rows = rows[rows["choose"] == choose]
        rows = mean_rows(rows)
        if len(rows):
            drawn = int(rows.groupby("seed")["routes"].sum().iloc[0])
            pool = depth if choose == "random" else keep
            self.orders.append(min(drawn, count_routes(pool, keep, order)))
        return rows

    def accuracy(
        self, variant: str, order: Order, keep: int | None = None, choose: str = "random"
    ) -> np.ndarray:
        """Accuracy in % with `keep` layers (default: all the variant has), mean over the routes."""
        what = f"{self.label(variant)}, {order}"
        if keep:
            what += f", {keep} layers ({choose})"
        rows = self.evaluations(variant, order, keep, choose)
        return 100 * self.by_seed(rows, "accuracy", what)

    def excess(self, values: np.ndarray, of: np.ndarray) -> np.ndarray:
        """Accuracy above chance in % of another accuracy above chance."""
        return 100 * (values - self.chance) / (of - self.chance)
