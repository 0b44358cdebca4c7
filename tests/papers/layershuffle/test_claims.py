"""LayerShuffle's claims: what their measures need, and what they count."""

import pandas as pd
import pytest

from papers.layershuffle import PAPER
from papers.layershuffle.measures import regained
from papers.layershuffle.tables import CELLS, PUBLISHED, PUBLISHED_VARIANTS
from pipeline.report.claims import load_claims
from pipeline.report.ledger import FAILS, HOLDS, NOT_COMPARABLE, NOT_RUN
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


def test_a_training_with_latin_orders_is_not_the_published_method() -> None:
    rows = refined({"ls": [60.0, 60.1], "ls_latin": [65.0, 65.1]})
    evidence = made_up({"prune_eval": rows}, latin=["ls", "ls_latin"])
    assert judged(PAPER, "latin.arbitrary", evidence)["verdict"] == NOT_RUN
    assert evidence.accuracy("ls_latin", "arbitrary") == pytest.approx([65, 65.1])


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_few_seeds_do_not_tell_how_much_seeds_differ(seeds: int) -> None:
    """Of two, distances from the median are equal: their differences have no spread at all."""
    batch, latin = [40.0, 60.0, 45.0, 55.0], [50.0, 51.0, 50.5, 50.2]
    rows = refined({"ls": batch[:seeds], "ls_latin": latin[:seeds]})
    entry = judged(PAPER, "latin.spread", made_up({"prune_eval": rows}))
    assert (entry["verdict"] == NOT_RUN) == (seeds < 4)


@pytest.mark.parametrize(
    ("choose", "lead", "verdict"),
    [("random", 5, HOLDS), ("first", -5, FAILS), ("spaced", 6, HOLDS)],
)
def test_each_choice_of_layers_is_judged_on_its_rows(
    choose: str, lead: float, verdict: str
) -> None:
    frames = []
    for name, ahead in (("random", 5), ("first", -5), ("spaced", 6)):
        rows = refined({"ls": [50.0 + ahead, 50.1 + ahead], "layerdrop": [50.0, 50.0]})
        frames.append(rows.assign(keep=3, choose=name, order="sequential"))
    whole = refined({"ls": [70.0, 70.0], "layerdrop": [70.0, 70.0]})
    frames.append(whole.assign(choose="all", order="sequential"))
    name = "fig1b.keep3" if choose == "random" else f"fig1b.keep3.{choose}"
    entry = judged(PAPER, name, made_up({"prune_eval": pd.concat(frames)}))
    assert entry["measured"]["mean"] == pytest.approx(lead + 0.05)
    assert entry["verdict"] == verdict


@pytest.mark.parametrize(("refit_3", "comparable"), [(80.0, True), (84.9, False), (90.0, False)])
def test_where_three_layers_are_as_good_no_claim_needs_more(
    refit_3: float, comparable: bool
) -> None:
    """All layers have 85 % on average, 84 to 86 %."""
    whole = {"baseline": [84.0, 86.0, 85.0], "layerdrop": [70.0, 70.0, 70.0]}
    rows = refined(whole | {"refit_3": [refit_3] * 3, "refit_9": [70.0, 70.1, 70.2]})
    rows["order"] = "sequential"
    nine = refined({"layerdrop": [70.0, 70.1, 70.0]}).assign(order="sequential", keep=9)
    evidence = made_up({"prune_eval": pd.concat([rows, nine])})
    verdict = judged(PAPER, "fig1b.refit9", evidence)["verdict"]
    assert verdict == (HOLDS if comparable else NOT_COMPARABLE)


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
        own = (PUBLISHED["dataset"] == names[0]) & (PUBLISHED["model"] == names[1])
        assert own.sum() == 2 * len(PUBLISHED_VARIANTS)
        for row in PUBLISHED[own].to_dict("records"):
            claim = claims[f"table1.{row['variant']}.{row['order']}"]
            mean, std = 100 * row["mean"], 100 * row["std"]
            assert claim.centre[dataset][model] == pytest.approx(mean)
            assert f"{mean:.2f} ± {std:.2f} ({' '.join(names)})" in claim.published
