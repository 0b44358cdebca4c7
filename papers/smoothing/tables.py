"""Losses against over-smoothing, in the form of the source's Tables 1, 3 and 4."""

from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from papers.smoothing.section import SCRATCH, Recipe, Smoothing, name_drop_path
from pipeline.config.params import Params
from pipeline.report.captions import counted, read_captions
from pipeline.report.results import Results
from pipeline.report.tables import ABSENT, NONE, NOT_RUN, cell_text, count_seeds, write_table

ACCURACY, COSINE = "accuracy", "patch_cosine"
KEYS = ["dataset", "model", "num_layers", "losses", "changed", "talking_heads", "metric"]
MARKS = {"cosine": "Cosine Reg", "contrastive": "Patch Contrastive", "mixing": "Patch Mixing"}
YES = "yes"

CAPTIONS = read_captions(__file__)
PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))
TABLE1: dict[str, float] = PUBLISHED["table1"]


def smoothing_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a model trained from scratch and metric: mean and standard deviation over the seeds.

    Args:
        rows: of smoothing.csv.

    Returns:
        Columns KEYS, mean, std (n - 1; absent for one seed), n; metrics: accuracy as a fraction,
        and the patch cosine similarity after the last layer.
    """
    last = rows[(rows["training"] == SCRATCH) & (rows["layer"] == rows["num_layers"])]
    # Of an empty file pandas knows no types.
    last = last.astype({"talking_heads": bool, ACCURACY: float, COSINE: float})
    values = last.melt(KEYS[:-1], [ACCURACY, COSINE], "metric", "value")
    numbers = values.groupby(KEYS, sort=False)["value"].agg(mean="mean", std="std", n="count")
    return numbers.reset_index().round(6)


def is_plain(numbers: pd.DataFrame) -> pd.Series:
    """True for models of which nothing but losses was changed."""
    return (numbers["changed"] == NONE) & ~numbers["talking_heads"].astype(bool)


def find_depths(numbers: pd.DataFrame) -> tuple[int, ...]:
    """The depths of plain models, ascending; the published ones if there are none."""
    depths = numbers.loc[is_plain(numbers), "num_layers"].unique()
    return tuple(sorted(depths)) or (12, 24)


def match_depths(numbers: pd.DataFrame) -> dict[int, int | None]:
    """Our depth for each published one: the smallest for 12, the largest other one for 24."""
    shallow, *deeper = find_depths(numbers)
    return {12: shallow, 24: deeper[-1] if deeper else None}


def cell(
    numbers: pd.DataFrame,
    depth: int | None,
    losses: str,
    changed: str = NONE,
    talking_heads: bool = False,
    metric: str = ACCURACY,
) -> str:
    """One of our figures: "mean ± std", accuracy in %, or that it was not run."""
    keys = [depth, losses, changed, talking_heads, metric]
    row = numbers[(numbers[KEYS[2:]] == keys).all(axis=1)]
    if row.empty:
        return NOT_RUN
    factor = 100 if metric == ACCURACY else 1
    return cell_text(factor * row["mean"].item(), factor * row["std"].item())


def mark_losses(losses: str) -> dict[str, str]:
    """The columns that say which losses are added."""
    names = losses.split("+")
    marks = {}
    for name, title in MARKS.items():
        marks[title] = YES if name in names else ABSENT
        if f"{name}_cosines" in names:
            marks[title] = "cosines"
    return marks


def percent_text(published: float | None) -> str:
    """A published accuracy, or that there is none."""
    return ABSENT if published is None else f"{published:.1f}"


def losses_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the source's form: a row a sum of losses, the source's first; accuracy in %."""
    depths = find_depths(numbers)
    rows = []
    for losses in dict.fromkeys([*TABLE1, *numbers.loc[is_plain(numbers), "losses"]]):
        row = mark_losses(losses)
        row["published, 12 layers"] = percent_text(TABLE1.get(losses))
        for title, metric in {"here": ACCURACY, "patch cosine": COSINE}.items():
            for depth in depths:
                row[f"{title}, {depth} layers"] = cell(numbers, depth, losses, metric=metric)
        rows.append(row)
    return pd.DataFrame(rows)


def ablation_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Table 3 in the source's form."""
    depths = match_depths(numbers)
    rows = []
    models = set()
    for published in PUBLISHED["table3"]:
        depth = depths[published["depth"]]
        layers = str(published["depth"])
        if depth not in (None, published["depth"]):
            layers += f" (here: {depth})"
        model = (depth, published["losses"], NONE, published["talking_heads"])
        rows.append(
            {
                "S": str(published["size"]),
                "D": layers,
                **mark_losses(published["losses"]),
                "Talking-Head": YES if published["talking_heads"] else ABSENT,
                "Epoch": str(published["epochs"]),
                "published": percent_text(published["top1"]),
                # All are trained equally long: of rows that differ in epochs the first is ours.
                "here": NOT_RUN if model in models else cell(numbers, *model),
            }
        )
        models.add(model)
    return pd.DataFrame(rows).drop(columns=MARKS["cosine"])  # the source's does not have it


def recipe_table(numbers: pd.DataFrame, best: str) -> pd.DataFrame:
    """Table 4 in the source's form, in %.

    Args:
        numbers: of :func:`smoothing_numbers`.
        best: the losses of the column "Ours".
    """
    depths = match_depths(numbers)
    rows = []
    for changed, published in PUBLISHED["table4"].items():
        title = published["title"]
        depth = depths[12]
        if changed == "deeper":  # which removes nothing
            depth = depths[24]
            changed = NONE
            if depth not in (None, 24):
                title = title.replace(")", f", here: {depth})")
        rows.append(
            {
                "Model": title,
                "published DEIT": percent_text(published.get("plain")),
                "published Ours": percent_text(published.get("ours")),
                "here DEIT": cell(numbers, depth, NONE, changed),
                "here Ours": cell(numbers, depth, best, changed),
            }
        )
    return pd.DataFrame(rows)


def drop_path_table(numbers: pd.DataFrame, whole: float) -> pd.DataFrame:
    """Table 5 in the source's form, in %; `whole` is the drop path of the whole recipe."""
    depth = match_depths(numbers)[24]
    rows = []
    for published in PUBLISHED["table5"]:
        rate, losses = published["drop_path"], published["losses"]
        rows.append(
            {
                **mark_losses(losses),
                "Drop Path Rate": f"{rate:.2f}",
                "published": percent_text(published["top1"]),
                "here": cell(numbers, depth, losses, name_drop_path(rate, whole), True),
            }
        )
    return pd.DataFrame(rows).drop(columns=MARKS["cosine"])


def trained_how(about: dict[str, Any]) -> str:
    """How models were trained from scratch: "patch_size 7, 1 epoch of 3600 images"."""
    images = f"{about['training_images'] or 'all training'} images"
    parts = [f"{key} {value}" for key, value in about["kwargs"].items()]
    parts.append(f"{counted(about['epochs'], 'epoch')} of {images}")
    for key, value in about["recipe"].items():
        if value != getattr(Recipe(), key):
            parts.append(f"{key} {value:g}")
    return ", ".join(parts)


def describe(numbers: pd.DataFrame, about: dict[str, Any]) -> str:
    """What a caption says of both sides' figures."""
    here = f"Here: {NOT_RUN}."
    if len(numbers):
        here = CAPTIONS["here"].format(
            data=", ".join(numbers["dataset"].unique()),
            models=", ".join(numbers["model"].unique()),
            layers=" and ".join(map(str, sorted(numbers["num_layers"].unique()))),
            how=trained_how(about),
            seeds=count_seeds(numbers),
        )
    return CAPTIONS["about"].format(here=here)


def write(results: Results, params: Params) -> dict[str, str]:
    """Write smoothing_table1, 3, 4 and 5: csv (ours, fractions), md and tex (%, published too).

    Returns:
        Captions by title.
    """
    numbers = smoothing_numbers(results.table("smoothing"))
    about = results.read("smoothing")
    best = str(params.resolve(Smoothing).best)
    accuracies = numbers[numbers["metric"] == ACCURACY]
    talking_heads = accuracies["talking_heads"]
    of_table3 = accuracies["losses"].isin([row["losses"] for row in PUBLISHED["table3"]])
    of_table4 = accuracies["losses"].isin([NONE, best])
    whole = about["recipe"]["drop_path"]
    tables = {
        1: (numbers[is_plain(numbers)], losses_table(numbers)),
        3: (accuracies[of_table3 & (accuracies["changed"] == NONE)], ablation_table(numbers)),
        4: (accuracies[of_table4 & ~talking_heads], recipe_table(numbers, best)),
        5: (accuracies[talking_heads], drop_path_table(numbers, whole)),
    }
    captions = {}
    for number, (shown, table) in tables.items():
        caption = CAPTIONS[f"table{number}"].format(
            images=about["images"],
            best=best.replace("+", " + "),
            about=describe(shown, about),
        )
        write_table(shown, table, caption, results.folder, f"smoothing_table{number}")
        captions[f"Over-smoothing, Table {number}"] = caption
    return captions
