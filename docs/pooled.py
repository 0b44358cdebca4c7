"""The seeds of several runs of a cell, judged together."""

from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.paper import Paper
from pipeline.errors import UserError
from pipeline.report.evidence import Evidence


class Pooled(Evidence):
    """The result files of one run of a cell, with what others have of further seeds.

    What does not go by seeds, tables made of others too, is the first run's.

    Raises:
        UserError: a run of something else, or one whose seeds share starting weights, which would
            count as different ones.
    """

    def __init__(self, folder: Path, *others: Path, papers: tuple[Paper, ...] = ()) -> None:
        super().__init__(folder, papers)
        self.others = [Evidence(other) for other in others]
        self.pooled: dict[str, pd.DataFrame] = {}
        seeds = []
        for run in (Evidence(folder), *self.others):
            self._check(run)
            seeds += run.cell["seeds"]
        self.cell["seeds"] = list(dict.fromkeys(seeds))

    def _check(self, run: Evidence) -> None:
        for key in sorted(self.cell.keys() - {"seeds", "hardware"}):
            if run.cell.get(key) != self.cell[key]:
                raise UserError(
                    f"{run.folder}: found {key} {run.cell.get(key)!r}, accepted: {self.cell[key]!r}"
                )
        starts = run.table("pretrain")
        if starts.empty or {*starts["seed"]} != {*run.cell["seeds"]}:
            raise UserError(
                f"{run.folder}: found seeds with the same starting weights, "
                "accepted: starting weights of each seed's own"
            )

    def table(self, name: str) -> pd.DataFrame:
        """The rows of `<name>.csv` of all runs."""
        rows = super().table(name)
        if name not in self.pooled:
            for run in self.others:
                other = run.table(name)
                if "seed" in rows and "seed" in other:
                    further = other[~other["seed"].isin(rows["seed"])]
                    rows = pd.concat([rows, further], ignore_index=True)
            self.pooled[name] = rows
        return self.pooled[name]

    def read(self, name: str) -> dict[str, Any]:
        """The content of `<name>.json`, with the seeds of all runs."""
        content = super().read(name)
        for run in self.others:
            content = _join(content, run.read(name))
        return content


def _join(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two dictionaries at every depth: mine, then what only the other has."""
    joined = dict(mine)
    for key, value in other.items():
        if key not in mine:
            joined[key] = value
        elif isinstance(mine[key], dict) and isinstance(value, dict):
            joined[key] = _join(mine[key], value)
    return joined
