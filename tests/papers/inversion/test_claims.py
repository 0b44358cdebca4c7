"""The claims about what layers represent."""

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.inversion import PAPER
from papers.inversion.measures import at, points
from pipeline.report.evidence import Evidence, NotRun
from pipeline.report.ledger import FAILS, HOLDS, NOT_RUN, UNDECIDED, WEAKER
from tests.papers.claim_suite import Change, ClaimSuite, Tables, add, made_up, put

SEEDS, IMAGES = range(3), 4
FIRST, LAST = "first 1", "first 12"
# Points with the layers executed
POINTS = {"patch_embed": 0, FIRST: 1, "first 4": 4, LAST: 12, "layer 0": 1, "layer 11": 1}
Values = dict[str, float]  # by point

# Pixel correlation of models of ViT and MLP-Mixer under Adam, by weights and edit, elsewhere 0.5
CLEAR: dict[tuple[str, str, str], Values] = {
    ("vit", "trained", "none"): {"patch_embed": 0.95, FIRST: 0.9, LAST: 0.3},
    ("vit", "untrained", "none"): {"patch_embed": 0.97, FIRST: 0.8, LAST: 0.79},
    ("vit", "trained", "without attention"): {LAST: 0.8},
    ("vit", "trained", "without norms"): {FIRST: 0.97, LAST: 0.6},
    ("vit", "trained", "without mlp"): {LAST: 0.4},
    ("vit", "trained", "without residuals"): {FIRST: 0.1},
    ("vit", "trained", "without residuals+mlp"): {FIRST: 0.4},
    ("vit", "untrained", "without attention"): {LAST: 0.99},
    ("vit", "untrained", "without norms"): {FIRST: 0.85, LAST: 0.89},
    ("vit", "untrained", "without mlp"): {LAST: 0.84},
    ("vit", "untrained", "without residuals+mlp"): {FIRST: 0.15},
    ("vit", "untrained", "with patch_embed"): {FIRST: 0.5},
    ("vit", "untrained", "with patch_embed+pos_embed"): {FIRST: 0.505},
    ("vit", "untrained", "with patch_embed+norm1"): {FIRST: 0.7},
    ("mixer", "trained", "none"): {LAST: 0.35},
    ("mixer", "untrained", "none"): {FIRST: 0.7, LAST: 0.2},
    ("mixer", "untrained", "without norms"): {},
}
# Embedding distance after all layers relative to the yardstick, elsewhere 0.5
EMBEDDING = {
    ("vit", "trained", "none"): 0.2,
    ("mixer", "untrained", "none"): 0.9,
    ("mixer", "untrained", "without norms"): 0.4,
}
# The same of plain descent
DESCENT = {"trained": 1.5, "untrained": 1.25}
# Token distance of variants relative to the yardstick: after all layers, of two layers alone
TOKENS = {
    ("baseline", "sequential"): (1.0, 0.7, 0.9),
    ("baseline", "arbitrary"): (5.0,),
    ("ls", "sequential"): (0.6, 0.45, 0.55),
    ("ls", "arbitrary"): (0.63,),
    ("untrained", "sequential"): (2.0, 2.0, 2.0),
    ("untrained", "arbitrary"): (2.0,),
}
# Pixel correlation of variants' patch embeddings
PATCHES = {"baseline": 0.6, "ls": 0.6, "untrained": 0.2}
BAGS = ("bag", "boot", "coat", "dress", "hat", "pullover", "sandal", "shirt", "sneaker", "trouser")


def model(
    family: str,
    weights: str,
    edit: str = "none",
    order: str = "sequential",
    optimiser: str = "adam",
    clear: Values | None = None,
    embedding: float = 0.5,
    tokens: Values | None = None,
) -> list[dict[str, Any]]:
    """Rows of one model; images and seeds differ, around the means that are given."""
    rows = []
    keys = {"family": family, "weights": weights, "edit": edit, "order": order}
    keys |= {"optimiser": optimiser}
    names = list(POINTS)
    if order != "sequential" or edit != "none":
        names = [point for point in POINTS if not point.startswith("layer")]
    for seed, point, image in itertools.product(SEEDS, names, range(IMAGES)):
        off = 0.01 * (image - (IMAGES - 1) / 2)
        unit = 1 + image  # ratios are taken image by image
        correlation = (clear or {}).get(point, 0.5)
        ratio = embedding if point == LAST else 0.5
        row = {
            "seed": seed,
            "point": point,
            "depth": POINTS[point],
            "image": image,
            "num_layers": 12,
            "overcomplete": family == "vit",
            "verdict": "non-unique" if image else "invertible here",
            "pixel_correlation": correlation + off + 0.001 * (seed - 1),
            "input_distance": 1.0,
            "input_yardstick": 4.0,
            "yardstick": 2.0 * unit,
            "embedding_distance": 2.0 * unit * (ratio + off),
            "token_yardstick": 5.0 * unit,
            "token_distance": 5.0 * unit * ((tokens or {}).get(point, 0.5) + off),
        }
        rows.append(keys | row)
    return rows


def class_images() -> pd.DataFrame:
    """The judge recognises five, six and seven of ten of the ViT, none of others."""
    rows = []
    for family, weights in (("vit", "trained"), ("mixer", "trained"), ("vit_micro", "ls")):
        for seed in SEEDS:
            right = 5 + seed if family == "vit" else 0
            for number, name in enumerate(BAGS):
                row = {"family": family, "weights": weights, "seed": seed, "class": name}
                sees = name if number < right else BAGS[number - 1]
                rows.append(row | {"judge_sees": sees})
    return pd.DataFrame(rows)


def clearer(
    amount: float,
    point: str,
    weights: str,
    edit: str = "none",
    family: str = "vit",
    seed: int | tuple[int, ...] = (0, 1, 2),
) -> Change:
    """Adds to the pixel correlation of a point under Adam."""
    where = {"family": family, "weights": weights, "edit": edit, "point": point, "seed": seed}
    return add("inversion", "pixel_correlation", amount, optimiser="adam", **where)


def farther(
    factor: float, column: str = "token_distance", point: str = LAST, **where: Any
) -> Change:
    """Multiplies a distance of a point."""
    return put("inversion", column, lambda values: values * factor, point=point, **where)


def exact(*edits: str, weights: str, correlation: float = 0.991, seed: Any = (0, 1, 2)) -> Change:
    """Sets the pixel correlation after a ViT's first layer."""
    where = {"family": "vit", "weights": weights, "edit": edits, "optimiser": "adam"}
    return put("inversion", "pixel_correlation", correlation, point=FIRST, seed=seed, **where)


def near(weights: tuple[str, ...], share: float, points: tuple[str, ...]) -> Change:
    """Sets variants' token distances to a share of the yardstick."""

    def change(tables: Tables) -> None:
        rows = tables["inversion"]
        there = rows["weights"].isin(weights) & (rows["family"] == "vit_micro")
        there &= rows["point"].isin(points)
        rows.loc[there, "token_distance"] = share * rows.loc[there, "token_yardstick"]

    return change


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(tables: Tables) -> None:
        for single in changes:
            single(tables)

    return change


GD = {"optimiser": "gd", "weights": "trained"}
ALONE = ("layer 0", "layer 11")
BARE = {"weights": "untrained", "edit": "without residuals+mlp", "point": FIRST}
POSITION, NORM = "with patch_embed+pos_embed", "with patch_embed+norm1"


KNOWN = {
    "deeper": 0.9 - 0.3,
    "deeper-mixer": 0.7 - 0.2,
    "untrained-depth": 0.8 - 0.79,
    "patch-embed": 0.6 - 0.2,
    "overcomplete": 0.97,
    "gd.trained": 1.5 - 1,
    "gd.untrained": 1.25 - 1,
    "adam": 1 - 0.2,
    "attention-worst.untrained": 0.99 - 0.89,
    "attention-worst.trained": 0.8 - 0.6,
    "mlp-least.untrained": 0.89 - 0.84,
    "mlp-least.trained": 0.6 - 0.4,
    "norms.untrained": 0.85 - 0.8,
    "norms.trained": 0.97 - 0.9,
    "residuals": 0.1,
    "attention-non-unique": 75 - 50,
    "attention-trained": 0.4 - 0.15,
    "transplant-position": 0.505 - 0.5,
    "transplant-norm": 0.7 - 0.5,
    "mixer-norms": 0.9 - 0.4,
    "mixer-trained": 0.35 - 0.3,
    "class-images": 60 - 10,
    "ls-alone": (0.7 + 0.9) / 2 - (0.45 + 0.55) / 2,
    "ls-sequential": 1.0 - 0.6,
    "ls-arbitrary": 5.0 - 0.63,
    "ls-orders": math.log10(0.63 / 0.6),
}
CHANGES = [
    ("deeper", clearer(0.7, LAST, "trained"), FAILS),
    ("deeper", clearer(0.7, "first 4", "trained"), HOLDS),  # what is between does not count
    ("deeper", clearer(0.9, LAST, "trained", seed=0), UNDECIDED),
    ("untrained-depth", clearer(0.1, FIRST, "untrained"), WEAKER),
    ("untrained-depth", clearer(-0.2, FIRST, "untrained"), FAILS),
    ("patch-embed", put("inversion", "overcomplete", True, family="vit_micro"), NOT_RUN),
    ("overcomplete", clearer(-0.02, "patch_embed", "untrained"), UNDECIDED),  # 0.95 itself
    ("overcomplete", clearer(-0.04, "patch_embed", "untrained"), FAILS),
    ("overcomplete", put("inversion", "overcomplete", False, family="vit"), NOT_RUN),
    ("attention-worst.untrained", clearer(0.2, LAST, "untrained", "without mlp"), FAILS),
    ("mlp-least.trained", clearer(0.3, LAST, "trained", "without mlp"), FAILS),
    ("mlp-least.trained", clearer(-0.5, LAST, "trained", "without attention"), FAILS),
    ("norms.trained", exact("none", "without norms", weights="trained"), NOT_RUN),
    (
        "norms.trained",  # one seed is not found exactly
        both(
            exact("none", "without norms", weights="trained"),
            exact("none", weights="trained", correlation=0.99, seed=1),
        ),
        UNDECIDED,
        0.001 / 3,
    ),
    ("residuals", clearer(0.9, FIRST, "trained", "without residuals"), FAILS),
    ("residuals", clearer(0.3, FIRST, "trained", "without residuals"), WEAKER),
    ("residuals", clearer(-0.8, FIRST, "trained"), HOLDS),  # a bound for it alone
    ("attention-non-unique", put("inversion", "verdict", "", **BARE, image=3), UNDECIDED, 0),
    ("attention-non-unique", put("inversion", "verdict", "", **BARE, image=(2, 3)), FAILS, -25),
    ("attention-non-unique", farther(9, "embedding_distance", **BARE), NOT_RUN),
    ("transplant-position", clearer(0.05, FIRST, "untrained", POSITION), WEAKER),
    ("transplant-position", clearer(0.2, FIRST, "untrained", "with patch_embed"), FAILS),
    ("transplant-norm", clearer(-0.3, FIRST, "untrained", NORM), FAILS),
    ("transplant-norm", clearer(-0.17, FIRST, "untrained", NORM), WEAKER),
    ("transplant-norm", exact("with patch_embed", NORM, weights="untrained"), NOT_RUN),
    ("mixer-norms", farther(3, "embedding_distance", FIRST, edit="without norms"), HOLDS),
    ("mixer-norms", put("inversion", "pixel_correlation", 1.0), HOLDS),  # of no concern
    ("mixer-trained", clearer(-0.3, LAST, "trained", family="mixer"), FAILS),
    ("class-images", put("class_images", "judge_sees", "bag"), FAILS, 0),  # one class always
    ("class-images", put("class_images", "judge_sees", np.nan), NOT_RUN),
    ("class-images", put("class_images", "weights", "ls"), NOT_RUN),
    ("ls-alone", farther(3, point="layer 11", weights="ls"), FAILS),
    ("ls-alone", near(("baseline", "ls"), 0.0099, ALONE), NOT_RUN),
    ("ls-alone", near(("baseline",), 0.0099, ALONE), FAILS),
    ("ls-orders", farther(1.5, weights="ls", order="arbitrary"), WEAKER),
    ("ls-orders", farther(0.3, weights="ls", order="arbitrary"), FAILS),
]
LS_CLAIMS = {"ls-alone", "ls-sequential", "ls-arbitrary", "ls-orders"}
MISSING: list[tuple[dict[str, Any], set[str]]] = [
    ({"optimiser": "gd"}, {"gd.trained", "gd.untrained"}),
    ({"order": "arbitrary"}, {"ls-arbitrary", "ls-orders"}),
    ({"point": "patch_embed"}, {"patch-embed", "overcomplete"}),
    ({"point": ALONE}, {"ls-alone"}),
    ({"weights": "ls"}, LS_CLAIMS),
    ({"weights": "baseline"}, (LS_CLAIMS - {"ls-orders"}) | {"patch-embed"}),
    ({"edit": "without residuals+mlp"}, {"attention-non-unique", "attention-trained"}),
    ({"edit": "with patch_embed"}, {"transplant-position", "transplant-norm"}),
    # All layers are those of the model, not the deepest that were inverted.
    (
        {"point": LAST},
        set(KNOWN)
        - {"patch-embed", "overcomplete", "norms.untrained", "norms.trained", "residuals"}
        - {"attention-non-unique", "attention-trained", "transplant-position"}
        - {"transplant-norm", "class-images", "ls-alone"},
    ),
]


class TestInversion(ClaimSuite):
    paper = PAPER
    known = KNOWN
    changes = CHANGES
    missing = MISSING

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows: list[dict[str, Any]] = []
        for key, clear in CLEAR.items():
            rows += model(*key, clear=clear, embedding=EMBEDDING.get(key, 0.5))
        for weights, ratio in DESCENT.items():
            rows += model("vit", weights, optimiser="gd", embedding=ratio)
        for (weights, order), ratios in TOKENS.items():
            tokens = dict(zip((LAST, *ALONE), ratios, strict=False))
            clear = {"patch_embed": PATCHES[weights]}
            rows += model("vit_micro", weights, order=order, clear=clear, tokens=tokens)
        return {"inversion": pd.DataFrame(rows), "class_images": class_images()}

    def evidence(self, tables: Tables, steps: int = 1500) -> Evidence:
        """Gradient descent of some steps, whatever those of the committed results."""
        evidence = made_up(tables, model="vit_micro", classes=10)
        evidence.read = lambda name: {"optimisers": {"gd": {"steps": steps}}}  # type: ignore[method-assign]
        return evidence

    def test_a_short_descent_decides_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        short = self.evidence(self.made(), steps=120)
        monkeypatch.setattr(TestInversion, "evidence", lambda self, tables: short)
        for name in ("gd.trained", "gd.untrained"):
            assert self.entry(name, self.made())["verdict"] == NOT_RUN

    def test_orders_are_counted(self) -> None:
        one_an_image = {"min": IMAGES, "max": IMAGES}
        assert self.entry("ls-orders", self.made())["orders"] == one_an_image
        assert self.entry("ls-sequential", self.made())["orders"] is None

    def test_a_narrow_model_may_be_why(self) -> None:
        """Said where the claim is about a published model's scale and does not hold."""
        tables = {name: rows.copy() for name, rows in self.made().items()}
        clearer(0.2, LAST, "untrained", "without mlp")(tables)
        assert "a narrow model" in self.entry("mlp-least.untrained", tables)["reason"]
        assert self.entry("mlp-least.untrained", self.made())["reason"] == ""

    def test_a_model_of_fewer_layers(self) -> None:
        """All layers are those of the model; a point or a number that is not there is named."""
        rows = points(self.evidence(self.made()), "vit", "trained")
        four_layers = at(rows.assign(num_layers=4), -1, "pixel_correlation")
        assert four_layers == pytest.approx([0.499, 0.5, 0.501])
        with pytest.raises(NotRun, match="first 2 is not among the inverted points"):
            at(rows, "first 2", "pixel_correlation")
        with pytest.raises(NotRun, match="has no pixel_correlation"):
            at(rows.assign(pixel_correlation=np.nan), -1, "pixel_correlation")
