"""What the report shows of LayerShuffle."""

import pandas as pd

from pipeline.report.charts import (
    ORDERS,
    PALETTE,
    SPREAD,
    Chart,
    Charts,
    Grid,
    Picture,
    lines,
    spread,
)
from pipeline.report.evaluations import CONTROLS, label
from pipeline.report.results import Results

DRAWN_FROM = {  # beginnings of the names of tables and figures -> the result files they are made from
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
    kept = (
        results.table("figure1").rename(columns={"std": "spread"}).fillna({"spread": 0.0})
    )  # one seed has none
    kept = kept.assign(
        mean=100 * kept["mean"],
        low=100 * (kept["mean"] - kept["spread"]),
        high=100 * (kept["mean"] + kept["spread"]),
    )
    kept = kept[~kept["variant"].isin(CONTROLS)].assign(variant=kept["variant"].map(label))
    kept = pd.concat(
        [kept[kept["variant"] != "LS"], kept[kept["variant"] == "LS"]]
    )  # the paper's method in front
    names = dict.fromkeys(["baseline", "LS", *kept["variant"]])
    colours = {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(names)}
    columns = ["variant", "keep", "mean", "low", "high"]
    shown = [
        Chart(
            f"Accuracy with some of the layers, {words}",
            SPREAD,
            "figure1.csv",
            lines(
                kept[kept["order"] == order][columns],
                "keep",
                "variant",
                "layers kept",
                "accuracy (%)",
                (0, 100),
                colours,
            ),
        )
        for order, words in ORDERS.items()
    ]
    samplers = results.table("samplers")
    fixed = samplers[samplers["sampler"].str.startswith("fix_first")] if len(samplers) else samplers
    if len(fixed):
        fixed = fixed.assign(
            layers=fixed["sampler"].str.split().str[1].astype(int),
            variant=fixed["variant"].map(label),
        )
        shown.append(
            Chart(
                "The control: first layers in place, the others shuffled",
                SPREAD,
                "samplers.csv",
                lines(
                    spread(fixed, ["variant", "layers"], "accuracy"),
                    "layers",
                    "variant",
                    "layers in place",
                    "accuracy (%)",
                    (0, 100),
                    colours,
                ),
            )
        )
    tables = [Grid("Table 1: top-1 accuracy (%)", "table1.csv", "variant", "order")]
    pictures = [
        Picture("The approaches (figures 1a, 2 and 3)", "approaches", "Approaches"),
        Picture("Figure 4a", "figure_4a", "Figure 4a"),
        Picture("Figure 4b", "figure_4b", "Figure 4b"),
    ]
    headline = tables[0]._replace(
        title="LayerShuffle: top-1 accuracy (%)", only=("baseline", "ls", "ls_batch")
    )
    return Charts(tables, shown, pictures, [headline], shown[1:2])
