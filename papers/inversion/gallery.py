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
        for row in rows[rows["seed"] == first].to_dict("records"):
            keys = {key: row[key] for key in KEYS}
            entries.append(Entry(**keys, arrays=read_arrays(self.folder / row["file"])))
        return entries


def picture_of(values: np.ndarray) -> np.ndarray:
    """Convert (C, H, W), clipped to [0, 1], to a picture.

    Returns:
        (H, W, 3) of three channels, else (H, W), the grey of their mean.
    """
    clipped = np.clip(values.astype(np.float32), 0, 1)
    return clipped.transpose(1, 2, 0) if len(clipped) == 3 else clipped.mean(0)
