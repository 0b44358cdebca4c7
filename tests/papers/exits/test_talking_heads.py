"""FLOPs of talking heads: more than of plain attention, by what a real run takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from papers import Variant
from papers.exits.branches import make_branch
from papers.exits.compute.dynamic import measure
from papers.exits.compute.flops import count_exits
from papers.exits.compute.plan import Plan, Task
from papers.exits.section import EXIT_COSTS, BranchTraining, ExitConfig
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Optimisation
from pipeline.config.variant import PLAIN, Encode, Position
from pipeline.models.tokens import token_shape
from pipeline.models.weights import build
from tests.papers.exits.test_flops import SIZES, SMALL

TALKING = Variant(route="sequential", talking_heads=True)


@pytest.mark.parametrize("kwargs", [SMALL, SMALL | {"patch_size": 4, "num_heads": 4}])
def test_flops_are_those_of_a_real_run(kwargs: dict[str, Any]) -> None:
    """Up to the exit after every layer, and of the whole model; a layer more by the two mixes of the heads."""
    preset = ModelPreset(timm="vit_tiny_patch16_224", kwargs=kwargs, weights="scratch")
    plain, talking = (
        count_exits(preset, 7, ["mlp", "vit"], SIZES, variant) for variant in (PLAIN, TALKING)
    )
    tokens, heads = (28 // kwargs["patch_size"]) ** 2 + 1, kwargs["num_heads"]
    assert talking.model.block - plain.model.block == 2 * 2 * tokens**2 * heads**2
    assert talking.model._replace(block=plain.model.block) == plain.model
    assert talking.branches == plain.branches
    model = build(preset, 7, TALKING).eval()
    branch = make_branch("mlp", token_shape(model.backbone), 7, SIZES).eval()
    image = torch.zeros(1, 1, 28, 28)
    for depth in (1, 2, 3):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            branch(model.backbone.blocks[:depth](model.embed(image)))
        assert counter.get_total_flops() == talking.at("mlp", depth) > plain.at("mlp", depth)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    assert counter.get_total_flops() == talking.model.whole(3) > plain.model.whole(3)


def test_other_parts_of_a_variant_count_too() -> None:
    preset = ModelPreset(timm="vit_tiny_patch16_224", kwargs=SMALL, weights="scratch")
    encoding = Variant(
        route="arbitrary", position=Position(encode=Encode(dim=8)), talking_heads=True
    )
    talking, both = (count_exits(preset, 7, [], SIZES, variant) for variant in (TALKING, encoding))
    assert both.model.block - talking.model.block == 2 * 5 * (32 + 8) * 32
    shorter = count_exits(preset, 7, [], SIZES, TALKING.model_copy(update={"layers": 2}))
    assert shorter.model == talking.model._replace(num_layers=2)


def test_stage_exits_measures_them(
    params: Params, pico: ModelPreset, prepared: Path, tmp_path: Path
) -> None:
    """The costs of a talking-heads variant's exits are its own: each takes more than that of the plain model."""
    options = {
        "branches": ["mlp"],
        "depths": None,
        "lrs": [0.01],
        "images": None,
        "keep": 2,
        "seed": 0,
    }
    found = {}
    for name, variant in (("plain", PLAIN), ("talking", TALKING)):
        config = ExitConfig(
            title=name,
            dataset="bars",
            model_name="pico",
            model=pico,
            variant=variant,
            device="cpu",
            seed=0,
            data_sha256="",
            weights_sha256=None,
            precision="fp32",
            options=BranchTraining.model_validate(SIZES.model_dump() | options),
            tuning=Optimisation.model_validate(
                params.finetune.model_dump(include=set(Optimisation.model_fields))
            ),
        )
        (tmp_path / name).mkdir()
        measure(config, prepared, tmp_path / name, lambda event: None)
        found[name] = json.loads((tmp_path / name / EXIT_COSTS).read_text())["flops"]
    mix = 2 * 2 * 5**2 * 2**2  # two mixes of 5 x 5 scores by 2 x 2 heads
    assert found["talking"].keys() == found["plain"].keys()
    assert {place: found["talking"][place] - flops for place, flops in found["plain"].items()} == {
        place: int(place.split(".")[1]) * mix for place in found["plain"]
    }


def test_the_plan_keeps_them_apart(params: Params, prepared: Path, tmp_path: Path) -> None:
    """Variants of one architecture share their costs, and those with talking heads have others."""
    plan, task = Plan(params, prepared), Task("bars", prepared, {0: tmp_path / "start"})
    plain, arbitrary, talking = (
        plan.costs(task, variant)
        for variant in (Variant(route="sequential"), Variant(route="arbitrary"), TALKING)
    )
    assert plain.key == arbitrary.key != talking.key
    assert talking.config.variant.talking_heads
