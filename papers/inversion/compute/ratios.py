"""Distances relative to those of a slightly shifted image, and how smooth filters are."""

import numpy as np
import pandas as pd

EMBEDDING = "embedding_ratio"
INPUT = "input_ratio"
TOKENS = "token_ratio"
PIXELS = "pixel_correlation"


def with_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns EMBEDDING, INPUT and TOKENS to rows of inversion.csv."""
    return rows.assign(
        embedding_ratio=rows["embedding_distance"] / rows["yardstick"],
        input_ratio=rows["input_distance"] / rows["input_yardstick"],
        token_ratio=rows["token_distance"] / rows["token_yardstick"],
    )


def neighbours(filters: np.ndarray) -> np.ndarray:
    """Correlation of weights one pixel apart within each filter: (D, C, h, w) -> (D,).

    It is about 0 for noise, and 0 for a constant filter.
    """
    centred = filters - filters.mean((2, 3), keepdims=True)
    down = (centred[..., 1:, :] * centred[..., :-1, :]).mean((1, 2, 3))
    right = (centred[..., 1:] * centred[..., :-1]).mean((1, 2, 3))
    return (down + right) / 2 / np.maximum((centred**2).mean((1, 2, 3)), 1e-12)
