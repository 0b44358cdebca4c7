"""What the report shows of early exits."""

from papers.exits.section import LAST_EXIT
from papers.exits.tables import CLASSIFIER_WISE, FORMS, LABELS, NAMES
from pipeline.config.variant import BASELINE
from pipeline.report.charts import CHOICE, Chart, Charts, Grid, budget, spread
from pipeline.report.results import Results

# Tables and figures, by the beginnings of their names
DRAWN_FROM = {"exits_": ("exits.csv",), "exits_dynamic": ("exits_dynamic.csv",)}
CAPTION = (
    "Exits on the frozen baseline, means over the seeds. Exits above the budget fade. "
    f"The best of the others is named. {CHOICE}"
)


def charts(results: Results) -> Charts:
    """Tables I and II, and accuracy against what an image costs, under a budget."""
    tables = []
    for form in FORMS:
        if results.table(form.name).empty:
            continue
        grid = Grid(
            f"Table {form.number}: accuracy (%), end-to-end",
            f"{form.name}.csv",
            "architecture",
            "exit",
            ("metric=accuracy", "strategy=end_to_end"),
            called=NAMES.__getitem__,
        )
        tables.append(grid)
    rows = results.table("exits")
    rows = rows[(rows["strategy"] == CLASSIFIER_WISE) & (rows["order"] == "sequential")]
    rows = rows[rows["variant"] == BASELINE]
    if rows.empty:
        return Charts(tables)
    branches = rows["branch"].replace(LABELS | {LAST_EXIT: "last exit"})
    rows = rows.assign(branch=branches, cost=rows["flops"] / 2e6)
    points = spread(rows, ["branch", "depth", "cost"], "accuracy").drop(columns=["low", "high"])
    spec = budget(points, "million multiply-adds an image")
    title = "Accuracy of early exits under a budget"
    return Charts(tables, [Chart(title, CAPTION, "exits.csv", spec)])
