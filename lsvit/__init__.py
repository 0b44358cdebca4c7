"""Vision transformers whose layers run in any order (LayerShuffle, Freiberger et al., 2024).

A *route* is the tuple of layer indices that a forward pass executes, in order. It is drawn outside
the model:

    model = RoutedModel(timm.create_model("vit_tiny_patch16_224"))
    model(images, arbitrary(generator("train", seed, step), model.num_layers))
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:  # what __getattr__ gives
    from lsvit.evaluation import Score, evaluate
    from lsvit.position import Encode, Position, Predict, position_hits, position_loss
    from lsvit.predict import load
    from lsvit.routed import RoutedModel, Tap
    from lsvit.scanning import Scan, scan
    from lsvit.shuffled import Shuffle, get_shuffle, in_order, shuffle, unshuffle
    from lsvit.taps import ExitLogits, PositionLogits
    from lsvit.weights import load_weights, save_weights

# Names whose modules import torch. They are imported at their first use, so that drawing routes
# needs no torch.
NEED_TORCH = {
    "Encode": "position",
    "Position": "position",
    "Predict": "position",
    "position_hits": "position",
    "position_loss": "position",
    "load": "predict",
    "RoutedModel": "routed",
    "Scan": "scanning",
    "Score": "evaluation",
    "Shuffle": "shuffled",
    "Tap": "routed",
    "evaluate": "evaluation",
    "get_shuffle": "shuffled",
    "in_order": "shuffled",
    "scan": "scanning",
    "shuffle": "shuffled",
    "unshuffle": "shuffled",
    "ExitLogits": "taps",
    "PositionLogits": "taps",
    "load_weights": "weights",
    "save_weights": "weights",
}

__all__ = [
    "Encode",
    "ExitLogits",
    "Latin",
    "OneRoute",
    "Position",
    "PositionLogits",
    "Predict",
    "Route",
    "RouteTable",
    "RoutedModel",
    "Routes",
    "Scan",
    "Score",
    "Shuffle",
    "Tap",
    "arbitrary",
    "drop",
    "evaluate",
    "evaluation_routes",
    "fix_first",
    "fix_last",
    "fixed",
    "generator",
    "get_shuffle",
    "in_order",
    "kendall_distance",
    "kept_layers",
    "load",
    "load_weights",
    "per_sample",
    "position_hits",
    "position_loss",
    "reverse",
    "save_weights",
    "scan",
    "sequential",
    "shuffle",
    "skip",
    "swap",
    "unshuffle",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("lsvit")
    if name not in NEED_TORCH:
        raise AttributeError(f"module 'lsvit' has no attribute {name!r}")
    return getattr(import_module(f"lsvit.{NEED_TORCH[name]}"), name)
