"""A ledger beside another of its cell, and result files beside what their stages wrote."""

import json
from pathlib import Path
from typing import Any

from pipeline.declared import checksums, declared_stages
from pipeline.errors import UserError
from pipeline.files import read_json
from pipeline.git import git
from pipeline.report.ledger import DECIDED, by_id


def changes(ledger: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Ids of the claims whose entries differ."""
    theirs = by_id(other)
    return [name for name, entry in by_id(ledger).items() if theirs.get(name) != entry]


def read_cells(folder: Path) -> dict[str, dict[str, Any]]:
    """The ledgers of a folder's folders, by their names."""
    return {file.parent.name: read_json(file) for file in sorted(folder.glob("*/claims.json"))}


def same_cell(ledger: dict[str, Any], other: dict[str, Any]) -> bool:
    """True if two ledgers are about the same data set, model and scale."""
    return all(ledger[key] == other.get(key) for key in ("dataset", "model", "scale"))


def moved(ledger: dict[str, Any], other: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What two ledgers of a cell say differently, a line a claim.

    Returns:
        The claims that both decide, by the same rule, and the rest.
    """
    ours, theirs = by_id(ledger), by_id(other)
    absent = {"verdict": "no such claim", "rule": None}
    contradicting = []
    marginal = []
    for name in ours | theirs:
        mine, yours = ours.get(name, absent), theirs.get(name, absent)
        if mine["verdict"] == yours["verdict"]:
            continue
        line = f"{name}: {mine['verdict']}, in the other ledger: {yours['verdict']}"
        both_decide = mine["verdict"] in DECIDED and yours["verdict"] in DECIDED
        if both_decide and mine["rule"] == yours["rule"]:
            contradicting.append(line)
        else:
            marginal.append(line)
    return contradicting, marginal


def other_ledger(file: Path, against: Path | None) -> dict[str, Any] | None:
    """The ledger to compare with: of a file, or else that of the last commit, if there is one.

    Raises:
        UserError: the file holds no ledger, or git does not say what is committed.
    """
    if against is None:
        committed = git("show", f"HEAD:./{file}")
        return None if committed is None else json.loads(committed)
    ledger = read_json(against)
    if not {"claims", "dataset", "model"} <= ledger.keys():
        raise UserError(f"{against}: found no ledger, accepted: the claims.json of a run")
    return ledger


def edited() -> list[str]:
    """Result files that are not what dvc.lock says the stages wrote.

    Raises:
        UserError: DVC cannot tell.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            status = repo.status()
    except DvcException as error:
        raise UserError(f"DVC cannot tell what has changed: {error}") from None
    states: dict[str, str] = {}
    for stage_changes in status.values():
        for change in stage_changes:
            states |= change.get("changed outs", {}) if isinstance(change, dict) else {}
    written = {path for stage in declared_stages() for path in checksums(stage)}
    lines = []
    for path, state in states.items():
        if not path.startswith("results/") or state == "not in cache":
            continue
        if path in written:
            lines.append(f"{path}: {state} since its stage wrote it")
        else:  # of a new stage, or a new out of one
            lines.append(f"{path}: not in dvc.lock, `dvc repro` writes it")
    return lines
