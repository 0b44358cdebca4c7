"""What the report shows of layers on nodes that fail."""

from papers.nodes.figures import HEALTHY, method
from pipeline.report.charts import SPREAD, Chart, Charts, lines, spread
from pipeline.report.results import Results

DRAWN_FROM = {"nodes": ("nodes.csv",)}  # figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Right answers by share of nodes away, a chart a number of copies."""
    rows = results.table("nodes")
    rows = rows[
        (rows["nodes"] == rows["nodes"].max()) & ((rows["fault"] == HEALTHY) | (rows["gone"] > 0))
    ]
    rows = rows.assign(
        method=[method(*each) for each in zip(rows["variant"], rows["policy"], strict=True)],
        away=100 * rows["gone"],
    )
    return Charts(
        charts=[
            Chart(
                f"Nodes away, {copies} node{'s' if copies > 1 else ''} a layer",
                SPREAD,
                "nodes.csv",
                lines(
                    spread(own, ["method", "away"], "right"),
                    "away",
                    "method",
                    "nodes away (%)",
                    "right of all images (%)",
                    (0, 100),
                ),
            )
            for copies, own in rows.groupby("replication")
        ]
    )
