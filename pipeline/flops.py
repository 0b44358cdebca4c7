"""FLOPs of one image through a model, counted by torch on the meta device: nothing is computed.

One multiply-add is 2 FLOPs; norms, activations and sums are none. Attention runs as matrix
products, because `FlopCounterMode` counts fused attention as 0 on a CPU.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from lsvit.routed import RoutedModel
from lsvit.taps import PositionLogits
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, Variant
from pipeline.models.weights import build, input_size

Number = TypeVar("Number", int, float)  # int counts stay int


class ModelFlops(NamedTuple):
    """FLOPs of one image in the parts of a model; all blocks of a model take the same."""

    num_layers: int
    width: int
    embed: int  # patch embedding
    block: int  # one transformer block, with its position parts
    head: int  # final norm and the model's own head

    def whole(self, depth: Number) -> Number:
        """FLOPs of the embedding, `depth` blocks and the head."""
        return self.embed + depth * self.block + self.head


def count(run: Callable[..., Any], *inputs: Any) -> int:
    """Count the FLOPs of `run(*inputs)`."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(*inputs)
    return counter.get_total_flops()


def countable(module: Any) -> Any:
    """Return the module, prepared for :func:`count`: unfused attention, no gradients."""
    for part in module.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = False
    return module.eval().requires_grad_(False)


def meta_model(preset: ModelPreset, num_classes: int, variant: Variant = PLAIN) -> RoutedModel:
    """Build a variant of the preset's model on the meta device, ready for :func:`count`.

    Raises:
        UserError: timm does not know the model, or a part of the variant does not fit it.
    """
    without_draws = preset.model_copy(update={"init_std": None})
    with torch.device("meta"):
        return countable(build(without_draws, num_classes, variant))


def count_model(model: RoutedModel, preset: ModelPreset) -> ModelFlops:
    """Count the parts of a :func:`meta_model`. Its early exits are not run.

    Raises:
        UserError: the images are not square.
    """
    in_chans, size = input_size(model, preset)
    image = torch.empty(1, in_chans, size, size, device="meta")
    taps = [PositionLogits(model)] if "predict" in model.position else []

    def run_one_block() -> None:
        model(image, (0,), taps)
        for tap in taps:
            tap.logits  # noqa: B018 (the prediction heads run when asked)

    embed = count(model.embed, image)
    outside = count(model, image, ())
    block = count(run_one_block) - outside
    return ModelFlops(model.num_layers, model.backbone.embed_dim, embed, block, outside - embed)


def count_variant(preset: ModelPreset, num_classes: int, variant: Variant = PLAIN) -> ModelFlops:
    """Count the parts of a :func:`meta_model`, for which it raises UserError."""
    return count_model(meta_model(preset, num_classes, variant), preset)
