"""Losses against over-smoothing, in the form of the source's Tables 1, 3 and 4, with the published figures beside ours."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from papers.smoothing.section import SCRATCH, Smoothing
from pipeline.config.params import Params
from pipeline.report.results import Results
from pipeline.report.tables import ABSENT, NONE, NOT_RUN, cell_text, count_seeds, write_table

ACCURACY, COSINE = "accuracy", "patch_cosine"
KEYS = ["dataset", "model", "num_layers", "losses", "removed", "talking_heads", "metric"]
MARKS = {"cosine": "Cosine Reg", "contrastive": "Patch Contrastive", "mixing": "Patch Mixing"}
YES = "yes"

# Over-smoothing, Table 1: top-1 accuracy in %, DeiT-Base (12 layers), ImageNet
TABLE1 = {
    "none": 81.8,
    "cosine": 82.0,
    "mixing": 82.4,
    "contrastive": 82.3,
    "cosine+mixing": 82.3,
    "cosine+contrastive": 82.3,
    "contrastive+mixing": 82.6,
}


class Ablation(NamedTuple):
    """A row of Table 3: image size, layers, losses, talking heads, epochs, top-1 accuracy in %."""

    size: int
    depth: int
    losses: str
    talking_heads: bool
    epochs: int
    top1: float


# Table 3, the rows trained from scratch at 224 px; those at 384 and 512 px are refinements of these
TABLE3 = (
    Ablation(224, 12, "none", False, 300, 81.8),
    Ablation(224, 12, "mixing", False, 300, 82.4),
    Ablation(224, 12, "contrastive", False, 300, 82.3),
    Ablation(224, 12, "contrastive+mixing", False, 300, 82.6),
    Ablation(224, 12, "contrastive+mixing", True, 300, 82.7),
    Ablation(224, 12, "contrastive+mixing", True, 400, 82.9),
    Ablation(224, 24, "contrastive+mixing", True, 400, 83.3),
)
DEEPER = "deeper"  # Table 4's last row, which removes nothing
PUBLISHED_DEPTHS = (12, 24)
# Table 4: DEIT, Ours. As printed: Tables 1 and 3 have 81.8 for the first DEIT, Table 2 has 81.4 for the last
TABLE4 = {
    "none": ("Standard", 81.7, 82.9),
    "repeats": ("- Repeat Augmentation", 76.5, 82.9),
    "erasing": ("- Random Erasing", 5.6, 82.9),
    "mixup": ("- Mixup", 80.0, 82.9),
    "drop_path": ("- Drop Path", 3.4, 80.4),
    DEEPER: ("+ Depth (24 Layer)", 77.3, 83.3),
}


def smoothing_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """Our figures of models trained from scratch: a row a model and metric, mean and standard deviation over the seeds.

    Args:
        rows: of smoothing.csv.

    Returns:
        Columns KEYS, mean, std (n - 1; absent for one seed), n; metrics: accuracy as a fraction, and the patch cosine similarity
        after the last layer.
    """
    last = rows[(rows["training"] == SCRATCH) & (rows["layer"] == rows["num_layers"])]
    last = last.astype(
        {"talking_heads": bool, ACCURACY: float, COSINE: float}
    )  # of an empty file pandas knows no types
    values = last.melt(KEYS[:-1], [ACCURACY, COSINE], "metric", "value")
    return (
        values.groupby(KEYS, sort=False)["value"]
        .agg(mean="mean", std="std", n="count")
        .reset_index()
        .round({"mean": 6, "std": 6})
    )


def find_depths(numbers: pd.DataFrame) -> tuple[int, ...]:
    """The depths of the models that nothing but losses was changed of, ascending; the published ones if there are none."""
    plain = numbers[(numbers["removed"] == NONE) & ~numbers["talking_heads"]]
    return tuple(sorted(map(int, plain["num_layers"].unique()))) or PUBLISHED_DEPTHS


def match_depths(numbers: pd.DataFrame) -> dict[int, int | None]:
    """Which of our depths stands for a published one: the smallest for 12 layers, the largest other one, if any, for 24."""
    depths = find_depths(numbers)
    return dict(
        zip(PUBLISHED_DEPTHS, (depths[0], depths[-1] if len(depths) > 1 else None), strict=True)
    )


def cell(
    numbers: pd.DataFrame,
    depth: int | None,
    losses: str,
    removed: str = NONE,
    talking_heads: bool = False,
    metric: str = ACCURACY,
) -> str:
    """A cell of a table: accuracy in % or patch cosine, "mean ± std", or that it was not run. `numbers`: of one data set and model."""
    found = numbers[
        _is(
            numbers,
            num_layers=depth,
            losses=losses,
            removed=removed,
            talking_heads=talking_heads,
            metric=metric,
        )
    ]
    factor = 100 if metric == ACCURACY else 1
    return (
        cell_text(factor * found["mean"].iloc[0], factor * found["std"].iloc[0])
        if len(found)
        else NOT_RUN
    )


def _is(numbers: pd.DataFrame, **values: Any) -> np.ndarray:
    """Which rows have these values."""
    return np.logical_and.reduce([numbers[column] == value for column, value in values.items()])


def _marks(losses: str) -> dict[str, str]:
    """The columns that say which losses are added."""
    names = losses.split("+")
    return {
        title: YES if name in names else "dot products" if f"{name}_dot" in names else ABSENT
        for name, title in MARKS.items()
    }


def losses_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the source's form: a row a sum of losses, those of the source first; accuracy in %."""
    depths = find_depths(numbers)
    rows = []
    for losses in dict.fromkeys([*TABLE1, *numbers.loc[_plain(numbers), "losses"]]):
        source = losses.replace("_dot", "")  # two readings of one formula
        row = _marks(losses) | {
            "published, 12 layers": f"{TABLE1[source]:.1f}" if source in TABLE1 else ABSENT
        }
        row |= {f"here, {depth} layers": cell(numbers, depth, losses) for depth in depths}
        rows.append(
            row
            | {
                f"patch cosine, {depth} layers": cell(numbers, depth, losses, metric=COSINE)
                for depth in depths
            }
        )
    return pd.DataFrame(rows)


def _plain(numbers: pd.DataFrame) -> np.ndarray:
    """Which rows Table 1 is made of."""
    return _is(numbers, removed=NONE, talking_heads=False)


def ablation_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Table 3 in the source's form; our models with talking heads that it has no row for come last."""
    depths, rows, shown = match_depths(numbers), [], set()
    for row in TABLE3:
        own, key = depths[row.depth], (depths[row.depth], row.losses, row.talking_heads)
        again = (
            key in shown
        )  # ours are all trained equally long: of two rows that differ in epochs alone the first is ours
        shown.add(key)
        depth = f"{row.depth}" if own in (None, row.depth) else f"{row.depth} (here: {own})"
        rows.append(
            {
                "S": f"{row.size}",
                "D": depth,
                **_marks(row.losses),
                "Talking-Head": YES if row.talking_heads else ABSENT,
                "Epoch": f"{row.epochs}",
                "published": f"{row.top1:.1f}",
                "here": NOT_RUN
                if again
                else cell(numbers, own, row.losses, talking_heads=row.talking_heads),
            }
        )
    for found in numbers[
        _is(numbers, removed=NONE, talking_heads=True, metric=ACCURACY)
    ].itertuples():
        if (found.num_layers, found.losses, True) not in shown:
            rows.append(
                {
                    "S": ABSENT,
                    "D": f"{ABSENT} (here: {found.num_layers})",
                    **_marks(str(found.losses)),
                    "Talking-Head": YES,
                    "Epoch": ABSENT,
                    "published": ABSENT,
                    "here": cell_text(100 * found.mean, 100 * found.std),
                }
            )
    table = pd.DataFrame(rows)
    unused = (
        [MARKS["cosine"]] if (table[MARKS["cosine"]] == ABSENT).all() else []
    )  # which the source's Table 3 does not have
    return table.drop(columns=unused)


def recipe_table(numbers: pd.DataFrame, best: str) -> pd.DataFrame:
    """Table 4 in the source's form, in %.

    Args:
        numbers: of :func:`smoothing_numbers`.
        best: the losses of the column "Ours".
    """
    depths = match_depths(numbers)
    rows = []
    for removed, (title, plain, improved) in TABLE4.items():
        depth = depths[24 if removed == DEEPER else 12]
        if removed == DEEPER and depth not in (None, 24):
            title = title.replace(")", f", here: {depth})")
        row = {
            "Model": title,
            "published DEIT": f"{plain:.1f}",
            "published Ours": f"{improved:.1f}",
        }
        for column, losses in (("DEIT", NONE), ("Ours", best)):
            row[f"here {column}"] = cell(
                numbers, depth, losses, NONE if removed == DEEPER else removed
            )
        rows.append(row)
    return pd.DataFrame(rows)


def _used(numbers: pd.DataFrame, best: str) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Of our figures those that Tables 1, 3 and 4 show."""
    plain, depths = _plain(numbers), match_depths(numbers)
    accuracy = numbers["metric"] == ACCURACY
    of_table3 = {row.losses for row in TABLE3 if (row.depth, row.talking_heads) == (12, False)}
    third = plain & numbers["losses"].isin(of_table3) & (numbers["num_layers"] == depths[12])
    third |= _is(numbers, removed=NONE, talking_heads=True)
    fourth = (
        ~numbers["talking_heads"]
        & numbers["losses"].isin([NONE, best])
        & numbers["removed"].isin(TABLE4)
    )
    fourth &= (numbers["num_layers"] == depths[12]) | (
        plain & (numbers["num_layers"] == depths[24])
    )
    return numbers[plain], numbers[third & accuracy], numbers[fourth & accuracy]


def trained_how(about: dict[str, Any]) -> str:
    """What smoothing.json says of the models trained from scratch, in words: "patch_size 7, 1 epoch of 3600 images"."""
    images = (
        f"{about['training_images']} images" if about["training_images"] else "all training images"
    )
    epochs = f"{about['epochs']} epoch{'s' if about['epochs'] > 1 else ''} of {images}"
    recipe = [
        f"{key} {value:g}" for key, value in about["recipe"].items() if value != (key == "repeats")
    ]
    return ", ".join(
        [*(f"{key} {value}" for key, value in about["kwargs"].items()), epochs, *recipe]
    )


def _about(numbers: pd.DataFrame, about: dict[str, Any]) -> str:
    """What a caption says of both sides' figures."""
    if numbers.empty:
        here = f"Here: {NOT_RUN}."
    else:
        data, models = (
            ", ".join(dict.fromkeys(numbers[column])) for column in ("dataset", "model")
        )
        layers = " and ".join(map(str, sorted(numbers["num_layers"].unique())))
        here = (
            f"Here: data {data}, model {models} with {layers} layers, trained from scratch ({trained_how(about)}); mean ± standard "
            f"deviation over seeds "
            f"({count_seeds(numbers)}). Another scale: compare what a change does, not the levels."
        )
    return f"{here} Published: DeiT-Base, ImageNet; one figure each, no spread."


def write_smoothing_tables(
    rows: pd.DataFrame, folder: Path, best: str, about: dict[str, Any]
) -> dict[str, str]:
    """Write smoothing_table1, 3 and 4: csv (ours, fractions), md and tex (per cent, the published figures too).

    Args:
        rows: of smoothing.csv, of one data set and model.
        folder: to write to.
        best: the losses that count as the source's "Ours", such as "contrastive+mixing".
        about: smoothing.json.

    Returns:
        Captions by title.
    """
    numbers = smoothing_numbers(rows)
    first, third, fourth = _used(numbers, best)
    metric = "Top-1 validation accuracy in %"
    captions = {
        1: f"Over-smoothing, Table 1: losses added to the class loss. {metric}; patch cosine: cosine similarity of an image's patches "
        f"after the last layer, mean over pairs of patches and over {about['images']} training images. Contrastive: of cosines "
        f"(yes) or dot products. {_about(first, about)}",
        3: f"Over-smoothing, Table 3, the rows at 224 px (S: image size, D: layers). {metric}. {_about(third, about)} S and Epoch are the "
        f"source's; models here are all trained equally long, so that its row of longer training at 12 layers is {NOT_RUN}.",
        4: f"Over-smoothing, Table 4: DeiT's training recipe (here repeated augmentation, random erasing, mixup and drop path "
        f"alone), less one part at a time. {metric}. DEIT: without the losses; Ours: here with "
        f"{best.replace('+', ' + ')}, without talking heads. {_about(fourth, about)} Its Ours, 82.9 and 83.3, is what its Table 3 has with "
        f"talking heads and 400 epochs. As printed: DEIT's 81.7 is 81.8 in its Table 1, its 77.3 is 81.4 in its Table 2.",
    }
    tables = {
        1: (first, losses_table(numbers)),
        3: (third, ablation_table(numbers)),
        4: (fourth, recipe_table(numbers, best)),
    }
    for number, (ours, paper) in tables.items():
        write_table(ours, paper, captions[number], folder, f"smoothing_table{number}")
    return {f"Over-smoothing, Table {number}": caption for number, caption in captions.items()}


def write(results: Results, params: Params) -> dict[str, str]:
    """Write the paper's tables from the result files. Returns captions by title."""
    best = str(params.resolve(Smoothing).best)
    return write_smoothing_tables(
        results.table("smoothing"), results.folder, best, results.read("smoothing")
    )
