"""`lsvit claims`: the ledger against the result files and against another ledger."""

from pathlib import Path
from typing import NamedTuple

from pipeline.config.paper import Paper
from pipeline.errors import UserError, accepted
from pipeline.files import read_json, reading
from pipeline.report.claims import load_claims
from pipeline.report.comparison import changes, edited, moved, other_ledger, same_cell
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import VERDICTS, judge, tabulate
from pipeline.report.tables import console

ANEW = "`dvc repro` writes it anew"


class Findings(NamedTuple):
    """What a check found: a line each."""

    problems: list[str]  # contradictions and edited files
    notes: list[str]  # verdicts that moved, and comparisons that were not made
    compared: bool = False  # with another run of the cell


def check_ledger(
    file: Path,
    papers: tuple[Paper, ...],
    against: Path | None,
    paper: str | None = None,
    verdict: str | None = None,
) -> Findings:
    """Print what the result files say of the claims, and check the ledger and these files.

    Args:
        file: the ledger, claims.json.
        papers: whose claims it judges.
        against: another run's claims.json; None: the committed one.
        paper: print the claims of this paper alone. All are checked.
        verdict: print the claims with this verdict alone.

    Raises:
        UserError: there is no ledger, no such paper or verdict, or DVC cannot tell whether files
            were edited.
    """
    results = file.parent
    names = [known.name for known in papers]
    if paper is not None and paper not in names:
        raise UserError(f"--paper: found {paper!r}, {accepted(paper, names)}")
    if verdict is not None and verdict not in VERDICTS:
        raise UserError(f"--verdict: found {verdict!r}, {accepted(verdict, VERDICTS)}")
    if not file.is_file():
        raise UserError(f"{file}: not found; `dvc repro` makes it, or run in the repository's root")
    findings = Findings(edited(), [])
    try:
        with reading(results, ANEW):
            ledger = read_json(file)
            judged = judge(Evidence(results, papers))
            entries = judged["claims"]
            chosen = {entry["id"] for entry in entries if verdict in (None, entry["verdict"])}
            for known in papers:
                if known.name == paper:
                    chosen &= {claim.id for claim in load_claims(known).claims}
            page = tabulate(judged, chosen)
            differing = changes(judged, ledger)
        console(140).print(*page)  # a full disk that it is written to is no fault of the results
    except UserError as error:
        findings.problems.append(str(error))
        return findings
    if differing:
        ids = ", ".join(differing)
        findings.problems.append(f"{file}: not what the result files give for {ids}; {ANEW}")
    try:
        other = other_ledger(file, against)
    except UserError as error:
        findings.problems.append(f"nothing to compare with: {error}")
        return findings
    if other is None:
        findings.notes.append("no committed ledger to compare with")
        return findings
    if same_cell(ledger, other):
        contradicting, marginal = moved(ledger, other)
        findings.problems.extend(contradicting)
        findings.notes.extend(f"moved: {line}" for line in marginal)
        return findings._replace(compared=True)
    cell = f"{other['dataset']} with {other['model']} at scale {other.get('scale')}"
    if against:
        findings.problems.append(f"{against}: found a ledger of {cell}, accepted: one of this cell")
    else:
        findings.notes.append(f"the committed ledger is about {cell}: verdicts are not compared")
    return findings
