"""What the report shows of over-smoothing."""

from pipeline.report.charts import SPREAD, Chart, Charts, Grid, lines, spread
from pipeline.report.results import Results
from pipeline.report.tables import NONE

WHAT = {
    "patch_cosine": "patch cosine similarity",
    "attention_std": "standard deviation of attention scores",
}

DRAWN_FROM = {
    "smoothing_": ("smoothing.csv",)
}  # tables and figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Table 1 of the source, and both measures layer after layer."""
    rows = results.table("smoothing")
    rows = rows[
        (rows["training"] == "scratch")
        & (rows["removed"] == NONE)
        & (~rows["talking_heads"].astype(bool))
    ]
    shown = []
    for depth in sorted(rows["num_layers"].unique()):
        own = rows[(rows["num_layers"] == depth) & (rows["order"] == "sequential")]
        for column, words in WHAT.items():
            found = spread(own.dropna(subset=[column]), ["losses", "layer"], column, 1)
            shown.append(
                Chart(
                    f"{words.capitalize()}, layer after layer, {depth} layers",
                    SPREAD,
                    "smoothing.csv",
                    lines(found, "layer", "losses", "layer", words),
                )
            )
    where = ("metric=accuracy", "removed=none", "talking_heads=False")
    return Charts(
        [
            Grid(
                "Table 1: accuracy (%) by layers",
                "smoothing_table1.csv",
                "losses",
                "num_layers",
                where,
            )
        ],
        shown,
    )
