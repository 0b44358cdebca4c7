"""`finetune.per`: what a random route is drawn for, said once for all variants and of each that
cannot or shall not have it."""

from typing import Any

import pytest

from pipeline.config.params import Params
from pipeline.config.samplers import forms
from pipeline.config.sections import Finetune
from tests.conftest import cases_of
from tests.pipeline.config.conftest import Load

CASES = cases_of(__file__)

PLACES = [
    "finetune",
    "scales.published.finetune",
    "models.vit_micro.finetune",
    "datasets.fashion_mnist_10k.finetune",
]


def per_of(params: Params, name: str) -> tuple[Any, str]:
    """What a variant trains with, and where that was said."""
    return params.values(Finetune, name)["per"][:2]


@pytest.mark.parametrize(
    ("per", "layerdrop"), [("latin", "batch"), ("sample", "sample"), ("batch", "batch")]
)
def test_variants_have_what_their_route_has(per: str, layerdrop: str, changed: Load) -> None:
    """Of the others the table at a training's start says that it is their route."""
    place = PLACES[2]
    params = changed({"scale": "published", f"{place}.per": per})
    for name in ("ls", "ls_pos", "ls_pred", "ls_pred_mean"):
        assert per_of(params, name) == (per, place)
    own = place if layerdrop == per else "variants.layerdrop.route"
    assert per_of(params, "layerdrop") == (layerdrop, own)
    assert per_of(params, "baseline") == ("batch", "baseline.route")
    assert per_of(params, "refit_3") == ("batch", "variants.refit_3.route")
    assert params.resolve(Finetune, "ls").per == per
    assert params.resolve(Finetune, "layerdrop").per == layerdrop


@pytest.mark.parametrize("per", ["batch", "sample", "latin"])
def test_a_variants_own_wins(per: str, changed: Load) -> None:
    """Over all places; it is no option of the others."""
    other = {"batch": "latin", "sample": "latin", "latin": "sample"}[per]
    params = changed(
        {"scale": "published"}
        | {f"{place}.per": other for place in PLACES}
        | {"variants.ls.per": per}
    )
    assert per_of(params, "ls") == (per, "variants.ls")
    assert per_of(params, "ls_pos") == (other, PLACES[-1])


@pytest.mark.parametrize(("route", "expected"), CASES["forms"])
def test_forms_of_a_route(route: Any, expected: list[str], changed: Load) -> None:
    """Each of them is accepted of a variant, too."""
    assert list(forms(route)) == expected
    params = changed({f"variants.by_{per}": {"route": route, "per": per} for per in expected})
    assert [params.resolve(Finetune, f"by_{per}").per for per in expected] == expected
