"""What the report shows of over-smoothing."""

from papers.smoothing.section import SCRATCH
from papers.smoothing.tables import is_plain
from pipeline.report.charts import SPREAD, Chart, Charts, Grid, lines, spread
from pipeline.report.results import Results

WHAT = {
    "patch_cosine": "patch cosine similarity",
    "attention_std": "standard deviation of attention scores",
}

DRAWN_FROM = {"smoothing_": ("smoothing.csv",)}  # by the beginnings of names


def charts(results: Results) -> Charts:
    """Table 1 of the source, and both measures layer after layer."""
    rows = results.table("smoothing")
    rows = rows[is_plain(rows) & (rows["training"] == SCRATCH) & (rows["order"] == "sequential")]
    shown = []
    for depth, of_depth in rows.groupby("num_layers"):
        for column, words in WHAT.items():
            means = spread(of_depth.dropna(subset=[column]), ["losses", "layer"], column, 1)
            title = f"{words.capitalize()}, layer after layer, {depth} layers"
            spec = lines(means, "layer", "losses", "layer", words)
            shown.append(Chart(title, SPREAD, "smoothing.csv", spec))
    where = ("metric=accuracy", "changed=none", "talking_heads=False")
    title = "Table 1: accuracy (%) by layers"
    return Charts([Grid(title, "smoothing_table1.csv", "losses", "num_layers", where)], shown)
