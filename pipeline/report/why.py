"""Numbers of result files as pages quote them, and `lsvit why`: where one, a claim, a table or a figure comes from."""

import hashlib
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config.effective import files
from pipeline.config.load import load
from pipeline.config.paper import Paper
from pipeline.declared import checksums, declared_stages, paths, stage_results
from pipeline.errors import UserError
from pipeline.files import read_json, reading
from pipeline.jobs.files import EXECUTION, HISTORY, RESULTS
from pipeline.jobs.rows import parse_rows, read_rows
from pipeline.report.ledger import Claim, Evidence, show_orders, show_value

NUMBER = re.compile(
    r"<!--= (.*?) -->(.*?)<!--/-->", re.S
)  # of a page: where it comes from, what is shown
CONDITION = re.compile(r"\w+=.*")
CELL = "cell.json"  # which every claim may ask for
READERS = ("paper-figures", "report")  # stages that compute nothing
Read = Callable[[str], str]  # a file of the repository -> its text


def rows_of(
    file: str, conditions: Sequence[str], read: Read, papers: tuple[Paper, ...]
) -> pd.DataFrame:
    """The rows of a CSV file, or the records of a JSON file (of a ledger: what its claims measured), where `column=value` hold.

    Raises:
        UserError: a column that is not there, or no such row.
    """
    rows = _parsed(file, read(file), papers)
    for condition in conditions:
        column, _, value = condition.partition("=")
        if column not in rows:
            raise UserError(
                f"{file}: found no column {column!r}, accepted: {', '.join(rows.columns)}"
            )
        rows = rows[rows[column].astype(str) == value]
        if rows.empty:
            raise UserError(f"{file}: found no row with {condition}")
    return rows


def number(words: Sequence[str], read: Read, papers: tuple[Paper, ...]) -> str:
    """A number as pages show it, from a file, conditions, an expression of columns (the mean over the rows counts) and a format.

    What rounds to zero has no sign.

    Raises:
        UserError: as :func:`rows_of` does, or there is no such number.
    """
    file, *conditions, expression, form = words
    rows = rows_of(file, conditions, read, papers)
    try:
        return f"{np.mean(rows.eval(expression)):z{form}}"
    except Exception as error:  # whatever an expression may raise
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{file}: found {expression!r} with format {form!r} ({reason}), accepted: an expression of "
            f"{', '.join(rows.columns)}, and a format as .2f"
        ) from None


@lru_cache(maxsize=16)  # a page asks for many numbers of few files
def _parsed(file: str, text: str, papers: tuple[Paper, ...]) -> pd.DataFrame:
    with reading(file):
        return _records(text, papers) if file.endswith(".json") else parse_rows(text, file)


def _records(text: str, papers: tuple[Paper, ...]) -> pd.DataFrame:
    """The records of a JSON file: of each part's first list, with the part's numbers; else the parts. Those of a ledger have a `paper`."""
    lists = [
        [
            value
            for value in part.values()
            if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        for part in parts(text)
    ]
    whole = [
        {key: value for key, value in part.items() if isinstance(value, int | float)}
        for part in parts(text)
    ]  # its numbers
    records = [
        own | record
        for own, found in zip(whole, lists, strict=True)
        if found
        for record in found[0]
    ] or parts(text)
    rows = pd.json_normalize(records).rename(columns=lambda name: name.removeprefix("measured."))
    if {"id", "verdict"} <= {*rows.columns}:
        paper_of = {claim.id: paper.name for paper in papers for claim in _claims(paper)}
        rows["paper"] = rows["id"].map(paper_of)
    return rows


def _claims(paper: Paper) -> Sequence[Claim]:
    module = paper.import_reader("claims")
    return module.CLAIMS if module else ()


def parts(text: str) -> list[dict[str, Any]]:
    """A JSON file's content, by machine where it has several, each with its name if the file gives one."""
    found = json.loads(text)
    if isinstance(found, dict) and all(isinstance(value, dict) for value in found.values()):
        return [{"name": name} | value for name, value in found.items()]
    return found if isinstance(found, list) else [found]


def why(target: str, papers: tuple[Paper, ...], conditions: Sequence[str] = ()) -> list[str]:
    """Where a claim (by its id), a table or figure (by its file or its name), or the rows of a result file come from, line by line.

    Raises:
        UserError: there is nothing of this name.
    """
    ledger = RESULTS / "claims.json"
    if not Path("dvc.yaml").is_file():
        raise UserError(f"{Path.cwd()}: not the root of a clone of the repository")
    entries: dict[str, dict[str, Any]] = {}
    if ledger.is_file():
        with reading(ledger):
            entries = {entry["id"]: entry for entry in read_json(ledger)["claims"]}
    if target in entries:
        if conditions:
            raise UserError(
                f"{target}: found {' '.join(conditions)!r} behind a claim, accepted: behind a .csv or .json file"
            )
        return _why_claim(entries[target], papers)
    own = (
        (f"results/{target}.csv", f"results/{target}.json")
        if conditions
        else (f"results/{target}.md", f"results/figures/{target}.png")
    )
    names = (target, f"results/{target}", f"results/figures/{target}", *own)
    found = next((Path(name) for name in names if Path(name).is_file()), None)
    file = found and Path(os.path.relpath(found))
    if file is None:
        raise UserError(
            f"{target}: found no such file, figure or claim, accepted: a file of results/, a figure's name, an id of {ledger}"
        )
    if not conditions:
        return (
            _numbers(file)
            if file.suffix == ".md" and NUMBER.search(file.read_text())
            else way(file, papers)
        )
    if file.suffix not in (".csv", ".json"):
        raise UserError(f"{file}: found conditions on it, accepted: on a .csv or .json file")
    rest = [word for word in conditions if not CONDITION.fullmatch(word)]
    if len(rest) not in (0, 2) or [*conditions][len(conditions) - len(rest) :] != rest:
        raise UserError(
            f"{file}: found {' '.join(rest)!r}, accepted: column=value ..., and behind them an expression with a format"
        )
    rows = rows_of(str(file), conditions[: len(conditions) - len(rest)], _text, papers)
    value = (
        [f"{number((str(file), *conditions), _text, papers)}: mean over the rows of {rest[0]}"]
        if rest
        else []
    )
    return [
        *value,
        f"{file}: {len(rows)} rows",
        *rows.to_string(index=False).splitlines(),
        *way(file, papers, {*rows.get("variant", ())}),
    ]


def _text(file: str) -> str:
    return Path(file).read_text()


def _why_claim(entry: dict[str, Any], papers: tuple[Paper, ...]) -> list[str]:
    """The claim, its rule, what was measured, and the files that its measure reads."""
    evidence = Evidence(RESULTS)
    for paper in papers:
        for claim in _claims(paper):
            if claim.id == entry["id"]:
                claim.judge(evidence)
    read = [file for name in evidence.files if name != CELL and (file := RESULTS / name).is_file()]
    return [
        f"{entry['id']}: {entry['claim']}",
        f"source: {entry['source']}; published: {entry['published']}",
        f"rule: {entry['rule']}",
        f"measured: {entry['quantity']}: {show_value(entry)}; orders: {show_orders(entry)}",
        *(
            [f"by seed: {', '.join(map(str, values))}"]
            if (values := (entry["measured"] or {}).get("values"))
            else []
        ),
        f"verdict: {entry['verdict']}"
        + (f" ({entry['reason']})" if entry["reason"] else "")
        + f"; after Holm: {entry['corrected']}",
        *([f"to run it: {entry['run']}"] if entry["run"] else []),
        *(line for file in read or [RESULTS / CELL] for line in origin(file, papers)),
    ]


def _numbers(page: Path) -> list[str]:
    """The numbers of a page that stand between markers, each with the command that says more."""
    found = NUMBER.findall(page.read_text())
    return [
        f"{page}: written by hand but for {len(found)} numbers, filled from:",
        *(f"  {shown}: uv run lsvit why {words}" for words, shown in found),
    ]


def way(file: Path, papers: tuple[Paper, ...], variants: Collection[str] = ()) -> list[str]:
    """The origin of a file, and of the result files from which it is drawn or tabulated, if another stage computed them.

    `variants`: of those alone the parameters are shown.
    """
    folder = _folder(file)
    drawn: dict[str, Sequence[str]] = {}
    for paper in papers:
        if charts := paper.import_reader("charts"):
            drawn |= charts.DRAWN_FROM
    start = max((start for start in drawn if file.name.startswith(start)), key=len, default="")
    from_those = [folder / name for name in drawn.get(start, ()) if (folder / name).is_file()]
    return [
        *origin(file, papers, variants),
        *(line for each in from_those if each != file for line in origin(each, papers, variants)),
    ]


def _folder(file: Path) -> Path:
    """The results that a file belongs to: those of the run, or of a committed cell."""
    return next((parent for parent in file.parents if parent.parent == RESULTS / "cells"), RESULTS)


def origin(file: Path, papers: tuple[Paper, ...], variants: Collection[str] = ()) -> list[str]:
    """The stage that wrote a result file, of the run or of a committed cell: command, inputs, parameters, seeds, jobs, hardware, versions.

    `variants`: of those alone the parameters are shown.
    """
    folder = _folder(file)
    written = RESULTS / file.relative_to(folder) if file.is_relative_to(folder) else file
    stages = declared_stages()
    stage = next((name for name in stages if written in stage_results(name)[0]), None)
    if stage is None:
        return [f"{file}: no stage of dvc.yaml writes it", *_commit(file)[:1]]
    declared, cell = stages[stage], read_json(folder / CELL)
    inputs = [Path(path) for path in declared["deps"]]
    sections = [path for path in inputs if path.parent.name == "params"]
    read = [
        path for path in inputs if path.parts[0] in ("outs", "results") and path not in sections
    ]
    makers = {path: name for name, each in stages.items() for path in paths(each["outs"])}
    rows = read_rows(file) if file.suffix == ".csv" else pd.DataFrame()
    seeds = rows["seed"].unique().tolist() if "seed" in rows else cell["seeds"]
    changes = [
        *(f"-S {key}={cell[key]}" for key in ("dataset", "model", "scale")),
        f"-S 'seeds={json.dumps(cell['seeds'])}'",
    ]
    how = "repro --pull" if folder == RESULTS else " ".join(["exp run --pull", *changes])
    lines = [
        f"{file}: stage {stage}: {declared['desc']}",
        f"  command     {declared['cmd']}   (uv run dvc {how} {stage})",
        f"  data, model {cell['dataset']}, {cell['model']}, scale {cell['scale']}, seeds {', '.join(map(str, seeds))}",
    ]
    if folder != RESULTS:
        return [*lines, f"  how         {folder / 'README.md'}", *_commit(file)]
    if stage in READERS:  # who read everything; `way` names what this file is of
        lines.append(f"  reads       results/, {len(read)} files and folders")
    else:
        lines.append(f"  reads       {', '.join(f'{path} ({makers.get(path)})' for path in read)}")
        lines += _parameters(cell, [path.name for path in sections], stage, papers, variants)
        lines += _ran(read, [*paths(declared["outs"]), *read], cell)
    return [
        *lines,
        *(
            f"  checksum    {md5} (md5, dvc.lock)"
            for path, md5 in checksums(stage).items()
            if Path(path) == file
        ),
        *_commit(file),
    ]


def _parameters(
    cell: dict[str, Any],
    names: Sequence[str],
    stage: str,
    papers: tuple[Paper, ...],
    variants: Collection[str],
) -> list[str]:
    """The values that a stage depends on, a line a section; where outs/params/ is not there, those that params.yaml comes to."""
    ran = Path("outs/params")
    if ran.is_dir():
        texts, source = {name: (ran / name).read_text() for name in names}, str(ran)
    else:
        params = load(papers=papers)
        if [*params.cell] != [cell["dataset"], cell["model"], cell["scale"]]:
            return [f"  parameters  not known: params.yaml is of {', '.join(params.cell)}"]
        texts, source = files(params), "params.yaml"
    locked = checksums(stage, "deps")
    same = all(
        hashlib.md5(texts[name].encode(), usedforsecurity=False).hexdigest()
        == locked.get(f"outs/params/{name}")
        for name in names
    )
    lines = [
        f"  parameters  from {source}, {'the same as' if same else 'others than'} in dvc.lock:"
    ]
    for name in names:
        value = json.loads(texts[name])
        if name == "variants.json":
            value = {key: each for key, each in value.items() if not variants or key in variants}
        lines.append(
            f"    {Path(name).stem}: {json.dumps(value) if name != 'variants.json' or variants else ', '.join(value)}"
        )
    return lines


def _ran(read: Sequence[Path], places: Sequence[Path], cell: dict[str, Any]) -> list[str]:
    """The finished jobs behind the trainings that a stage read, and the hardware they ran on, as far as this clone knows."""
    epochs = {history.read_bytes() for path in read for history in path.glob(f"**/{HISTORY}")}
    jobs = [
        job.parent
        for job in sorted(Path(".lsvit/jobs").glob(f"*/*/{HISTORY}"))
        if epochs and job.read_bytes() in epochs
    ]
    marks = {
        mark.read_text().strip() for path in places for mark in path.glob(f"**/{EXECUTION}")
    } or {*cell.get("hardware", ())}
    ran_on = (
        "; ".join(sorted(marks))
        or f"not noted in {RESULTS / 'cell.json'}, and no training lies here"
    )
    found = (
        f"{len(jobs)} of its trainings: {', '.join(map(str, jobs))}"
        if jobs
        else "none here; the clone that computed it has them in .lsvit/jobs/"
    )
    return [f"  jobs        {found}", f"  hardware    {ran_on}"]


def _commit(file: Path) -> list[str]:
    """The commit that a file is of, with the versions it pins."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], capture_output=True, text=True, check=False
        ).stdout.strip()

    commit = git("log", "-1", "--format=%h", "--", str(file))
    if not commit or git("status", "--porcelain", "--", str(file)):
        return ["  last change is not committed"]
    pins = (
        tomllib.loads(git("show", f"{commit}:./pyproject.toml"))
        .get("project", {})
        .get("dependencies", [])
    )
    versions = [pin.replace("==", " ") for pin in pins if pin.startswith(("torch==", "timm=="))]
    return [
        f"  last change {commit} ({git('log', '-1', '--format=%cs', commit)}), {', '.join(versions)}"
    ]
