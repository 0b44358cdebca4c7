"""Scales: how much is computed. Their values resolve in the documented order, and wrong ones end in
one line, chosen or not."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from papers import PAPERS
from papers.smoothing.section import Smoothing
from pipeline.config.checks import check_layers
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.errors import UserError
from tests.conftest import ALL_SECTIONS, ROOT
from tests.pipeline.config.conftest import Load

Values = dict[str, Any]
SCALES = ["smoke", "minutes", "hours", "few_epochs", "published"]


def places(section: str, *after: str) -> list[str]:
    """What overrides a section, in this order, for the chosen model at its own scale, and the data
    set."""
    presets = [
        "scales.minutes",
        "models.vit_micro",
        "scales.minutes.models.vit_micro",
        "datasets.fashion_mnist_10k",
    ]
    return [section, *(f"{preset}.{section}" for preset in presets), *after]


REFINED = places("finetune", "scales.minutes.finetune_of.ls", "variants.ls.finetune")


@pytest.mark.parametrize("count", range(1, len(REFINED) + 1))
def test_resolution_order(count: int, changed: Load) -> None:
    """Section < scale < model < what the scale says of that model < data set < what the scale says
    of that variant < variant; the last one is named as the source."""
    values: Values = {"scales.minutes.finetune_of": {}}
    values |= {place: {} for place in REFINED[1:]}  # none but these have the key
    values |= {f"{place}.lr": (i + 1) / 8 for i, place in enumerate(REFINED[:count])}
    params = changed(values)
    assert params.values(Finetune, "ls")["lr"][:2] == (count / 8, REFINED[count - 1])
    assert params.resolve(Finetune, "ls").lr == count / 8
    assert params.resolve(Finetune, "ls_pos").lr == min(count, 5) / 8


TRAINING = [f"{place}.training" for place in places("smoothing")]
SCRATCH = [*places("pretrain"), *TRAINING]


@pytest.mark.slow
@pytest.mark.parametrize("count", range(1, len(SCRATCH) + 1))
def test_resolution_order_of_trainings_from_scratch(count: int, changed: Load) -> None:
    """What is said of them wins over all that is said of `pretrain`, each in the same order."""
    values: Values = {place: {} for place in TRAINING}
    values |= {f"{place}.lr": (i + 1) / 16 for i, place in enumerate(SCRATCH[:count])}
    params = changed(values)
    assert params.scratch_values(Smoothing)["lr"][:2] == (count / 16, SCRATCH[count - 1])
    assert params.scratch_training(Smoothing).lr == count / 16


def test_mappings_are_merged_along_the_same_order(changed: Load) -> None:
    """Of a recipe every place changes single keys: the others are from the places before."""
    recipes = [{"repeats": 2, "erasing": 0.25}, {"erasing": 0.5}, {"mixup": 0.5}, {"repeats": 3}]
    values: Values = {f"{place}.removed": ["repeats"] for place in places("smoothing")}
    values |= {f"{place}.recipe": {} for place in places("smoothing")}
    for place, recipe in zip(places("smoothing"), recipes, strict=False):
        values[f"{place}.recipe"] = recipe
    found = changed(values).resolve(Smoothing).recipe
    assert (found.repeats, found.erasing, found.mixup) == (3, 0.5, 0.5)


def test_without_a_scale_each_model_has_its_own(params: Params) -> None:
    """Models trained from scratch are for runs of minutes, one from a package for few epochs, all
    others for the papers' values."""
    assert params.scale is None
    small = {"vit_micro": "minutes", "deit_micro": "minutes", "vit_pico": "smoke"}
    models = params.models
    assert small.keys() == {name for name in models if models[name].weights == "scratch"}
    others = dict.fromkeys(models.keys() - small.keys(), "published")
    expected = small | others | {"vit_s14_56": "few_epochs"}
    assert {name: params.scale_of(name) for name in models} == expected
    assert not params.scales["published"].model_dump(exclude_defaults=True)


def test_another_model_brings_its_own_scale(changed: Load) -> None:
    """And what one scale says of the other's model has no effect."""
    pico = {"finetune": {"lr": 0.5}, "num_classes": 100}
    chosen = {
        "models.vit_pico.finetune": {},
        "models.vit_micro.finetune": {},
        "scales.mine": {"finetune": {"lr": 0.25}, "models": {"vit_pico": pico}},
        "models.vit_pico.scale": "mine",
    }
    lr = changed(chosen | {"model": "vit_pico"}).values(Finetune)["lr"]
    assert lr[:2] == (0.5, "scales.mine.models.vit_pico.finetune")
    assert changed(chosen).values(Finetune)["lr"].source == "finetune"
    params = changed(chosen | {"scale": "mine"})
    assert params.values(Finetune)["lr"][:2] == (0.25, "scales.mine.finetune")
    assert params.model_preset.num_classes is None


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_on_the_command_line(scale: str, params: Params, tmp_path: Path) -> None:
    """`dvc exp run -S scale=hours`: nothing else in the file changes; every section is valid, for
    all depths."""
    from dvc.utils.hydra import apply_overrides

    shutil.copy(ROOT / "params.yaml", tmp_path)
    apply_overrides(tmp_path / "params.yaml", [f"scale={scale}"])
    found = load(tmp_path / "params.yaml", papers=PAPERS)
    check_layers(found, 12)
    for section in ALL_SECTIONS:
        assert found.resolve(section)
        keys = getattr(found.scales[scale], section.name)
        place = f"scales.{scale}.{section.name}"
        named = {key for key, value in found.values(section).items() if value.source == place}
        assert named == keys.keys() - getattr(found.models[found.model], section.name).keys()
    assert (found.scale, params.scale) == (scale, None)
    assert found.model_dump(exclude={"scale"}) == params.model_dump(exclude={"scale"})
    apply_overrides(tmp_path / "params.yaml", ["scale=null"])
    assert load(tmp_path / "params.yaml", papers=PAPERS) == params


def test_a_model_at_a_scale(changed: Load) -> None:
    """Another architecture under the same name: single keys of its arguments are changed, others
    stay; other models are as before."""
    values: Values = {
        "kwargs": {"embed_dim": 64, "num_heads": 4},
        "init_std": 0.5,
        "init_growth": 0.25,
    }
    place, plain = {"scales.mine": {"models": {"vit_micro": values}}}, changed({})
    params = changed(place | {"scale": "mine"})
    before = plain.model_preset
    assert params.model_preset == before.model_copy(
        update=values | {"kwargs": before.kwargs | values["kwargs"]}
    )
    assert type(params.model_preset) is ModelPreset
    assert changed(place).model_preset == before
    other = changed(place | {"scale": "mine", "model": "vit_pico"})
    assert other.model_preset.kwargs == plain.models["vit_pico"].kwargs


def test_variants_of_a_scale(changed: Load) -> None:
    """One more, after those declared for all scales; one replaced, in its place; one left out; at
    another scale none of it."""
    own: Values = {"scales.minutes.variants": {}}
    mine = {
        "more": {"route": "reversed"},
        "ls_pred_mean": {"route": {"swap": 3}},
        "refit_3": None,
    }
    plain = changed(own | {"scales.mine.variants": mine}).all_variants
    replaced = changed(own | {"scales.mine.variants": mine, "scale": "mine"}).all_variants
    assert list(replaced) == [*(name for name in plain if name != "refit_3"), "more"]
    assert replaced["more"].route == "reversed"
    assert plain["ls_pred_mean"].route == "arbitrary"
    assert replaced["ls_pred_mean"].route == {"swap": 3}
    assert "refit_3" in plain
    assert "more" not in plain
    assert "ls_pos" not in changed(own | {"variants.ls_pos": None}).all_variants


def test_a_scale_refines_the_baseline_otherwise(changed: Load) -> None:
    """As it may any variant; at another scale it does not."""
    given = {
        "scales.mine": {"finetune_of": {"baseline": {"lr": 0.5}}},
        "models.vit_micro.finetune.lr": 0.1,
    }
    params = changed(given | {"scale": "mine"})
    assert [params.resolve(Finetune, name).lr for name in ("baseline", "ls")] == [0.5, 0.1]
    assert changed(given | {"scale": "published"}).resolve(Finetune, "baseline").lr == 0.1


def test_a_variant_that_a_scale_leaves_out(changed: Load) -> None:
    """A section that names it needs another list at that scale; elsewhere it stays."""
    both = {"variants": ["baseline", "ls"]}
    lists = {"prune_eval": both, "questions": both, "nodes": {"variants": {"ls": ["any"]}}}
    given = {"scales.mine": {"variants": {"layerdrop": None}} | lists, "scale": "mine"}
    assert "layerdrop" not in changed(given).all_variants
    with pytest.raises(UserError, match=r"prune_eval.variants: found 'layerdrop'"):
        changed(given | {"scales.mine": {"variants": {"layerdrop": None}}})
