"""The arrays behind the pictures of inversion."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.files import read_json
from pipeline.report.results import read_arrays

INVERTED = Path("outs/inversion/arrays")
Arrays = dict[str, np.ndarray]


class Gallery:
    """The arrays that stage inversion left, found by what they are of. Raises UserError if their list is damaged or missing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.index = folder, pd.DataFrame(read_json(folder / "index.json", list))
        self.families = list(dict.fromkeys(self.index["family"]))

    def find(self, kind: str = "inversion", **keys: Any) -> list[tuple[dict[str, Any], Arrays]]:
        """What has these keys, of every model's first seed, with its arrays."""
        rows = self.index[self.index["kind"] == kind]
        for key, value in keys.items():
            rows = rows[rows[key] == value]
        first = rows.groupby(["family", "weights"], sort=False)["seed"].transform("first")
        rows = rows[rows["seed"] == first]
        found = []
        for row in rows.to_dict("records"):
            found.append(
                (
                    {str(key): value for key, value in row.items()},
                    read_arrays(self.folder / row["file"]),
                )
            )
        return found


def picture_of(values: np.ndarray) -> np.ndarray:
    """(C, H, W), in [0, 1] as far as it can be shown, as (H, W, 3) where there are three channels, else (H, W), the grey of their mean."""
    clipped = np.clip(values.astype(np.float32), 0, 1)
    return clipped.transpose(1, 2, 0) if len(clipped) == 3 else clipped.mean(0)


def neighbours(filters: np.ndarray) -> float:
    """Correlation of the weights of filters (D, C, h, w) one pixel apart, along both axes, each filter less its mean."""
    own = filters - filters.mean((2, 3), keepdims=True)
    products = [(own[..., 1:, :] * own[..., :-1, :]).mean(), (own[..., 1:] * own[..., :-1]).mean()]
    return float(np.mean(products) / (own**2).mean())
