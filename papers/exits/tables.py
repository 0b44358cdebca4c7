"""Exits trained with the model, in the form of multi-exit ViT's Tables I and II."""

from itertools import product
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
CLASSIFIER_WISE = "classifier_wise"
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
NAMES = LABELS | {NONE: "without exits"}
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
    early = "Early@" + rows["depth"].astype(str)
    rows = rows.assign(
        exit=early.where(rows["branch"] != LAST_EXIT, "Final"),
        metric=np.where(rows["dataset"] == COUNTING, "mae", "accuracy"),
        value=rows["accuracy"].fillna(rows["mae"]),
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
    source = ", ".join(["ours", *numbers["model"].unique()])
    texts: dict[tuple[str, str], dict[str, str]] = {("end_to_end", name): {} for name in NAMES}
    costs: dict[tuple[str, str], dict[str, str]] = {}
    for row in numbers.itertuples():
        model = row.strategy, row.architecture
        factor = 1 if row.dataset == COUNTING else 100
        text = cell_text(factor * row.mean, factor * row.std)
        texts.setdefault(model, {})[f"{DATA.get(row.dataset, row.dataset)} {row.exit}"] = text
        if row.exit != "Final" or row.architecture == NONE:  # up to each branch, of the first data
            costs.setdefault(model, {}).setdefault(row.exit, f"{row.flops / 2e9:.4g}")
    rows = []
    for (strategy, branch), cells in texts.items():
        row = head_of_row(source, strategy, branch)
        for name, exit in product(data, form.exits):
            missing = ABSENT if branch == NONE and exit != "Final" else NOT_RUN
            column = f"{DATA.get(name, name)} {exit}"
            row[column] = cells.get(column, missing)
        row[OPERATIONS] = " / ".join(costs.get((strategy, branch), {}).values()) or ABSENT
        rows.append(row)
    return pd.DataFrame(rows + published_rows(form), columns=list(rows[0])).fillna(ABSENT)


def head_of_row(source: str, strategy: str, branch: str) -> dict[str, str]:
    """The first cells of a row. The branch "none" is a model without exits."""
    of_strategy = ABSENT if branch == NONE else STRATEGIES[strategy]
    return {"source": source, "strategy": of_strategy, "branch": NAMES[branch]}


def published_rows(form: Form) -> list[dict[str, str]]:
    """The rows of the paper's table, by column."""
    source = "published, ViT-B/16"
    rows = []
    for branch in LABELS:
        row = head_of_row(source, "end_to_end", branch)
        for data, figures in form.published.items():
            for exit, figure in zip(form.exits, figures[branch], strict=True):
                row[f"{DATA[data]} {exit}"] = f"{figure:.2f}"
        if form.number == "I":
            row[OPERATIONS] = f"{PUBLISHED['multiply_adds'][branch]:.2f}"
        rows.append(row)
    row = head_of_row(source, "end_to_end", NONE)
    for data in form.published:
        row[f"{DATA[data]} Final"] = f"{PUBLISHED['without_exits'][data]:.2f}"
    rows.append(row)
    if form.number == "I":
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
            rest="" if form.number == "I" else ", no multiply-adds",
        )
        write_table(numbers, exit_table(numbers, form), caption, results.folder, form.name)
        captions[f"Exits, Table {form.number}"] = caption
    return captions
