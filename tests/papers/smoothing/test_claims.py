"""The claims about over-smoothing: every measure on rows with a known answer, and what changes or is missing."""

from typing import Any

import pandas as pd
import pytest

from papers import PAPERS
from papers.smoothing.claims import CLAIMS, ROWS
from papers.smoothing.compute.rows import COLUMNS
from pipeline.report.ledger import FAILS, HOLDS, NOT_RUN, UNDECIDED, WEAKER, Evidence
from tests.conftest import ALL_CLAIMS, ROOT, Change, add

RESULTS = ROOT / "results"
SEEDS = (0, 1, 2)
BEST = "contrastive+mixing"
# Patch cosine after the last layer, by losses, at 24 layers; at 12 it is 0.1 lower
LAST = {
    "none": 0.6,
    "cosine": 0.1,
    "contrastive": 0.2,
    "contrastive_dot": 0.4,
    "mixing": 0.5,
    "cosine+mixing": 0.3,
    "cosine+contrastive": 0.1,
    BEST: 0.25,
}
GAIN = {
    "none": 0,
    "cosine": 1,
    "contrastive": 2,
    "contrastive_dot": 1.5,
    "mixing": 3,
    "cosine+mixing": 2,
    "cosine+contrastive": 2,
    BEST: 4,
}  # points
COST = {
    "repeats": (5, 0),
    "erasing": (40, 1),
    "mixup": (2, 0),
    "drop_path": (50, 3),
}  # points lost: without the losses, with them


def model(
    training: str,
    num_layers: int,
    last: float,
    accuracy: float | None,
    losses: str = "none",
    order: str = "sequential",
    removed: str = "none",
    talking_heads: bool = False,
    spread: float = 0.2,
) -> list[dict[str, Any]]:
    """Rows of one model: similarity rises from 0 to `last`, deviation falls from `spread` by 0.001 a layer; percent of accuracy."""
    head = {
        "training": training,
        "losses": losses,
        "removed": removed,
        "talking_heads": talking_heads,
        "num_layers": num_layers,
    }
    return [
        head
        | {
            "order": order,
            "layer": layer,
            "patch_cosine": last * layer / num_layers,
            "attention_std": spread - 0.001 * layer if layer else None,
            "accuracy": None if accuracy is None else accuracy / 100,
        }
        for layer in range(num_layers + 1)
    ]


@pytest.fixture(scope="module")
def made() -> pd.DataFrame:
    """Rows that every claim can be judged on, the same for every seed."""
    rows = [*model("untrained", 12, 0.3, None), *model("untrained", 24, 0.45, None)]
    for losses, last in LAST.items():
        spread = 0.3 if losses == BEST else 0.2
        rows += model("scratch", 12, last - 0.1, 60 + GAIN[losses], losses, spread=spread)
        rows += model("scratch", 24, last, 58 + 2 * GAIN[losses], losses, spread=spread)
    for part, costs in COST.items():
        for losses, cost in zip(("none", BEST), costs, strict=True):
            rows += model("scratch", 12, 0.4, 60 + GAIN[losses] - cost, losses, removed=part)
    rows += model("scratch", 12, 0.4, 60 + GAIN[BEST] + 0.5, BEST, talking_heads=True)
    for variant, ends in {
        "baseline": (0.5, 0.9),
        "ls": (0.6, 0.65),
        "ls_contrastive": (0.3, 0.35),
    }.items():
        for order, value in zip(("sequential", "arbitrary"), ends, strict=True):
            rows += model(
                variant, 12, value, 70, "contrastive" if "contrastive" in variant else "none", order
            )
    frames = [pd.DataFrame(rows).assign(seed=seed, dataset="d", model="m") for seed in SEEDS]
    return pd.concat(frames, ignore_index=True)[COLUMNS]


def evidence(rows: pd.DataFrame) -> Evidence:
    """LS with the contrastive loss is 2 points better than LS."""
    found = Evidence(RESULTS, PAPERS)
    evaluated = found.table("prune_eval")
    ls = evaluated[evaluated["variant"] == "ls"]
    better = ls.assign(variant="ls_contrastive", accuracy=ls["accuracy"] + 0.02)
    others = evaluated[evaluated["variant"] != "ls_contrastive"]
    found.tables |= {"smoothing": rows.copy(), "prune_eval": pd.concat([others, better])}
    return found


def entry(name: str, e: Evidence) -> dict[str, Any]:
    return next(claim for claim in CLAIMS if claim.id == f"smoothing.{name}").judge(e)


KNOWN = {
    "rises": 0.6 * 23 / 24,
    "deeper": 0.1,
    "attention": -0.016,
    "trained": 0.15,
    "lowers.cosine": 0.5,
    "lowers.contrastive": 0.2,
    "lowers.contrastive-cosines": 0.4,
    "table1.contrastive-cosines": 2,
    "deep.contrastive": 3,
    "deep.contrastive-cosines": 4,
    "lowers.mixing": 0.1,
    f"lowers.{BEST}": 0.35,
    "attention-ours": 0.1,
    "table1.best-sum": 1,
    "depth-plain": -2,
    "depth-ours": 2,
    "talking-heads": 0.5,
    "ls-order": 0.05,
    "baseline-order": 0.35,
    "ls-contrastive": 0.3,
    "ls-accuracy": 2,
}
KNOWN |= {
    f"table1.{losses}": GAIN["contrastive_dot" if losses == "contrastive" else losses]
    for losses in ROWS
} | {f"table4.{part}": plain - best for part, (plain, best) in COST.items()}


def test_every_claim_is_known() -> None:
    assert {f"smoothing.{name}" for name in KNOWN} == {claim.id for claim in CLAIMS}
    assert set(CLAIMS) <= set(ALL_CLAIMS)


@pytest.mark.parametrize("name", KNOWN)
def test_a_measure_on_rows_with_a_known_answer(name: str, made: pd.DataFrame) -> None:
    found = entry(name, evidence(made))
    assert found["measured"]["mean"] == pytest.approx(KNOWN[name], abs=1e-4), found["reason"]
    assert found["measured"]["n"] == (5 if name == "ls-accuracy" else len(SEEDS))
    assert found["verdict"] == HOLDS


SCRATCH = {"training": "scratch", "removed": "none", "talking_heads": False}


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("rises", add("patch_cosine", 1, **SCRATCH, losses="none", num_layers=24, layer=1), FAILS),
        (
            "rises",
            add("patch_cosine", 1, **SCRATCH, losses="none", num_layers=24, layer=0),
            HOLDS,
        ),  # the embedding does not count
        (
            "rises",
            add("patch_cosine", -2, **SCRATCH, losses="none", num_layers=24, layer=24, seed=0),
            UNDECIDED,
        ),
        ("deeper", add("patch_cosine", 0.2, **SCRATCH, losses="none", num_layers=12), FAILS),
        ("trained", add("patch_cosine", 0.3, training="untrained", num_layers=24), FAILS),
        ("trained", add("patch_cosine", 0.3, training="untrained", num_layers=12), HOLDS),
        (
            "lowers.mixing",
            add("patch_cosine", 0.2, **SCRATCH, losses="mixing", num_layers=24),
            FAILS,
        ),
        (
            "attention-ours",
            add("attention_std", -0.2, **SCRATCH, losses=BEST, num_layers=24),
            FAILS,
        ),
        ("table1.cosine", add("accuracy", -0.02, **SCRATCH, losses="cosine", num_layers=12), FAILS),
        ("table1.cosine", add("accuracy", -0.02, **SCRATCH, losses="cosine", num_layers=24), HOLDS),
        (
            "table1.best-sum",
            add("accuracy", 0.02, **SCRATCH, losses="mixing", num_layers=12),
            FAILS,
        ),
        ("depth-plain", add("accuracy", 0.03, **SCRATCH, losses="none", num_layers=24), FAILS),
        ("depth-ours", add("accuracy", -0.03, **SCRATCH, losses=BEST, num_layers=24), FAILS),
        (
            "table4.drop_path",
            add("accuracy", 0.6, training="scratch", removed="drop_path", losses="none"),
            FAILS,
        ),
        ("talking-heads", add("accuracy", -0.01, training="scratch", talking_heads=True), WEAKER),
        ("ls-order", add("patch_cosine", 0.1, training="ls", order="arbitrary"), WEAKER),
        ("ls-order", add("patch_cosine", 0.4, training="ls", order="arbitrary"), FAILS),
        (
            "baseline-order",
            add("patch_cosine", -0.4, training="baseline", order="arbitrary"),
            FAILS,
        ),
        (
            "ls-contrastive",
            add("patch_cosine", 0.4, training="ls_contrastive", order="arbitrary"),
            FAILS,
        ),
    ],
)
def test_a_change_that_decides(name: str, change: Change, verdict: str, made: pd.DataFrame) -> None:
    rows = made.copy()
    change(rows)
    assert entry(name, evidence(rows))["verdict"] == verdict


@pytest.mark.parametrize(
    ("missing", "names"),
    [
        ({"num_layers": 24}, ["rises", "deeper", "trained", "table1.cosine", "depth-plain"]),
        ({"training": "untrained"}, ["trained"]),
        ({"training": "ls_contrastive"}, ["ls-contrastive"]),
        ({"removed": "mixup"}, ["table4.mixup"]),
        (
            {"losses": BEST},
            [f"lowers.{BEST}", "table1.best-sum", "talking-heads", "table4.erasing"],
        ),
        ({"talking_heads": True}, ["talking-heads"]),
    ],
)
def test_what_is_missing_is_not_run(
    missing: dict[str, Any], names: list[str], made: pd.DataFrame
) -> None:
    key, value = next(iter(missing.items()))
    e = evidence(made[made[key] != value])
    for name in names:
        found = entry(name, e)
        assert found["verdict"] == NOT_RUN
        assert "not among the results" in found["reason"]
    kept = entry("lowers.cosine" if value != 24 else "ls-order", e)
    assert kept["verdict"] == HOLDS


def test_without_the_stage_nothing_was_run() -> None:
    e = evidence(pd.DataFrame())
    assert {
        claim.judge(e)["verdict"] for claim in CLAIMS if claim.id != "smoothing.ls-accuracy"
    } == {NOT_RUN}


def test_a_model_without_attention_has_no_deviation(made: pd.DataFrame) -> None:
    found = entry("attention", evidence(made.assign(attention_std=None)))
    assert (found["verdict"], "attention std" in found["reason"]) == (NOT_RUN, True)
