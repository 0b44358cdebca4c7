"""The sentences of the sources that claims rest on: each stands with its claim, and nowhere else."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from papers import PAPERS
from pipeline.report.ledger import Evidence
from pipeline.report.quotes import quoted
from tests.conftest import ALL_CLAIMS, ROOT

NO_TEXT = {
    "painters",
    "nodes",
}  # of which there is no text, or none at hand that a quote could be compared with


def name(module: ModuleType) -> str:
    return module.__name__.split(".")[-2]


@pytest.mark.parametrize("module", [paper.import_reader("claims") for paper in PAPERS], ids=name)
def test_what_a_paper_claims_is_quoted(module: ModuleType) -> None:
    """All of it, and nothing that is beyond it; every entry of the file is a claim's."""
    file = ROOT / f"papers/{name(module)}/quotes.yaml"
    assert file.is_file() == (name(module) not in NO_TEXT)
    quotes = yaml.safe_load(file.read_text()) if file.is_file() else {}
    of_the_paper = {claim.id for claim in module.CLAIMS if not claim.source.startswith("beyond")}
    assert quotes.keys() == (of_the_paper if quotes else set())
    assert {claim.id: claim.quote for claim in module.CLAIMS if claim.quote} == quotes


@pytest.mark.parametrize("quote", sorted({claim.quote for claim in ALL_CLAIMS if claim.quote}))
def test_a_quote_is_short_and_says_where_it_was_shortened(quote: str) -> None:
    assert 20 < len(quote) <= 240
    assert quote == " ".join(quote.split())
    assert quote[0].isupper() or quote.startswith("[...] ")
    assert quote.endswith((".", ")", "[...]"))


def test_a_quote_of_a_claims_own_stays(tmp_path: Path) -> None:
    (tmp_path / "quotes.yaml").write_text("a: of the file\n")
    known = replace(ALL_CLAIMS[0], quote="its own")
    found = quoted([replace(known, id=name) for name in "ab"], str(tmp_path / "claims.py"))
    assert [claim.quote for claim in found] == ["of the file", "its own"]


def test_the_ledger_keeps_its_form() -> None:
    """A quote is read from the claim: entries of ledgers do not have it."""
    claim = next(claim for claim in ALL_CLAIMS if claim.quote)
    assert claim.quote not in claim.judge(Evidence(ROOT / "results", PAPERS)).values()
