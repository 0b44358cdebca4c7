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
OTHERS = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias")


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
    place, found, nodes = "backbone.encoder.layer", {}, list[Node]()

    def linear(name: str, weight: Any, bias: Any) -> None:
        operand, product = f"onnx::MatMul_{len(nodes)}", f"/{name}/MatMul"
        found.update({f"{name}.bias": bias, operand: weight.T.copy()})
        nodes.extend(
            [
                Node("MatMul", ["/norm", operand], [product]),
                Node("Add", [f"{name}.bias", product], [f"/{name}/Add"]),
            ]
        )

    arrays = {name: t.numpy() for name, t in state.items()}
    for i in range(TINY["depth"]):
        own = {
            name.removeprefix(f"blocks.{i}."): array
            for name, array in arrays.items()
            if name.startswith(f"blocks.{i}.")
        }
        for j, part in ((1, "key"), (2, "value"), (0, "query")):  # the order of the graph's nodes
            width = TINY["embed_dim"]
            rows = slice(j * width, (j + 1) * width)
            linear(
                f"{place}.{i}.attention.attention.{part}",
                own["attn.qkv.weight"][rows],
                own["attn.qkv.bias"][rows],
            )
        for ours, theirs in LINEAR.items():
            linear(f"{place}.{i}.{theirs}", own[f"{ours}.weight"], own[f"{ours}.bias"])
        found.update({f"{place}.{i}.{name}": own[name] for name in OTHERS})
        found.update({f"{place}.{i}.layer_scale{k}.lambda1": own[f"ls{k}.gamma"] for k in (1, 2)})
        nodes.append(
            Node("Add", [f"/layer.{i}/attention", f"/layer.{i}/before"], [f"/layer.{i}/Add"])
        )
        nodes.append(Node("MatMul", ["/queries", "/keys"], ["/scores"]))
    for kind in ("weight", "bias"):
        found[f"backbone.embeddings.patch_embeddings.projection.{kind}"] = arrays[
            f"patch_embed.proj.{kind}"
        ]
        found[f"backbone.layernorm.{kind}"] = arrays[f"norm.{kind}"]
    found["decoder.upconv1.weight"] = np.ones((2, 3, 4, 4), np.float32)
    found["onnx::Reshape_2"], found["onnx::Concat_1"] = (
        arrays["pos_embed"][:, 1:],
        arrays["pos_embed"][:, :1],
    )
    return found | {"backbone.embeddings.cls_token": arrays["cls_token"]}, nodes


def test_every_tensor_is_found(script: ModuleType, tmp_path: Path) -> None:
    """All of them by timm's names and none beside them, and the project loads them."""
    torch.manual_seed(0)
    model = timm.create_model(script.ARCHITECTURE, num_classes=0, **TINY)
    state = {name: torch.randn_like(t) for name, t in model.state_dict().items()}
    tensors = script.timm_tensors(*graph(state))
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)
    save_file(tensors, tmp_path / "tiny.safetensors")
    preset = ModelPreset(
        timm=script.ARCHITECTURE, kwargs=TINY, weights=str(tmp_path / "tiny.safetensors")
    )
    loaded = create_backbone(preset, 10)
    assert load_start(loaded, preset)["head"] == "fresh"
    assert all(torch.equal(loaded.state_dict()[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("content", "said"), [(b"other", "its sha256 is d9298a10d1b0"), (None, "not found")]
)
def test_another_file_is_refused(
    content: bytes | None,
    said: str,
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "other.onnx"
    if content:
        file.write_bytes(content)
    monkeypatch.setattr(
        "sys.argv", ["vit_s14_weights.py", str(file), "--out", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit, match="2"):
        script.main()
    found = capsys.readouterr().err
    assert found.startswith(f"error: {file}: {said}")
    assert found.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_preset_is_of_these_weights(script: ModuleType, params: Any) -> None:
    """The script says of its own run what the preset loads."""
    preset = params.models["vit_s14_56"]
    assert preset.timm == script.ARCHITECTURE
    assert Path(preset.weights) == script.OUT
    assert preset.sha256 == json.loads(script.FILE.read_text())["weights_sha256"]
    assert normalisation(preset, {}) == (script.MEAN, script.STD)
