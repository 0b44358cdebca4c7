"""`lsvit why`: where a number, a claim, a table or a figure comes from.

The way goes from rows to the stage that wrote them, its command and what it reads.
"""

import json
import os
import re
import shlex
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from jinja2 import Environment
from jinja2.nodes import Call, Name

from pipeline.config.paper import Paper
from pipeline.declared import checksums, declared_stages, stage_results
from pipeline.errors import UserError
from pipeline.files import read_json, reading
from pipeline.git import git
from pipeline.jobs.files import RESULTS
from pipeline.report.claims import load_claims
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import by_id, judge_claim, show_orders, show_value
from pipeline.report.numbers import number, rows_of

CONDITION = re.compile(r"\w+=")
CELL = "cell.json"  # which every claim may ask for
TEMPLATES = Path("docs", "templates")  # of pages with results: NAME.md.j2 makes NAME.md
READERS = ("paper-figures", "report")  # stages that compute nothing
TEXTS = (".md", ".tex")  # tables in a paper's form, with the published rows where there are any


def why(target: str, papers: tuple[Paper, ...], conditions: Sequence[str] = ()) -> list[str]:
    """Explain where something comes from, line by line.

    Args:
        target: a claim's id, or the file or name of a table, a figure or result rows.
        papers: whose claims and files these are.
        conditions: of a result file's rows, `column=value`; at their end there may be an
            expression and a format, as pages quote a number.

    Raises:
        UserError: there is nothing of this name.
    """
    if not Path("dvc.yaml").is_file():
        raise UserError(f"{Path.cwd()}: not the root of a clone of the repository")
    ledger = RESULTS / "claims.json"
    entries = {}
    if ledger.is_file():
        with reading(ledger):
            entries = by_id(read_json(ledger))
    if target in entries and not conditions:
        return _explain_claim(entries[target], papers)
    file = _find_file(target, (".csv", ".json") if conditions else (".md", ".png"))
    if file is None:
        raise UserError(
            f"{target}: found no such file, figure or claim, "
            f"accepted: a file of results/, a figure's name, an id of {ledger}"
        )
    if conditions:
        return _explain_rows(file, conditions, papers)
    template = TEMPLATES / f"{file}.j2"
    if template.is_file():
        return _list_numbers(file, template, papers)
    lines = _explain_file(file, papers)
    if file.is_relative_to(RESULTS):
        others = sorted(RESULTS.glob(f"cells/*/{file.relative_to(RESULTS)}"))
        lines += [f"of another run: {other}" for other in others]
    return lines


def _find_file(target: str, suffixes: Sequence[str]) -> Path | None:
    """The first file that a name may stand for, relative to the working folder."""
    for folder in (Path(), RESULTS, RESULTS / "figures"):
        for suffix in ("", *suffixes):
            file = folder / f"{target}{suffix}"
            if file.is_file():
                return Path(os.path.relpath(file))
    return None


def _read(file: str) -> str:
    return Path(file).read_text("utf-8")


def _explain_rows(file: Path, conditions: Sequence[str], papers: tuple[Paper, ...]) -> list[str]:
    """The rows where the conditions hold, the number if one is asked for, and the file's origin."""
    if file.suffix not in (".csv", ".json"):
        raise UserError(f"{file}: found conditions on it, accepted: on a .csv or .json file")
    selecting = list(takewhile(CONDITION.match, conditions))
    rest = conditions[len(selecting) :]
    if len(rest) not in (0, 2):
        raise UserError(
            f"{file}: found {' '.join(rest)!r}, "
            "accepted: column=value ..., and behind them an expression with a format"
        )
    rows = rows_of(str(file), selecting, _read, papers)
    lines = [f"{file}: {len(rows)} rows", *rows.to_string(index=False).splitlines()]
    if rest:
        value = number((str(file), *conditions), _read, papers)
        lines.insert(0, f"{value}: mean over the rows of {rest[0]}")
    return lines + _explain_file(file, papers)


def _explain_claim(entry: dict[str, Any], papers: tuple[Paper, ...]) -> list[str]:
    """The claim, its rule, what was measured, and the files that its measure reads."""
    evidence = Evidence(RESULTS)
    published = f"published: {entry['published']}"
    for paper in papers:
        for claim in load_claims(paper).claims:
            if claim.id == entry["id"]:
                published += f" ({Path('papers', paper.name, 'claims.yaml')})"
                judge_claim(claim, paper.import_reader("measures").MEASURES, evidence)
    measured = f"{entry['quantity']}: {show_value(entry)}; orders: {show_orders(entry)}"
    verdict = entry["verdict"]
    if entry["reason"]:
        verdict += f" ({entry['reason']})"
    lines = [
        f"{entry['id']}: {entry['claim']}",
        f"source: {entry['source']}; {published}",
        f"rule: {entry['rule']}",
        f"measured: {measured}",
    ]
    if entry["measured"] and "values" in entry["measured"]:
        lines.append(f"by seed: {', '.join(map(str, entry['measured']['values']))}")
    lines.append(f"verdict: {verdict}; after Holm: {entry['corrected']}")
    if entry["run"]:
        lines.append(f"to run it: {entry['run']}")
    read = [RESULTS / name for name in evidence.files if name != CELL]
    for file in [file for file in read if file.is_file()] or [RESULTS / CELL]:
        lines += _origin(file)
    return lines


def _list_numbers(page: Path, template: Path, papers: tuple[Paper, ...]) -> list[str]:
    """The numbers and tables of a page, each with the command that says more."""
    lines = [f"{page}: made from {template}, with"]
    environment = Environment()  # noqa: S701 (renders nothing)
    for call in environment.parse(template.read_text("utf-8")).find_all(Call):
        assert isinstance(call.node, Name)  # templates call no methods
        words = " ".join(call.args[0].as_const().split())
        if call.node.name == "number":
            shown = number(shlex.split(words), _read, papers)
        else:
            shown = call.node.name
        lines.append(f"  {shown}: uv run lsvit why {words}")
    return lines


def _explain_file(file: Path, papers: tuple[Paper, ...]) -> list[str]:
    """The origin of a file, and of the result files from which it is drawn or tabulated."""
    drawn_from: dict[str, tuple[Paper, Sequence[str]]] = {}
    for paper in papers:
        charts = paper.import_reader("charts")
        if charts:
            drawn_from |= {start: (paper, files) for start, files in charts.DRAWN_FROM.items()}
    lines = _origin(file)
    starts = [start for start in drawn_from if file.name.startswith(start)]
    if not starts:
        return lines
    paper, sources = drawn_from[max(starts, key=len)]
    for name in sources:
        source = _folder(file) / name
        if source.is_file() and source != file:
            lines += _origin(source)
    published = Path("papers", paper.name, "published.yaml")
    if "table" in file.name and file.suffix in TEXTS and published.is_file():
        lines += [f"{published}: the published figures", *_commit(published)]
    return lines


def _folder(file: Path) -> Path:
    """The results that a file belongs to: those of the run, or of a folder of other ones."""
    return next((parent for parent in file.parents if (parent / CELL).is_file()), RESULTS)


def _origin(file: Path) -> list[str]:
    """The stage that wrote a file of the run or of a committed cell: command and inputs."""
    folder = _folder(file)
    written = RESULTS / file.relative_to(folder) if file.is_relative_to(folder) else file
    stages = declared_stages()
    stage = next((name for name in stages if written in stage_results(name)[0]), None)
    if stage is None:
        return [f"{file}: no stage of dvc.yaml writes it", *_commit(file)]
    declared = stages[stage]
    cell = read_json(folder / CELL)
    seeds = ", ".join(map(str, cell["seeds"]))
    command = "repro --pull"
    if folder != RESULTS:
        changes = [f"-S {key}={cell[key]}" for key in ("dataset", "model", "scale")]
        command = f"exp run --pull {' '.join(changes)} -S 'seeds={json.dumps(cell['seeds'])}'"
    lines = [
        f"{file}: stage {stage}: {declared['desc']}",
        f"  command     {declared['cmd']}   (uv run dvc {command} {stage})",
        f"  data, model {cell['dataset']}, {cell['model']}, scale {cell['scale']}, seeds {seeds}",
    ]
    if folder != RESULTS:
        lines.append(f"  how         {folder / 'README.md'}")
    elif stage not in READERS:
        inputs = [Path(path) for path in declared["deps"] if path.startswith(("outs", "results"))]
        read = [str(path) for path in inputs if path.parent.name != "params"]
        sections = [path.stem for path in inputs if path.parent.name == "params"]
        lines.append(f"  reads       {', '.join(read)}")
        lines.append(f"  parameters  {', '.join(sections)} (of params.yaml, in outs/params/)")
    md5 = checksums(stage).get(str(file))
    if md5:
        lines.append(f"  checksum    {md5} (md5, dvc.lock)")
    return lines + _commit(file)


def _commit(file: Path) -> list[str]:
    """The commit that a file is of."""
    try:
        commit = git("log", "-1", "--format=%h (%cs)", "--", str(file))
        changed = git("status", "--porcelain", "--", str(file))
        shallow = git("rev-parse", "--is-shallow-repository")
    except UserError as error:
        return [f"  last change unknown; {error}"]
    if not commit or changed != "":
        return ["  last change is not committed"]
    earlier = ", or earlier: this clone is shallow" if shallow == "true\n" else ""
    return [f"  last change {commit.strip()}{earlier}"]
