"""What the report shows of layers on nodes that fail."""

from papers.nodes.figures import with_nodes_away
from pipeline.report.captions import counted
from pipeline.report.charts import SPREAD, Chart, Charts, accuracy_lines
from pipeline.report.results import Results

DRAWN_FROM = {"nodes": ("nodes.csv",)}  # figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Right answers by share of nodes away, a chart a number of copies."""
    rows = with_nodes_away(results.table("nodes"))
    methods = rows["variant"].map(results.label) + ", " + rows["policy"] + " order"
    shown = []
    for copies, with_copies in rows.assign(method=methods).groupby("replication"):
        title = f"Nodes away, {counted(copies, 'node')} a layer"
        spec = accuracy_lines(
            with_copies, "away", "method", "nodes away (%)", "right", "right of all images (%)"
        )
        shown.append(Chart(title, SPREAD, "nodes.csv", spec))
    return Charts(charts=shown)
