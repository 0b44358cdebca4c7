"""Mistakes that end stage check-params, not a stage that comes hours later."""

from typing import Any

import pytest
import torch

from pipeline.errors import UserError
from pipeline.training.devices import pick_device
from stages.check_params import build, check_machine
from tests.pipeline.config.conftest import Load


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"models.vit_micro.timm": "vit_tiny_patch16_244"},
            ["found 'vit_tiny_patch16_244'", "vit_tiny_patch16_224"],
        ),
        (
            {"models.vit_micro.timm": "vit_tiny_patch16_224.ausgreg_in21k"},
            ["has no weights tagged 'ausgreg_in21k'"],
        ),
        (
            {"models.vit_micro.kwargs.embed_dims": 32},
            ["timm cannot make vit_tiny_patch16_224", "embed_dims"],
        ),
        ({"models.vit_micro.timm": "resnet18"}, ["resnet18"]),
        (
            {"models.vit_micro.kwargs.img_size": 700_000_000},
            ["model: found 'vit_micro'", "GiB of memory"],
        ),
        (
            {"scales.minutes.inversion.families.vit.timm": "vit_tiny_patch16_244"},
            ["inversion", "vit_tiny_patch16_244"],
        ),
        ({"models.vit_micro.smoothing.kwargs": {"mlp_ration": 2}}, ["mlp_ration"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_model_that_cannot_be_made(
    values: dict[str, Any], said: list[str], changed: Load
) -> None:
    """The chosen one, trained from scratch, whose keyword arguments say all about its size; those
    that stages add to it."""
    params = changed(values)
    with pytest.raises(UserError) as error:
        build(params)
    assert "\n" not in str(error.value)
    assert all(part in str(error.value) for part in said)


@pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU"
)
@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there(name: str, changed: Load) -> None:
    said = f"device: found '{name}', but this machine has no {name.upper()} device"
    assert any(said in line for line in check_machine(changed({"device": name})))
    with pytest.raises(UserError, match=said):
        pick_device(name)


def test_mps_is_one_device(changed: Load) -> None:
    params = changed({"device": "mps", "distributed.processes": 2})
    assert "params.yaml: distributed.processes: found 2, accepted with device 'mps': 1" in list(
        check_machine(params)
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "key", ["pretrain", "finetune", "smoothing.training", "inversion.training"]
)
def test_a_precision_that_is_not_there(key: str, changed: Load) -> None:
    """Of whichever training; the line says whose."""
    said = f"params.yaml: {key}.precision: found 'tf32', accepted on a CPU: auto, fp32, bf16"
    assert said in list(check_machine(changed({f"{key}.precision": "tf32"})))


def test_gpus_of_nodes_are_not_those_of_this_machine(
    changed: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where trainings over several processes run: a node has its own; over several nodes, torchrun
    starts them here."""
    monkeypatch.setattr("stages.check_params.cuda_devices", lambda: 1)
    monkeypatch.setattr("stages.check_params.check_cluster", lambda: None)
    for engine, nodes, refused in (("local", 1, True), ("ray", 1, False), ("ray", 2, True)):
        params = changed(
            {
                "engine": engine,
                "distributed.processes": 2,
                "distributed.nodes": nodes,
                "distributed.endpoint": "a:1",
            }
        )
        assert any("at most the 1 GPUs" in line for line in check_machine(params)) == refused


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [{}, {"model": "vit_pico"}, {"scale": "hours"}, {"scale": "published"}], ids=str
)
def test_the_repositorys_own_models_can_be_made(values: dict[str, Any], changed: Load) -> None:
    """The default, that of smoke runs, and the default at other scales."""
    build(changed(values))


GREY = {
    "img_size": 28,
    "patch_size": 14,
    "in_chans": 1,
    "embed_dim": 32,
    "depth": 12,
    "num_heads": 2,
}
COLOUR = GREY | {"in_chans": 3}
CIFAR = {"dataset": "cifar10", "models.vit_micro.kwargs": COLOUR}


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"dataset": "cifar10"}, "models.vit_micro.kwargs.in_chans: found 1"),
        ({"dataset": "cifar100"}, "models.vit_micro.kwargs.in_chans: found 1"),
        ({"dataset": "imagenet"}, "models.vit_micro.kwargs.in_chans: found 1"),
        ({"dataset": "image_folder"}, "models.vit_micro.kwargs.in_chans: found 1"),
        (
            {"dataset": "cifar10", "models.vit_micro.kwargs": COLOUR | {"in_chans": 4}},
            "models.vit_micro.kwargs.in_chans: found 4",
        ),
        (
            CIFAR | {"scales.minutes.inversion.families.mixer.kwargs.in_chans": 1},
            "inversion.families.mixer.kwargs.in_chans: found 1",
        ),
        (
            CIFAR | {"models.vit_micro.smoothing.kwargs": {"in_chans": 1}},
            "smoothing.kwargs.in_chans: found 1",
        ),
    ],
)
def test_images_in_colour_need_three_channels(
    values: dict[str, Any], key: str, changed: Load
) -> None:
    with pytest.raises(UserError) as error:
        changed(values)
    lines = str(error.value).splitlines()
    assert all(
        ".kwargs.in_chans: found " in line and ", accepted: 3 (the images of" in line
        for line in lines
    )
    assert f"params.yaml: {key}," in lines[0]


@pytest.mark.parametrize(
    "values",
    [
        CIFAR,
        {"models.vit_micro.kwargs": COLOUR},
        {"dataset": "cifar100", "model": "vit_b16"},
        {"model": "vit_b16"},
        {"dataset": "digits"},
    ],
)
def test_what_fits_is_accepted(values: dict[str, Any], changed: Load) -> None:
    """Colours in three channels, and grey images in any number of them: they are repeated."""
    assert changed(values).dataset == values.get("dataset", "fashion_mnist_10k")
