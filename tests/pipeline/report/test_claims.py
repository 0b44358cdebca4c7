"""The papers' claims as their claims.yaml state them."""

import hashlib
import inspect
import json
import shlex

import pytest
from pydantic import ValidationError

from conftest import check_words
from papers import PAPERS
from pipeline.config.paper import Paper
from pipeline.report.claims import ClaimFile, load_claims
from tests.conftest import ALL_CLAIMS

RULES_KNOWN = "9e89eb2ea0ae3e43"
# Papers of which there is no text, or none at hand that a quote could be compared with.
WITHOUT_QUOTES = ("painters", "nodes", "questions")


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_a_file_of_claims(paper: Paper) -> None:
    """Its measures exist and take the arguments; what a paper claims is quoted, and no more."""
    stated = load_claims(paper)
    measures = paper.import_reader("measures").MEASURES
    assert set(measures) == {claim.measure for claim in stated.claims}
    for claim in stated.claims:
        signature = inspect.signature(measures[claim.measure])
        signature.bind("evidence", **claim.arguments)
        signature.bind("evidence", **(claim.arguments | (claim.minus or {})))
        quotable = paper.name not in WITHOUT_QUOTES and not claim.source.startswith("beyond")
        assert bool(claim.quote) == quotable, f"{claim.id}: quote: a paper's words, and no others"
    assert set(stated.headline) <= {claim.id for claim in stated.claims}


def test_ids_are_told_apart() -> None:
    assert len({claim.id for claim in ALL_CLAIMS}) == len(ALL_CLAIMS)


def test_unknown_and_missing_keys_are_refused() -> None:
    claim = dict.fromkeys(("id", "source", "claim", "published", "quantity", "measure"), "x")
    assert ClaimFile.model_validate({"claims": [claim | {"holds": [0, 1]}]}).claims[0].id == "x"
    for wrong in ({}, {"holds": [0]}, {"holds": [0, 1], "plausibel": [0, 2]}):
        with pytest.raises(ValidationError):
            ClaimFile.model_validate({"claims": [claim | wrong]})


def test_a_result_could_contradict_it() -> None:
    """What is possible reaches beyond `plausible`, and that beyond `holds`.

    The paper's own figures satisfy their claim.
    """
    for claim in ALL_CLAIMS:
        least, most = claim.contradicted_outside
        beyond = claim.possible[0] < least or most < claim.possible[1]
        assert beyond or claim.centre, claim.id  # around a published figure
        holds_from, holds_to = claim.holds_within
        assert least <= holds_from <= holds_to <= most, claim.id
        assert claim.plausible != claim.holds, claim.id
        assert "|" not in claim.claim + claim.published + claim.quantity  # cells of a table
        from_centre = claim.middle if claim.centre else 0
        figures = claim.effect or ()
        assert list(figures) == sorted(figures), claim.id
        for figure in figures:
            assert holds_from <= figure - from_centre <= holds_to, claim.id


def test_a_quote_is_short_and_says_where_it_was_shortened() -> None:
    for quote in filter(None, (claim.quote for claim in ALL_CLAIMS)):
        assert 20 < len(quote) <= 400
        assert quote == " ".join(quote.split())
        assert quote[0].isupper() or quote.startswith("[...] ")
        assert quote.endswith((".", ")", "[...]"))


def test_rules_do_not_move_unsaid() -> None:
    """Whoever changes a rule says so in `rules`, with what was known by then, and then here."""
    said = " ".join(filter(None, (load_claims(paper).rules for paper in PAPERS)))
    rules = [said, *((claim.id, claim.rule) for claim in ALL_CLAIMS)]
    known = hashlib.sha256(json.dumps(rules).encode()).hexdigest()[:16]
    assert known == RULES_KNOWN, "a rule moved: say so in `rules` of claims.yaml, then here"


@pytest.mark.slow
def test_the_commands_of_claims_are_accepted() -> None:
    """And change something."""
    for command in {claim.run for claim in ALL_CLAIMS} - {""}:
        check_words("dvc", "exp", "run", *shlex.split(command))
