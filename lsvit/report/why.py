"""Numbers of result files as pages quote them, and `lsvit why`: where one, a claim, a table or a figure comes from."""

import io
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from lsvit.config.papers import rooms
from lsvit.errors import UserError
from lsvit.jobs.files import EXECUTION, RESULTS
from lsvit.jobs.rows import read_rows
from lsvit.report.ledger import Evidence, show_orders, show_value
from lsvit.tracking import declared_stages, stage_results

CONDITION = re.compile(r"\w+=.*")
Read = Callable[[str], str]  # a file of the repository -> its text


def rows_of(file: str, conditions: Sequence[str], read: Read) -> pd.DataFrame:
    """The rows of a CSV file, or the records of a JSON file (of a ledger: what its claims measured), where `column=value` hold.

    Raises:
        UserError: a column that is not there, or no such row.
    """
    rows = _parsed(file.endswith(".json"), read(file))
    for condition in conditions:
        column, _, value = condition.partition("=")
        if column not in rows:
            raise UserError(f"{file}: found no column {column!r}, accepted: {', '.join(rows.columns)}")
        rows = rows[rows[column].astype(str) == value]
        if rows.empty:
            raise UserError(f"{file}: found no row with {condition}")
    return rows


def number(words: Sequence[str], read: Read) -> str:
    """A number as pages show it, from a file, conditions, an expression of columns (the mean over the rows counts) and a format.

    What rounds to zero has no sign.
    """
    file, *conditions, expression, form = words
    return f"{rows_of(file, conditions, read).eval(expression).mean():z{form}}"


@lru_cache(maxsize=16)  # a page asks for many numbers of few files
def _parsed(records: bool, text: str) -> pd.DataFrame:
    return _records(text) if records else read_rows(io.StringIO(text))


def _records(text: str) -> pd.DataFrame:
    """The records of a JSON file: of the first list that each of its parts has."""
    lists = [[value for value in part.values() if isinstance(value, list) and value and isinstance(value[0], dict)] for part in parts(text)]
    records = [record for found in lists if found for record in found[0]]
    return pd.json_normalize(records).rename(columns=lambda name: name.removeprefix("measured."))


def parts(text: str) -> list[dict[str, Any]]:
    """A JSON file's content, by machine where it has several, each with its name if the file gives one."""
    found = json.loads(text)
    if isinstance(found, dict) and all(isinstance(value, dict) for value in found.values()):
        return [{"name": name} | value for name, value in found.items()]
    return found if isinstance(found, list) else [found]


def why(target: str, conditions: Sequence[str] = ()) -> list[str]:
    """Where a claim (by its id), a table or figure (by its file or its name), or the rows of a result file come from, line by line.

    Raises:
        UserError: there is nothing of this name.
    """
    ledger = RESULTS / "claims.json"
    if not Path("dvc.yaml").is_file():
        raise UserError(f"{Path.cwd()}: not the root of a clone of the repository")
    entries = {entry["id"]: entry for entry in json.loads(ledger.read_text())["claims"]} if ledger.is_file() else {}
    if target in entries:
        return _why_claim(entries[target])
    own = (f"results/{target}.csv", f"results/{target}.json") if conditions else (f"results/{target}.md", f"results/figures/{target}.png")
    names = (target, f"results/{target}", f"results/figures/{target}", *own)
    found = next((Path(name) for name in names if Path(name).is_file()), None)
    file = found and Path(os.path.relpath(found))
    if file is None:
        raise UserError(f"{target}: found no such file, figure or claim, accepted: a file of results/, a figure's name, an id of {ledger}")
    if not conditions:
        return origin(file)
    if file.suffix not in (".csv", ".json"):
        raise UserError(f"{file}: found conditions on it, accepted: on a .csv or .json file")
    rest = [word for word in conditions if not CONDITION.fullmatch(word)]
    if len(rest) not in (0, 2) or [*conditions][len(conditions) - len(rest) :] != rest:
        raise UserError(f"{file}: found {' '.join(rest)!r}, accepted: column=value ..., and behind them an expression with a format")
    rows = rows_of(str(file), conditions[: len(conditions) - len(rest)], _text)
    value = [f"{number((str(file), *conditions), _text)}: mean over the rows of {rest[0]}"] if rest else []
    return [*value, f"{file}: {len(rows)} rows", *rows.to_string(index=False).splitlines(), *origin(file)]


def _text(file: str) -> str:
    return Path(file).read_text()


def _why_claim(entry: dict[str, Any]) -> list[str]:
    """The claim, its rule, what was measured, and the files that its measure reads."""
    evidence = Evidence(RESULTS)
    for claim in (claim for module in rooms("claims") for claim in module.CLAIMS if claim.id == entry["id"]):
        claim.judge(evidence)
    read = [file for name in evidence.tables if (file := RESULTS / f"{name}.csv").is_file()]
    return [
        f"{entry['id']}: {entry['claim']}",
        f"source: {entry['source']}; published: {entry['published']}",
        f"rule: {entry['rule']}",
        f"measured: {entry['quantity']}: {show_value(entry)}; orders: {show_orders(entry)}",
        *([f"by seed: {', '.join(map(str, values))}"] if (values := (entry["measured"] or {}).get("values")) else []),
        f"verdict: {entry['verdict']}" + (f" ({entry['reason']})" if entry["reason"] else "") + f"; after Holm: {entry['corrected']}",
        *([f"to run it: {entry['run']}"] if entry["run"] else []),
        *(line for file in read or [RESULTS / "cell.json"] for line in origin(file)),
    ]


def origin(file: Path) -> list[str]:
    """The stage that wrote a result file, of the run or of a committed cell: command, inputs, parameters, seeds, hardware, versions."""
    folder = next((parent for parent in file.parents if parent.parent == RESULTS / "cells"), RESULTS)
    written = RESULTS / file.relative_to(folder) if file.is_relative_to(folder) else file
    stage = next((name for name in declared_stages() if written in stage_results(name)[0]), None)
    if stage is None:
        return [f"{file}: no stage of dvc.yaml writes it", *_commit(file)]
    declared, cell = declared_stages()[stage], json.loads((folder / "cell.json").read_text())
    inputs = [Path(path) for path in declared["deps"]]
    sections = [path for path in inputs if path.parent.name == "params"]
    read = [path for path in inputs if path.parts[0] in ("outs", "results") and path not in sections]
    rows = read_rows(file) if file.suffix == ".csv" else pd.DataFrame()
    seeds = rows["seed"].unique().tolist() if "seed" in rows else cell["seeds"]
    lines = [
        f"{file}: stage {stage}: {declared['desc']}",
        f"  command     {declared['cmd']}   (uv run dvc repro --pull {stage})",
        f"  reads       {', '.join(map(str, read))}",
        f"  data, model {cell['dataset']}, {cell['model']}, scale {cell['scale']}, seeds {', '.join(map(str, seeds))}",
    ]
    if folder != RESULTS:
        return [*lines, f"  how         {folder / 'README.md'}", *_commit(file)]
    if sections:
        lines.append("  parameters  " + ", ".join(path.stem for path in sections) + "  (resolved: outs/params/)")
    made = [Path(name) for out in declared["outs"] for name in (out if isinstance(out, dict) else [out])]
    marks = {mark.read_text().strip() for path in [*made, *read] for mark in path.glob(f"**/{EXECUTION}")}
    return [*lines, *(f"  hardware    {text}" for text in sorted(marks)), *_commit(file)]


def _commit(file: Path) -> list[str]:
    """The commit that a file is of, with the versions it pins."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, check=False).stdout.strip()

    commit = git("log", "-1", "--format=%h", "--", str(file))
    if not commit or git("status", "--porcelain", "--", str(file)):
        return ["  last change is not committed"]
    pins = tomllib.loads(git("show", f"{commit}:pyproject.toml")).get("project", {}).get("dependencies", [])
    versions = [pin.replace("==", " ") for pin in pins if pin.startswith(("torch==", "timm=="))]
    return [f"  last change {commit} ({git('log', '-1', '--format=%cs', commit)}), {', '.join(versions)}"]
