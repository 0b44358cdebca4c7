"""The claims about over-smoothing."""

from functools import cache
from typing import Any

import pandas as pd

from papers.smoothing import PAPER
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import NOT_RUN
from tests.papers.claim_suite import ClaimSuite, Tables, judged, made_up, of_seeds, read_cases

BEST = "contrastive+mixing"
CASES = read_cases(__file__, "smoothing")


def model(num_layers: int, last: float, accuracy: float | None, **keys: Any) -> pd.DataFrame:
    """Rows of one model.

    Similarity rises from 0 to `last`, deviation falls from 0.2 (with the best losses 0.3) by 0.001
    a layer; accuracy is in %.
    """
    rows = pd.DataFrame({"layer": range(num_layers + 1)}).assign(
        training="scratch",
        losses="none",
        order="sequential",
        changed="none",
        talking_heads=False,
        num_layers=num_layers,
        accuracy=None if accuracy is None else accuracy / 100,
    )
    rows = rows.assign(**keys)
    spread = 0.3 if keys.get("losses") == BEST else 0.2
    deviation = (spread - 0.001 * rows["layer"]).where(rows["layer"] > 0)
    return rows.assign(patch_cosine=last * rows["layer"] / num_layers, attention_std=deviation)


@cache
def evaluations() -> pd.DataFrame:
    """Of prune_eval.csv: with losses LS is 2.5 points better than without, the baseline 3."""
    evaluated = made_up({}).table("prune_eval")
    rows = [evaluated[evaluated["variant"] != "ls_contrastive"]]
    leads = {"ls": ("ls_contrastive", 0.025), "baseline": ("over_smoothing", 0.03)}
    for plain, (variant, lead) in leads.items():
        own = evaluated[evaluated["variant"] == plain]
        rows.append(own.assign(variant=variant, accuracy=own["accuracy"] + lead))
    return pd.concat(rows)


class TestSmoothing(ClaimSuite):
    paper = PAPER
    cases = CASES

    @classmethod
    @cache
    def made(cls) -> Tables:
        models = [model(*numbers, **keys) for *numbers, keys in CASES["rows"]]
        return {"smoothing": of_seeds(pd.concat(models).astype({"accuracy": float}))}

    def evidence(self, tables: Tables) -> Evidence:
        return made_up(tables | {"prune_eval": evaluations()})

    def entry(self, name: str, tables: Tables) -> dict[str, Any]:
        """The entry, in a cell of the model that the claim is about."""
        evidence = self.evidence(tables)
        evidence.cell = evidence.cell | {"model": CASES["models"].get(name, "vit_micro")}
        return judged(self.paper, f"smoothing.{name}", evidence)

    def test_a_claim_about_another_model_is_not_run(self) -> None:
        entry = judged(self.paper, "smoothing.table2.small", self.evidence(self.made()))
        assert entry["verdict"] == NOT_RUN

    def test_without_the_stage_nothing_was_run(self) -> None:
        for name in set(CASES["known"]) - {"ls-accuracy", "table6"}:
            assert self.entry(name, {"smoothing": pd.DataFrame()})["verdict"] == NOT_RUN

    def test_a_model_without_attention_has_no_deviation(self) -> None:
        rows = self.made()["smoothing"].assign(attention_std=None)
        assert self.entry("attention", {"smoothing": rows})["verdict"] == NOT_RUN
