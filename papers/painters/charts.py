"""What the report shows of the middle layers executed in other ways."""

from pipeline.report.charts import SPREAD, Chart, Charts, lines, spread
from pipeline.report.evaluations import label
from pipeline.report.results import Results

DRAWN_FROM = {"painters": ("painters.csv",)}  # figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Accuracy by number of middle layers so treated, a chart a variant."""
    rows = results.table("painters")
    rows = rows[rows["treated"] > 0]
    return Charts(
        charts=[
            Chart(
                f"{label(variant)}: its middle layers in other ways",
                SPREAD,
                "painters.csv",
                lines(
                    spread(own, ["kind", "treated"], "accuracy"),
                    "treated",
                    "kind",
                    "middle layers so treated",
                    "accuracy (%)",
                    (0, 100),
                ),
            )
            for variant, own in rows.groupby("variant", sort=False)
        ]
    )
