"""The claims on layers on nodes: every measure on rows with a known answer, and what changes or is missing."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from papers import PAPERS
from papers.nodes.charts import charts
from papers.nodes.claims import CLAIMS
from pipeline.report.ledger import FAILS, HOLDS, NOT_RUN, UNDECIDED, WEAKER, Evidence
from pipeline.report.results import Results
from tests.conftest import ALL_CLAIMS, ROOT, Change, add

RESULTS = ROOT / "results"  # 10 classes
SEEDS = (0, 1, 2)
METHODS = {  # -> images answered rightly, in %, by fault, with one node a layer and, where others, with two
    ("baseline", "strict"): ({"healthy": 90}, {"gone_1": 60, "gone_3": 30, "away": 40}),
    ("baseline", "partial"): ({"healthy": 80, "gone_1": 40, "gone_3": 30}, {}),
    ("layerdrop", "partial"): ({"healthy": 80, "gone_1": 50, "gone_3": 50}, {}),
    ("ls", "any"): (
        {
            "healthy": 74,
            "gone_1": 74,
            "gone_3": 74,
            "gone_6": 74,
            "gone_9": 54,
            "away": 70,
            "lost": 74,
        },
        {},
    ),
}
GONE = {
    "healthy": 0.0,
    "gone_1": 0.0833,
    "gone_3": 0.25,
    "gone_6": 0.5,
    "gone_9": 0.75,
    "away": 0.0,
    "lost": 0.0,
}
KNOWN = {
    "none-lost": 0,
    "half-away": 80,
    "strict": (74 - 30 + 74 + 54) / 3,
    "few-away": 14,
    "partial": 74,
    "partial-few": 24,
    "healthy": 16,
    "coming-going": 30,
    "throughput": 25,
    "tail": -50,
}


@pytest.fixture
def made() -> pd.DataFrame:
    """Rows that every claim can be judged on, the same for every seed."""
    rows = []
    for (variant, policy), (one, two) in METHODS.items():
        for seed in SEEDS:
            for copies, own in ((1, one), (2, one | two)):
                for fault, gone in GONE.items():
                    right, free = own.get(fault, 0) / 100, policy == "any"
                    rows.append(
                        (
                            "d",
                            "m",
                            variant,
                            policy,
                            seed,
                            12,
                            copies,
                            fault,
                            gone,
                            100,
                            0 if free else 5,
                            500,
                            right,
                            right,
                            9.0,
                            50.0 if free else 40.0,
                            1.0,
                            1.5 if free else 3.0,
                            0.8,
                        )
                    )
    columns = [
        "dataset",
        "model",
        "variant",
        "policy",
        "seed",
        "nodes",
        "replication",
        "fault",
        "gone",
        "micro_batches",
        "lost",
        "images",
        "accuracy",
        "right",
        "layers",
        "images_per_s",
        "p50_s",
        "p99_s",
        "busy",
    ]
    return pd.DataFrame(rows, columns=columns)


def evidence(rows: pd.DataFrame) -> Evidence:
    found = Evidence(RESULTS, PAPERS)
    found.tables["nodes"] = rows
    return found


def entry(name: str, rows: pd.DataFrame) -> dict[str, Any]:
    return next(claim for claim in CLAIMS if claim.id == f"nodes.{name}").judge(evidence(rows))


def test_every_claim_is_known() -> None:
    assert {f"nodes.{name}" for name in KNOWN} == {claim.id for claim in CLAIMS}
    assert set(CLAIMS) <= set(ALL_CLAIMS)


@pytest.mark.parametrize("name", KNOWN)
def test_a_measure_on_rows_with_a_known_answer(name: str, made: pd.DataFrame) -> None:
    found = entry(name, made)
    assert found["measured"]["mean"] == pytest.approx(KNOWN[name], abs=1e-3), found["reason"]
    assert (found["measured"]["n"], found["verdict"]) == (len(SEEDS), HOLDS)


def of(variant: str, amount: float, column: str = "right", **where: Any) -> Change:
    """Adds to a number of a variant."""
    return add(column, amount, variant=variant, **where)


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("none-lost", of("ls", 1, "lost", fault="lost", seed=0), UNDECIDED),
        ("none-lost", of("ls", 20, "lost", fault="lost"), FAILS),
        ("none-lost", of("baseline", 20, "lost"), HOLDS),
        (
            "half-away",
            of("ls", -0.1, fault="gone_6"),
            WEAKER,
        ),  # 67.5 % of what the baseline has above chance
        ("half-away", of("ls", -0.3, fault="gone_6"), FAILS),
        ("half-away", of("ls", -0.3, fault="gone_6", replication=2), HOLDS),
        ("strict", of("baseline", 0.9, policy="strict", replication=2), FAILS),
        ("strict", of("baseline", 0.9, policy="partial", replication=2), HOLDS),
        ("few-away", of("ls", -0.2, fault="gone_1", replication=2), FAILS),
        ("partial", of("layerdrop", 0.8, fault="gone_6"), FAILS),
        ("partial-few", of("layerdrop", 0.3, fault="gone_3"), HOLDS),
        (
            "partial-few",
            of("baseline", 0.6, policy="partial"),
            FAILS,
        ),  # the better of the two counts
        ("healthy", of("ls", 0.2, fault="healthy"), FAILS),
        ("coming-going", of("ls", -0.5, fault="away", replication=2), FAILS),
        ("coming-going", of("ls", -0.5, fault="away", replication=1), HOLDS),
        ("throughput", of("ls", -20, "images_per_s", fault="lost", replication=2), FAILS),
        (
            "throughput",
            of("ls", -20, "images_per_s", fault="lost", replication=2, seed=0),
            UNDECIDED,
        ),
        ("tail", of("ls", 2, "p99_s", fault="healthy"), FAILS),
    ],
)
def test_a_change_that_decides(name: str, change: Change, verdict: str, made: pd.DataFrame) -> None:
    change(made)
    assert entry(name, made)["verdict"] == verdict


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ({"fault": "gone_6"}, {"half-away", "strict", "partial"}),
        ({"policy": "partial"}, {"partial", "partial-few"}),
        ({"variant": "ls"}, {*KNOWN}),
        ({"replication": 2}, {*KNOWN} - {"none-lost", "half-away"}),
        ({"nodes": 12}, {*KNOWN}),
    ],
)
def test_what_is_missing_is_not_run(
    missing: dict[str, Any], names: set[str], made: pd.DataFrame
) -> None:
    key, value = next(iter(missing.items()))
    found = {name: entry(name, made[made[key] != value]) for name in KNOWN}
    assert {name for name, each in found.items() if each["verdict"] == NOT_RUN} == names
    assert all("is not among the results" in found[name]["reason"] for name in names)


def test_without_the_stage_nothing_was_run() -> None:
    assert {claim.judge(evidence(pd.DataFrame()))["verdict"] for claim in CLAIMS} == {NOT_RUN}


def test_the_chart_has_the_lines_of_the_figure(made: pd.DataFrame, tmp_path: Path) -> None:
    results = Results(tmp_path, PAPERS)
    results.tables["nodes"] = made
    first, second = charts(results).charts
    assert (first.title, second.title) == (
        "Nodes away, 1 node a layer",
        "Nodes away, 2 nodes a layer",
    )
