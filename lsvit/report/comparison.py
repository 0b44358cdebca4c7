"""What `lsvit claims` compares: a ledger with another, and the result files with what their stages wrote."""

import json
import subprocess
from pathlib import Path
from typing import Any

from lsvit.errors import UserError
from lsvit.reading import read_json
from lsvit.report.ledger import FAILS, HOLDS, WEAKER


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
        mine, yours = ours.get(name, {"verdict": "no such claim"}), theirs.get(name, {"verdict": "no such claim"})
        if mine["verdict"] != yours["verdict"]:
            decided = {mine["verdict"], yours["verdict"]} <= {HOLDS, FAILS, WEAKER} and mine["rule"] == yours["rule"]
            line = f"{name}: {mine['verdict']}, in the other ledger: {yours['verdict']}"
            (contradicting if decided else marginal).append(line)
    return contradicting, marginal


def other_ledger(file: Path, against: Path | None) -> dict[str, Any] | None:
    """The ledger to compare with: of a file, or else that of the last commit, if there is one. Raises UserError if it is no ledger."""
    if against is None:
        shown = subprocess.run(["git", "show", f"HEAD:./{file}"], capture_output=True, text=True, check=False)
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
    outs = [change["changed outs"] for stage in status.values() for change in stage if "changed outs" in change]
    found = {path: state for changed in outs for path, state in changed.items() if state != "not in cache"}
    return [f"{path}: {state} since its stage wrote it" for path, state in found.items() if path.startswith("results/")]
