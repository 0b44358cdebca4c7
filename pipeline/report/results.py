"""The result files of one cell, read by every paper's tables, figures and claims."""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.paper import Paper, Reader, find_label
from pipeline.errors import UserError
from pipeline.files import read_json, sound
from pipeline.jobs.rows import read_rows


@dataclass(eq=False)
class Results:
    """The files of a folder of results, each read once.

    `papers` are those whose tables, figures and claims may read them.
    """

    folder: Path
    papers: tuple[Paper, ...] = ()
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    files: dict[str, None] = field(default_factory=dict)  # names that were asked for, in this order

    def table(self, name: str) -> pd.DataFrame:
        """The rows of `<name>.csv`. There are none where what fills it did not run."""
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

    def papers_here(self) -> list[Paper]:
        """The papers that have rows here: a cell need not have all.

        Rows of another data set or model, left over from another cell, do not count.
        """
        return [paper for paper in self.papers if self._has_rows(paper)]

    def _has_rows(self, paper: Paper) -> bool:
        if not (self.folder / f"{paper.rows}.csv").is_file():
            return False
        rows = self.table(paper.rows)
        if rows.empty:
            return True
        own_data = rows["dataset"] == self.cell["dataset"]
        own_model = rows["model"] == self.cell["model"]
        return bool((own_data & own_model).any())

    def has_run(self, paper: Paper) -> bool:
        """False if `papers` in params.yaml left the paper out: its table has no columns."""
        return len(self.table(paper.rows).columns) > 0

    def readers(self, reader: Reader) -> list[ModuleType]:
        """The modules "tables", "figures" or "charts" of the papers that were run here."""
        run = [paper for paper in self.papers_here() if self.has_run(paper)]
        modules = [paper.import_reader(reader) for paper in run]
        return [module for module in modules if module]

    def label(self, variant: str) -> str:
        """A variant's name in the papers' words."""
        labels: dict[str, str] = {}
        for paper in self.papers:
            labels |= paper.labels
        return find_label(variant, labels)

    @property
    def chance(self) -> float:
        """Accuracy in % of guessing."""
        return 100 / self.cell["classes"]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file.

    Raises:
        UserError: it is missing or damaged, or holds pickled objects.
    """
    try:
        if sound(path):
            with np.load(path) as arrays:
                return dict(arrays)
    except ValueError:  # numpy's word for pickled objects
        pass
    raise UserError(
        f"{path}: missing or damaged, accepted: an .npz file of numbers; "
        "`dvc checkout` or `dvc repro` brings it back"
    )
