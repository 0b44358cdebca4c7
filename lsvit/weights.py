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
    tensors, parts = split_parts(read_checkpoint(path), backbone)
    for name in list(tensors):
        if name.startswith("blocks.") and int(name.split(".")[1]) >= len(backbone.blocks):
            del tensors[name]
    backbone.load_state_dict(tensors)
    for name, part in model.named_children():
        if name in parts:
            part.load_state_dict(parts[name])


def split_parts(
    tensors: dict[str, Tensor], backbone: Any
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """The tensors of a timm model, and by name those of the parts attached to it."""
    own: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part, dot, rest = name.partition(".")
        if dot and not hasattr(backbone, part):
            parts.setdefault(part, {})[rest] = tensor
        else:
            own[name] = tensor
    return own, parts
