"""LayerShuffle's claims: what their measures need, and what they count."""

from typing import Any

import pandas as pd
import pytest

from papers.layershuffle import PAPER
from papers.layershuffle.measures import regained
from papers.layershuffle.tables import CELLS, PUBLISHED, PUBLISHED_VARIANTS
from pipeline.report.claims import load_claims
from pipeline.report.ledger import NOT_RUN
from tests.conftest import cases_of
from tests.papers.claim_suite import judged, made_up, of_seeds

CASES = cases_of(__file__)


def refined(keys: dict[str, Any] | None = None, **values: list[float]) -> pd.DataFrame:
    """Rows of prune_eval.csv: accuracies in % by variant, a value a seed, in random order."""
    rows = []
    for variant, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            rows.append({"variant": variant, "seed": seed, "accuracy": accuracy / 100})
    where = {"dataset": "d", "model": "m", "order": "arbitrary", "keep": 12, "routes": 1}
    return pd.DataFrame(rows).assign(**(where | (keys or {})))


@pytest.mark.parametrize("case", CASES["verdicts"], ids=str)
def test_what_a_claim_is_judged_on(case: list[Any]) -> None:
    name, model, rows, verdict, *mean = case
    evaluated = pd.concat(refined(**values) for values in rows)
    entry = judged(PAPER, name, made_up({"prune_eval": evaluated}, model=model))
    assert entry["verdict"] == verdict
    if mean:
        assert entry["measured"]["mean"] == pytest.approx(mean[0])


def test_a_training_with_latin_orders_is_not_the_published_method() -> None:
    rows = refined(ls=[60.0, 60.1], ls_latin=[65.0, 65.1], ls_latin_long=[70.0, 70.1])
    evidence = made_up({"prune_eval": rows}, latin=["ls", "ls_latin", "ls_latin_long"])
    assert judged(PAPER, "latin.arbitrary", evidence)["verdict"] == NOT_RUN
    assert evidence.accuracy("ls_latin", "arbitrary") == pytest.approx([65, 65.1])
    assert evidence.accuracy("ls_latin_long", "arbitrary") == pytest.approx([70, 70.1])


def test_orders_of_layers_that_stay_in_place_are_counted() -> None:
    """One where all do, 2 where two layers are left, else as many as images."""
    names = ["fix_first 0", "fix_first 10", "fix_first 12"]
    rows = pd.DataFrame({"sampler": names, "accuracy": [0, 0.1, 0.12]})
    rows = of_seeds(rows, 2).assign(variant="baseline", images=50)
    evidence = made_up({"samplers": rows, "prune_eval": pd.DataFrame({"keep": [12]})})
    for k, orders in ((10, [50, 2, 1]), (0, [50, 50, 1])):
        evidence.orders = []
        assert regained(evidence, "baseline", k) == pytest.approx(100 * k / 12)
        assert evidence.orders == orders


@pytest.mark.parametrize(("table", "name"), CASES["tables"].items())
def test_without_a_table_its_claims_are_not_run(table: str, name: str) -> None:
    assert judged(PAPER, name, made_up({table: pd.DataFrame()}))["verdict"] == NOT_RUN


@pytest.mark.parametrize(("seeds", "verdict", "mean"), CASES["protocols"])
def test_what_choosing_on_the_reported_images_gains(
    seeds: list[list[float]], verdict: str, mean: float | None
) -> None:
    """LS is chosen by random orders. Original order, and variants of ours, do not count."""
    rows: list[tuple[Any, ...]] = []
    for seed, (epoch, gain) in enumerate(seeds):
        for variant in ("ls", "ls_latin"):
            rows.append(("paper", variant, seed, 4, 0.5, 0.6))
            rows.append(("heldout", variant, seed, epoch, 0.9, 0.6 - gain / 100))
    columns = ["protocol", "variant", "seed", "epoch", "sequential", "arbitrary"]
    table = pd.DataFrame(rows, columns=columns)
    table.loc[table["variant"] == "ls_latin", "arbitrary"] *= 0.5
    entry = judged(PAPER, "control.protocol", made_up({"protocols": table}))
    assert entry["verdict"] == verdict
    if mean is not None:
        assert entry["measured"]["mean"] == pytest.approx(mean)


def test_table_1_is_that_of_the_tables() -> None:
    claims = {claim.id: claim for claim in load_claims(PAPER).claims}
    for (dataset, model), names in CELLS.items():
        own = (PUBLISHED["dataset"] == names[0]) & (PUBLISHED["model"] == names[1])
        assert own.sum() == 2 * len(PUBLISHED_VARIANTS)
        for row in PUBLISHED[own].to_dict("records"):
            claim = claims[f"table1.{row['variant']}.{row['order']}"]
            mean, std = 100 * row["mean"], 100 * row["std"]
            assert claim.centre[dataset][model] == pytest.approx(mean)
            assert f"{mean:.2f} ± {std:.2f} ({' '.join(names)})" in claim.published
