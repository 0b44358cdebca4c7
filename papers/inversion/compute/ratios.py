"""Distances relative to those of a slightly shifted image."""

import pandas as pd

EMBEDDING, INPUT, TOKENS, PIXELS = (
    "embedding_ratio",
    "input_ratio",
    "token_ratio",
    "pixel_correlation",
)


def with_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of inversion.csv with the distances relative to those of the slightly shifted image: columns EMBEDDING, INPUT, TOKENS."""
    return rows.assign(
        **{
            EMBEDDING: rows["embedding_distance"] / rows["yardstick"],
            INPUT: rows["input_distance"] / rows["input_yardstick"],
            TOKENS: rows["token_distance"] / rows["token_yardstick"],
        }
    )
