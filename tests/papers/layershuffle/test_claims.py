"""LayerShuffle's claims: what their measures need, and what they count."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers import PAPERS
from papers.layershuffle.claims import CLAIMS
from papers.layershuffle.measures import regained
from pipeline.report.ledger import HOLDS, NOT_RUN, Evidence
from tests.conftest import ROOT


class Made(Evidence):
    """Accuracies in % by variant, a value a seed, under arbitrary orders, of some model."""

    def __init__(self, values: dict[str, list[float]], model: str = "vit_micro") -> None:
        super().__init__(ROOT / "results")
        self.made = values
        self.cell |= {"model": model, "latin": ["ls"]}

    def accuracy(self, variant: str, *_: Any) -> np.ndarray:
        return np.array(self.made[variant])


def entry(name: str, e: Evidence) -> dict[str, Any]:
    return next(claim for claim in CLAIMS if claim.id == name).judge(e)


@pytest.mark.parametrize(
    ("model", "judged"),
    [
        ("vit_b16", "better"),
        ("deit_micro", "deit"),
        ("deit3", ""),
        ("mixer_b16", ""),
        ("dinov2_small", ""),
    ],
)
def test_a_claim_about_a_family_is_judged_on_its_models(model: str, judged: str) -> None:
    for name, sign, family in (("better", 1, "ViT"), ("deit", -1, "DeiT")):
        found = entry(
            f"s4.1.position-{name}",
            Made({"ls_pos": [51.0 + sign, 51.1 + sign], "ls": [51.0, 51.0]}, model),
        )
        expected = (HOLDS, "") if name == judged else (NOT_RUN, f"the claim is about {family}")
        assert (found["verdict"], found["reason"]) == expected


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_few_seeds_do_not_tell_how_much_seeds_differ(seeds: int) -> None:
    """Of two the distances from the median are equal, so that their differences have no spread at all."""
    one = Made(
        {"ls_batch": [40.0, 60.0, 45.0, 55.0][:seeds], "ls": [50.0, 51.0, 50.5, 50.2][:seeds]}
    )
    found = entry("latin.spread", one)
    assert (found["verdict"] == NOT_RUN) == (seeds < 4)
    assert (found["reason"] == f"{seeds} seeds: how much they differ takes at least 4") == (
        seeds < 4
    )


def test_a_claim_that_no_run_decides_names_none() -> None:
    for name in ("s4.1.cifar", "s4.speed"):
        found = entry(name, Evidence(ROOT / "results", PAPERS))
        assert (found["verdict"], found["run"]) == (NOT_RUN, "")
        assert found["reason"].startswith("needs ")


def test_orders_of_layers_that_stay_in_place_are_counted() -> None:
    """One where all do, 2 where two layers are left, else as many as images."""
    e = Evidence(ROOT / "results", PAPERS)
    rows = [
        {
            "variant": "baseline",
            "sampler": f"fix_first {k}",
            "images": 50,
            "accuracy": k / 100,
            "seed": seed,
        }
        for k in (0, 10, 12)
        for seed in (0, 1)
    ]
    e.tables |= {"samplers": pd.DataFrame(rows), "prune_eval": pd.DataFrame({"keep": [12]})}
    for k, expected in ((10, [50, 2, 1]), (0, [50, 50, 1])):
        e.orders = []
        assert regained(e, "baseline", k) == pytest.approx(100 * k / 12)
        assert e.orders == expected
