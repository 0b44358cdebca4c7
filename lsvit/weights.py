"""Weights in and out: safetensors files that stock timm loads, with attached parts below prefixes.

The backbone's tensors have timm's names. Those of a part stand below its name in the routed model:
`position.`, `exits.`, and whatever else was attached to it.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from lsvit.checkpoint import BACKBONE, read_checkpoint
from lsvit.routed import RoutedModel


def save_weights(model: RoutedModel, path: str | Path) -> None:
    """Write a safetensors file that stock timm loads, but for attached parts."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        tensors[name.removeprefix(BACKBONE)] = tensor.detach().cpu().contiguous()
    save_file(tensors, path)


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a file written by :func:`save_weights`, or another checkpoint, into a model of timm.

    The file is read by :func:`lsvit.checkpoint.read_checkpoint`. The model is routed or not. Layers
    beyond the model's are left out, and so are parts that it does not have. Parts that the file
    does not have keep their values.

    Raises:
        RuntimeError: tensors are missing, or of another shape.
        ValueError: the file cannot be read.
    """
    backbone: Any = model.backbone if isinstance(model, RoutedModel) else model
    own: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_checkpoint(path).items():
        part, dot, rest = name.partition(".")
        if dot and not hasattr(backbone, part):
            parts.setdefault(part, {})[rest] = tensor
        elif part != "blocks" or int(rest.split(".")[0]) < len(backbone.blocks):
            own[name] = tensor
    backbone.load_state_dict(own)
    for name, attached in model.named_children():
        if name in parts:
            attached.load_state_dict(parts[name])
