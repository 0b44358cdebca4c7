"""The figure of Painters: accuracy against how many middle layers are executed in another way."""

import numpy as np
import pandas as pd

from papers.painters.section import KINDS, UNTOUCHED, Kind, Painters
from pipeline.config.params import Params
from pipeline.report.captions import describe_rows, read_captions
from pipeline.report.figures import (
    Figures,
    distinct_looks,
    draw_chance,
    draw_means,
    over_seeds,
)
from pipeline.report.results import Results

CAPTIONS = read_captions(__file__)
NAMES: dict[Kind, str] = {
    "skip": "skip",
    "repeat": "middle repeat",
    "reverse": "reverse",
    "shuffle": "random order",
    "parallel": "parallel",
    "loop": "looped parallel",
}
LOOKS = distinct_looks(NAMES)


def draw_strategies(figures: Figures, rows: pd.DataFrame, loops: int, chance: float) -> str:
    """Draw every strategy against the number of layers treated, a panel a variant.

    Args:
        figures: saves the figure.
        rows: painters.csv.
        loops: how often the step of `loop` runs.
        chance: accuracy in % of guessing.

    Returns:
        The caption.
    """
    variants = rows["variant"].unique()
    kinds = [kind for kind in KINDS if kind in set(rows["kind"])]
    treated = np.sort(rows["treated"].unique())
    figure, axes = figures.panels(
        0.3 + 0.55 * len(variants), nrows=len(variants), sharex=True, sharey=True
    )
    for axis, variant in zip(axes[:, 0], variants, strict=True):
        own_rows = rows[rows["variant"] == variant]
        for kind in kinds:
            line = own_rows[own_rows["kind"].isin([kind, UNTOUCHED])]
            means = over_seeds(line, "treated", "accuracy")
            draw_means(axis, means, capsize=1.5, elinewidth=0.7, **LOOKS[kind])
        axis.set(
            title=figures.label(variant),
            ylabel="validation accuracy (%)",
            ylim=(0, 100),
            xticks=treated,
            # Room on the right for the word "chance", which lines may reach.
            xlim=(-0.05 * treated[-1], 1.17 * treated[-1]),
        )
        draw_chance(axis, chance)
    axes[-1, 0].set(xlabel="middle layers treated")
    figures.finish(figure, "painters")
    orders = rows["orders"].max()
    strategies = [CAPTIONS["kinds"][kind].format(orders=orders, loops=loops) for kind in kinds]
    return CAPTIONS["strategies"].format(strategies="; ".join(strategies), **describe_rows(rows))


def draw(results: Results, params: Params) -> dict[str, str]:
    """Draw the figure if there are rows. Returns captions by title."""
    rows = results.table("painters")
    if rows.empty:
        return {}
    figures = Figures.of(results, params)
    loops = params.resolve(Painters).loops
    return {"Painters": draw_strategies(figures, rows, loops, results.chance)}
