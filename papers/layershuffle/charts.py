"""What the report shows of LayerShuffle."""

import pandas as pd

from papers.layershuffle.labels import CONTROLS, label
from papers.layershuffle.section import ALL, MISLED
from pipeline.report.charts import (
    ORDERS,
    SPREAD,
    Chart,
    Charts,
    Grid,
    Picture,
    colours_of,
    lines,
    spread,
)
from pipeline.report.results import Results

# Beginnings of the names of tables and figures -> the result files that they are made from
DRAWN_FROM: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("table1", "figure1", "figure_1", "statistics", "differences", "pruning"),
        ("prune_eval.csv",),
    ),
    **dict.fromkeys(("distance", "first_layers"), ("samplers.csv",)),
    "protocols": ("protocols.csv",),
    "figure_4": ("analysis.json",),
    "training_curves": ("finetune/baseline.csv", "finetune/ls.csv"),
    **dict.fromkeys(("approaches", "routes", "order_forms"), ()),  # of definitions
}


def charts(results: Results) -> Charts:
    """Table 1, accuracy by layers kept, the control of the first layers."""
    kept = _kept(results.table("figure1"))
    samplers = results.table("samplers")
    names = ["baseline", "LS", *kept["variant"]]
    if len(samplers):
        samplers = with_first_layers(samplers)
        samplers["variant"] = samplers["variant"].map(label)
        names += samplers["variant"].tolist()
    colours = colours_of(dict.fromkeys(names))
    shown = []
    for order, words in ORDERS.items():
        rows = kept[kept["order"] == order].drop(columns="order")
        spec = lines(rows, "keep", "variant", "layers kept", "accuracy (%)", (0, 100), colours)
        title = f"Accuracy with some of the layers, {words}"
        shown.append(Chart(title, SPREAD, "figure1.csv", spec))
    if len(samplers):
        rows = spread(samplers, ["variant", "layers"], "accuracy")
        spec = lines(
            rows, "layers", "variant", "layers in place", "accuracy (%)", (0, 100), colours
        )
        title = "The control: first layers in place, the others shuffled"
        shown.append(Chart(title, SPREAD, "samplers.csv", spec))
    table = Grid("Table 1: top-1 accuracy (%)", "table1.csv", "variant", "order")
    headline = table._replace(
        title="LayerShuffle: top-1 accuracy (%)", only=("baseline", "ls", "ls_latin")
    )
    pictures = [
        Picture("The approaches (figures 1a, 2 and 3)", "approaches", "Approaches"),
        Picture("Figure 4a", "figure_4a", "Figure 4a"),
        Picture("Figure 4b", "figure_4b", "Figure 4b"),
    ]
    return Charts([table], shown, pictures, [headline], shown[1:2])


def with_first_layers(samplers: pd.DataFrame) -> pd.DataFrame:
    """The rows of first layers in place and the others shuffled; `layers`: how many in place."""
    rows = samplers[samplers["sampler"].str.startswith("fix_first ")]
    return rows.assign(layers=rows["sampler"].str.split().str[1].astype(int))


def _kept(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy in % by layers kept at random, without controls, the paper's method in front."""
    rows = rows[~rows["variant"].isin(CONTROLS) & (rows["keep"] > 0)]
    rows = rows[~rows["variant"].str.endswith(MISLED) & rows["choose"].isin(["random", ALL])]
    std = rows["std"].fillna(0.0)  # one seed has none
    rows = rows.assign(
        variant=rows["variant"].map(label),
        low=100 * (rows["mean"] - std),
        high=100 * (rows["mean"] + std),
        mean=100 * rows["mean"],
    )
    is_ls = rows["variant"] == "LS"
    rows = pd.concat([rows[~is_ls], rows[is_ls]])
    return rows[["variant", "keep", "mean", "low", "high", "order"]]
