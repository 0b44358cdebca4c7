"""The claims about what layers represent."""

import itertools
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from papers.inversion import PAPER
from papers.inversion.measures import at, points
from pipeline.report.evidence import Evidence, NotRun
from pipeline.report.ledger import NOT_RUN
from tests.papers.claim_suite import ClaimSuite, Tables, made_up, of_seeds, read_cases

CASES = read_cases(__file__, "inversion")
SEEDS, IMAGES = range(3), 4
# Points with the layers executed
POINTS = {"patch_embed": 0, "first 1": 1, "first 4": 4, "first 12": 12, "layer 0": 1, "layer 11": 1}
KEYS = {"edit": "none", "order": "sequential", "optimiser": "adam"}
BAGS = ("bag", "boot", "coat", "dress", "hat", "pullover", "sandal", "shirt", "sneaker", "trouser")


def rows_of(model: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of one model; images and seeds differ, around the means that are given."""
    rows = []
    keys = KEYS | {name: value for name, value in model.items() if isinstance(value, str)}
    names = list(POINTS)
    if keys["order"] != "sequential" or keys["edit"] != "none":
        names = [point for point in POINTS if not point.startswith("layer")]
    for seed, point, image in itertools.product(SEEDS, names, range(IMAGES)):
        off = 0.01 * (image - (IMAGES - 1) / 2)
        unit = 1 + image  # ratios are taken image by image
        clear, outputs, tokens = (
            model.get(name, {}).get(point, 0.5) + off for name in ("clear", "outputs", "tokens")
        )
        row = {
            "seed": seed,
            "point": point,
            "depth": POINTS[point],
            "image": image,
            "num_layers": 12,
            "overcomplete": keys["family"] == "vit",
            "patterned": 0.4 + 0.01 * (seed - 1),
            "verdict": "non-unique" if image else "invertible here",
            "pixel_correlation": clear + 0.001 * (seed - 1),
            "input_distance": 1.0,
            "input_yardstick": 4.0,
            "yardstick": 2.0 * unit,
            "embedding_distance": 2.0 * unit * outputs,
            "token_yardstick": 5.0 * unit,
            "token_distance": 5.0 * unit * tokens,
        }
        rows.append(keys | row)
    return rows


def class_images() -> pd.DataFrame:
    """The judge recognises five, six and seven of ten of the ViT, none of others."""
    rows = []
    models = (("vit", "trained"), ("mixer", "trained"), ("vit_micro", "ls"))
    for model, seed, number in itertools.product(models, SEEDS, range(len(BAGS))):
        right = model[0] == "vit" and number < 5 + seed
        rows.append((*model, seed, BAGS[number], BAGS[number if right else number - 1]))
    return pd.DataFrame(rows, columns=["family", "weights", "seed", "class", "judge_sees"])


def trainings() -> pd.DataFrame:
    """Accuracies of three seeds around the means that are given."""
    means = pd.DataFrame(CASES["accuracies"].items(), columns=["family", "accuracy"])
    rows = of_seeds(means)
    return rows.assign(accuracy=rows["accuracy"] + 0.001 * (rows["seed"] - 1))


class TestInversion(ClaimSuite):
    paper = PAPER
    cases = CASES

    @classmethod
    @cache
    def made(cls) -> Tables:
        rows = [row for model in CASES["models"] for row in rows_of(model)]
        return {
            "inversion": pd.DataFrame(rows),
            "inversion_trainings": trainings(),
            "class_images": class_images(),
        }

    def evidence(self, tables: Tables, steps: int = 1500) -> Evidence:
        """Gradient descent of some steps, whatever those of the committed results."""
        evidence = made_up(tables, model="vit_micro", classes=10)
        about = {"optimisers": {"gd": {"steps": steps}}, "met": 0.05}
        evidence.read = lambda name: about  # type: ignore[method-assign]
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

    def test_a_model_of_fewer_layers(self) -> None:
        """All layers are those of the model; a point or a number that is not there is named."""
        rows = points(self.evidence(self.made()), "vit", "trained")
        four_layers = at(rows.assign(num_layers=4), -1, "pixel_correlation")
        assert four_layers == pytest.approx([0.499, 0.5, 0.501])
        with pytest.raises(NotRun, match="first 2 is not among the inverted points"):
            at(rows, "first 2", "pixel_correlation")
        with pytest.raises(NotRun, match="has no pixel_correlation"):
            at(rows.assign(pixel_correlation=np.nan), -1, "pixel_correlation")
