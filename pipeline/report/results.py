"""The result files of one cell, read by every paper's tables, figures and claims."""

import os
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.paper import Paper, Reader
from pipeline.errors import UserError
from pipeline.files import read_json, sound
from pipeline.jobs.rows import read_rows


class Results:
    """The files of a folder of results, each read once.

    `papers` are those whose tables, figures and claims may read them.
    """

    def __init__(self, folder: Path, papers: tuple[Paper, ...] = ()) -> None:
        self.folder = folder
        self.papers = papers
        self.tables: dict[str, pd.DataFrame] = {}
        self.files: dict[str, None] = {}  # names of the files that were asked for, in this order

    def table(self, name: str) -> pd.DataFrame:
        """The rows of `<name>.csv`; none where its stage did not run, or not the part that fills it."""
        self.files[f"{name}.csv"] = None
        if name not in self.tables:
            file = self.folder / f"{name}.csv"
            self.tables[name] = read_rows(file) if os.path.lexists(file) else pd.DataFrame()
        return self.tables[name]

    def read(self, name: str) -> dict[str, Any]:
        """The content of `<name>.json`. Raises UserError if it cannot be read."""
        self.files[f"{name}.json"] = None
        return read_json(self.folder / f"{name}.json")

    @cached_property
    def cell(self) -> dict[str, Any]:
        """Which cell this is: data set, model, protocol, seeds, classes, images."""
        return self.read("cell")

    def readers(self, reader: Reader) -> list[ModuleType]:
        """The modules "tables", "figures", "claims" or "charts" of the papers that have rows here: a cell need not have all.

        Rows of another data set or model, left over from another cell, do not count.
        """
        found = []
        for paper in self.papers:
            module = paper.import_reader(reader)
            if module is None:
                continue
            rows = self.table(paper.rows)
            own = (
                rows.empty
                or (
                    (rows["dataset"] == self.cell["dataset"])
                    & (rows["model"] == self.cell["model"])
                ).any()
            )
            if own and (self.folder / f"{paper.rows}.csv").is_file():
                found.append(module)
        return found

    @property
    def chance(self) -> float:
        """Accuracy in % of guessing."""
        return 100 / self.cell["classes"]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. Raises UserError: it is missing or damaged, or holds pickled objects."""
    try:
        if sound(path):
            with np.load(path) as arrays:
                return dict(arrays)
    except ValueError:  # numpy's word for pickled objects
        pass
    raise UserError(
        f"{path}: missing or damaged, accepted: an .npz file of numbers; `dvc checkout` or `dvc repro` brings it back"
    )
