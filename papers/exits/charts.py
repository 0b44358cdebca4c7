"""What the report shows of early exits."""

from papers.exits.section import COUNTING, LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, LABELS, WITHOUT_EXITS
from pipeline.config.variant import BASELINE
from pipeline.report.charts import CHOICE, Chart, Charts, Grid, budget, spread
from pipeline.report.results import Results
from pipeline.report.tables import NONE

DRAWN_FROM = {
    "exits_": ("exits.csv",),
    "exits_dynamic": ("exits_dynamic.csv",),
}  # tables and figures, by the beginnings of their names


def charts(results: Results) -> Charts:
    """Tables I and II, and accuracy against what an image costs, under a budget."""
    rows = results.table("exits")
    own = rows[
        (rows["strategy"] == CLASSIFIER_WISE)
        & (rows["order"] == "sequential")
        & (rows["variant"] == BASELINE)
    ]
    own = own[own["dataset"] != COUNTING].assign(
        branch=own["branch"].map(lambda name: LABELS.get(name, name)), cost=own["flops"] / 2e6
    )
    points = spread(own, ["branch", "depth", "cost"], "accuracy").drop(columns=["low", "high"])
    points["branch"] = points["branch"].replace(LAST_EXIT, "last exit")
    where = ("metric=accuracy", "strategy=end_to_end")
    caption = f"Exits on the frozen baseline, means over the seeds. What costs more than the budget fades, the best that fits is named. {CHOICE}"
    names = LABELS | {NONE: WITHOUT_EXITS}
    tables = [
        Grid(
            f"Table {'I' * n}: accuracy (%), end-to-end",
            f"exits_table{n}.csv",
            "architecture",
            "exit",
            where,
            called=lambda branch: names.get(branch, branch),
        )
        for n in (1, 2)
    ]
    if points.empty:  # no exits on the baseline
        return Charts(tables)
    drawn = budget(points, "cost", "branch", "million multiply-adds an image", "accuracy (%)")
    return Charts(
        tables, [Chart("Accuracy of early exits under a budget", caption, "exits.csv", drawn)]
    )
