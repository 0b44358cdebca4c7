"""LayerShuffle's claims: what their measures need, and what they count."""

import pandas as pd
import pytest

from papers.layershuffle import PAPER
from papers.layershuffle.measures import regained
from papers.layershuffle.tables import CELLS, PUBLISHED, PUBLISHED_VARIANTS
from pipeline.report.claims import load_claims
from pipeline.report.ledger import HOLDS, NOT_RUN
from tests.papers.claim_suite import judged, made_up


def refined(values: dict[str, list[float]]) -> pd.DataFrame:
    """Rows of prune_eval.csv: accuracies in % by variant, a value a seed, in random order."""
    rows = []
    for variant, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies):
            rows.append({"variant": variant, "seed": seed, "accuracy": accuracy / 100})
    keys = {"dataset": "d", "model": "m", "order": "arbitrary", "keep": 12, "routes": 1}
    return pd.DataFrame(rows).assign(**keys)


@pytest.mark.parametrize(
    ("model", "judged_claim"),
    [("vit_b16", "better"), ("deit_micro", "deit"), ("deit3", ""), ("mixer_b16", "")],
)
def test_a_claim_about_a_family_is_judged_on_its_models(model: str, judged_claim: str) -> None:
    for name, sign in (("better", 1), ("deit", -1)):
        rows = refined({"ls_pos": [51.0 + sign, 51.1 + sign], "ls": [51.0, 51.0]})
        entry = judged(PAPER, f"s4.1.position-{name}", made_up({"prune_eval": rows}, model=model))
        assert entry["verdict"] == (HOLDS if name == judged_claim else NOT_RUN)


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_few_seeds_do_not_tell_how_much_seeds_differ(seeds: int) -> None:
    """Of two, distances from the median are equal: their differences have no spread at all."""
    batch, latin = [40.0, 60.0, 45.0, 55.0], [50.0, 51.0, 50.5, 50.2]
    rows = refined({"ls_batch": batch[:seeds], "ls": latin[:seeds]})
    entry = judged(PAPER, "latin.spread", made_up({"prune_eval": rows}, latin=["ls"]))
    assert (entry["verdict"] == NOT_RUN) == (seeds < 4)


@pytest.mark.parametrize("latin", [[], ["ls"]])
def test_forms_of_orders_are_told_apart(latin: list[str]) -> None:
    """The paper's LS has one order a batch; claims about Latin orders need a training with them."""
    rows = refined({"ls": [60.0, 60.1], "ls_batch": [50.0, 50.1], "baseline": [20.0, 20.1]})
    evidence = made_up({"prune_eval": rows}, latin=latin)
    gain = judged(PAPER, "s4.1.gain.batch", evidence)["measured"]["mean"]
    assert gain == pytest.approx(30 if latin else 40)
    verdict = judged(PAPER, "latin.arbitrary", evidence)["verdict"]
    assert verdict == (HOLDS if latin else NOT_RUN)


def test_orders_of_layers_that_stay_in_place_are_counted() -> None:
    """One where all do, 2 where two layers are left, else as many as images."""
    rows = pd.DataFrame(
        {"sampler": f"fix_first {k}", "accuracy": k / 100, "seed": seed}
        for k in (0, 10, 12)
        for seed in (0, 1)
    ).assign(variant="baseline", images=50)
    evidence = made_up({"samplers": rows, "prune_eval": pd.DataFrame({"keep": [12]})})
    for k, orders in ((10, [50, 2, 1]), (0, [50, 50, 1])):
        evidence.orders = []
        assert regained(evidence, "baseline", k) == pytest.approx(100 * k / 12)
        assert evidence.orders == orders


@pytest.mark.parametrize("table", ["samplers", "protocols", "pretrain"])
def test_without_a_table_its_claims_are_not_run(table: str) -> None:
    claims = {"samplers": "control.first-layer", "protocols": "control.protocol"}
    name = claims.get(table, "s4.1.baseline")
    assert judged(PAPER, name, made_up({table: pd.DataFrame()}))["verdict"] == NOT_RUN


def test_table_1_is_that_of_the_tables() -> None:
    claims = {claim.id: claim for claim in load_claims(PAPER).claims}
    for (dataset, model), names in CELLS.items():
        for order in ("sequential", "arbitrary"):
            row = PUBLISHED[*names, order]
            for variant, (mean, std) in zip(PUBLISHED_VARIANTS, row, strict=True):
                claim = claims[f"table1.{variant}.{order}"]
                assert claim.centre[dataset][model] == mean
                assert f"{mean:.2f} ± {std:.2f} ({' '.join(names)})" in claim.published
