"""Rows of result files, and the queries of those of stage prune-eval that papers share."""

import csv
import io
from pathlib import Path

import pandas as pd

from pipeline.files import reading

KEYS = ["dataset", "model", "variant", "order", "keep"]
TEXTS = (  # also where they look like numbers
    "dataset",
    "model",
    "variant",
    "training",
    "family",
    "weights",
    "class",
    "judge_sees",
    "route",
    "placement",
)


def read_rows(path: Path) -> pd.DataFrame:
    """A CSV file in which nothing but an empty cell is missing: a variant may be named NA.

    Raises:
        UserError: the file cannot be read, or a line has fewer or more cells than the first.
    """
    with reading(path):
        return parse_rows(path.read_text("utf-8"), path)


def parse_rows(text: str, name: Path | str) -> pd.DataFrame:
    """The same of a text that has this name, as that of a git revision."""
    with reading(name):
        if text == "\n":  # a table of no rows and no columns, as pandas writes it
            return pd.DataFrame()
        try:
            lines = list(csv.reader(io.StringIO(text), strict=True))
        except csv.Error as error:  # which is no ValueError
            raise ValueError(str(error)) from None
        if text and not text.endswith("\n"):
            raise ValueError("its last row is torn")
        for number, line in enumerate(lines, 1):
            if len(line) != len(lines[0]):  # pandas would fill it up
                raise ValueError(f"row {number} has {len(line)} cells, the first {len(lines[0])}")
        types = dict.fromkeys(TEXTS, str)
        return pd.read_csv(io.StringIO(text), dtype=types, keep_default_na=False, na_values=[""])


def write_results(rows: pd.DataFrame, path: Path) -> None:
    """Write a CSV file of results: no index, the same line ends on every system."""
    rows.to_csv(path, index=False, lineterminator="\n")


def cell_keys(rows: pd.DataFrame) -> list[str]:
    """The columns that tell the cells of prune_eval.csv apart.

    Tables of earlier runs have no column `choose`: their layers are chosen at random.
    """
    return [*KEYS, "choose"] if "choose" in rows else KEYS


def mean_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a cell's mean: of the pass over many routes if any, else of single routes."""
    return rows[rows["routes"] == rows.groupby(cell_keys(rows))["routes"].transform("max")]


def single_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of single routes, which tell the spread; else of the one pass (`per: batch`)."""
    return rows[rows["routes"] == rows.groupby(cell_keys(rows))["routes"].transform("min")]


def seed_means(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy with all layers, mean over routes: rows (variant, seed), a column an order."""
    full = mean_rows(rows[rows["keep"] == rows.groupby("variant")["keep"].transform("max")])
    return full.pivot_table("accuracy", ["variant", "seed"], "order", "mean", sort=False)
