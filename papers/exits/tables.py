"""Exits trained with the model, in the form of multi-exit ViT's Tables I and II."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from papers.exits.section import COUNTING, LAST_EXIT
from pipeline.config.params import Params
from pipeline.report.results import Results
from pipeline.report.tables import ABSENT, NONE, NOT_RUN, cell_text, count_seeds, write_table

CLASSIFIER_WISE, WITHOUT_EXITS = "classifier_wise", "without exits"
STRATEGIES = {"end_to_end": "end-to-end", "layer_wise": "layer-wise"}
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
NUMBERS = [
    "dataset",
    "model",
    "strategy",
    "architecture",
    "exit",
    "metric",
    "mean",
    "std",
    "n",
    "flops",
]

# Multi-exit ViT, Table I: accuracy in %, of crowd counting (DISCO) the mean absolute error.
# Early exit after layer 6, final exit.
TABLE1: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar10": {
        "mlp": (94.90, 96.73),
        "cnn_ignore": (95.95, 97.10),
        "cnn_add": (94.94, 96.87),
        "cnn_project": (94.66, 96.80),
        "vit": (95.89, 96.99),
        "mixer": (95.78, 97.07),
        "resmlp": (95.44, 97.35),
    },
    "cifar100": {
        "mlp": (81.12, 87.45),
        "cnn_ignore": (77.97, 85.90),
        "cnn_add": (75.75, 86.96),
        "cnn_project": (77.95, 86.89),
        "vit": (85.23, 89.44),
        "mixer": (81.72, 87.53),
        "resmlp": (82.41, 87.57),
    },
    "fashion_mnist": {
        "mlp": (94.47, 94.85),
        "cnn_ignore": (94.43, 94.67),
        "cnn_add": (94.22, 94.77),
        "cnn_project": (94.33, 94.69),
        "vit": (94.39, 94.84),
        "mixer": (94.41, 94.88),
        "resmlp": (94.38, 94.95),
    },
    COUNTING: {
        "mlp": (11.04, 10.72),
        "cnn_ignore": (21.88, 11.09),
        "cnn_add": (18.46, 11.24),
        "cnn_project": (18.23, 11.29),
        "vit": (11.06, 11.01),
        "mixer": (13.03, 10.93),
        "resmlp": (16.99, 11.36),
    },
}
# Table II: early exits after layers 3, 6 and 9, final exit
TABLE2: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar10": {
        "mlp": (87.21, 94.48, 95.64, 96.19),
        "cnn_ignore": (91.44, 95.68, 96.55, 96.56),
        "cnn_add": (90.27, 95.63, 96.80, 96.94),
        "cnn_project": (91.19, 95.77, 96.81, 96.99),
        "vit": (92.35, 96.01, 97.25, 97.33),
        "mixer": (91.16, 95.99, 96.96, 96.99),
        "resmlp": (92.53, 95.87, 96.76, 96.86),
    },
    "cifar100": {
        "mlp": (61.00, 79.83, 84.42, 86.46),
        "cnn_ignore": (65.08, 79.35, 84.74, 86.32),
        "cnn_add": (62.66, 78.86, 85.11, 87.01),
        "cnn_project": (64.26, 78.63, 84.47, 86.19),
        "vit": (74.73, 84.31, 87.43, 87.88),
        "mixer": (66.24, 81.84, 86.68, 87.29),
        "resmlp": (70.45, 82.61, 87.36, 87.85),
    },
    COUNTING: {
        "mlp": (13.77, 11.54, 11.55, 11.44),
        "cnn_ignore": (20.99, 23.65, 20.88, 11.42),
        "cnn_add": (18.33, 19.25, 18.92, 11.77),
        "cnn_project": (21.25, 21.46, 17.99, 11.49),
        "vit": (12.76, 11.27, 11.59, 11.18),
        "mixer": (12.24, 13.95, 15.29, 11.46),
        "resmlp": (14.15, 14.71, 17.05, 11.09),
    },
}
# Section IV-B, backbones without exits.
WITHOUT = {"cifar10": 98.31, "cifar100": 91.24, "fashion_mnist": 95.00, COUNTING: 11.07}
# Table I, last column: "FLOPS" up to and including the branch after layer 6, which are 10^9
# multiply-adds.
FLOPS = {
    "mlp": 28.04,
    "cnn_ignore": 28.10,
    "cnn_add": 28.10,
    "cnn_project": 28.16,
    "vit": 32.65,
    "mixer": 31.11,
    "resmlp": 31.02,
}
# Section IV-B, after layer 6: the one figure the paper gives of the layer-wise strategy.
LAYER_WISE = {"cifar10": {"cnn_ignore": 95.97}}
OPERATIONS = "multiply-adds (G)"
CAPTION = (
    "Multi-exit ViT, Table {number}: exits after layer {depths}, trained with the model. Accuracy "
    "in %, counting: MAE; ours: {ours}. Early: the branch; Final: the model's own head; "
    "multiply-adds: of one image up to and including the branch (without exits: up to the head). "
    "Without exits: the control, trained the same way but without branches (published: the "
    "backbone before exits were added). Layer-wise: in steps, each freezes what came before; the "
    "paper says that no later step reached a high accuracy, and gives one early exit's figure "
    "(Table I). Counting: ours, objects on canvases made of the data set's images; published, "
    "people on DISCO with another backbone (TransCrowd): not comparable. Published: one figure "
    "each, no spread{rest}."
)


class Form(NamedTuple):
    """A table of the paper."""

    name: str  # of the files
    number: str
    depths: tuple[int, ...]  # of the early exits
    published: dict[str, dict[str, tuple[float, ...]]]

    @property
    def exits(self) -> list[str]:
        """The columns of one data set."""
        return [*(f"Early@{depth}" for depth in self.depths), "Final"]


FORMS = (Form("exits_table1", "I", (6,), TABLE1), Form("exits_table2", "II", (3, 6, 9), TABLE2))


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
    numbers = rows.groupby(NUMBERS[:6], sort=False).agg(
        mean=("value", "mean"),
        std=("value", "std"),
        n=("seed", "nunique"),
        flops=("flops", "first"),
    )
    return numbers.reset_index()[NUMBERS].round({"mean": 6, "std": 6})


def exit_table(numbers: pd.DataFrame, form: Form) -> pd.DataFrame:
    """A table in the paper's form, in per cent: our rows, then the published ones."""
    names = list(dict.fromkeys(numbers["dataset"]))
    own_data = [name for name in names if name not in (*form.published, COUNTING)]
    data = {name: DATA.get(name, name) for name in [*own_data, *form.published]}
    texts = {}
    for row in numbers.itertuples():
        factor = 1 if row.dataset == COUNTING else 100
        text = cell_text(factor * row.mean, factor * row.std)
        texts[row.strategy, row.architecture, row.dataset, row.exit] = text
    source = ", ".join(["ours", *dict.fromkeys(numbers["model"])])

    def make_row(strategy: str, branch: str) -> dict[str, str]:
        row = {"source": source, "strategy": STRATEGIES[strategy], "branch": LABELS.get(branch, "")}
        if branch == NONE:
            row |= {"strategy": ABSENT, "branch": WITHOUT_EXITS}
        for name, title in data.items():
            for exit in form.exits:
                text = texts.get((strategy, branch, name, exit), NOT_RUN)
                is_early = branch == NONE and exit != "Final"
                row[f"{title} {exit}"] = ABSENT if is_early else text
        return row | {OPERATIONS: multiply_adds(numbers, strategy, branch)}

    rows = [make_row("end_to_end", branch) for branch in [*LABELS, NONE]]
    stepwise = set(numbers.loc[numbers["strategy"] == "layer_wise", "architecture"])
    rows += [make_row("layer_wise", branch) for branch in LABELS if branch in stepwise]
    return pd.DataFrame(rows + published_rows(form), columns=list(rows[0])).fillna(ABSENT)


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
    """The rows of the paper's table, by column; the one layer-wise figure is Table I's only."""
    is_first = form.published is TABLE1
    head = {"source": "published, ViT-B/16", "strategy": STRATEGIES["end_to_end"]}
    rows = []
    for branch, name in LABELS.items():
        row = head | {"branch": name}
        for data, published in form.published.items():
            for exit, figure in zip(form.exits, published[branch], strict=True):
                row[f"{DATA[data]} {exit}"] = f"{figure:.2f}"
        if is_first:
            row[OPERATIONS] = f"{FLOPS[branch]:.2f}"
        rows.append(row)
    row = head | {"strategy": ABSENT, "branch": WITHOUT_EXITS}
    for data in form.published:
        row[f"{DATA[data]} Final"] = f"{WITHOUT[data]:.2f}"
    rows.append(row)
    if is_first:
        ((data, figures),) = LAYER_WISE.items()
        ((branch, accuracy),) = figures.items()
        row = head | {"strategy": STRATEGIES["layer_wise"], "branch": LABELS[branch]}
        rows.append(row | {f"{DATA[data]} Early@6": f"{accuracy:.2f}"})
    return rows


def exit_caption(numbers: pd.DataFrame, form: Form) -> str:
    """What the numbers of a table are."""
    ours = NOT_RUN
    if len(numbers):
        seeds = []
        for strategy, name in STRATEGIES.items():
            seeds.append(f"{name}: {count_seeds(numbers[numbers['strategy'] == strategy])}")
        data = ", ".join(dict.fromkeys(numbers["dataset"]))
        ours = f"data {data}; mean ± standard deviation over seeds ({'; '.join(seeds)})"
    return CAPTION.format(
        number=form.number,
        depths=", ".join(map(str, form.depths)),
        ours=ours,
        rest="" if form.published is TABLE1 else ", no multiply-adds",
    )


def write_exit_tables(exits: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Write exits_table1 and exits_table2: csv (ours, fractions), md and tex (%, published too).

    Returns:
        Captions by title.
    """
    captions = {}
    for form in FORMS:
        numbers = exit_numbers(exits, form)
        caption = exit_caption(numbers, form)
        write_table(numbers, exit_table(numbers, form), caption, folder, form.name)
        captions[f"Exits, Table {form.number}"] = caption
    return captions


def write(results: Results, params: Params) -> dict[str, str]:
    """Write the paper's tables from the result files. Returns captions by title."""
    return write_exit_tables(results.table("exits"), results.folder)
