"""Distances relative to those of a slightly shifted image."""

import pandas as pd

EMBEDDING = "embedding_ratio"
INPUT = "input_ratio"
TOKENS = "token_ratio"
PIXELS = "pixel_correlation"


def with_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns EMBEDDING, INPUT and TOKENS to rows of inversion.csv."""
    ratios = {
        EMBEDDING: rows["embedding_distance"] / rows["yardstick"],
        INPUT: rows["input_distance"] / rows["input_yardstick"],
        TOKENS: rows["token_distance"] / rows["token_yardstick"],
    }
    return rows.assign(**ratios)
