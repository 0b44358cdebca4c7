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
from tests.conftest import Printed, cases_of, refused
from tests.pipeline.config.conftest import Load
from tests.pipeline.data.test_sources import write_empty

CASES = cases_of(__file__)


no_gpu = pytest.mark.skipif(
    torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is a GPU"
)


@no_gpu
@pytest.mark.parametrize(("values", "said"), CASES["machine"])
def test_what_this_machine_does_not_have(values: dict[str, Any], said: str, changed: Load) -> None:
    lines = check_machine(changed(values))
    assert any(line.startswith(f"params.yaml: {said}") for line in lines)


@no_gpu
@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there(name: str) -> None:
    with refused(f"device: found '{name}', but this machine has no {name.upper()} device"):
        pick_device(name)


def test_what_a_folder_leaves_out_is_said_once(
    changed: Load, tmp_path: Path, printed: Printed
) -> None:
    """By prepare-data, which follows."""
    for split, name in product(("train", "val"), ("cat", "dog")):
        write_empty(tmp_path / split / name, "1.png", "notes.txt")
    values = {"dataset": "image_folder", "datasets.image_folder.folder": str(tmp_path)}
    params = changed(values | {"models.vit_micro.kwargs.in_chans": 3})
    assert list(check_machine(params)) == []
    assert not printed()


def test_gpus_of_nodes_are_not_those_of_this_machine(
    changed: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where trainings over several processes run: a node has its own; over several nodes, torchrun
    starts them here."""
    monkeypatch.setattr("stages.check_params.gpus", lambda: Gpus(1, False, ""))
    monkeypatch.setattr("stages.check_params.check_cluster", lambda: None)
    shared = {"distributed.processes": 2, "distributed.endpoint": "a:1"}
    for engine, nodes, too_many in (("local", 1, True), ("ray", 1, False), ("ray", 2, True)):
        params = changed(shared | {"engine": engine, "distributed.nodes": nodes})
        assert any("at most the 1 GPUs" in line for line in check_machine(params)) == too_many


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["hours", "published"])
def test_the_repositorys_own_models_can_be_made(scale: str, changed: Load) -> None:
    """Those of the default scale and of smoke runs are made by other tests."""
    build(changed({"scale": scale}))


@pytest.mark.usefixtures("here", "own_root")
@pytest.mark.parametrize(("weights", "said"), CASES["weights"])
def test_weights_that_no_stage_could_start_from(weights: str, said: str, changed: Load) -> None:
    """Before any image is read."""
    resnet: Any = timm.create_model("resnet18", num_classes=1)
    timm.models.save_for_hf(resnet, "resnet", safe_serialization=True)
    torch.save(torch.nn.Linear(1, 1), "whole.pth")
    Path("shards").mkdir()
    Path("shards/pytorch_model.bin.index.json").touch()
    torch.save({"norm.bias": torch.zeros(1)}, "small.pth")
    params = changed({"models.vit_pico.weights": weights, "model": "vit_pico"})
    with refused(said):
        build(read_weights_folder(params))


@pytest.mark.usefixtures("own_root")
def test_a_folder_that_says_nothing_of_its_pixels_is_told(
    changed: Load, tmp_path: Path, printed: Printed
) -> None:
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


@pytest.mark.parametrize("values", CASES["accepted"])
def test_what_fits_is_accepted(values: dict[str, Any], changed: Load) -> None:
    """Colours in three channels, and grey images in any number of them: they are repeated."""
    assert changed(values)
