"""What the tests of every paper's claims share: a paper gives rows with known answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

from papers import PAPERS
from pipeline.config.paper import Paper
from pipeline.report.claims import load_claims
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import HOLDS, NOT_RUN, judge_claim
from tests.conftest import ROOT, cases_of

Tables = dict[str, pd.DataFrame]  # by the names of result files
Change = Callable[[Tables], None]


@cache
def committed() -> Evidence:
    """The committed results, whose longest file is read once."""
    evidence = Evidence(ROOT / "results", PAPERS)
    evidence.table("prune_eval")
    return evidence


def made_up(tables: Tables, **cell: Any) -> Evidence:
    """The committed results with other tables, and with other values in cell.json."""
    evidence = copy(committed())
    evidence.tables = evidence.tables | tables
    evidence.cell = evidence.cell | {"latin": []} | cell
    return evidence


def results_in(folder: Path, tables: Tables, about: dict[str, Any]) -> Evidence:
    """Results in a folder of their own: these rows, and `about` as what their stage noted."""
    results = made_up(tables)
    results.folder = folder
    results.read = lambda name: about  # type: ignore[method-assign]
    return results


def judged(paper: Paper, claim_id: str, evidence: Evidence) -> dict[str, Any]:
    """The ledger's entry of one claim."""
    stated = load_claims(paper)
    claim = next(claim for claim in stated.claims if claim.id == claim_id)
    measures = paper.import_reader("measures").MEASURES
    return judge_claim(claim, measures, evidence)


def chosen(rows: pd.DataFrame, where: dict[str, Any]) -> np.ndarray:
    """Where columns have these values, or one of several."""
    matches = np.ones(len(rows), dtype=bool)
    for column, value in where.items():
        values = value if isinstance(value, tuple | list) else [value]
        matches &= rows[column].isin(values).to_numpy()
    return matches


def of_seeds(rows: pd.DataFrame, count: int = 3) -> pd.DataFrame:
    """The same rows for every seed."""
    return pd.concat([rows.assign(seed=seed) for seed in range(count)], ignore_index=True)


def read_change(parts: list[dict[str, Any]], table: str) -> Change:
    """A change of rows as a file of cases has it: see :func:`read_cases`."""

    def change(tables: Tables) -> None:
        for part in parts:
            where = dict(part)
            rows = tables[where.pop("in", table)]
            how = next(key for key in ("add", "times", "set") if key in where)
            ((column, value),) = where.pop(how).items()
            there = chosen(rows, where)
            assert there.any(), part
            if how == "add":
                value = rows.loc[there, column] + value
            elif how == "times":
                value = rows.loc[there, column] * value
            rows.loc[there, column] = value

    return change


def read_cases(test: str, table: str) -> dict[str, Any]:
    """Read the cases of a paper's claims, in the YAML file of their test's name beside it.

    Its keys are `known`, `changes`, `missing`, `seeds` and `apart` of :class:`ClaimSuite`, and what
    the test itself reads. A change is the claim, its verdict then, how rows are changed, and maybe
    the mean. Rows of `table`, or of the one named by `in`, whose other keys have these values are
    changed by `add`, `times` or `set`, each with a column and a value. What is missing is given by
    the same keys. It may be a list, of rows whose absence stops different claims.
    """
    cases = cases_of(test)
    changes = []
    for claim, verdict, change, *mean in cases["changes"]:
        parts = change if isinstance(change, list) else [change]
        changes.append((claim, read_change(parts, table), verdict, *mean))
    missing = []
    for where, claims in cases["missing"]:
        gone = where if isinstance(where, list) else [where]
        missing.append((gone, set(cases["known"] if claims == "all" else claims)))
    return {"seeds": {}, "apart": []} | cases | {"changes": changes, "missing": missing}


class ClaimSuite(ABC):
    """Tests of a paper's claims, on data that a subclass gives.

    Attributes:
        paper: whose claims they are.
        cases: `known`, claim -> mean that its measure has on the rows of `made`, on which all
            claims hold; `changes`, (claim, change of the rows, verdict) or (claim, change, verdict,
            mean); `missing`, (rows that are gone, claims that are then not run); `seeds` of the
            rows, by claim where there are not three; `apart`, claims that have tests of their own.
    """

    paper: ClassVar[Paper]
    cases: ClassVar[dict[str, Any]]

    @classmethod
    @abstractmethod
    def made(cls) -> Tables:
        """Rows that every claim can be judged on."""

    def evidence(self, tables: Tables) -> Evidence:
        """The committed results with these tables."""
        return made_up(tables)

    def entry(self, name: str, tables: Tables) -> dict[str, Any]:
        """The ledger's entry of a claim."""
        return judged(self.paper, f"{self.paper.name}.{name}", self.evidence(tables))

    def test_a_measure_on_rows_with_a_known_answer(self, known_name: str) -> None:
        entry = self.entry(known_name, self.made())
        mean = pytest.approx(self.cases["known"][known_name], abs=1e-3)
        assert entry["measured"]["mean"] == mean, entry["reason"]
        assert entry["measured"]["n"] == self.cases["seeds"].get(known_name, 3)
        assert entry["verdict"] == HOLDS

    def test_a_change_that_decides(self, case: tuple[Any, ...]) -> None:
        name, change, verdict, *mean = case
        tables = {key: rows.copy() for key, rows in self.made().items()}
        change(tables)
        entry = self.entry(name, tables)
        assert entry["verdict"] == verdict, entry
        if mean:
            assert entry["measured"]["mean"] == pytest.approx(mean[0], abs=1e-3)

    def test_what_is_missing_is_not_run(self, gone: tuple[list[dict[str, Any]], set[str]]) -> None:
        missing, names = gone
        rows = self.made()[self.paper.rows]
        for where in missing:
            rows = rows[~chosen(rows, where)]
        left = self.made() | {self.paper.rows: rows}
        entries = {name: self.entry(name, left) for name in self.cases["known"]}
        not_run = {name for name, entry in entries.items() if entry["verdict"] == NOT_RUN}
        assert not_run == names
        for name in names:
            assert "not among the" in entries[name]["reason"]

    def test_without_the_stage_nothing_was_run(self) -> None:
        tables = dict.fromkeys(self.made(), pd.DataFrame())
        assert {self.entry(name, tables)["verdict"] for name in self.cases["known"]} == {NOT_RUN}

    def test_every_claim_is_known(self) -> None:
        names = {claim.id for claim in load_claims(self.paper).claims}
        known = [*self.cases["known"], *self.cases["apart"]]
        assert names == {f"{self.paper.name}.{name}" for name in known}
