"""What the report shows of the trainings behind the results: the starting weights and the refined models, from their epochs."""

from typing import Any, NamedTuple

import pandas as pd

from pipeline.config.params import Params
from pipeline.config.sections import Finetune
from pipeline.jobs.display import grouped, option_rows
from pipeline.report.charts import ORDERS, SPREAD, Chart, lines, spread
from pipeline.report.evaluations import label
from pipeline.report.results import Results

PRETRAIN = "starting weights"
LAST = {
    "train/accuracy": "training images",
    **{f"validation/{order}/accuracy": f"validation, {words}" for order, words in ORDERS.items()},
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
    names = dict.fromkeys(results.table("protocols").get("variant", ()))
    files = {PRETRAIN: "pretrain"} | {name: f"finetune/{name}" for name in names}
    return [
        Training(name, f"results/{file}.csv", rows)
        for name, file in files.items()
        if len(rows := results.table(file))
    ]


def curves(found: list[Training]) -> list[Chart]:
    """Validation accuracy after each epoch: of the refined models an order a chart, of the starting weights in both orders."""
    shown = []
    refined = [each for each in found if each.refined]
    for order, words in ORDERS.items():
        own = [_curve(each, order, label(each.name)) for each in refined]
        if refined:
            shown.append(_chart(f"Refined: validation accuracy {words}", "finetune/*.csv", own))
    for each in found:
        if not each.refined:
            own = [_curve(each, order, words) for order, words in ORDERS.items()]
            shown.append(_chart("Starting weights: validation accuracy", "pretrain.csv", own))
    return shown


def _curve(training: Training, order: str, name: str) -> pd.DataFrame:
    return spread(
        training.rows.assign(variant=name), ["variant", "epoch"], f"validation/{order}/accuracy"
    )


def _chart(title: str, file: str, own: list[pd.DataFrame]) -> Chart:
    return Chart(
        title,
        SPREAD,
        file,
        lines(pd.concat(own), "epoch", "variant", "epoch", "accuracy (%)", (0, 100)),
    )


def options(params: Params | None, cell: dict[str, Any], names: list[str]) -> list[tuple[str, ...]]:
    """(key, value, place in params.yaml, of which variants) of the refinements; none where the parameters are of another cell."""
    if params is None or (*params.cell,) != (cell["dataset"], cell["model"], cell["scale"]):
        return []
    counts = cell["images"]
    own = params.with_sizes(counts["train"], counts["validation"], counts.get("heldout", 0))
    return grouped(
        {
            label(name): option_rows(name, own.all_variants[name], own.values(Finetune, name), own)
            for name in names
            if name in own.all_variants
        }
    )
