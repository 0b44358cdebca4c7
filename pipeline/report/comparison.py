"""Runs of one cell: a ledger beside another, the result files beside what their stages wrote, the seeds of several runs together."""

import json
import subprocess
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.config.paper import Paper
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.report.ledger import FAILS, HOLDS, WEAKER, Evidence


class Pooled(Evidence):
    """The result files of one run of a cell, with what others have of further seeds.

    What does not go by seeds, tables made of others too, is the first run's.

    Raises:
        UserError: a run of something else, or one whose seeds share starting weights, which would count as different ones.
    """

    def __init__(self, folder: Path, *others: Path, papers: tuple[Paper, ...] = ()) -> None:
        super().__init__(folder, papers)
        self.others, self.pooled = [Evidence(other) for other in others], dict[str, pd.DataFrame]()
        about = {key: self.cell[key] for key in self.cell.keys() - {"seeds", "hardware"}}
        for run in (Evidence(folder), *self.others):
            if different := sorted(
                key for key, value in about.items() if run.cell.get(key) != value
            ):
                raise UserError(
                    f"{run.folder}: found {different[0]} {run.cell.get(different[0])!r}, accepted: {about[different[0]]!r}"
                )
            starts = run.table("pretrain")
            if starts.empty or {*starts["seed"]} != {*run.cell["seeds"]}:
                raise UserError(
                    f"{run.folder}: found seeds with the same starting weights, accepted: starting weights of each seed's own"
                )
            self.cell["seeds"] = [*dict.fromkeys(self.cell["seeds"] + run.cell["seeds"])]

    def table(self, name: str) -> pd.DataFrame:
        """The rows of `<name>.csv` of all runs."""
        rows = super().table(name)
        if name not in self.pooled:
            for run in self.others:
                other = run.table(name)
                if "seed" in rows and "seed" in other:
                    rows = pd.concat(
                        [rows, other[~other["seed"].isin(rows["seed"])]], ignore_index=True
                    )
            self.pooled[name] = rows
        return self.pooled[name]

    def read(self, name: str) -> dict[str, Any]:
        """The content of `<name>.json`, with the seeds of all runs."""
        return reduce(_joined, (run.read(name) for run in self.others), super().read(name))


def _joined(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two dictionaries at every depth: mine, then what only the other has."""
    both = {
        key: _joined(mine[key], value)
        for key, value in other.items()
        if isinstance(mine.get(key), dict) and isinstance(value, dict)
    }
    return mine | {key: value for key, value in other.items() if key not in mine} | both


def changes(found: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Ids of the claims whose entries differ."""
    theirs = {entry["id"]: entry for entry in other["claims"]}
    return [entry["id"] for entry in found["claims"] if theirs.get(entry["id"]) != entry]


def same_cell(found: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two ledgers are about the same data set, model and scale."""
    return all(found[key] == other.get(key) for key in ("dataset", "model", "scale"))


def moved(found: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What two ledgers of a cell say differently, a line a claim: those that both decide, by the same rule, and the rest."""
    ours, theirs = ({entry["id"]: entry for entry in each["claims"]} for each in (found, other))
    contradicting: list[str] = []
    marginal: list[str] = []
    for name in ours | theirs:
        mine, yours = (
            ours.get(name, {"verdict": "no such claim"}),
            theirs.get(name, {"verdict": "no such claim"}),
        )
        if mine["verdict"] != yours["verdict"]:
            decided = {mine["verdict"], yours["verdict"]} <= {HOLDS, FAILS, WEAKER} and mine[
                "rule"
            ] == yours["rule"]
            line = f"{name}: {mine['verdict']}, in the other ledger: {yours['verdict']}"
            (contradicting if decided else marginal).append(line)
    return contradicting, marginal


def other_ledger(file: Path, against: Path | None) -> dict[str, Any] | None:
    """The ledger to compare with: of a file, or else that of the last commit, if there is one. Raises UserError if it is no ledger."""
    if against is None:
        shown = subprocess.run(
            ["git", "show", f"HEAD:./{file}"], capture_output=True, text=True, check=False
        )
        return None if shown.returncode else json.loads(shown.stdout)
    found = read_json(against)
    if not {"claims", "dataset", "model"} <= found.keys():
        raise UserError(f"{against}: found no ledger, accepted: the claims.json of a run")
    return found


def edited() -> list[str]:
    """Result files that are not what dvc.lock says the stages wrote. Raises UserError if DVC cannot tell."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            status = repo.status()
    except DvcException as error:
        raise UserError(f"DVC cannot tell what has changed: {error}") from None
    outs = [
        change["changed outs"]
        for stage in status.values()
        for change in stage
        if "changed outs" in change
    ]
    found = {
        path: state
        for changed in outs
        for path, state in changed.items()
        if state != "not in cache"
    }
    return [
        f"{path}: {state} since its stage wrote it"
        for path, state in found.items()
        if path.startswith("results/")
    ]
