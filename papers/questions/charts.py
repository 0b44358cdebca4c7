"""What the report shows of our own questions."""

from pipeline.report.charts import Charts, Picture
from pipeline.report.results import Results

DRAWN_FROM = {  # figures, by the beginnings of their names
    "questions_pruning": ("questions.csv", "prune_eval.csv", "exits.csv"),
    "questions_passes": ("questions.csv",),
    "questions_merges": ("questions.csv",),
}


def charts(results: Results) -> Charts:
    """The figures as they were drawn."""
    titles = ("Pruned models", "Means over many passes", "Merged models")
    shown = [Picture(title, name, title) for title, name in zip(titles, DRAWN_FROM, strict=True)]
    return Charts(pictures=shown)
