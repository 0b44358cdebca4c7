"""Mistakes that end stage check-params, not a stage that comes hours later."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from pipeline.files import write_json
from pipeline.jobs.machine import Gpus
from pipeline.training.devices import pick_device
from stages.check_params import build, check_machine, read_weights_folder
from tests.conftest import Printed, refused
from tests.pipeline.config.conftest import Load


@pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU"
)
@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there(name: str, changed: Load) -> None:
    said = f"device: found '{name}', but this machine has no {name.upper()} device"
    assert any(said in line for line in check_machine(changed({"device": name})))
    with refused(said):
        pick_device(name)


def test_what_a_folder_leaves_out_is_said_once(
    changed: Load, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By prepare-data, which follows."""
    for split, name in product(("train", "val"), ("cat", "dog")):
        folder = tmp_path / split / name
        folder.mkdir(parents=True)
        (folder / "1.png").touch()
        (folder / "notes.txt").touch()
    values = {"dataset": "image_folder", "datasets.image_folder.folder": str(tmp_path)}
    params = changed(values | {"models.vit_micro.kwargs.in_chans": 3})
    assert list(check_machine(params)) == []
    assert capsys.readouterr().out == ""


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
    said = f"params.yaml: {key}.precision: found 'tf32', accepted on a CPU: auto, fp32, bf16, fp16"
    assert said in list(check_machine(changed({f"{key}.precision": "tf32"})))


def test_gpus_of_nodes_are_not_those_of_this_machine(
    changed: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where trainings over several processes run: a node has its own; over several nodes, torchrun
    starts them here."""
    monkeypatch.setattr("stages.check_params.gpus", lambda: Gpus(1, False, ""))
    monkeypatch.setattr("stages.check_params.check_cluster", lambda: None)
    for engine, nodes, too_many in (("local", 1, True), ("ray", 1, False), ("ray", 2, True)):
        params = changed(
            {
                "engine": engine,
                "distributed.processes": 2,
                "distributed.nodes": nodes,
                "distributed.endpoint": "a:1",
            }
        )
        assert any("at most the 1 GPUs" in line for line in check_machine(params)) == too_many


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["hours", "published"])
def test_the_repositorys_own_models_can_be_made(scale: str, changed: Load) -> None:
    """Those of the default scale and of smoke runs are made by other tests."""
    build(changed({"scale": scale}))


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("none.pth", "'none.pth', which does not exist"),
        ("whole.pth", "weights_only=True"),
        ("small.pth", "does not fit VisionTransformer: .* missing: "),
        ("resnet/", "architecture: found 'resnet18'"),
        ("resnet/model.safetensors", "architecture: found 'resnet18'"),
        ("shards/", "index.json: found weights in shards, accepted: one file"),
        ("shards/pytorch_model.bin.index.json", "found weights in shards"),
        ("hub", "needs the tag of its weights|cannot be had"),
    ],
)
def test_weights_that_no_stage_could_start_from(
    weights: str, said: str, changed: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any image is read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    resnet: Any = timm.create_model("resnet18", num_classes=1)
    timm.models.save_for_hf(resnet, "resnet", safe_serialization=True)
    torch.save(torch.nn.Linear(1, 1), "whole.pth")
    Path("shards").mkdir()
    Path("shards/pytorch_model.bin.index.json").touch()
    torch.save({"norm.bias": torch.zeros(1)}, "small.pth")
    params = changed({"models.vit_pico.weights": weights, "model": "vit_pico"})
    with refused(said):
        build(read_weights_folder(params))


def test_a_folder_that_says_nothing_of_its_pixels_is_told(
    changed: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    config = {"architecture": "vit_tiny_patch16_224"}
    for cfg, told in (({}, True), ({"mean": [0.5] * 3, "std": [0.5] * 3}, False)):
        write_json(tmp_path / "config.json", config | {"pretrained_cfg": cfg})
        read_weights_folder(changed({"models.vit_pico.weights": "./", "model": "vit_pico"}))
        said = "no config.json says mean and std of its pixels"
        assert (said in printed()) == told


def test_published_weights_out_of_reach(
    changed: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with refused("three ways to get them"):
        build(changed({"model": "vit_s16"}))


COLOUR = {"models.vit_micro.kwargs.in_chans": 3}


@pytest.mark.parametrize(
    "values",
    [
        {"dataset": "cifar10"} | COLOUR,
        COLOUR,
        {"dataset": "cifar100", "model": "vit_b16"},
        {"model": "vit_b16"},
        {"dataset": "digits"},
    ],
)
def test_what_fits_is_accepted(values: dict[str, Any], changed: Load) -> None:
    """Colours in three channels, and grey images in any number of them: they are repeated."""
    assert changed(values).dataset == values.get("dataset", "fashion_mnist_10k")
