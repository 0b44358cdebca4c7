"""The claims about over-smoothing."""

from functools import cache
from typing import Any

import pandas as pd

from papers.smoothing import PAPER
from papers.smoothing.tables import TABLE1
from pipeline.report.evidence import Evidence
from pipeline.report.ledger import FAILS, HOLDS, NOT_RUN, WEAKER
from tests.papers.claim_suite import Change, ClaimSuite, Tables, add, judged, made_up

BEST = "contrastive+mixing"
# By losses: patch cosine after the last of 24 layers (of 12 it is 0.1 lower), points gained with 12
LOSSES = {
    "none": (0.6, 0),
    "cosine": (0.1, 1),
    "contrastive": (0.4, 1.5),
    "contrastive_cosines": (0.2, 2.5),
    "mixing": (0.5, 3),
    "cosine+mixing": (0.3, 2),
    "cosine+contrastive": (0.1, 2),
    BEST: (0.25, 4),
}
# Points lost without a part of the recipe: without the losses, with the best
COST = {"repeats": (5, 0), "erasing": (40, 1), "mixup": (2, 0), "drop_path": (50, 3)}
# Accuracy with talking heads and 24 layers by drop path (in the whole recipe 0.1)
DROP_PATH = {
    "mixing": {"none": 62, "drop_path_0.5": 63, "drop_path_0.75": 62},
    BEST: {"none": 62, "drop_path_0.5": 64, "drop_path_0.75": 65},
}
# Patch cosine after the last layer of refined variants, in original and in random order
REFINED = {"baseline": (0.5, 0.9), "ls": (0.6, 0.65), "ls_contrastive": (0.3, 0.35)}


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


def similar(amount: float, num_layers: int, **where: Any) -> Change:
    """Adds to the patch cosine of a training from scratch."""
    where |= {"num_layers": num_layers, "changed": "none", "talking_heads": False}
    return add("smoothing", "patch_cosine", amount, training="scratch", **where)


def refined(amount: float, training: str, order: str = "arbitrary") -> Change:
    """Adds to the patch cosine of a refined variant."""
    return add("smoothing", "patch_cosine", amount, training=training, order=order)


def better(points: float, num_layers: int, losses: str, **where: Any) -> Change:
    """Adds to the accuracy of a training from scratch."""
    where = {"changed": "none", "talking_heads": False} | where
    where |= {"num_layers": num_layers, "losses": losses}
    return add("smoothing", "accuracy", points / 100, training="scratch", **where)


SEEDS = {"ls-accuracy": 5, "table6": 5}
MODELS = {"table2.small": "vit_s16", "table2.384": "vit_b16_384"}  # that claims are about
KNOWN = {
    "rises": 0.6 * 23 / 24,
    "deeper": 0.1,
    "attention": -0.016,
    "trained": 0.15,
    "lowers.contrastive": 0.2,
    "lowers.contrastive-cosines": 0.4,
    "lowers.mixing": 0.1,
    f"lowers.{BEST}": 0.35,
    "attention-ours": 0.1,
    **{f"table1.{losses}": LOSSES[losses][1] for losses in TABLE1 if losses != "none"},
    "table1.contrastive-cosines": 2.5,
    "table1.best-sum": 1,
    "deep.contrastive": 3,
    "deep.contrastive-cosines": 5,
    "depth-plain": -2,
    "depth-ours": 2,
    "table2.small": 4,
    "table2.384": 4,
    "table5.contrastive": 3,
    "table5.stronger": 1,
    "table5.deep": 2,
    "table6": 3,
    "talking-heads": 0.5,
    "ls-order": 0.05,
    "baseline-order": 0.35,
    "ls-contrastive": 0.3,
    "ls-accuracy": 2.5,
    **{f"table4.{part}": plain - best for part, (plain, best) in COST.items()},
}
CHANGES = [
    ("rises", similar(1, 24, losses="none", layer=1), FAILS),
    ("rises", similar(1, 24, losses="none", layer=0), HOLDS),  # the embedding does not count
    ("deeper", similar(0.2, 12, losses="none"), FAILS),
    ("trained", add("smoothing", "patch_cosine", 0.3, training="untrained"), FAILS),
    ("trained", similar(0.3, 12), HOLDS),
    ("lowers.mixing", similar(0.2, 24, losses="mixing"), FAILS),
    (
        "attention-ours",
        add("smoothing", "attention_std", -0.2, num_layers=24, losses=BEST),
        FAILS,
    ),
    ("table1.cosine", better(-2, 12, "cosine"), FAILS),
    ("table1.cosine", better(-2, 24, "cosine"), HOLDS),
    ("table1.best-sum", better(2, 12, "mixing"), FAILS),
    ("depth-plain", better(3, 24, "none"), FAILS),
    ("depth-ours", better(-3, 24, BEST), FAILS),
    ("table4.drop_path", better(60, 12, "none", changed="without_drop_path"), FAILS),
    ("table2.small", better(5, 12, "none"), FAILS),
    (
        "table5.stronger",
        better(-3, 24, BEST, changed="drop_path_0.75", talking_heads=True),
        FAILS,
    ),
    ("table5.deep", better(3, 24, BEST, talking_heads=True), FAILS),
    ("talking-heads", better(-1, 12, BEST, talking_heads=True), WEAKER),
    ("ls-order", refined(0.1, "ls"), WEAKER),
    ("ls-order", refined(0.4, "ls"), FAILS),
    ("baseline-order", refined(-0.4, "baseline"), FAILS),
    ("ls-contrastive", refined(0.4, "ls_contrastive"), FAILS),
]
OF_REFINED = {"ls-order", "baseline-order", "ls-contrastive", "ls-accuracy", "table6"}
MISSING = [
    ({"num_layers": 24}, set(KNOWN) - OF_REFINED),
    ({"training": "untrained"}, {"trained"}),
    ({"training": "ls_contrastive"}, {"ls-contrastive"}),
    ({"changed": "without_mixup"}, {"table4.mixup"}),
    ({"changed": "drop_path_0.75"}, {"table5.contrastive", "table5.stronger"}),
    ({"talking_heads": True}, {"talking-heads"} | {name for name in KNOWN if "table5" in name}),
    (
        {"losses": "contrastive_cosines"},
        {"lowers.contrastive-cosines", "table1.contrastive-cosines"} | {"deep.contrastive-cosines"},
    ),
]


class TestSmoothing(ClaimSuite):
    paper = PAPER
    seeds = SEEDS
    known = KNOWN
    changes = CHANGES
    missing = MISSING

    @classmethod
    @cache
    def made(cls) -> Tables:
        models = []
        for depth, last in ((12, 0.3), (24, 0.45)):
            models.append(model(depth, last, None, training="untrained"))
        for losses, (last, gain) in LOSSES.items():
            models.append(model(12, last - 0.1, 60 + gain, losses=losses))
            models.append(model(24, last, 58 + 2 * gain, losses=losses))
        for part, costs in COST.items():
            for losses, cost in zip(("none", BEST), costs, strict=True):
                accuracy = 60 + LOSSES[losses][1] - cost
                keys = {"losses": losses, "changed": f"without_{part}"}
                models.append(model(12, 0.4, accuracy, **keys))
        models.append(model(12, 0.4, 64.5, losses=BEST, talking_heads=True))
        for losses, accuracies in DROP_PATH.items():
            for changed, accuracy in accuracies.items():
                keys = {"losses": losses, "changed": changed}
                models.append(model(24, 0.4, accuracy, talking_heads=True, **keys))
        for variant, ends in REFINED.items():
            for order, last in zip(("sequential", "arbitrary"), ends, strict=True):
                models.append(model(12, last, 70, training=variant, order=order))
        rows = pd.concat(models).astype({"accuracy": float})
        seeds = [rows.assign(seed=seed) for seed in range(3)]
        return {"smoothing": pd.concat(seeds, ignore_index=True)}

    def evidence(self, tables: Tables) -> Evidence:
        """With losses LS is 2.5 points better than without, the baseline 3."""
        evaluated = made_up({}).table("prune_eval")
        rows = [evaluated[evaluated["variant"] != "ls_contrastive"]]
        leads = {"ls": ("ls_contrastive", 0.025), "baseline": ("over_smoothing", 0.03)}
        for plain, (variant, lead) in leads.items():
            own = evaluated[evaluated["variant"] == plain]
            rows.append(own.assign(variant=variant, accuracy=own["accuracy"] + lead))
        return made_up(tables | {"prune_eval": pd.concat(rows)})

    def entry(self, name: str, tables: Tables) -> dict[str, Any]:
        """The entry, in a cell of the model that the claim is about."""
        evidence = self.evidence(tables)
        evidence.cell = evidence.cell | {"model": MODELS.get(name, "vit_micro")}
        return judged(self.paper, f"smoothing.{name}", evidence)

    def test_a_claim_about_another_model_is_not_run(self) -> None:
        entry = judged(self.paper, "smoothing.table2.small", self.evidence(self.made()))
        assert entry["verdict"] == NOT_RUN

    def test_without_the_stage_nothing_was_run(self) -> None:
        for name in set(self.known) - {"ls-accuracy", "table6"}:
            assert self.entry(name, {"smoothing": pd.DataFrame()})["verdict"] == NOT_RUN

    def test_a_model_without_attention_has_no_deviation(self) -> None:
        rows = self.made()["smoothing"].assign(attention_std=None)
        assert self.entry("attention", {"smoothing": rows})["verdict"] == NOT_RUN
