"""Numbers of result files, as pages quote them."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.paper import Paper
from pipeline.errors import UserError
from pipeline.files import reading
from pipeline.jobs.rows import parse_rows
from pipeline.report.claims import load_claims

Read = Callable[[str], str]  # a file of the repository -> its text


def number(words: Sequence[str], read: Read, papers: tuple[Paper, ...]) -> str:
    """Format a number of a file, as pages show it. What rounds to zero has no sign.

    Args:
        words: the file, conditions (:func:`rows_of`), an expression of columns of which the mean
            over the rows counts, and a format.
        read: reads a file.
        papers: whose claims a ledger has.

    Raises:
        UserError: as :func:`rows_of` does, or there is no such number.
    """
    file, *conditions, expression, number_format = words
    rows = rows_of(file, conditions, read, papers)
    try:
        return f"{np.mean(rows.eval(expression)):z{number_format}}"
    except Exception as error:  # whatever an expression may raise
        reason = " ".join(str(error).split())
        raise UserError(
            f"{file}: found {expression!r} with format {number_format!r} ({reason}), "
            f"accepted: an expression of {', '.join(rows.columns)}, and a format as .2f"
        ) from None


def rows_of(
    file: str, conditions: Sequence[str], read: Read, papers: tuple[Paper, ...]
) -> pd.DataFrame:
    """Select the rows of a CSV or JSON file where `column=value` hold.

    The rows of a ledger are its claims. `file.json#key` are the records that a JSON file has under
    a key, `file.json` is its one object.

    Raises:
        UserError: a column that is not there, or no such row.
    """
    name, _, key = file.partition("#")
    rows = _parse(name, key, read(name), papers)
    for condition in conditions:
        column, _, value = condition.partition("=")
        if column not in rows:
            raise UserError(
                f"{file}: found no column {column!r}, accepted: {', '.join(rows.columns)}"
            )
        rows = rows[rows[column].astype(str) == value]
        if rows.empty:
            raise UserError(f"{file}: found no row with {condition}")
    return rows


@lru_cache(maxsize=16)  # a page asks for many numbers of few files
def _parse(file: str, key: str, text: str, papers: tuple[Paper, ...]) -> pd.DataFrame:
    with reading(file):
        if not file.endswith(".json"):
            return parse_rows(text, file)
        document = json.loads(text)
        if not key and "claims" in document:
            return _ledger_rows(document, papers)
        return pd.json_normalize(_records(document, key) if key else document)


def _records(document: Any, key: str) -> list[dict[str, Any]]:
    """The records under a key of a JSON document, or of each of its parts, one a machine."""
    if isinstance(document, list):
        parts = document
    elif key in document:
        parts = [document]
    else:
        parts = list(document.values())
    return [record for part in parts for record in part.get(key, ())]


def _ledger_rows(ledger: dict[str, Any], papers: tuple[Paper, ...]) -> pd.DataFrame:
    """A row a claim, with its paper; what was measured is in columns of its own."""
    rows = pd.json_normalize(ledger["claims"])
    names = {claim.id: paper.name for paper in papers for claim in load_claims(paper).claims}
    rows["paper"] = rows["id"].map(names)
    return rows.rename(columns=lambda name: name.removeprefix("measured."))
