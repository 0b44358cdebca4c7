"""What the report shows of layers on nodes that fail."""

from papers.nodes.figures import HEALTHY, method
from pipeline.report.charts import SPREAD, Chart, Charts, accuracy_lines
from pipeline.report.results import Results

DRAWN_FROM = {"nodes": ("nodes.csv",)}  # figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Right answers by share of nodes away, a chart a number of copies."""
    rows = results.table("nodes")
    away = (rows["fault"] == HEALTHY) | (rows["gone"] > 0)
    rows = rows[(rows["nodes"] == rows["nodes"].max()) & away]
    methods = [method(results.label(row.variant), row.policy) for row in rows.itertuples()]
    rows = rows.assign(method=methods, away=100 * rows["gone"])
    shown = []
    for copies, with_copies in rows.groupby("replication"):
        title = f"Nodes away, {copies} node{'s' if copies > 1 else ''} a layer"
        spec = accuracy_lines(
            with_copies, "away", "method", "nodes away (%)", "right", "right of all images (%)"
        )
        shown.append(Chart(title, SPREAD, "nodes.csv", spec))
    return Charts(charts=shown)
