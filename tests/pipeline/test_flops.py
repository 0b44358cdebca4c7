"""FLOPs of a model: against formulas, and against timm's own forward pass."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.config.presets import ModelPreset
from pipeline.config.variant import Encode, Position, Predict, Variant
from pipeline.flops import count_variant, meta_model
from tests.conftest import PICO
from tests.lsvit.test_routed import FAMILIES


def encoder(tokens: int, width: int, hidden: int) -> int:
    """A transformer layer: queries, keys, values, projection; attention; MLP."""
    return 2 * tokens * 4 * width**2 + 2 * 2 * tokens**2 * width + 2 * 2 * tokens * width * hidden


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"patch_size": 7, "embed_dim": 64},
        {"mlp_ratio": 3, "num_heads": 4},
        {"img_size": 56, "in_chans": 3},
        {"distilled": True},
    ],
)
def test_a_vit_takes_what_the_formulas_say(kwargs: dict[str, Any]) -> None:
    distilled = kwargs.pop("distilled", False)
    name = "deit_tiny_distilled_patch16_224" if distilled else "vit_tiny_patch16_224"
    options = PICO | kwargs
    preset = ModelPreset(timm=name, kwargs=options, weights="scratch")
    width = options["embed_dim"]
    patch = options["patch_size"]
    patches = (options["img_size"] // patch) ** 2
    tokens = patches + (2 if distilled else 1)
    plain = count_variant(preset, 10)
    assert plain.embed == 2 * patches * patch**2 * options["in_chans"] * width
    assert plain.block == encoder(tokens, width, int(width * options.get("mlp_ratio", 4)))
    assert plain.head == 2 * width * 10 * (2 if distilled else 1)
    assert (plain.num_layers, plain.width) == (options["depth"], width)

    encode = Variant(route="arbitrary", position=Position(encode=Encode(dim=8)))
    assert count_variant(preset, 10, encode).block == plain.block + 2 * tokens * (width + 8) * width
    predict = Variant(route="arbitrary", position=Position(predict=Predict()))
    more = count_variant(preset, 10, predict).block - plain.block
    assert more == 2 * width * options["depth"]
    assert count_variant(preset, 10, Variant(route="arbitrary", layers=2)).num_layers == 2


def test_vit_b16_takes_the_known_flops() -> None:
    """17.6 G multiply-adds at 224 px with 1000 classes."""
    counted = count_variant(ModelPreset(timm="vit_base_patch16_224", weights="scratch"), 1000)
    assert counted.whole(12) == pytest.approx(2 * 17.58e9, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_parts_add_up_to_the_model_that_timm_runs(name: str) -> None:
    kwargs = {key: value for key, value in FAMILIES[name].items() if key != "num_classes"}
    preset = ModelPreset(timm=name, kwargs=kwargs, weights="scratch")
    backbone = meta_model(preset, 7).backbone
    size = (getattr(backbone, "stem", None) or backbone.patch_embed).img_size
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(torch.empty(1, 3, *size, device="meta"))
    counted = count_variant(preset, 7)
    assert counted.whole(counted.num_layers) == counter.get_total_flops() > 0
