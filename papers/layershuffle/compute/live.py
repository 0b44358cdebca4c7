"""What the report runs in a browser: two small trained models, and pictures. No torch here."""

import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save

from papers.layershuffle.compute.plan import Evaluations
from pipeline.config.presets import OWN_WEIGHTS
from pipeline.config.variant import BASELINE
from pipeline.data.shards import Maps
from pipeline.files import write_json
from pipeline.jobs.files import read_meta

LARGEST = 2**20  # bytes of the weights of one model
PICTURES = 10
# pipeline/report/shuffle.js knows timm's plain vision transformer: these arguments, these layers.
ARGUMENTS = {"img_size", "patch_size", "in_chans", "embed_dim", "depth", "num_heads", "mlp_ratio"}
LAYERS = {"", "patch_embed.proj", "norm", "head"}  # "" of the class token
LAYERS |= {"norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"}


def write_live_models(plan: Evaluations, file: Path) -> None:
    """Write the first seed's weights, and the first validation picture of each of ten classes.

    `weights` is a safetensors file in base64. Its tensors are named as timm does, below `baseline.`
    and `ls.`. Beside them are `images` (n, H, W) or (n, H, W, C), uint8. An empty mapping stands
    for models that a browser cannot run: it needs plain ones of at most a megabyte, on images of
    their own size.
    """
    meta = read_meta(plan.data)
    kwargs = plan.params.model_preset.kwargs
    tensors = {}
    if {"num_heads"} <= kwargs.keys() <= ARGUMENTS and _takes_pixels_as_they_are(plan, meta):
        for variant in (BASELINE, "ls"):
            for name, tensor in _read_plain_model(plan, variant).items():
                tensors[f"{variant}.{name}"] = tensor
    live = {}
    if {f"{BASELINE}.cls_token", "ls.cls_token"} <= tensors.keys():
        validation = Maps([plan.data / "validation.arrow"])
        _, first = np.unique(validation.labels, return_index=True)
        tensors["images"], labels = validation[first[:PICTURES]]
        live = meta | {
            "labels": labels.tolist(),
            "layers": sum(name.endswith("norm1.bias") for name in tensors) // 2,
            "heads": kwargs["num_heads"],
            "seed": plan.seeds[0],
            "weights": b64encode(save(tensors)).decode(),
        }
    write_json(file, live, indent=None)


def _takes_pixels_as_they_are(plan: Evaluations, meta: dict[str, Any]) -> bool:
    """True if pixels are only normalised, with the data's own mean and standard deviation."""
    preset = plan.params.model_preset
    if preset.weights not in OWN_WEIGHTS or meta["resize"] != "published" or "shards" in meta:
        return False
    height, width, *channels = meta["image_shape"]
    side = preset.kwargs.get("img_size")
    return height == width == side and (channels or [1]) == [preset.kwargs.get("in_chans", 3)]


def _read_plain_model(plan: Evaluations, variant: str) -> dict[str, np.ndarray]:
    """The tensors of a variant's first seed. Empty if it is large or more than plain."""
    made = plan.params.all_variants.get(variant)
    file = plan.weights_of(variant, plan.seeds[0])
    if not made or made.layers or file.stat().st_size > LARGEST:
        return {}
    tensors = load_file(file)
    layers = {re.sub(r"^blocks\.\d+\.", "", name.rpartition(".")[0]) for name in tensors}
    return tensors if layers == LAYERS else {}
