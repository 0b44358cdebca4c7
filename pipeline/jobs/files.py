"""Names of the files that jobs and stages leave, and where they lie. No torch here."""

import csv
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.variant import BASELINE
from pipeline.errors import UserError

DATA = Path("outs/prepare_data")
PRETRAINED = Path("outs/pretrain")
FINETUNED = Path("outs/finetune")
RESULTS = Path("results")
Row = dict[str, float]  # one epoch's metrics, names {suite}/{metric}
WEIGHTS = "weights.safetensors"
HISTORY = "history.json"
FINAL = "final.json"
CONFIG = "config.json"
ROWS = "rows.csv"  # of an evaluation: a row a thing measured
ARRAYS = "arrays.npz"  # of an evaluation: what is too large for rows
TABLE = "history.csv"  # every epoch of all seeds
ORIGIN = "weights.json"  # what a file of starting weights was made from
EXECUTION = "execution.txt"  # the processor, and what `auto` picked on it
HELDOUT = "heldout"  # training images set aside, which choose the epoch of protocol heldout
JUDGES = {"paper": "validation", HELDOUT: HELDOUT}  # protocol -> split that chooses the epoch


def weights_file(judge: str) -> str:
    """File name of the weights of the epoch that a split, "validation" or "heldout", chose."""
    return WEIGHTS if judge == "validation" else f"weights_{judge}.safetensors"


def starting_weights(seed: int, folder: Path = PRETRAINED) -> Path:
    """The weights of a seed that stage pretrain left, of the epoch that held-out images chose.

    Raises:
        UserError: there are none.
    """
    for judge in ("heldout", "validation"):
        if (found := folder / f"seed_{seed}" / weights_file(judge)).is_file():
            return found
    raise UserError(f"{folder}: no weights of seed {seed}; `dvc repro pretrain` makes them")


def sha256(path: str | Path) -> str:
    """The sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file in which what is missing or no number is empty: `nan` can be a name."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(
            ["" if value is None or value != value else value for value in row] for row in rows
        )


def read_meta(folder: Path) -> dict[str, Any]:
    """The metadata that stage prepare-data wrote. Raises UserError: there are no images."""
    try:
        return json.loads((folder / "meta.json").read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: no images; `dvc repro prepare-data` makes them") from None


def finetuned(variant: str, seed: int, judge: str = "validation", folder: Path = FINETUNED) -> Path:
    """The weights of a refined variant, of the epoch that a split chose."""
    # Outputs of stages do not contain each other.
    place = folder.with_name(BASELINE) if variant == BASELINE else folder / variant
    return place / f"seed_{seed}" / weights_file(judge)
