"""The claims of Painters: every measure on rows with a known answer, and what changes or is missing."""

from typing import Any

import pandas as pd
import pytest

from papers import PAPERS
from papers.painters.claims import CLAIMS
from pipeline.report.ledger import FAILS, HOLDS, NOT_RUN, UNDECIDED, WEAKER, Evidence
from tests.conftest import ALL_CLAIMS, ROOT, Change, add

RESULTS = ROOT / "results"  # 12 layers, 10 classes
SEEDS = (0, 1, 2)
COLUMNS = [
    "dataset",
    "model",
    "variant",
    "seed",
    "kind",
    "treated",
    "orders",
    "images",
    "accuracy",
    "loss",
]  # of painters.csv
# Accuracy above chance in % of that of the model as it is (90 points), by layers treated
KEPT = {
    "skip": {2: 80, 6: 40, 10: 0},
    "repeat": {2: 60, 6: 0, 10: 0},
    "reverse": {2: 90, 6: 60, 10: 0},
    "shuffle": {2: 95, 6: 80, 10: 35},
    "parallel": {2: 90, 6: 50, 10: 10},
    "loop": {2: 95, 6: 70, 10: 45},
}
KNOWN = {"skip": 80, "repeat": 20, "order": 75, "parallel": 10, "loop": 20, "least-harm": 20}


@pytest.fixture
def made() -> pd.DataFrame:
    """Rows that every claim can be judged on, the same for every seed; LS, which no claim is about, never changes."""
    rows = [("d", "m", "baseline", seed, "none", 0, 1, 1000, 1.0, 1.0) for seed in SEEDS]
    rows += [
        (
            "d",
            "m",
            "baseline",
            seed,
            kind,
            treated,
            10 if kind == "shuffle" else 1,
            1000,
            0.1 + 0.9 * kept / 100,
            1.0,
        )
        for seed in SEEDS
        for kind, values in KEPT.items()
        for treated, kept in values.items()
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return pd.concat([frame, frame.assign(variant="ls", accuracy=1.0)], ignore_index=True)


def evidence(rows: pd.DataFrame) -> Evidence:
    found = Evidence(RESULTS, PAPERS)
    found.tables["painters"] = rows
    return found


def entry(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    return next(claim for claim in CLAIMS if claim.id == f"painters.{name}").judge(evidence(rows))


def test_every_claim_is_known() -> None:
    assert {f"painters.{name}" for name in KNOWN} == {claim.id for claim in CLAIMS}
    assert set(CLAIMS) <= set(ALL_CLAIMS)


@pytest.mark.parametrize("name", KNOWN)
def test_a_measure_on_rows_with_a_known_answer(name: str, made: pd.DataFrame) -> None:
    found = entry(name, made)
    assert found["measured"]["mean"] == pytest.approx(KNOWN[name], abs=1e-4), found["reason"]
    assert (found["measured"]["n"], found["verdict"]) == (len(SEEDS), HOLDS)
    assert found["orders"]["max"] == (10 if name in ("order", "least-harm") else 1)


def of(kind: str, amount: float, **where: Any) -> Change:
    """Adds to the baseline's accuracy above chance under a strategy, in %."""
    return add("accuracy", 0.9 * amount / 100, variant="baseline", kind=kind, **where)


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("skip", of("skip", -40, treated=2), WEAKER),  # 40 %: less than half, no catastrophe
        ("skip", of("skip", -60, treated=2), FAILS),
        ("skip", of("skip", -40, treated=6), HOLDS),  # half of the layers are not a few
        ("skip", of("skip", -60, treated=2, seed=0), UNDECIDED),  # the seeds disagree
        ("repeat", of("repeat", 15), WEAKER),  # 5 points: worse, not much worse
        ("repeat", of("repeat", 25), FAILS),
        ("order", of("reverse", -40), WEAKER),
        ("order", of("reverse", -60), FAILS),
        ("order", of("shuffle", -80), FAILS),
        ("order", of("reverse", -80, treated=10), HOLDS),  # more than half of the layers
        ("parallel", of("parallel", -15), FAILS),
        ("parallel", of("parallel", -30, seed=0), UNDECIDED),
        ("loop", of("parallel", 25), FAILS),
        ("least-harm", of("loop", -25), FAILS),
        ("least-harm", of("shuffle", -25), FAILS),
        ("least-harm", of("reverse", 25), FAILS),
        ("least-harm", of("repeat", 25), HOLDS),  # still the worst
    ],
)
def test_a_change_that_decides(name: str, change: Change, verdict: str, made: pd.DataFrame) -> None:
    change(made)
    assert entry(name, made)["verdict"] == verdict


@pytest.mark.parametrize(
    ("missing", "names", "said"),
    [
        (
            {"kind": "repeat"},
            ["repeat", "least-harm"],
            "baseline under repeat is not among the results",
        ),
        ({"kind": "shuffle"}, ["order", "least-harm"], "baseline under shuffle"),
        (
            {"treated": 2},
            ["skip"],
            "baseline under skip, at most 3 layers is not among the results",
        ),
        ({"kind": "none"}, list(KNOWN), "baseline as it is"),
        ({"variant": "baseline"}, list(KNOWN), "not among the results"),
    ],
)
def test_what_is_missing_is_not_run(
    missing: dict[str, Any], names: list[str], said: str, made: pd.DataFrame
) -> None:
    key, value = next(iter(missing.items()))
    rows = made[made[key] != value]
    for name in KNOWN:
        found = entry(name, rows)
        assert (found["verdict"] == NOT_RUN) == (name in names), (name, found)
        assert name not in names or said in found["reason"]


def test_without_the_stage_nothing_was_run() -> None:
    assert {claim.judge(evidence(pd.DataFrame()))["verdict"] for claim in CLAIMS} == {NOT_RUN}
