"""What the report shows of the middle layers executed in other ways."""

from pipeline.report.charts import SPREAD, Chart, Charts, accuracy_lines
from pipeline.report.results import Results

DRAWN_FROM = {"painters": ("painters.csv",)}  # figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Accuracy by number of middle layers so treated, a chart a variant."""
    rows = results.table("painters")
    rows = rows[rows["treated"] > 0]
    shown = []
    for variant, of_variant in rows.groupby("variant", sort=False):
        title = f"{results.label(variant)}: its middle layers in other ways"
        spec = accuracy_lines(of_variant, "treated", "kind", "middle layers so treated")
        shown.append(Chart(title, SPREAD, "painters.csv", spec))
    return Charts(charts=shown)
