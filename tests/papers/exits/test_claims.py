"""The claims about early exits."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd
import pytest

from papers.exits import PAPER
from papers.exits.measures import BRANCHES
from papers.exits.tables import FORMS, PUBLISHED
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import FAILS, HOLDS, NOT_COMPARABLE, NOT_RUN
from tests.papers.claim_suite import (
    ClaimSuite,
    Tables,
    chosen,
    judged,
    made_up,
    of_seeds,
    read_cases,
)

CASES = read_cases(__file__, "exits")
DATASET = "fashion_mnist_10k"
LAYERS = 12
SEEDS = 5  # as many as tell seven architectures from six
LS_BRANCHES = ("mlp", "cnn_ignore", "vit")
LAYER_WISE = ("layer_wise_none", "layer_wise_original", "layer_wise_end_to_end")
EARLY = (1, 2, 3)
Row = dict[str, Any]


def frozen(variant: str, order: str, scores: dict[str, list[float]]) -> list[Row]:
    """Exits after every layer, and the last; the score is an accuracy in %, counting an error."""
    row = {"variant": variant, "strategy": "classifier_wise", "order": order}
    row |= {"placement": "all", "architecture": "all"}
    row["dataset"] = "counting" if variant == "counting" else DATASET
    rows = []
    for branch, values in scores.items():
        for depth, score in enumerate(values, LAYERS if branch == "final" else 1):
            rows.append(row | {"branch": branch, "depth": depth, "score": score})
    return rows


def trained(
    strategy: str, data: str, name: str, placement: Sequence[int], scores: Sequence[float]
) -> list[Row]:
    """Exits of one model and its last."""
    row = {"variant": "none", "strategy": strategy, "architecture": name, "order": "sequential"}
    row |= {"dataset": data, "placement": "-".join(map(str, placement)) or "none"}
    branches = [name] * len(placement) + ["final"]
    places = zip(branches, [*placement, LAYERS], scores, strict=True)
    return [row | {"branch": branch, "depth": d, "score": score} for branch, d, score in places]


def finish(rows: list[Row]) -> pd.DataFrame:
    """Rows of every seed as in exits.csv; seeds differ by the same for all exits."""
    frame = pd.DataFrame(rows)
    counts = frame["dataset"] == "counting"
    score = frame.pop("score")
    dearer = frame["branch"].map({name: place for place, name in enumerate(BRANCHES)}).fillna(0)
    frame = frame.assign(
        accuracy=(score / 100).where(~counts),
        judge=score.where(counts, score / 100),
        flops=100 * frame["depth"] + dearer,
        practical=frame["depth"] == 1,
        mae=score.where(counts),
    )
    seeds = of_seeds(frame, SEEDS)
    seeds["mae"] += 0.01 * seeds["seed"]
    return seeds


def exits() -> pd.DataFrame:
    rows = []
    for of_variant in CASES["frozen"]:
        rows += frozen(*of_variant)
    for model in CASES["trained"]:
        rows += trained(*model)
    return finish(rows)


def dynamic() -> pd.DataFrame:
    columns = ["policy", "budget", "flops", "accuracy"]
    rows = pd.DataFrame(CASES["dynamic"], columns=columns).assign(dataset=DATASET)
    baseline = rows.assign(variant="baseline")
    ls = rows.assign(variant="ls", accuracy=0.1)
    return of_seeds(pd.concat([baseline, ls]), SEEDS)


class TestExits(ClaimSuite):
    paper = PAPER
    cases = CASES | {"seeds": dict.fromkeys(CASES["known"], SEEDS)}

    @classmethod
    @cache
    def made(cls) -> Tables:
        return {"exits": exits(), "exits_dynamic": dynamic()}

    def evidence(self, tables: Tables) -> Evidence:
        return made_up(tables, dataset=DATASET, model="vit_micro", scale="published")

    def test_orders_behind_an_exit_are_counted(self) -> None:
        """After one layer there are twelve, further in one for each of the images that report."""
        images = self.evidence({}).cell["images"]
        most = {"min": LAYERS, "max": images["validation"]}
        assert self.entry("any-order", self.made())["orders"] == most
        assert self.entry("pruned", self.made())["orders"] is None


def entry(name: str, rows: pd.DataFrame, dataset: str, model: str, scale: str = "published") -> Row:
    tables = {"exits": rows, "exits_dynamic": dynamic()}
    evidence = made_up(tables, dataset=dataset, model=model, scale=scale)
    return judged(PAPER, f"exits.{name}", evidence)


@pytest.mark.parametrize(("model", "said"), [("vit_b16_384", False), ("vit_micro", True)])
def test_few_patches_are_a_reason_of_the_small_model(model: str, said: bool) -> None:
    rows = exits()
    rows.loc[chosen(rows, {"branch": "mixer", "depth": EARLY}), "accuracy"] += 0.04
    failed = entry("cnn-early", rows, DATASET, model)
    assert (failed["verdict"], "possible reason" in failed["reason"]) == (FAILS, said)


@pytest.mark.parametrize(
    ("dataset", "verdict"),
    [("cifar10", HOLDS), ("cifar100", NOT_RUN), ("fashion_mnist", HOLDS), ("digits", NOT_RUN)],
)
def test_a_claim_about_two_data_sets_is_not_run_on_others(dataset: str, verdict: str) -> None:
    rows = exits().replace({"dataset": {DATASET: dataset}})
    assert entry("small-differences", rows, dataset, "vit_micro")["verdict"] == verdict


def published(dataset: str) -> pd.DataFrame:
    """Tables I and II as if they had been measured here."""
    rows = []
    for data in (dataset, "counting"):
        rows += trained("end_to_end", data, "none", (), [PUBLISHED["without_exits"][data]])
        for form in FORMS:
            for branch, figures in form.published.get(data, {}).items():
                rows += trained("end_to_end", data, branch, form.depths, figures)
    return finish(rows)


def test_tables_are_compared_in_the_papers_cells() -> None:
    rows = published("cifar10")
    vit = {"architecture": "vit", "placement": "6", "branch": "final"}
    rows.loc[chosen(rows, vit), "accuracy"] += 0.004
    mlp = {"architecture": "mlp", "placement": "3-6-9", "depth": 6}
    rows.loc[chosen(rows, mlp), "accuracy"] -= 0.03
    for name, value, verdict in (("table1", 0.4, HOLDS), ("table2", 3, FAILS)):
        compared = entry(name, rows, "cifar10", "vit_b16")
        assert compared["measured"]["mean"] == pytest.approx(value, abs=1e-4)
        assert compared["verdict"] == verdict
        for cell in (("vit_micro", "published"), ("vit_b16", "minutes")):
            assert entry(name, rows, "cifar10", *cell)["verdict"] == NOT_COMPARABLE
    fashion = rows.replace({"dataset": {"cifar10": "fashion_mnist"}})
    assert entry("table2", fashion, "fashion_mnist", "vit_b16")["verdict"] == NOT_COMPARABLE
    assert entry("table1", rows, "cifar100", "vit_b16")["verdict"] == NOT_RUN
