"""What the report shows of the trainings behind the results, from their epochs."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from pipeline.config.params import Params
from pipeline.config.sections import Finetune
from pipeline.jobs.display import grouped, option_rows
from pipeline.report.charts import ORDERS, SPREAD, Chart, accuracy_lines
from pipeline.report.results import Results

PRETRAIN = "starting weights"
ACCURACIES = {f"validation/{order}/accuracy": words for order, words in ORDERS.items()}
LAST = {
    "train/accuracy": "training images",
    **{column: f"validation, {words}" for column, words in ACCURACIES.items()},
}


class Training(NamedTuple):
    """The trainings of a variant, a seed each."""

    name: str
    file: str  # with its epochs
    rows: pd.DataFrame

    @property
    def refined(self) -> bool:
        """They start from the starting weights."""
        return self.name != PRETRAIN

    @property
    def seeds(self) -> list[int]:
        """In their order."""
        return self.rows["seed"].unique().tolist()


def trainings(results: Results) -> list[Training]:
    """Those with epochs: the starting weights have none where they were fetched."""
    files = {PRETRAIN: "pretrain"}
    for variant in results.table("protocols").get("variant", ()):
        files[variant] = f"finetune/{variant}"
    with_epochs = []
    for name, file in files.items():
        rows = results.table(file)
        if len(rows):
            with_epochs.append(Training(name, f"results/{file}.csv", rows))
    return with_epochs


def curves(shown: list[Training], label: Callable[[str], str]) -> list[Chart]:
    """Validation accuracy after each epoch.

    Of the refined models there is a chart an order, of the starting weights one with both orders.
    """
    charts = []
    refined = [
        training.rows.assign(variant=label(training.name)) for training in shown if training.refined
    ]
    if refined:
        rows = pd.concat(refined)
        for column, words in ACCURACIES.items():
            spec = accuracy_lines(rows, "epoch", "variant", "epoch", column)
            title = f"Refined: validation accuracy {words}"
            charts.append(Chart(title, SPREAD, "finetune/*.csv", spec))
    for training in shown:
        if not training.refined:
            rows = training.rows.rename(columns=ACCURACIES)
            rows = rows.melt(["epoch", "seed"], ACCURACIES.values(), "variant", "accuracy")
            spec = accuracy_lines(rows, "epoch", "variant", "epoch")
            charts.append(
                Chart("Starting weights: validation accuracy", SPREAD, "pretrain.csv", spec)
            )
    return charts


def options(params: Params, results: Results, variants: list[str]) -> list[tuple[str, ...]]:
    """(key, value, place in params.yaml, of which variants) of the refinements.

    There are none where the parameters are of another cell.
    """
    cell = results.cell
    if (*params.cell,) != (cell["dataset"], cell["model"], cell["scale"]):
        return []
    images = cell["images"]
    params = params.with_sizes(images["train"], images["validation"], images.get("heldout", 0))
    rows = {}
    for name in variants:
        if name in params.all_variants:
            variant = params.all_variants[name]
            values = params.values(Finetune, name)
            rows[results.label(name)] = option_rows(name, variant, values, params)
    return grouped(rows)
