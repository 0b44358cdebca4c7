"""How far the inputs found by inversion are from the originals, as numbers beside the yardstick, and the verdict a layer."""

from pathlib import Path
from typing import Any

import pandas as pd

from papers.inversion.compute.ratios import EMBEDDING, INPUT, PIXELS, TOKENS, with_ratios
from papers.inversion.section import NO_EDIT
from pipeline.config.params import Params
from pipeline.report.evaluations import label
from pipeline.report.results import Results
from pipeline.report.tables import write_table

PATCHES, FIRST, LAYER = "patch_embed", "first ", "layer "  # names of points, or how they begin
MODEL = ["family", "weights", "edit", "order", "optimiser"]
OPTIMISERS = {"adam": "Adam", "gd": "gradient descent"}


def inversion_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a model and point: mean over seeds and images of the three ratios and the pixel correlation, standard deviation over the
    seeds' means, the commonest verdict and how many of the `n` inversions have it."""
    found = []
    for keys, group in with_ratios(rows).groupby([*MODEL, "point"], sort=False):
        row: dict[str, Any] = dict(zip([*MODEL, "point"], keys, strict=True))
        for column in (EMBEDDING, INPUT, TOKENS, PIXELS):
            seeds = group.groupby("seed")[column].mean()
            row |= {column: seeds.mean(), f"{column}_std": seeds.std()}
        commonest = group["verdict"].value_counts()
        row |= {
            "verdict": commonest.index[0],
            "count": commonest.iloc[0],
            "n": len(group),
            "seeds": group["seed"].nunique(),
        }
        found.append(row)
    return pd.DataFrame(found).round(6)


def name_point(point: str) -> str:
    """A point in words: "patch embedding", "first 4 layers", "layer 4 alone" (counted from 1)."""
    if point == PATCHES:
        return "patch embedding"
    number = int(point.split()[1])
    if point.startswith(LAYER):
        return f"layer {number + 1} alone"
    return f"first {number} layers" if number > 1 else "first layer"


def name_model(weights: str, edit: str, order: str) -> str:
    """Weights, edit and order in words: "trained, without attention"."""
    edit = (
        edit.replace("pos_embed", "position embedding")
        .replace("patch_embed", "patch embedding")
        .replace("norm1", "first norm")
    )
    parts = [
        label(weights),
        *(
            [edit.replace("+", " and ").replace("with ", "with trained ")]
            if edit != NO_EDIT
            else []
        ),
    ]
    return ", ".join([*parts, *([f"{order} order"] if order != "sequential" else [])])


def verdict_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """What is known of every layer, a row a model and point."""
    return pd.DataFrame(
        [
            {
                "model": row.family,
                "weights": name_model(str(row.weights), str(row.edit), str(row.order)),
                "point": name_point(str(row.point)),
                "optimiser": OPTIMISERS.get(str(row.optimiser), str(row.optimiser)),
                "embedding / yardstick": f"{row.embedding_ratio:.3f}",
                "input / yardstick": f"{row.input_ratio:.2f}",
                "tokens / yardstick": f"{row.token_ratio:.2f}",
                "pixel correlation": f"{row.pixel_correlation:.3f}",
                "verdict": f"{row.verdict} ({row.count}/{row.n})",
            }
            for row in numbers.itertuples()
        ]
    )


def write_inversion_table(
    rows: pd.DataFrame, folder: Path, about: dict[str, Any]
) -> dict[str, str]:
    """Write inversion_table: csv, md and tex.

    Args:
        rows: of inversion.csv.
        folder: to write to.
        about: inversion.json.

    Returns:
        Captions by title.
    """
    numbers = inversion_numbers(rows)
    table, seeds = verdict_table(numbers), sorted({int(n) for n in numbers["seeds"]})
    count = f"{' or '.join(map(str, seeds))} seed{'s' * (seeds != [1])}"
    caption = (
        f"Inversion. Distances of the found input's output and of the found input itself from the original's, each relative to that of "
        f"a slightly shifted image (noise of standard deviation {about['sigma']:g}, {about['shifts']} draws); means over "
        f"{rows['image'].nunique()} validation images and {count}. Tokens: the inputs' distance behind the patch embedding. "
        f"Verdict: the commonest of the single inversions, and how many have it. Invertible here: the output is met more nearly than by "
        f"the shifted image, by an input nearer than that; non-unique: exactly (below {about['met']:g} of the yardstick), by an input "
        f"farther than that; approximately non-invertible: neither; all as far as the optimiser gets in its steps. "
        f"Data {', '.join(dict.fromkeys(rows['dataset']))}."
    )
    write_table(numbers, table, caption, folder, "inversion_table", "inversion")
    return {"Inversion, table": caption}


def write(results: Results, params: Params) -> dict[str, str]:
    """Write the table of inverted points from the result files. Returns captions by title."""
    return write_inversion_table(
        results.table("inversion"), results.folder, results.read("inversion")
    )
