"""The ledger: rules decide as they say, and a figure changed by hand is found."""

import math
import re
import subprocess
from collections.abc import Callable
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from papers import PAPERS
from pipeline.config.paper import Paper
from pipeline.files import read_json, write_json
from pipeline.report import check
from pipeline.report.check import check_ledger
from pipeline.report.claims import Claim, load_claims
from pipeline.report.comparison import changes, moved, read_cells, same_cell
from pipeline.report.evidence import (
    Counts,
    Evidence,
    NotComparable,
    NotRun,
    refuse_ceiling,
    subtract,
)
from pipeline.report.ledger import (
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    NOT_RUN,
    ORDER,
    UNDECIDED,
    WEAKER,
    correct,
    decided_differently,
    judge,
    judge_claim,
    markdown,
)
from stages import commands
from tests.conftest import ROOT, Printed, cases_of, change_json, refused
from tests.pipeline.report.conftest import copy_results

CASES = cases_of(__file__)
RESULTS = ROOT / "results"
CELLS = sorted((RESULTS / "cells").glob("*/"))
LEDGER = Path("results/claims.json")
LAYERSHUFFLE = tuple(paper for paper in PAPERS if paper.name == "layershuffle")
INF = math.inf


def judged(values: Any, cell: Any = (), minus: Any = None, **keys: Any) -> dict[str, Any]:
    """The entry of a claim whose measure gives these values, on the committed or another cell."""
    texts = {key: key for key in ("id", "source", "claim", "published", "quantity", "measure")}
    if minus is not None:
        keys["minus"] = {"which": 1}
    claim = Claim.model_validate(texts | {"arguments": {"which": 0}} | keys)
    measured = (np.array(values) if isinstance(values, list) else values, minus)
    measures = {"measure": lambda evidence, which: measured[which]}
    evidence = Evidence(RESULTS)
    evidence.cell = evidence.cell | dict(cell)
    return judge_claim(claim, measures, evidence)


@pytest.mark.parametrize(("values", "verdict"), CASES["verdicts"])
def test_verdicts(values: list[float], verdict: str) -> None:
    here, elsewhere = {"vit_micro": "small"}, {"vit_b16": "large"}
    entry = judged(values, holds=(5, INF), plausible=(0, INF), reasons=here | elsewhere)
    assert entry["verdict"] == verdict
    assert ("small" in entry["reason"]) == (verdict in (FAILS, WEAKER))
    assert "large" not in entry["reason"]
    assert bool(entry["reason"]) == (verdict != HOLDS)
    assert (entry["p"] is None) == (verdict == NOT_RUN)


@pytest.mark.parametrize(("values", "keys", "expected"), CASES["entries"])
def test_an_entry(values: list[float], keys: dict[str, Any], expected: dict[str, Any]) -> None:
    entry = judged(values, **({"holds": (0, INF)} | keys))
    entry |= entry["measured"]
    assert expected.pop("reason", "") in entry["reason"]
    assert {key: entry[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_values_at_a_ceiling_are_not_compared() -> None:
    # One seed below 0.99 makes no difference.
    best, good, none = np.array([0.989, 1]), np.array([0.9, 1]), np.array([0.001, 0.012])
    refuse_ceiling(best, good, above=0.99)
    refuse_ceiling(good, none, below=0.01)
    with pytest.raises(NotComparable):
        refuse_ceiling(best, best, above=0.99)
    with pytest.raises(NotComparable):
        refuse_ceiling(none, none, below=0.01)


def test_values_of_unlike_numbers_of_seeds_are_no_pairs() -> None:
    """As of trainings and the fewer starting weights that they share."""
    assert subtract(np.array([3, 4]), np.array([1, 2])).tolist() == [2, 2]
    assert subtract(np.array([3, 4]), np.array([1])).tolist() == [2, 3]  # published weights
    with pytest.raises(NotRun, match="values of 5 and of 2 seeds"):
        subtract(np.arange(5), np.arange(2))
    entry = judged([1.0, 2.0, 3.0], minus=np.array([1.0, 2.0]), holds=(0, INF))
    assert entry["verdict"] == NOT_RUN
    entry = judged([6.0, 6.1], minus=np.array([1.0, 1.2]), holds=(0, INF))
    assert entry["measured"]["values"] == [5, 4.9]


def test_each_family_is_corrected_by_itself() -> None:
    """A p of 0.02 survives alone, and not among three."""
    entries: list[dict[str, Any]] = [{"own": True, "p": None, "verdict": NOT_RUN}]
    for own in (True, False, False, False):
        entries.append({"own": own, "p": 0.02, "verdict": HOLDS})
    correct({"claims": entries})
    corrected = [entry["corrected"] for entry in entries]
    assert corrected == [NOT_RUN, HOLDS, UNDECIDED, UNDECIDED, UNDECIDED]


def test_what_ledgers_decide_differently() -> None:
    def ledger(**verdicts: str) -> dict[str, Any]:
        """A ledger by the verdicts of its claims."""
        return {"claims": [{"id": name, "verdict": word} for name, word in verdicts.items()]}

    here = ledger(a=HOLDS, b=HOLDS, c=UNDECIDED, d=HOLDS, e=NOT_RUN)
    there = ledger(a=FAILS, b=UNDECIDED, c=HOLDS, d=WEAKER, e=HOLDS, gone=HOLDS)
    third = ledger(c=FAILS)
    different = decided_differently(here, there, third)
    assert [entries[0]["id"] for entries in different if entries[0]] == ["a", "c", "d"]
    assert [entry and entry["verdict"] for entry in different[1]] == [UNDECIDED, HOLDS, FAILS]
    assert different[0][2] is None
    with_table = markdown(judge(Evidence(RESULTS)), str, {})
    assert "What the cells decide differently" in with_table


def test_what_does_not_hold_comes_first() -> None:
    for family in re.split("^## ", (RESULTS / "claims.md").read_text(), flags=re.M):
        rows = re.findall(r"\| \*\*(.*?)\*\*(?: \(|:|;| \|$)", family, flags=re.M)
        if family.startswith(("Claims of the papers", "Questions of our own")):
            assert rows[0] == FAILS
            assert len(rows) > 50
            assert sorted(rows, key=ORDER.index) == rows


def test_figures_are_made_anew_when_a_cell_changes() -> None:
    deps = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["paper-figures"]["deps"]
    cells = [dep for dep in deps if dep.startswith("results/cells/")]
    assert cells == [f"results/cells/{cell.name}/claims.json" for cell in CELLS]


def test_few_seeds_that_count_the_same_are_not_sure() -> None:
    counts = Counts(np.array([7.0, 7.0, 7.0]), step=1)
    assert judged(counts, holds=(6.5, INF))["verdict"] == UNDECIDED


@pytest.mark.slow
@pytest.mark.parametrize("folder", [RESULTS, *CELLS], ids=lambda folder: folder.name)
def test_a_committed_ledger_is_what_its_files_give(folder: Path) -> None:
    cell = read_json(folder / "cell.json")
    evidence = Evidence(folder, PAPERS)
    ledger = judge(evidence)
    cells = read_cells(RESULTS / "cells") if folder == RESULTS else None
    assert read_json(folder / "claims.json") == ledger
    assert (folder / "claims.md").read_text() == markdown(ledger, evidence.label, cells)
    for entry in ledger["claims"]:
        if entry["verdict"] in (NOT_COMPARABLE, NOT_RUN):
            assert entry["reason"]
        else:
            value = entry["measured"]
            assert value["low"] <= value["mean"] <= value["high"]
            assert value["over"] == "images" or value["n"] <= len(cell["seeds"])
    if folder != RESULTS:
        assert folder.name.startswith(f"{cell['dataset']}_{cell['model']}_{cell['scale']}")
        assert "uv run dvc" in (folder / "README.md").read_text()


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    return copy_results(tmp_path)


def verdicts(folder: Path, papers: tuple[Paper, ...] = PAPERS) -> dict[str, str]:
    ledger = judge(Evidence(folder, papers))
    assert markdown(ledger, str).count("\n| ") == 2 + len(ledger["claims"])
    return {entry["id"]: entry["verdict"] for entry in ledger["claims"]}


def rewrite(file: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    change(pd.read_csv(file, dtype={"route": str})).to_csv(file, index=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kept", "not_run"),
    [
        ("variant != 'ls'", {"s4.1.price", "fig1c.only-ls"}),
        ("keep == 12 or variant.str.startswith('refit')", {"fig1c.grows", "fig1b.keep3"}),
        ("route != '0-1-2'", {"fig1c.refit3"}),  # the order that it was trained with
    ],
)
def test_without_rows_their_claims_are_not_run(changed: Path, kept: str, not_run: set[str]) -> None:
    rewrite(changed / "prune_eval.csv", lambda rows: rows.query(kept))
    after = verdicts(changed, LAYERSHUFFLE)
    assert {after[name] for name in not_run} == {NOT_RUN}
    assert after["fig1b.full"] != NOT_RUN


@pytest.mark.slow
def test_chance_has_no_share_of_its_own_accuracy(changed: Path) -> None:
    def at_chance(rows: pd.DataFrame) -> pd.DataFrame:
        rows.loc[rows["variant"] == "baseline", "accuracy"] = 0.1
        return rows

    rewrite(changed / "prune_eval.csv", at_chance)
    assert verdicts(changed, LAYERSHUFFLE)["s4.1.collapse"] == NOT_RUN


@pytest.mark.slow
def test_one_seed_has_no_verdict(changed: Path) -> None:
    for file in changed.glob("*.csv"):
        if "seed" in file.read_text().splitlines()[0].split(","):
            rewrite(file, lambda rows: rows[rows["seed"] == 0])
    after = verdicts(changed)
    decided = {name for name, verdict in after.items() if verdict not in (NOT_COMPARABLE, NOT_RUN)}
    assert all(name.startswith("fig4") for name in decided)


@pytest.mark.slow
def test_figures_of_the_papers_cells_are_compared_there(changed: Path) -> None:
    """On one of the paper's cells a row of Table 1 is judged against the figure of that cell."""
    cell = {"dataset": "imagenet", "model": "vit_b16"}
    change_json(changed / "cell.json", cell | {"scale": "published"})
    rewrite(changed / "prune_eval.csv", lambda rows: rows.assign(**cell))
    after = verdicts(changed)
    assert after["table1.baseline.arbitrary"] == FAILS  # a micro model is no ViT-B/16
    assert not [name for name in after if name.startswith("exits")]  # their rows are of another


def test_ledgers_are_compared() -> None:
    ledger = read_json(RESULTS / "claims.json")
    other = deepcopy(ledger)
    assert changes(ledger, other) == []
    assert moved(ledger, other) == ([], [])
    held = next(entry for entry in other["claims"] if entry["verdict"] == HOLDS)
    held["verdict"] = FAILS
    assert changes(ledger, other) == [held["id"]]
    line = f"{held['id']}: does not hold, in the other ledger: holds"
    assert moved(other, ledger) == ([line], [])
    held["rule"] = "another"
    assert moved(other, ledger) == ([], [line])
    held["id"] = "new"
    contradicting, marginal = moved(other, ledger)
    assert (contradicting, len(marginal)) == ([], 2)
    assert same_cell(ledger, other)
    assert not same_cell(ledger, other | {"dataset": "another"})


def claims(*options: str) -> tuple[int, str]:
    """`lsvit claims` in the working folder, in this process: exit code and errors."""
    done = CliRunner().invoke(commands.app, ["claims", *options])
    return done.exit_code, done.stderr


@pytest.fixture
def ledger(here: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The committed ledger, as a file too, which unedited result files give."""
    ledger = read_json(RESULTS / "claims.json")
    (here / "results").mkdir()
    write_json(LEDGER, ledger)
    monkeypatch.setattr(check, "edited", list)
    monkeypatch.setattr(check, "judge", lambda evidence: read_json(RESULTS / "claims.json"))
    return ledger


def test_the_table_has_the_claims_that_are_asked_for(
    ledger: dict[str, Any], monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """With whole ids, which `lsvit why` takes, and reasons. A wrong name is refused."""
    exits = {claim.id for claim in load_claims(import_module("papers.exits").PAPER).claims}
    for paper, verdict in (("exits", FAILS), (None, WEAKER)):
        findings = check_ledger(LEDGER, PAPERS, RESULTS / "claims.json", paper, verdict)
        assert findings == ([], [], True)
        shown = re.sub(r"[^\w.:+-]", "", printed())
        for entry in ledger["claims"]:
            asked = entry["verdict"] == verdict and (paper is None or entry["id"] in exits)
            assert (f"{entry['id']}:" in shown) == asked, entry["id"]
    assert "betweenthetworanges" in shown
    cell = f"other with {ledger['model']} at scale {ledger['scale']}"
    for committed, note in (
        (
            ledger | {"dataset": "other"},
            f"the committed ledger is about {cell}: verdicts are not compared",
        ),
        (None, "no committed ledger to compare with"),
    ):
        monkeypatch.setattr(check, "other_ledger", Mock(return_value=committed))
        findings = check_ledger(LEDGER, PAPERS, None)
        assert findings == ([], [note], False)
    for name, key in (("exit", "paper"), ("hold", "verdict")):
        with refused(f"--{key}: found '{name}', did you mean '{name}s'"):
            check_ledger(LEDGER, PAPERS, None, **{key: name})


@pytest.mark.slow
def test_what_was_changed_by_hand_fails_the_check(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fresh clone: a user's own run may have changed the working tree."""
    subprocess.run(["git", "clone", "-q", str(ROOT), "clone"], check=True)
    clone = here / "clone"
    monkeypatch.chdir(clone)
    assert claims() == (0, "")
    names = ("prune_eval.csv", "table1.csv", "analysis.json")
    for name in names:
        file = clone / "results" / name
        file.write_text(re.sub(r"(0\.\d+)", r"\g<1>1", file.read_text(), count=1))
    (clone / "results/samplers.csv").unlink()
    stages = clone / "dvc.yaml"
    last = "    - results/report.html: {cache: false}\n"
    stages.write_text(stages.read_text().replace(last, f"{last}    - results/new.csv\n"))
    (clone / "results/cell.json").write_text("{")
    code, errors = claims()
    assert code == 1
    for name in names:
        assert f"error: results/{name}: modified since its stage wrote it" in errors
    assert "results/samplers.csv: deleted since its stage wrote it" in errors
    assert "results/new.csv: not in dvc.lock, `dvc repro` writes it" in errors
    assert "results/cell.json: cannot be read" in errors


def test_a_new_claim_is_shown_before_a_run_writes_it(
    ledger: dict[str, Any], printed: Printed
) -> None:
    published = sum(not entry["own"] for entry in ledger["claims"])
    new = ledger["claims"].pop(0)
    write_json(LEDGER, ledger)
    (problem,) = check_ledger(LEDGER, PAPERS, LEDGER).problems
    assert f"not what the result files give for {new['id']};" in problem
    assert f"in all: {published} claims of the papers" in printed()


def test_a_contradiction_fails_the_check_and_a_marginal_line_does_not(
    here: Path, ledger: dict[str, Any]
) -> None:
    """As after a run that went another way: the other ledger said otherwise."""
    another = Path("another.json")
    first = {entry["verdict"]: entry for entry in reversed(ledger["claims"])}
    fallen, unclear = first[FAILS], first[UNDECIDED]
    fallen["verdict"] = unclear["verdict"] = HOLDS
    write_json(another, ledger)
    moved_line = f"moved: {unclear['id']}: undecided, in the other ledger: holds\n"
    error_line = f"error: {fallen['id']}: does not hold, in the other ledger: holds\n"
    assert claims("--against", "another.json") == (1, moved_line + error_line)
    write_json(another, ledger | {"dataset": "other"})
    write_json(LEDGER, ledger)
    code, errors = claims("--against", "another.json")
    assert code == 1
    assert "found a ledger of other" in errors
    assert "not what the result files give" in errors
