"""A graph with the names of the package's ONNX file becomes timm's tensors:
benchmarks/vit_s14_weights.py.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.models.weights import create_backbone, load_start, normalisation
from tests.conftest import ROOT

TINY: dict[str, Any] = {
    "img_size": 28,
    "embed_dim": 12,
    "depth": 2,
    "num_heads": 2,
    "init_values": 1e-5,
}
LINEAR = {"attn.proj": "attention.output.dense", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
OTHERS = {name: name for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")}
OTHERS |= {f"ls{k}.gamma": f"layer_scale{k}.lambda1" for k in (1, 2)}
OUTSIDE = {
    "cls_token": "embeddings.cls_token",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}


class Node(NamedTuple):
    """What is read of an ONNX node."""

    op_type: str
    input: list[str]
    output: list[str]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import vit_s14_weights

    return vit_s14_weights


def graph(state: dict[str, torch.Tensor]) -> tuple[dict[str, np.ndarray], list[Node]]:
    """Initialisers and nodes as the exporter writes them: weights of linear layers transposed and
    without a name.
    """
    found: dict[str, np.ndarray] = {}
    nodes: list[Node] = []

    def linear(name: str, weight: np.ndarray, bias: np.ndarray) -> None:
        operand, product = f"onnx::MatMul_{len(nodes)}", f"/{name}/MatMul"
        found[f"{name}.bias"] = bias
        found[operand] = weight.T.copy()
        nodes.append(Node("MatMul", ["/norm", operand], [product]))
        nodes.append(Node("Add", [f"{name}.bias", product], [f"/{name}/Add"]))

    for i in range(TINY["depth"]):
        place, ours = f"backbone.encoder.layer.{i}", f"blocks.{i}."
        own = {name.removeprefix(ours): tensor.numpy() for name, tensor in state.items()}
        width = TINY["embed_dim"]
        for j, part in ((1, "key"), (2, "value"), (0, "query")):  # the order of the graph's nodes
            rows = slice(j * width, (j + 1) * width)
            weight, bias = own["attn.qkv.weight"][rows], own["attn.qkv.bias"][rows]
            linear(f"{place}.attention.attention.{part}", weight, bias)
        for name, theirs in LINEAR.items():
            linear(f"{place}.{theirs}", own[f"{name}.weight"], own[f"{name}.bias"])
        for name, theirs in OTHERS.items():
            found[f"{place}.{theirs}"] = own[name]
        nodes.append(Node("Add", [f"/layer.{i}/attention", f"/layer.{i}/before"], ["/Add"]))
        nodes.append(Node("MatMul", ["/queries", "/keys"], ["/scores"]))
    for name, theirs in OUTSIDE.items():
        found[f"backbone.{theirs}"] = state[name].numpy()
    position = state["pos_embed"].numpy()
    found["decoder.upconv1.weight"] = np.ones((2, 3, 4, 4), np.float32)
    found["onnx::Reshape_2"], found["onnx::Concat_1"] = position[:, 1:], position[:, :1]
    return found, nodes


def test_every_tensor_is_found(script: ModuleType, tmp_path: Path) -> None:
    """All of them by timm's names and none beside them, and the project loads them."""
    model = timm.create_model(script.ARCHITECTURE, num_classes=0, **TINY)
    state = {name: torch.randn_like(t) for name, t in model.state_dict().items()}
    tensors = script.timm_tensors(*graph(state))
    file = tmp_path / "tiny.safetensors"
    save_file(tensors, file)
    preset = ModelPreset(timm=script.ARCHITECTURE, kwargs=TINY, weights=str(file))
    loaded = create_backbone(preset, 10)
    assert load_start(loaded, preset)["head"] == "fresh"
    assert tensors.keys() == state.keys()
    for found in (tensors, loaded.state_dict()):
        assert all(torch.equal(found[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("content", "said"), [(b"other", "its sha256 is d9298a10d1b0"), (None, "not found")]
)
def test_another_file_is_refused(
    content: bytes | None, said: str, script: ModuleType, tmp_path: Path
) -> None:
    file = tmp_path / "other.onnx"
    if content:
        file.write_bytes(content)
    with pytest.raises(UserError, match=f"^{file}: {said}"):
        script.convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_preset_is_of_these_weights(script: ModuleType, params: Any) -> None:
    """The script says of its own run what the preset loads."""
    preset = params.models["vit_s14_56"]
    assert preset.timm == script.ARCHITECTURE
    assert Path(preset.weights) == script.OUT
    assert preset.sha256 == json.loads(script.FILE.read_text())["weights_sha256"]
    assert normalisation(preset, {}) == (script.MEAN, script.STD)
