"""Vision transformers whose layers run in any order (LayerShuffle, Freiberger et al., 2024).

A *route* is the tuple of layer indices that a forward pass executes, in order. It is drawn outside
the model:

    model = RoutedModel(timm.create_model("vit_tiny_patch16_224"))
    model(images, arbitrary(generator("train", seed, step), model.num_layers))
"""

from importlib import import_module
from typing import Any

from lsvit.latin import Latin
from lsvit.routes import (
    OneRoute,
    Route,
    Routes,
    RouteTable,
    arbitrary,
    drop,
    evaluation_routes,
    fix_first,
    fix_last,
    fixed,
    generator,
    kendall_distance,
    kept_layers,
    per_sample,
    reverse,
    sequential,
    skip,
    swap,
)

# Names whose modules import torch. They are imported at their first use, so that drawing routes
# needs no torch.
NEED_TORCH = {
    "Encode": "position",
    "Position": "position",
    "Predict": "position",
    "position_hits": "position",
    "position_loss": "position",
    "RoutedModel": "routed",
    "Tap": "routed",
    "ExitLogits": "taps",
    "PositionLogits": "taps",
    "load_weights": "weights",
    "save_weights": "weights",
}

__all__ = [
    "Latin",
    "OneRoute",
    "Route",
    "RouteTable",
    "Routes",
    "arbitrary",
    "drop",
    "evaluation_routes",
    "fix_first",
    "fix_last",
    "fixed",
    "generator",
    "kendall_distance",
    "kept_layers",
    "per_sample",
    "reverse",
    "sequential",
    "skip",
    "swap",
    *NEED_TORCH,
]


def __getattr__(name: str) -> Any:
    if name not in NEED_TORCH:
        raise AttributeError(f"module 'lsvit' has no attribute {name!r}")
    return getattr(import_module(f"lsvit.{NEED_TORCH[name]}"), name)
