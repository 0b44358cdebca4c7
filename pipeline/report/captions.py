"""Captions: a paper keeps the texts in captions.yaml, its code fills in the numbers."""

from pathlib import Path
from typing import Any

import pandas as pd
import yaml


def read_captions(module: str) -> dict[str, Any]:
    """Read the templates of `captions.yaml` beside a module's file, by figure or table.

    A template has fields for :meth:`str.format`, such as "Mean over {seeds}".
    """
    return yaml.safe_load(Path(module).with_name("captions.yaml").read_text("utf-8"))


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 seed", "5 seeds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def name_models(rows: pd.DataFrame) -> str:
    """Data set and model, for captions."""
    datasets = ", ".join(dict.fromkeys(rows["dataset"]))
    return f"{datasets} (model {', '.join(dict.fromkeys(rows['model']))})"


def describe_rows(rows: pd.DataFrame) -> dict[str, Any]:
    """What captions say of the rows that a figure shows."""
    return {
        "seeds": counted(rows["seed"].nunique(), "seed"),
        "images": rows["images"].max(),
        "names": name_models(rows),
    }
