"""The claims about what layers represent: every measure on rows with a known answer, and what changes or is missing."""

import math
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.inversion.claims import CLAIMS, alone, at, points
from papers.inversion.compute.rows import CLASS_COLUMNS, COLUMNS
from pipeline.report.ledger import FAILS, HOLDS, NOT_RUN, UNDECIDED, WEAKER, Evidence, NotRun
from tests.conftest import ALL_CLAIMS, ROOT, Change, add

RESULTS = ROOT / "results"
SEEDS, IMAGES = (0, 1, 2), 4
POINTS = {
    "patch_embed": 0,
    "first 1": 1,
    "first 4": 4,
    "first 12": 12,
    "layer 0": 1,
    "layer 11": 1,
}  # with the layers executed
YARDSTICKS = {
    "embedding": ("embedding_distance", "yardstick", 2.0),
    "tokens": ("token_distance", "token_yardstick", 5.0),
}
Values = dict[str, float]  # by point

# Pixel correlation of models of ViT and MLP-Mixer under Adam, by weights and edit; where a point is not named, 0.5
CLEAR: dict[tuple[str, str, str], Values] = {
    ("vit", "trained", "none"): {"patch_embed": 0.95, "first 1": 0.9, "first 12": 0.3},
    ("vit", "untrained", "none"): {"patch_embed": 0.97, "first 1": 0.8, "first 12": 0.79},
    ("vit", "trained", "without attention"): {"first 12": 0.8},
    ("vit", "trained", "without norms"): {"first 1": 0.97, "first 12": 0.6},
    ("vit", "trained", "without mlp"): {"first 12": 0.4},
    ("vit", "trained", "without residuals"): {"first 1": 0.1},
    ("vit", "trained", "without residuals+mlp"): {"first 1": 0.4},
    ("vit", "untrained", "without attention"): {"first 12": 0.99},
    ("vit", "untrained", "without norms"): {"first 1": 0.85, "first 12": 0.89},
    ("vit", "untrained", "without mlp"): {"first 12": 0.84},
    ("vit", "untrained", "without residuals+mlp"): {"first 1": 0.15},
    ("vit", "untrained", "with patch_embed"): {"first 1": 0.5},
    ("vit", "untrained", "with patch_embed+pos_embed"): {"first 1": 0.505},
    ("vit", "untrained", "with patch_embed+norm1"): {"first 1": 0.7},
    ("mixer", "trained", "none"): {"first 12": 0.35},
    ("mixer", "untrained", "none"): {"first 1": 0.7, "first 12": 0.2},
    ("mixer", "untrained", "without norms"): {},
}
# Embedding distance after all layers relative to the yardstick, where it matters
EMBEDDING = {
    ("vit", "trained", "none"): 0.2,
    ("mixer", "untrained", "none"): 0.9,
    ("mixer", "untrained", "without norms"): 0.4,
}
DESCENT = {"trained": 1.5, "untrained": 1.25}  # the same of plain descent
# Token distance relative to the yardstick of variants, by order: after all layers, and of the two layers alone
TOKENS = {
    ("baseline", "sequential"): (1.0, 0.7, 0.9),
    ("baseline", "arbitrary"): (5.0,),
    ("ls", "sequential"): (0.6, 0.45, 0.55),
    ("ls", "arbitrary"): (0.63,),
    ("untrained", "sequential"): (2.0, 2.0, 2.0),
    ("untrained", "arbitrary"): (2.0,),
}
PATCHES = {
    "baseline": 0.6,
    "ls": 0.6,
    "untrained": 0.2,
}  # pixel correlation of variants' patch embeddings
BAGS = ["bag", "boot", "coat", "dress", "hat", "pullover", "sandal", "shirt", "sneaker", "trouser"]


def model(
    family: str,
    weights: str,
    edit: str = "none",
    order: str = "sequential",
    optimiser: str = "adam",
    clear: Values | None = None,
    embedding: Values | None = None,
    tokens: Values | None = None,
) -> list[dict[str, Any]]:
    """Rows of one model in three seeds; images and seeds differ, around the means that are given."""
    keys = {
        "family": family,
        "weights": weights,
        "edit": edit,
        "order": order,
        "optimiser": optimiser,
    }
    found = []
    for seed in SEEDS:
        for point, depth in POINTS.items():
            if point.startswith("layer") and (order == "arbitrary" or edit != "none"):
                continue
            for image in range(IMAGES):
                middle = image - (IMAGES - 1) / 2
                row = keys | {
                    "seed": seed,
                    "point": point,
                    "depth": depth,
                    "image": image,
                    "lr": 0.1,
                }
                row |= {
                    "input_distance": 1.0,
                    "input_yardstick": 4.0,
                    "verdict": "non-unique" if image else "invertible here",
                    "num_layers": 12,
                    "overcomplete": family == "vit",
                }
                row["pixel_correlation"] = (
                    (clear or {}).get(point, 0.5) + 0.01 * middle + 0.001 * (seed - 1)
                )
                for values, (distance, yardstick, unit) in zip(
                    (embedding, tokens), YARDSTICKS.values(), strict=True
                ):
                    own = unit * (1 + image)  # ratios are taken image by image
                    row |= {
                        distance: own * ((values or {}).get(point, 0.5) + 0.01 * middle),
                        yardstick: own,
                    }
                found.append(row)
    return found


@pytest.fixture(scope="module")
def made() -> pd.DataFrame:
    """Rows that every claim can be judged on."""
    rows: list[dict[str, Any]] = []
    for (family, weights, edit), clear in CLEAR.items():
        rows += model(
            family,
            weights,
            edit,
            clear=clear,
            embedding={"first 12": EMBEDDING.get((family, weights, edit), 0.5)},
        )
    for weights, ratio in DESCENT.items():
        rows += model("vit", weights, optimiser="gd", embedding={"first 12": ratio})
    for (weights, order), ratios in TOKENS.items():
        tokens = dict(zip(("first 12", "layer 0", "layer 11"), ratios, strict=False))
        rows += model(
            "vit_micro",
            weights,
            order=order,
            clear={"patch_embed": PATCHES[weights]},
            tokens=tokens,
        )
    return pd.DataFrame(rows).assign(dataset="d", model="vit_micro")[COLUMNS]


@pytest.fixture(scope="module")
def pictured() -> pd.DataFrame:
    """Class images: the judge recognises five, six and seven of ten of the ViT, none of others."""
    rows = []
    for family, weights in (("vit", "trained"), ("mixer", "trained"), ("vit_micro", "ls")):
        for seed in SEEDS:
            right = 5 + seed if family == "vit" else 0
            for number, name in enumerate(BAGS):
                sees = name if number < right else BAGS[number - 1]
                keys = {
                    "dataset": "d",
                    "model": "vit_micro",
                    "family": family,
                    "weights": weights,
                    "seed": seed,
                    "class": name,
                }
                rows.append(
                    keys | {"probability": 1.0, "judge_probability": 0.5, "judge_sees": sees}
                )
    return pd.DataFrame(rows)[CLASS_COLUMNS]


class Made(Evidence):
    """Gradient descent of some steps, whatever those of the committed results."""

    steps = 1500

    def read(self, name: str) -> dict[str, Any]:
        """What is made up of the section."""
        return (
            {"optimisers": {"gd": {"steps": self.steps}}}
            if name == "inversion"
            else super().read(name)
        )


@cache
def read() -> Made:
    return Made(RESULTS)


def evidence(rows: pd.DataFrame, classes: pd.DataFrame) -> Made:
    found = copy(read())
    found.orders = []
    found.tables = found.tables | {"inversion": rows.copy(), "class_images": classes.copy()}
    found.cell = found.cell | {"model": "vit_micro", "dataset": "d", "classes": 10}
    return found


def entry(name: str, e: Evidence) -> dict[str, Any]:
    return next(claim for claim in CLAIMS if claim.id == f"inversion.{name}").judge(e)


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


def test_every_claim_is_known() -> None:
    """Each once, under a name of its own, and in the ledger."""
    names = [claim.id for claim in CLAIMS]
    assert sorted(names) == sorted(f"inversion.{name}" for name in KNOWN)
    assert all(name.startswith("inversion.") for name in names)
    assert set(CLAIMS) <= set(ALL_CLAIMS)
    assert len({claim.id for claim in ALL_CLAIMS}) == len(ALL_CLAIMS)


@pytest.mark.parametrize("name", KNOWN)
def test_a_measure_on_rows_with_a_known_answer(
    name: str, made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    found = entry(name, evidence(made, pictured))
    assert found["measured"]["mean"] == pytest.approx(KNOWN[name], abs=1e-4), found["reason"]
    assert found["measured"]["n"] == len(SEEDS)
    assert found["verdict"] == HOLDS
    shuffled = name in ("ls-arbitrary", "ls-orders")
    assert found["orders"] == ({"min": IMAGES, "max": IMAGES} if shuffled else None)


def test_a_value_a_seed(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    """In the order of the rows; a difference is taken seed by seed."""
    rows = made.copy()
    rows.loc[
        (rows["weights"] == "trained") & (rows["seed"] == 2) & (rows["point"] == "first 1"),
        "pixel_correlation",
    ] += 0.3
    claim = next(claim for claim in CLAIMS if claim.id == "inversion.deeper")
    assert claim.measure(evidence(rows, pictured)) == pytest.approx([0.6, 0.6, 0.9])
    classes = next(claim for claim in CLAIMS if claim.id == "inversion.class-images")
    assert classes.measure(evidence(rows, pictured)) == pytest.approx([40, 50, 60])


def test_points_of_a_model(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    """The first layer, and as many as the model has; layers alone are means over the layers."""
    e = evidence(made, pictured)
    rows = points(e, "vit", "trained")
    assert len(rows) == len(SEEDS) * len(POINTS) * IMAGES
    assert set(
        rows[["family", "weights", "edit", "order", "optimiser"]].itertuples(index=False, name=None)
    ) == {("vit", "trained", "none", "sequential", "adam")}
    for point, same, value in ((0, "first 1", 0.9), (-1, "first 12", 0.3)):
        expected = np.array([value - 0.001, value, value + 0.001])
        assert at(rows, point, "pixel_correlation") == pytest.approx(expected)
        assert at(rows, same, "pixel_correlation") == pytest.approx(expected)
    assert at(rows, "first 4", "pixel_correlation") == pytest.approx(np.array([0.499, 0.5, 0.501]))
    assert at(rows.assign(num_layers=4), -1, "pixel_correlation") == pytest.approx(
        np.array([0.499, 0.5, 0.501])
    )
    baseline = points(e, "vit_micro", "baseline")
    assert alone(baseline, "token_ratio") == pytest.approx([0.8] * 3)
    assert e.orders == []
    points(e, "vit_micro", "ls", order="arbitrary")
    assert e.orders == [IMAGES]


def clearer(
    amount: float, point: str, weights: str, edit: str = "none", family: str = "vit", **more: Any
) -> Change:
    keys = {
        "family": family,
        "weights": weights,
        "edit": edit,
        "optimiser": "adam",
        "point": point,
        **more,
    }
    return add("pixel_correlation", amount, **keys)


def farther(factor: float, column: str, **where: Any) -> Change:
    """Multiplies a distance where other columns have these values."""

    def change(rows: pd.DataFrame) -> None:
        chosen = np.logical_and.reduce([rows[key] == value for key, value in where.items()])
        assert chosen.any()
        rows.loc[chosen, column] *= factor

    return change


LAST = "first 12"


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("deeper", clearer(0.7, LAST, "trained"), FAILS),
        ("deeper", clearer(0.7, "first 4", "trained"), HOLDS),  # what is between does not count
        ("deeper", clearer(0.7, LAST, "untrained"), HOLDS),
        ("deeper", clearer(0.9, LAST, "trained", seed=0), UNDECIDED),
        ("deeper-mixer", clearer(-0.6, "first 1", "untrained", family="mixer"), FAILS),
        ("untrained-depth", clearer(0.1, "first 1", "untrained"), WEAKER),
        ("untrained-depth", clearer(0.2, "first 1", "untrained"), FAILS),
        ("untrained-depth", clearer(-0.2, "first 1", "untrained"), FAILS),
        ("patch-embed", clearer(0.5, "patch_embed", "untrained", family="vit_micro"), FAILS),
        ("patch-embed", clearer(0.5, "patch_embed", "untrained"), HOLDS),  # of another family
        ("overcomplete", clearer(-0.02, "patch_embed", "untrained"), UNDECIDED),  # 0.95 itself
        ("overcomplete", clearer(-0.04, "patch_embed", "untrained"), FAILS),
        ("overcomplete", clearer(-0.5, "patch_embed", "trained"), HOLDS),
        (
            "gd.trained",
            farther(0.5, "embedding_distance", optimiser="gd", weights="trained", point=LAST),
            FAILS,
        ),
        (
            "gd.untrained",
            farther(0.5, "embedding_distance", optimiser="gd", weights="trained", point=LAST),
            HOLDS,
        ),
        (
            "gd.untrained",
            farther(2, "yardstick", optimiser="gd", weights="untrained", point=LAST),
            FAILS,
        ),
        (
            "adam",
            farther(
                6,
                "embedding_distance",
                optimiser="adam",
                weights="trained",
                family="vit",
                point=LAST,
            ),
            FAILS,
        ),
        ("attention-worst.untrained", clearer(0.2, LAST, "untrained", "without mlp"), FAILS),
        ("attention-worst.untrained", clearer(0.2, LAST, "untrained", "without norms"), FAILS),
        ("attention-worst.trained", clearer(-0.3, LAST, "trained", "without attention"), FAILS),
        (
            "attention-worst.trained",
            clearer(0.6, LAST, "trained"),
            HOLDS,
        ),  # as it is: no part of it
        ("mlp-least.trained", clearer(0.3, LAST, "trained", "without mlp"), FAILS),
        ("mlp-least.trained", clearer(-0.3, LAST, "trained", "without norms"), FAILS),
        (
            "mlp-least.trained",
            clearer(-0.5, LAST, "trained", "without attention"),
            FAILS,
        ),  # against both
        ("mlp-least.trained", clearer(-0.3, LAST, "trained", "without attention"), HOLDS),
        ("mlp-least.trained", clearer(0.6, LAST, "trained"), HOLDS),
        ("norms.untrained", clearer(-0.1, "first 1", "untrained", "without norms"), FAILS),
        ("norms.trained", clearer(-0.1, LAST, "trained", "without norms"), HOLDS),
        ("residuals", clearer(0.9, "first 1", "trained", "without residuals"), FAILS),
        ("residuals", clearer(0.3, "first 1", "trained", "without residuals"), WEAKER),
        ("residuals", clearer(-0.3, "first 1", "trained", "without residuals"), HOLDS),
        (
            "residuals",
            clearer(-0.8, "first 1", "trained"),
            HOLDS,
        ),  # a bound, whatever is there with them
        ("attention-trained", clearer(0.3, "first 1", "untrained", "without residuals+mlp"), FAILS),
        (
            "transplant-position",
            clearer(0.05, "first 1", "untrained", "with patch_embed+pos_embed"),
            WEAKER,
        ),
        ("transplant-position", clearer(0.2, "first 1", "untrained", "with patch_embed"), FAILS),
        ("transplant-norm", clearer(-0.3, "first 1", "untrained", "with patch_embed+norm1"), FAILS),
        (
            "transplant-norm",
            clearer(-0.17, "first 1", "untrained", "with patch_embed+norm1"),
            WEAKER,
        ),  # helps, not substantially
        (
            "transplant-norm",
            clearer(-0.14, "first 1", "untrained", "with patch_embed+norm1"),
            HOLDS,
        ),
        (
            "mixer-norms",
            farther(3, "embedding_distance", family="mixer", edit="without norms", point=LAST),
            FAILS,
        ),
        (
            "mixer-norms",
            farther(3, "embedding_distance", family="mixer", edit="without norms", point="first 1"),
            HOLDS,
        ),
        ("mixer-trained", clearer(-0.1, LAST, "trained", family="mixer"), WEAKER),
        ("mixer-trained", clearer(-0.3, LAST, "trained", family="mixer"), FAILS),
        ("ls-alone", farther(3, "token_distance", weights="ls", point="layer 11"), FAILS),
        ("ls-alone", farther(3, "token_distance", weights="ls", point=LAST), HOLDS),
        (
            "ls-sequential",
            farther(3, "token_distance", weights="ls", order="sequential", point=LAST),
            FAILS,
        ),
        (
            "ls-sequential",
            farther(30, "token_distance", weights="ls", order="arbitrary", point=LAST),
            HOLDS,
        ),
        (
            "ls-arbitrary",
            farther(30, "token_distance", weights="ls", order="arbitrary", point=LAST),
            FAILS,
        ),
        (
            "ls-orders",
            farther(1.5, "token_distance", weights="ls", order="arbitrary", point=LAST),
            WEAKER,
        ),
        (
            "ls-orders",
            farther(0.3, "token_distance", weights="ls", order="arbitrary", point=LAST),
            FAILS,
        ),
        (
            "ls-orders",
            farther(3, "token_distance", weights="ls", order="arbitrary", point=LAST),
            FAILS,
        ),
    ],
)
def test_a_change_that_decides(
    name: str, change: Change, verdict: str, made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    rows = made.copy()
    change(rows)
    assert entry(name, evidence(rows, pictured))["verdict"] == verdict


def test_verdicts_that_decide(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    """Of four images two are half, one is less; of others than untrained models without residuals and MLP none count."""
    rows = made.copy()
    own = (
        (rows["weights"] == "untrained")
        & (rows["edit"] == "without residuals+mlp")
        & (rows["point"] == "first 1")
    )
    rows.loc[~own, "verdict"] = "invertible here"
    assert entry("attention-non-unique", evidence(rows, pictured))["verdict"] == HOLDS
    rows.loc[own & (rows["image"] != 3), "verdict"] = "approximately non-invertible"
    found = entry("attention-non-unique", evidence(rows, pictured))
    assert (found["measured"]["mean"], found["verdict"]) == (-25, FAILS)


def test_classes_that_decide(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    """What the model itself gives does not count, nor do other models."""
    own = pictured["family"] == "vit"
    wrong = pictured.assign(judge_sees=pictured["judge_sees"].where(~own, "ankle"))
    found = entry("class-images", evidence(made, wrong))
    assert (found["measured"]["mean"], found["verdict"]) == (-10, FAILS)
    assert "a narrow model" in found["reason"]
    assert entry("class-images", evidence(made, pictured.assign(probability=0)))["verdict"] == HOLDS
    assert entry("class-images", evidence(made, pictured[own]))["verdict"] == HOLDS


def test_a_judge_that_sees_one_class_in_everything_recognises_nothing(
    made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    """It is right about one of ten in every seed: not above chance."""
    found = entry("class-images", evidence(made, pictured.assign(judge_sees="bag")))
    assert found["measured"]["mean"] == 0
    assert found["verdict"] == FAILS


def test_a_short_descent_decides_nothing(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    e = evidence(made, pictured)
    e.steps = 120
    for name in ("gd.trained", "gd.untrained"):
        found = entry(name, e)
        assert (found["verdict"], found["reason"]) == (
            NOT_RUN,
            "120 steps of gradient descent, the source takes 1500",
        )


def set_to(value: float, column: str, point: str, **where: Any) -> Change:
    """Sets a column of a point, of models as `where` says."""

    def change(rows: pd.DataFrame) -> None:
        chosen = np.logical_and.reduce(
            [rows[key] == each for key, each in (where | {"point": point}).items()]
        )
        assert chosen.any()
        rows.loc[chosen, column] = value

    return change


@pytest.mark.parametrize(
    ("name", "edits", "point", "weights"),
    [
        ("norms.trained", ("none", "without norms"), "first 1", "trained"),
        ("norms.untrained", ("none", "without norms"), "first 1", "untrained"),
        (
            "transplant-position",
            ("with patch_embed", "with patch_embed+pos_embed"),
            "first 1",
            "untrained",
        ),
        ("transplant-norm", ("with patch_embed", "with patch_embed+norm1"), "first 1", "untrained"),
    ],
)
def test_nothing_is_judged_where_both_inputs_are_found(
    name: str,
    edits: tuple[str, str],
    point: str,
    weights: str,
    made: pd.DataFrame,
    pictured: pd.DataFrame,
) -> None:
    """In every seed of both; otherwise the difference is one."""
    rows = made.copy()
    for edit in edits:
        set_to(
            0.991,
            "pixel_correlation",
            point,
            family="vit",
            weights=weights,
            edit=edit,
            optimiser="adam",
        )(rows)
    found = entry(name, evidence(rows, pictured))
    assert (found["verdict"], found["measured"]) == (NOT_RUN, None)
    assert (
        found["reason"]
        == "both inputs are found, with a pixel correlation above 0.99: there is nothing to tell apart"
    )
    for edit in edits:
        other = rows.copy()
        set_to(
            0.99,
            "pixel_correlation",
            point,
            family="vit",
            weights=weights,
            edit=edit,
            optimiser="adam",
            seed=1,
        )(other)
        found = entry(name, evidence(other, pictured))
        assert found["measured"]["mean"] == pytest.approx(
            0.001 / 3 * (1 if edit == edits[0] else -1), abs=1e-4
        )
        assert found["verdict"] != NOT_RUN


def test_embedding_distances_are_judged_however_clear_the_inputs_are(
    made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    found = entry("mixer-norms", evidence(made.assign(pixel_correlation=1.0), pictured))
    assert (found["measured"]["mean"], found["verdict"]) == (pytest.approx(0.9 - 0.4), HOLDS)


def test_layers_whose_tokens_are_found_exactly_are_not_compared(
    made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    """Those of both models in every seed, nearer than 0.01 of the yardstick; whole routes are compared all the same."""
    alone_of = made["point"].str.startswith("layer ") & (made["family"] == "vit_micro")
    rows = made.assign(
        token_distance=made["token_distance"].where(~alone_of, 0.0099 * made["token_yardstick"])
    )
    found = entry("ls-alone", evidence(rows, pictured))
    assert (found["verdict"], found["measured"]) == (NOT_RUN, None)
    assert (
        found["reason"]
        == "the tokens are found exactly for both, nearer than 0.01 of the yardstick: there is nothing to tell apart"
    )
    for weights, verdict in (("baseline", HOLDS), ("ls", FAILS)):
        some = alone_of & (rows["weights"] == weights)
        other = rows.assign(
            token_distance=rows["token_distance"].where(~some, 0.0101 * rows["token_yardstick"])
        )
        found = entry("ls-alone", evidence(other, pictured))
        assert (abs(found["measured"]["mean"]), found["verdict"]) == (
            pytest.approx(0.0002, abs=1e-4),
            verdict,
        )
    near = made["family"] == "vit_micro"
    rows = made.assign(
        token_distance=made["token_distance"].where(~near, made["token_distance"] / 1000)
    )
    assert entry("ls-sequential", evidence(rows, pictured))["verdict"] == HOLDS


@pytest.mark.parametrize(
    ("name", "family", "overcomplete", "reason"),
    [
        (
            "patch-embed",
            "vit_micro",
            True,
            "vit_micro's patch embedding is as wide as its patches have values",
        ),
        (
            "overcomplete",
            "vit",
            False,
            "vit's patch embedding is not as wide as its patches have values",
        ),
    ],
)
def test_patch_embeddings_of_the_other_kind(
    name: str,
    family: str,
    overcomplete: bool,
    reason: str,
    made: pd.DataFrame,
    pictured: pd.DataFrame,
) -> None:
    """A claim about narrow ones is not judged on a wide one, nor the other way round."""
    rows = made.copy()
    rows.loc[rows["family"] == family, "overcomplete"] = overcomplete
    found = entry(name, evidence(rows, pictured))
    assert (found["verdict"], found["reason"]) == (NOT_RUN, reason)


@pytest.mark.parametrize("name", ["adam", "ls-sequential", "attention-worst.trained"])
def test_all_layers_are_those_of_the_model(
    name: str, made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    """Not the deepest that were inverted."""
    found = entry(name, evidence(made[made["point"] != LAST], pictured))
    assert found["verdict"] == NOT_RUN
    assert found["reason"].startswith("first 12 is not among the inverted points")


NEEDED = {
    "deeper": "vit, trained",
    "deeper-mixer": "mixer, untrained",
    "untrained-depth": "vit, untrained",
    "patch-embed": "vit_micro, baseline",
    "adam": "vit, trained",
    "attention-worst.untrained": "vit, untrained, without attention",
    "attention-worst.trained": "vit, trained, without attention",
    "mlp-least.untrained": "vit, untrained, without norms",
    "norms.trained": "vit, trained, without norms",
    "residuals": "vit, trained, without residuals",
    "attention-non-unique": "vit, untrained, without residuals+mlp",
    "attention-trained": "vit, untrained, without residuals+mlp",
    "transplant-position": "vit, untrained, with patch_embed+pos_embed",
    "transplant-norm": "vit, untrained, with patch_embed+norm1",
    "mixer-norms": "mixer, untrained, without norms",
    "mixer-trained": "mixer, trained",
    "ls-alone": "vit_micro, LS",
    "ls-sequential": "vit_micro, LS",
}


@pytest.mark.parametrize("name", NEEDED)
def test_a_model_that_is_missing_is_named(
    name: str, made: pd.DataFrame, pictured: pd.DataFrame
) -> None:
    """Without that model's rows a claim was not run; the claims that do not need them are judged."""
    family, weights, *edit = NEEDED[name].split(", ")
    key = {
        "family": family,
        "weights": {"LS": "ls"}.get(weights, weights),
        "edit": edit[0] if edit else "none",
        "order": "sequential",
        "optimiser": "adam",
    }
    gone = np.logical_and.reduce([made[column] == value for column, value in key.items()])
    assert gone.any()
    e = evidence(made[~gone], pictured)
    found = entry(name, e)
    assert (found["verdict"], found["measured"]) == (NOT_RUN, None)
    assert (
        found["reason"]
        == f"the inversion of {NEEDED[name]}, sequential order, adam is not among the results"
    )
    assert entry("gd.trained", e)["verdict"] == entry("class-images", e)["verdict"] == HOLDS


@pytest.mark.parametrize(
    ("missing", "names", "reason"),
    [
        (
            {"optimiser": "gd"},
            ["gd.trained"],
            "the inversion of vit, trained, sequential order, gd is not among the results",
        ),
        (
            {"optimiser": "gd"},
            ["gd.untrained"],
            "the inversion of vit, untrained, sequential order, gd is not among the results",
        ),
        (
            {"order": "arbitrary"},
            ["ls-arbitrary"],
            "the inversion of vit_micro, baseline, arbitrary order, adam is not among the results",
        ),
        (
            {"order": "arbitrary"},
            ["ls-orders"],
            "the inversion of vit_micro, LS, arbitrary order, adam is not among the results",
        ),
        (
            {"point": "patch_embed"},
            ["patch-embed", "overcomplete"],
            "patch_embed is not among the inverted points, or has no pixel_correlation",
        ),
    ],
)
def test_what_is_missing_is_named(
    missing: dict[str, str],
    names: list[str],
    reason: str,
    made: pd.DataFrame,
    pictured: pd.DataFrame,
) -> None:
    key, value = next(iter(missing.items()))
    e = evidence(made[made[key] != value], pictured)
    for name in names:
        found = entry(name, e)
        assert (found["verdict"], found["reason"]) == (NOT_RUN, reason)
    assert entry("deeper", e)["verdict"] == HOLDS


def test_points_that_are_missing(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    without = evidence(made[~made["point"].str.startswith("layer ")], pictured)
    found = entry("ls-alone", without)
    assert (found["verdict"], found["reason"]) == (
        NOT_RUN,
        "layers alone are not among the inverted points",
    )
    assert entry("ls-sequential", without)["verdict"] == HOLDS
    rows = points(evidence(made, pictured), "vit", "trained")
    with pytest.raises(NotRun, match="first 2 is not among the inverted points"):
        at(rows, "first 2", "pixel_correlation")
    empty = rows.assign(pixel_correlation=rows["pixel_correlation"].where(rows["point"] != LAST))
    with pytest.raises(
        NotRun, match="first 12 is not among the inverted points, or has no pixel_correlation"
    ):
        at(empty, -1, "pixel_correlation")
    assert len(at(empty, 0, "pixel_correlation")) == 3


def test_class_images_that_are_missing(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    """Without files, without the ViT, and without another training that looks at them."""
    reason = "class images of two trainings of a ViT are not among the results"
    unjudged = pictured.assign(judge_sees=np.nan, judge_probability=np.nan)
    for classes in (
        pd.DataFrame(),
        pictured[pictured["family"] != "vit"],
        unjudged,
        pictured.assign(weights="ls"),
    ):
        found = entry("class-images", evidence(made, classes))
        assert (found["verdict"], found["reason"]) == (NOT_RUN, reason)


def test_without_the_stage_nothing_was_run() -> None:
    e = evidence(pd.DataFrame(), pd.DataFrame())
    found = {claim.id: claim.judge(e) for claim in CLAIMS}
    assert {each["verdict"] for each in found.values()} == {NOT_RUN}
    assert {each["reason"] for name, each in found.items() if name != "inversion.class-images"} == {
        "inversions are not among the results"
    }


def test_one_seed_gives_no_interval(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    e = evidence(made[made["seed"] == 1], pictured[pictured["seed"] == 1])
    for name, value in KNOWN.items():
        found = entry(name, e)
        assert (found["verdict"], found["measured"]["n"]) == (NOT_RUN, 1)
        assert found["measured"]["mean"] == pytest.approx(value, abs=1e-4)
        assert found["reason"] == "one seed, or one model, gives no interval"


def test_a_narrow_model_may_be_why(made: pd.DataFrame, pictured: pd.DataFrame) -> None:
    """Said where the claim is about training or a published model's scale, and only where it does not hold."""
    rows = made.copy()
    clearer(0.2, LAST, "untrained", "without mlp")(rows)
    assert (
        "possible reason: a narrow model"
        in entry("mlp-least.untrained", evidence(rows, pictured))["reason"]
    )
    assert entry("mlp-least.untrained", evidence(made, pictured))["reason"] == ""
