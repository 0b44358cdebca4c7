"""What the tests of every paper's claims share: a paper gives rows with known answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cache
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
    """The committed results, whose files are read once."""
    return Evidence(ROOT / "results", PAPERS)


def made_up(tables: Tables, **cell: Any) -> Evidence:
    """The committed results with other tables, and with other values in cell.json."""
    evidence = copy(committed())
    evidence.tables = evidence.tables | {name: rows.copy() for name, rows in tables.items()}
    evidence.cell = evidence.cell | {"latin": []} | cell
    return evidence


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


def put(table: str, column: str, value: Any, **where: Any) -> Change:
    """Sets a column of a table, or changes it by a function, where others have these values."""

    def change(tables: Tables) -> None:
        rows = tables[table]
        there = chosen(rows, where)
        assert there.any()
        rows.loc[there, column] = value(rows.loc[there, column]) if callable(value) else value

    return change


def add(table: str, column: str, amount: float, **where: Any) -> Change:
    """Adds to a column of a table where others have these values."""
    return put(table, column, lambda values: values + amount, **where)


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

    Its keys are `known`, `changes` and `missing` of :class:`ClaimSuite`, and what the test itself
    reads. A change is the claim, its verdict then, how rows are changed, and maybe the mean. Rows
    of `table`, or of the one named by `in`, whose other keys have these values are changed by
    `add`, `times` or `set`, each with a column and a value.
    """
    cases = cases_of(test)
    changes = []
    for claim, verdict, change, *mean in cases["changes"]:
        parts = change if isinstance(change, list) else [change]
        changes.append((claim, read_change(parts, table), verdict, *mean))
    missing = []
    for where, claims in cases["missing"]:
        missing.append((where, set(cases["known"] if claims == "all" else claims)))
    return cases | {"changes": changes, "missing": missing}


class ClaimSuite(ABC):
    """Tests of a paper's claims, on data that a subclass gives.

    Attributes:
        paper: whose claims they are.
        known: claim -> mean that its measure has on the rows of `made`. All claims hold on them.
        changes: (claim, change of the rows, verdict) or (claim, change, verdict, mean).
        missing: (rows that are gone, claims that are then not run).
        seeds: of the rows, by claim where they differ.
    """

    paper: ClassVar[Paper]
    known: ClassVar[Mapping[str, float]]
    changes: ClassVar[Sequence[tuple[Any, ...]]]
    missing: ClassVar[Sequence[tuple[Any, set[str]]]]
    seeds: ClassVar[dict[str, int]] = {}

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
        mean = pytest.approx(self.known[known_name], abs=1e-3)
        assert entry["measured"]["mean"] == mean, entry["reason"]
        assert entry["measured"]["n"] == self.seeds.get(known_name, 3)
        assert entry["verdict"] == HOLDS

    def test_a_change_that_decides(self, case: tuple[Any, ...]) -> None:
        name, change, verdict, *mean = case
        tables = {key: rows.copy() for key, rows in self.made().items()}
        change(tables)
        entry = self.entry(name, tables)
        assert entry["verdict"] == verdict, entry
        if mean:
            assert entry["measured"]["mean"] == pytest.approx(mean[0], abs=1e-3)

    def test_what_is_missing_is_not_run(self, gone: tuple[dict[str, Any], set[str]]) -> None:
        where, names = gone
        tables = self.made()
        table = self.paper.rows
        rows = tables[table]
        left = tables | {table: rows[~chosen(rows, where)]}
        entries = {name: self.entry(name, left) for name in self.known}
        not_run = {name for name, entry in entries.items() if entry["verdict"] == NOT_RUN}
        assert not_run == names
        for name in names:
            assert "not among the" in entries[name]["reason"]

    def test_without_the_stage_nothing_was_run(self) -> None:
        tables = dict.fromkeys(self.made(), pd.DataFrame())
        assert {self.entry(name, tables)["verdict"] for name in self.known} == {NOT_RUN}

    def test_every_claim_is_known(self) -> None:
        names = {claim.id for claim in load_claims(self.paper).claims}
        assert names == {f"{self.paper.name}.{name}" for name in self.known}
