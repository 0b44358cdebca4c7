"""The table of inversion: distances beside the yardstick, and the verdict on every layer."""

from collections.abc import Callable
from typing import Any

import pandas as pd

from papers.inversion.compute.ratios import EMBEDDING, INPUT, PIXELS, TOKENS, with_ratios
from papers.inversion.section import NO_EDIT
from pipeline.config.params import Params
from pipeline.report.captions import read_captions
from pipeline.report.results import Results
from pipeline.report.tables import write_table

PATCHES = "patch_embed"  # a point
FIRST, LAYER = "first ", "layer "  # how the names of the other points begin
MODEL = ["family", "weights", "edit", "order", "optimiser"]
PLAIN = "_plain"  # ends the name of a family that is trained without residual connections
OPTIMISERS = {"adam": "Adam", "gd": "gradient descent", "adam_long": "Adam, more steps"}
CAPTIONS = read_captions(__file__)


def inversion_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a model and point of inversion.csv.

    Returns:
        The three ratios and the pixel correlation, each as the mean over the seeds' means and
        their standard deviation (`_std`); the commonest verdict, how many (`count`) of the `n`
        inversions have it; `seeds`, their number.
    """
    keys = [*MODEL, "point"]
    rows = with_ratios(rows)
    seeds = rows.groupby([*keys, "seed"], sort=False)[[EMBEDDING, INPUT, TOKENS, PIXELS]].mean()
    numbers = seeds.groupby(keys, sort=False).agg(["mean", "std"])
    numbers.columns = [column if how == "mean" else f"{column}_std" for column, how in numbers]
    groups = rows.groupby(keys, sort=False)
    numbers["verdict"] = groups["verdict"].agg(lambda verdicts: verdicts.value_counts().index[0])
    numbers["count"] = groups["verdict"].agg(lambda verdicts: verdicts.value_counts().iloc[0])
    numbers["n"] = groups.size()
    numbers["seeds"] = groups["seed"].nunique()
    return numbers.reset_index().round(6)


def name_point(point: str) -> str:
    """A point in words: "patch embedding", "first 4 layers", "layer 4 alone" (counted from 1)."""
    if point == PATCHES:
        return "patch embedding"
    number = int(point.split()[1])
    if point.startswith(LAYER):
        return f"layer {number + 1} alone"
    return f"first {number} layers" if number > 1 else "first layer"


def name_edit(edit: str) -> str:
    """An edit in words: "without attention", "with trained first norm"; "" of no edit."""
    edit = edit.removeprefix(NO_EDIT).replace("pos_embed", "position embedding")
    edit = edit.replace("patch_embed", "patch embedding").replace("norm1", "first norm")
    return edit.replace("+", " and ").replace("with ", "with trained ")


def name_optimiser(optimiser: str) -> str:
    """An optimiser in words: "gradient descent"; its key if it has none."""
    return OPTIMISERS.get(optimiser, optimiser)


def name_model(weights: str, edit: str, order: str) -> str:
    """Weights, edit and order in words: "trained, without attention"."""
    names = [weights, name_edit(edit), f"{order} order" if order != "sequential" else ""]
    return ", ".join(name for name in names if name)


def verdict_table(numbers: pd.DataFrame, label: Callable[[str], str]) -> pd.DataFrame:
    """The texts of the table, a row a model and point."""
    named: Any = numbers.itertuples()
    rows = [
        {
            "model": row.family,
            "weights": name_model(label(row.weights), row.edit, row.order),
            "point": name_point(row.point),
            "optimiser": name_optimiser(row.optimiser),
            "embedding / yardstick": f"{row.embedding_ratio:.3f}",
            "input / yardstick": f"{row.input_ratio:.2f}",
            "tokens / yardstick": f"{row.token_ratio:.2f}",
            "pixel correlation": f"{row.pixel_correlation:.3f}",
            "verdict": f"{row.verdict} ({row.count}/{row.n})",
        }
        for row in named
    ]
    return pd.DataFrame(rows)


def write(results: Results, params: Params) -> dict[str, str]:
    """Write inversion_table from the result files: csv, md and tex. Returns captions by title."""
    rows = results.table("inversion")
    numbers = inversion_numbers(rows)
    counts = sorted(set(numbers["seeds"]))
    seeds = " or ".join(map(str, counts))
    caption = CAPTIONS["table"].format(
        **results.read("inversion"),
        images=rows["image"].nunique(),
        seeds=f"{seeds} seed" if counts == [1] else f"{seeds} seeds",
        data=", ".join(dict.fromkeys(rows["dataset"])),
    )
    table = verdict_table(numbers, results.label)
    write_table(numbers, table, caption, results.folder, "inversion_table", "inversion")
    return {"Inversion, table": caption}
