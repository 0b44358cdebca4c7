"""What the report shows of our own questions."""

from pipeline.report.charts import SPREAD, Chart, Charts, accuracy_lines
from pipeline.report.results import Results

DRAWN_FROM = {  # figures, by the beginnings of their names
    "questions_pruning": ("questions.csv", "prune_eval.csv", "exits.csv"),
    "questions_passes": ("questions.csv",),
}
SHOWN = {  # chart -> parts of the rows, the measures, what the number counts
    "Pruned models": (["pruning"], ["accuracy"], "layers kept"),
    "Merged models": (["separate", "common"], ["accuracy"], "trainings that layers come from"),
    "What some of several orders mends": (["passes"], ["some", "control"], "orders"),
}


def charts(results: Results) -> Charts:
    """Accuracy of pruned and merged models, and wrong answers that other orders mend."""
    every = results.table("questions")
    shown = []
    for title, (parts, measures, counted) in SHOWN.items():
        rows = every[every["part"].isin(parts) & every["measure"].isin(measures)]
        if parts == ["passes"]:
            rows = rows[rows["way"] == "mend"]
            names = rows["measure"]
        elif parts == ["pruning"]:
            names = rows["way"]
        else:
            names = rows["part"] + " starts, " + rows["way"]
        if rows.empty:
            continue
        method = rows["variant"].map(results.label) + ", " + names
        spec = accuracy_lines(rows.assign(method=method), "count", "method", counted, "value", "%")
        shown.append(Chart(title, SPREAD, "questions.csv", spec))
    return Charts(charts=shown)
