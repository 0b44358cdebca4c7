"""Where numbers come from: quoted ones, and `lsvit why`."""

import json

import pytest

from lsvit.errors import UserError
from lsvit.report.why import number, why
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


FILES = {
    "rows.csv": "variant,seed,accuracy\nls,0,0.25\nls,1,0.5\nNA,0,0.9\n",
    "claims.json": json.dumps({"dataset": "x", "seeds": [0], "claims": [
        {"id": "a", "measured": {"mean": 1.5, "low": -1.0}}, {"id": "b", "measured": None}]}),
    "machines.json": json.dumps([{"machine": {}, "rows": [{"way": "x", "ratio": 2.0}]}, {"rows": [{"way": "x", "ratio": 4.0}]}]),
    "named.json": json.dumps({"here": {"checks": [{"ratio": 0.5}, {"ratio": 3.0}]}, "there": {"cores": 2}}),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rows.csv", "variant=ls", "100*accuracy", ".1f"], "37.5"),
        (["rows.csv", "variant=NA", "accuracy", ".2f"], "0.90"),
        (["claims.json", "id=a", "-low", ".0f"], "1"),
        (["machines.json", "way=x", "ratio", ".1f"], "3.0"),
        (["named.json", "ratio.max()", ".0f"], "3"),
    ],
)
def test_a_number_is_the_mean_over_its_rows(words: list[str], expected: str) -> None:
    assert number(words, FILES.__getitem__) == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [("varant=ls", "rows.csv: found no column 'varant', accepted: variant, seed, accuracy"), ("variant=x", "found no row with variant=x")],
)
def test_no_such_rows(condition: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        number(["rows.csv", condition, "accuracy", ".1f"], FILES.__getitem__)


def test_why_a_claim_holds() -> None:
    """The entry, and the file that its measure reads, with the stage that wrote it."""
    text = "\n".join(why("latin.arbitrary"))
    for words in ("verdict: holds", "rule: holds if", "prune_eval.csv: stage prune-eval", "python -m stages prune_eval", "seeds 0, 1, 2"):
        assert words in text


@pytest.mark.parametrize(
    ("target", "conditions", "words"),
    [
        ("figure_1c", [], "results/figures/figure_1c.png: stage paper-figures"),
        ("table1", [], "results/table1.md: stage paper-figures"),
        ("samplers.csv", ["variant=baseline", "sampler=fix_first 1"], "results/samplers.csv: 5 rows"),
        ("results/grid.md", [], "no stage of dvc.yaml writes it"),
    ],
)
def test_why_a_file(target: str, conditions: list[str], words: str) -> None:
    assert words in "\n".join(why(target, conditions))


def test_why_nothing() -> None:
    with pytest.raises(UserError, match="nope: found no such file, figure or claim, accepted: a file of results/"):
        why("nope")
