"""Exits trained with the model, in the form of multi-exit ViT's Tables I and II."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import yaml

from papers.exits.section import COUNTING, LAST_EXIT
from pipeline.config.params import Params
from pipeline.report.captions import read_captions
from pipeline.report.results import Results
from pipeline.report.tables import ABSENT, NONE, NOT_RUN, cell_text, count_seeds, write_table

CAPTION = read_captions(__file__)["table"]
PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))
CLASSIFIER_WISE, WITHOUT_EXITS = "classifier_wise", "without exits"
STRATEGIES = {
    "end_to_end": "end-to-end",
    "layer_wise": "layer-wise",
    "layer_wise_none": "layer-wise, then no pre-trained weights",
    "layer_wise_original": "layer-wise, then the original weights",
    "layer_wise_end_to_end": "layer-wise, then end-to-end weights",
}
LABELS = {
    "mlp": "MLP-EE",
    "cnn_ignore": "CNN-Ignore-EE",
    "cnn_add": "CNN-Add-EE",
    "cnn_project": "CNN-Project-EE",
    "vit": "ViT-EE",
    "mixer": "MLP-Mixer-EE",
    "resmlp": "ResMLP-EE",
}
DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion_mnist": "Fashion-MNIST",
    COUNTING: "counting MAE",
}
KEYS = ["dataset", "model", "strategy", "architecture", "exit", "metric"]
OPERATIONS = "multiply-adds (G)"


class Form(NamedTuple):
    """A table of the paper."""

    name: str  # of the files
    number: str
    depths: tuple[int, ...]  # of the early exits
    published: dict[str, dict[str, list[float]]]  # data set -> branch -> a figure an exit

    @property
    def exits(self) -> list[str]:
        """The columns of one data set."""
        return [*(f"Early@{depth}" for depth in self.depths), "Final"]

    @property
    def is_first(self) -> bool:
        """Table I alone has multiply-adds and a layer-wise figure."""
        return self.number == "I"


FORMS = (
    Form("exits_table1", "I", (6,), PUBLISHED["table1"]),
    Form("exits_table2", "II", (3, 6, 9), PUBLISHED["table2"]),
)


def exit_numbers(exits: pd.DataFrame, form: Form) -> pd.DataFrame:
    """Our figures of a table: a row an exit, mean and standard deviation over the seeds.

    Accuracy is a fraction; counting is measured by its error.

    Args:
        exits: rows of exits.csv.
        form: whose placement counts; models without exits belong to every table.
    """
    placements = ["-".join(map(str, form.depths)), NONE]
    is_placed = exits["placement"].astype(str).isin(placements)
    rows = exits[exits["strategy"].isin(STRATEGIES) & is_placed]
    counted = rows["dataset"] == COUNTING
    early = "Early@" + rows["depth"].astype(str)
    rows = rows.assign(
        exit=early.where(rows["branch"] != LAST_EXIT, "Final"),
        metric=np.where(counted, "mae", "accuracy"),
        value=rows["accuracy"].where(~counted, rows["mae"]),
    )
    numbers = rows.groupby(KEYS, sort=False).agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("seed", "nunique"),
        flops=("flops", "first"),
    )
    return numbers.reset_index().round({"mean": 6, "std": 6})


def exit_table(numbers: pd.DataFrame, form: Form) -> pd.DataFrame:
    """A table in the paper's form, in per cent: our rows, then the published ones."""
    data = [name for name in numbers["dataset"].unique() if name not in (*form.published, COUNTING)]
    data += form.published
    texts = {}
    for row in numbers.itertuples():
        factor = 1 if row.dataset == COUNTING else 100
        text = cell_text(factor * row.mean, factor * row.std)
        texts[row.strategy, row.architecture, row.dataset, row.exit] = text
    source = ", ".join(["ours", *numbers["model"].unique()])
    rows = []
    models = [("end_to_end", branch) for branch in [*LABELS, NONE]]
    stepwise = numbers[numbers["strategy"] != "end_to_end"]
    models += dict.fromkeys(zip(stepwise["strategy"], stepwise["architecture"], strict=True))
    for strategy, branch in models:
        row = head_of_row(source, strategy, branch)
        for name in data:
            for exit in form.exits:
                text = texts.get((strategy, branch, name, exit), NOT_RUN)
                is_early = branch == NONE and exit != "Final"
                row[f"{DATA.get(name, name)} {exit}"] = ABSENT if is_early else text
        row[OPERATIONS] = multiply_adds(numbers, strategy, branch)
        rows.append(row)
    return pd.DataFrame(rows + published_rows(form), columns=list(rows[0])).fillna(ABSENT)


def head_of_row(source: str, strategy: str, branch: str) -> dict[str, str]:
    """The first cells of a row. The branch "none" is a model without exits."""
    if branch == NONE:
        return {"source": source, "strategy": ABSENT, "branch": WITHOUT_EXITS}
    return {"source": source, "strategy": STRATEGIES[strategy], "branch": LABELS[branch]}


def multiply_adds(numbers: pd.DataFrame, strategy: str, branch: str) -> str:
    """Operations of one image up to each branch, in G; without exits up to the model's head."""
    rows = numbers[(numbers["strategy"] == strategy) & (numbers["architecture"] == branch)]
    if branch != NONE:
        rows = rows[rows["exit"] != "Final"]
    if rows.empty:
        return ABSENT
    rows = rows[rows["dataset"] == rows["dataset"].iloc[0]]
    return " / ".join(f"{flops / 2e9:.4g}" for flops in rows["flops"])


def published_rows(form: Form) -> list[dict[str, str]]:
    """The rows of the paper's table, by column."""
    source = "published, ViT-B/16"
    rows = []
    for branch in LABELS:
        row = head_of_row(source, "end_to_end", branch)
        for data, figures in form.published.items():
            for exit, figure in zip(form.exits, figures[branch], strict=True):
                row[f"{DATA[data]} {exit}"] = f"{figure:.2f}"
        if form.is_first:
            row[OPERATIONS] = f"{PUBLISHED['multiply_adds'][branch]:.2f}"
        rows.append(row)
    row = head_of_row(source, "end_to_end", NONE)
    for data in form.published:
        row[f"{DATA[data]} Final"] = f"{PUBLISHED['without_exits'][data]:.2f}"
    rows.append(row)
    if form.is_first:
        for data, figures in PUBLISHED["layer_wise"].items():
            for branch, figure in figures.items():
                row = head_of_row(source, "layer_wise", branch)
                rows.append(row | {f"{DATA[data]} Early@6": f"{figure:.2f}"})
    return rows


def write(results: Results, params: Params) -> dict[str, str]:
    """Write exits_table1 and exits_table2: csv (ours, fractions), md and tex (%, published too).

    Returns:
        Captions by title.
    """
    captions = {}
    for form in FORMS:
        numbers = exit_numbers(results.table("exits"), form)
        ours = NOT_RUN
        if len(numbers):
            data = ", ".join(numbers["dataset"].unique())
            ours = f"data {data}; mean ± standard deviation over {count_seeds(numbers)}"
        caption = CAPTION.format(
            number=form.number,
            depths=", ".join(map(str, form.depths)),
            ours=ours,
            rest="" if form.is_first else ", no multiply-adds",
        )
        write_table(numbers, exit_table(numbers, form), caption, results.folder, form.name)
        captions[f"Exits, Table {form.number}"] = caption
    return captions
