"""Losses against over-smoothing, in the form of the source's Tables 1, 3 and 4."""

from pathlib import Path
from typing import Any, NamedTuple

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
# Table 4: DEIT, Ours, as printed. Tables 1 and 3 have 81.8 for the first DEIT, Table 2 has 81.4
# for the last.
TABLE4 = {
    "none": ("Standard", 81.7, 82.9),
    "repeats": ("- Repeat Augmentation", 76.5, 82.9),
    "erasing": ("- Random Erasing", 5.6, 82.9),
    "mixup": ("- Mixup", 80.0, 82.9),
    "drop_path": ("- Drop Path", 3.4, 80.4),
    DEEPER: ("+ Depth (24 Layer)", 77.3, 83.3),
}
HERE = (
    "Here: data {data}, model {models} with {layers} layers, trained from scratch ({how}); mean ± "
    "standard deviation over seeds ({seeds}). Another scale: compare what a change does, not the "
    "levels."
)
CAPTIONS = {
    1: "Over-smoothing, Table 1: losses added to the class loss. Top-1 validation accuracy in %; "
    "patch cosine: cosine similarity of an image's patches after the last layer, mean over pairs "
    "of patches and over {images} training images. Contrastive: of cosines (yes) or dot products. "
    "{about}",
    3: "Over-smoothing, Table 3, the rows at 224 px (S: image size, D: layers). Top-1 validation "
    f"accuracy in %. {{about}} S and Epoch are the source's; models here are all trained equally "
    f"long, so that its row of longer training at 12 layers is {NOT_RUN}.",
    4: "Over-smoothing, Table 4: DeiT's training recipe (here repeated augmentation, random "
    "erasing, mixup and drop path alone), less one part at a time. Top-1 validation accuracy in "
    "%. DEIT: without the losses; Ours: here with {best}, without talking heads. {about} Its Ours, "
    "82.9 and 83.3, is what its Table 3 has with talking heads and 400 epochs. As printed: DEIT's "
    "81.7 is 81.8 in its Table 1, its 77.3 is 81.4 in its Table 2.",
}


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
    return numbers.reset_index().round({"mean": 6, "std": 6})


def is_plain(numbers: pd.DataFrame) -> pd.Series:
    """True for models of which nothing but losses was changed."""
    return (numbers["removed"] == NONE) & ~numbers["talking_heads"]


def find_depths(numbers: pd.DataFrame) -> tuple[int, ...]:
    """The depths of plain models, ascending; the published ones if there are none."""
    depths = numbers.loc[is_plain(numbers), "num_layers"].unique()
    return tuple(sorted(map(int, depths))) or PUBLISHED_DEPTHS


def match_depths(numbers: pd.DataFrame) -> dict[int, int | None]:
    """Our depth for each published one: the smallest for 12, the largest other one for 24."""
    shallow, *deeper = find_depths(numbers)
    return {12: shallow, 24: deeper[-1] if deeper else None}


class Cells:
    """The texts of our figures: "mean ± std", accuracy in %, or that they were not run."""

    def __init__(self, numbers: pd.DataFrame) -> None:
        self.texts = {}
        for row in numbers.itertuples():
            factor = 100 if row.metric == ACCURACY else 1
            key = (row.num_layers, row.losses, row.removed, row.talking_heads, row.metric)
            self.texts[key] = cell_text(factor * row.mean, factor * row.std)

    def get(
        self,
        depth: int | None,
        losses: str,
        removed: str = NONE,
        talking_heads: bool = False,
        metric: str = ACCURACY,
    ) -> str:
        """The text of one model."""
        return self.texts.get((depth, losses, removed, talking_heads, metric), NOT_RUN)


def mark_losses(losses: str) -> dict[str, str]:
    """The columns that say which losses are added."""
    names = losses.split("+")
    marks = {}
    for name, title in MARKS.items():
        marks[title] = YES if name in names else ABSENT
        if f"{name}_dot" in names:
            marks[title] = "dot products"
    return marks


def losses_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Table 1 in the source's form: a row a sum of losses, the source's first; accuracy in %."""
    depths = find_depths(numbers)
    cells = Cells(numbers)
    rows = []
    for losses in dict.fromkeys([*TABLE1, *numbers.loc[is_plain(numbers), "losses"]]):
        row = mark_losses(losses)
        source = losses.replace("_dot", "")  # two readings of one formula
        published = f"{TABLE1[source]:.1f}" if source in TABLE1 else ABSENT
        row["published, 12 layers"] = published
        for depth in depths:
            row[f"here, {depth} layers"] = cells.get(depth, losses)
        for depth in depths:
            row[f"patch cosine, {depth} layers"] = cells.get(depth, losses, metric=COSINE)
        rows.append(row)
    return pd.DataFrame(rows)


def ablation_table(numbers: pd.DataFrame) -> pd.DataFrame:
    """Table 3 in the source's form; other models of ours with talking heads come last."""
    depths = match_depths(numbers)
    cells = Cells(numbers)
    rows = []
    shown = set()
    for row in TABLE3:
        depth = depths[row.depth]
        here = cells.get(depth, row.losses, talking_heads=row.talking_heads)
        # Ours are all trained equally long: the first of two rows that differ in epochs is ours.
        if (depth, row.losses, row.talking_heads) in shown:
            here = NOT_RUN
        shown.add((depth, row.losses, row.talking_heads))
        rows.append(
            {
                "S": f"{row.size}",
                "D": f"{row.depth}"
                if depth in (None, row.depth)
                else f"{row.depth} (here: {depth})",
                **mark_losses(row.losses),
                "Talking-Head": YES if row.talking_heads else ABSENT,
                "Epoch": f"{row.epochs}",
                "published": f"{row.top1:.1f}",
                "here": here,
            }
        )
    ours = numbers[numbers["talking_heads"] & (numbers["removed"] == NONE)]
    for depth, losses in ours[["num_layers", "losses"]].drop_duplicates().to_numpy().tolist():
        if (depth, losses, True) not in shown:
            own = dict.fromkeys(rows[0], ABSENT) | mark_losses(losses)
            own["D"] = f"{ABSENT} (here: {depth})"
            own["Talking-Head"] = YES
            own["here"] = cells.get(depth, losses, talking_heads=True)
            rows.append(own)
    table = pd.DataFrame(rows)
    cosine = MARKS["cosine"]  # the source's Table 3 does not have it
    return table.drop(columns=cosine) if (table[cosine] == ABSENT).all() else table


def recipe_table(numbers: pd.DataFrame, best: str) -> pd.DataFrame:
    """Table 4 in the source's form, in %.

    Args:
        numbers: of :func:`smoothing_numbers`.
        best: the losses of the column "Ours".
    """
    depths = match_depths(numbers)
    cells = Cells(numbers)
    rows = []
    for removed, (title, plain, improved) in TABLE4.items():
        depth = depths[12]
        part = removed
        if removed == DEEPER:
            depth = depths[24]
            part = NONE
            if depth not in (None, 24):
                title = title.replace(")", f", here: {depth})")
        rows.append(
            {
                "Model": title,
                "published DEIT": f"{plain:.1f}",
                "published Ours": f"{improved:.1f}",
                "here DEIT": cells.get(depth, NONE, part),
                "here Ours": cells.get(depth, best, part),
            }
        )
    return pd.DataFrame(rows)


def select_numbers(numbers: pd.DataFrame, best: str) -> dict[int, pd.DataFrame]:
    """The numbers that Tables 1, 3 and 4 show."""
    depths = match_depths(numbers)
    plain = is_plain(numbers)
    is_accuracy = numbers["metric"] == ACCURACY
    is_shallow = numbers["num_layers"] == depths[12]
    losses = [row.losses for row in TABLE3 if row.depth == 12 and not row.talking_heads]
    third = plain & numbers["losses"].isin(losses) & is_shallow
    third |= numbers["talking_heads"] & (numbers["removed"] == NONE)
    fourth = ~numbers["talking_heads"] & numbers["losses"].isin([NONE, best])
    fourth &= numbers["removed"].isin(TABLE4)
    fourth &= is_shallow | (plain & (numbers["num_layers"] == depths[24]))
    return {1: numbers[plain], 3: numbers[third & is_accuracy], 4: numbers[fourth & is_accuracy]}


def trained_how(about: dict[str, Any]) -> str:
    """How models were trained from scratch: "patch_size 7, 1 epoch of 3600 images"."""
    images = "all training images"
    if about["training_images"]:
        images = f"{about['training_images']} images"
    epochs = "1 epoch" if about["epochs"] == 1 else f"{about['epochs']} epochs"
    parts = [f"{key} {value}" for key, value in about["kwargs"].items()]
    parts.append(f"{epochs} of {images}")
    for key, value in about["recipe"].items():
        unused = 1 if key == "repeats" else 0
        if value != unused:
            parts.append(f"{key} {value:g}")
    return ", ".join(parts)


def describe(numbers: pd.DataFrame, about: dict[str, Any]) -> str:
    """What a caption says of both sides' figures."""
    here = f"Here: {NOT_RUN}."
    if len(numbers):
        here = HERE.format(
            data=", ".join(dict.fromkeys(numbers["dataset"])),
            models=", ".join(dict.fromkeys(numbers["model"])),
            layers=" and ".join(map(str, sorted(numbers["num_layers"].unique()))),
            how=trained_how(about),
            seeds=count_seeds(numbers),
        )
    return f"{here} Published: DeiT-Base, ImageNet; one figure each, no spread."


def write_smoothing_tables(
    rows: pd.DataFrame, folder: Path, best: str, about: dict[str, Any]
) -> dict[str, str]:
    """Write smoothing_table1, 3 and 4: csv (ours, fractions), md and tex (%, published too).

    Args:
        rows: of smoothing.csv, of one data set and model.
        folder: to write to.
        best: the losses that count as the source's "Ours", such as "contrastive+mixing".
        about: smoothing.json.

    Returns:
        Captions by title.
    """
    numbers = smoothing_numbers(rows)
    tables = {1: losses_table(numbers), 3: ablation_table(numbers), 4: recipe_table(numbers, best)}
    captions = {}
    for number, shown in select_numbers(numbers, best).items():
        caption = CAPTIONS[number].format(
            images=about["images"],
            best=best.replace("+", " + "),
            about=describe(shown, about),
        )
        write_table(shown, tables[number], caption, folder, f"smoothing_table{number}")
        captions[f"Over-smoothing, Table {number}"] = caption
    return captions


def write(results: Results, params: Params) -> dict[str, str]:
    """Write the paper's tables from the result files. Returns captions by title."""
    best = str(params.resolve(Smoothing).best)
    rows = results.table("smoothing")
    return write_smoothing_tables(rows, results.folder, best, results.read("smoothing"))
