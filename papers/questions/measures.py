"""What our own questions are decided on, in %."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.report.evidence import Evidence


def _rows(e: Evidence, variant: str, part: str, way: str, measure: str) -> pd.DataFrame:
    return e.rows(
        "questions", "questions are", variant=variant, part=part, way=way, measure=measure
    )


def value(
    e: Evidence, variant: str, part: str, way: str, measure: str, largest: bool = False
) -> np.ndarray:
    """A number of questions.csv, mean over its counts, or that of the largest count."""
    rows = _rows(e, variant, part, way, measure)
    if largest:
        rows = rows[rows["count"] == rows["count"].max()]
    return 100 * e.by_seed(rows, "value", f"{e.label(variant)}, {part}, {way}, {measure}")


def beyond_chance(e: Evidence, variant: str, way: str) -> np.ndarray:
    """How often some of the most routes is right, minus the same with other images' labels."""
    some = value(e, variant, "passes", way, "some", largest=True)
    return some - value(e, variant, "passes", way, "control", largest=True)


def kept(e: Evidence, variant: str, part: str, way: str, counts: Sequence[int]) -> np.ndarray:
    """What merged models keep of the single ones' accuracy above chance.

    It is the mean over the numbers of trainings merged, of `counts`.
    """
    rows = _rows(e, variant, part, way, "accuracy")
    what = f"{e.label(variant)} from {part} starts"
    single = e.by_seed(rows[rows["count"] == 1], "value", what)
    merged = e.by_seed(rows[rows["count"].isin(counts)], "value", what)
    return e.excess(100 * merged, 100 * single)


MEASURES = {"value": value, "beyond_chance": beyond_chance, "kept": kept}
