"""Rows of result files, and the queries of those of stage prune-eval that papers share."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.files import reading

KEYS = ["dataset", "model", "variant", "order", "keep"]
NAMES = (
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
TEXTS = dict.fromkeys(NAMES, str)  # also where they look like numbers


def read_rows(path: Path) -> pd.DataFrame:
    """A CSV file in which nothing but an empty cell is missing: a variant may be named NA.

    Raises:
        UserError: the file cannot be read, or a line has fewer or more cells than the first.
    """
    with reading(path):
        return _rows(path.read_text("utf-8"))


def parse_rows(text: str, name: str) -> pd.DataFrame:
    """The same of a text that has this name, as that of a git revision."""
    with reading(name):
        return _rows(text)


def _rows(text: str) -> pd.DataFrame:
    if text == "\n":  # a table of no rows and no columns, as pandas writes it
        return pd.DataFrame()
    try:
        lines = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:  # which is no ValueError
        raise ValueError(str(error)) from None
    if text and not text.endswith("\n"):
        raise ValueError("its last row is torn")
    if torn := next(
        (i for i, line in enumerate(lines, 1) if len(line) != len(lines[0])), None
    ):  # pandas would fill it up
        raise ValueError(f"row {torn} has {len(lines[torn - 1])} cells, the first {len(lines[0])}")
    return pd.read_csv(io.StringIO(text), dtype=TEXTS, keep_default_na=False, na_values=[""])


def gather_rows(
    dataset: str,
    model: str,
    files: Mapping[Any, Path],
    keys: Sequence[str] = ("variant", "seed"),
) -> pd.DataFrame:
    """Concatenate the rows of many jobs.

    Args:
        dataset: the first column.
        model: the second column.
        files: of each job, by its key, a tuple that becomes the next columns.
        keys: the names of these columns.
    """
    frames = []
    for key, path in files.items():
        where = {"dataset": dataset, "model": model} | dict(zip(keys, key, strict=True))
        rows = read_rows(path)
        frames.append(rows.assign(**where)[[*where, *rows.columns]])
    return pd.concat(frames, ignore_index=True)


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
