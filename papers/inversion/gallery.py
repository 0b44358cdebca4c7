"""The arrays behind the pictures of inversion."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from papers.inversion.section import KEYS
from pipeline.files import read_json
from pipeline.report.results import read_arrays

INVERTED = Path("outs/inversion/arrays")


class Entry(NamedTuple):
    """A model that was inverted, or whose class images these are: its keys and its arrays."""

    family: str
    weights: str
    edit: str
    order: str
    optimiser: str
    seed: int
    arrays: dict[str, np.ndarray]


class Gallery:
    """The arrays of stage inversion. Raises UserError if their list is damaged or missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = pd.DataFrame(read_json(folder / "index.json", list))

    def find(self, kind: str = "inversion", **keys: Any) -> list[Entry]:
        """The entries with these keys, in the order of the index, of every model's first seed."""
        rows = self.index[self.index["kind"] == kind]
        for key, value in keys.items():
            rows = rows[rows[key] == value]
        first = rows.groupby(["family", "weights"], sort=False)["seed"].transform("first")
        entries = []
        shown = rows.loc[rows["seed"] == first, [*KEYS, "file"]]
        for *values, file in shown.itertuples(index=False):
            entries.append(Entry._make([*values, read_arrays(self.folder / file)]))
        return entries
