"""Measure how alike a model's patches become along a route.

Source: over-smoothing, "Examining over-smoothness".
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lsvit.routed import RoutedModel, Samples
from lsvit.routes import Order, arbitrary, generator, per_sample, sequential
from papers.smoothing.losses import patch_cosine
from papers.smoothing.section import PROFILE, ProfileConfig
from pipeline.data.splits import Split
from pipeline.files import write_json
from pipeline.models.tokens import check_pairs
from pipeline.training.devices import Execution, sums_type
from pipeline.training.scoring import batches_along, open_model, open_split

ATTENTION = (Attention, TalkingHeadAttn)


def attention_scores(attention: Any, tokens: Tensor) -> Tensor:
    """Recompute the softmax attention scores of timm's attention, whatever kernel it uses.

    Args:
        attention: an Attention of timm's ViTs or its TalkingHeadAttn, whose scores are those after
            the softmax, before its second mix of the heads.
        tokens: (B, N, D), the input.

    Returns:
        (B, heads, N, N), rows sum to 1.
    """
    qkv = attention.qkv(tokens).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = qkv[0], qkv[1]
    if isinstance(attention, TalkingHeadAttn):
        products = (q * attention.scale @ k.transpose(-2, -1)).permute(0, 2, 3, 1)
        logits = attention.proj_l(products).permute(0, 3, 1, 2)
    else:
        logits = (attention.q_norm(q) * attention.scale) @ attention.k_norm(k).transpose(-2, -1)
    return logits.float().softmax(-1)


class Smoothness(AbstractContextManager):
    """A tap of patch cosine similarity along a route and of the deviation of attention scores.

    Within the context it listens to the inputs of the attention modules and computes their scores
    again beside the forward pass, which stays as it is. It keeps a sum for every depth and nothing
    of an image. With routes per sample it takes images at their own depth; all that runs within
    one context is one profile. The standard deviation is that of a patch's scores for the n
    patches (without the class token; divisor n), mean over patches and heads.
    """

    def __init__(self, model: RoutedModel) -> None:
        self.model = model
        # Sum over the images and their number, after so many layers.
        self.cosine: dict[int, tuple[Tensor, int]] = {}
        # The same of the layer run first, second, ...
        self.attention: dict[int, tuple[Tensor, int]] = {}
        self._deviations: dict[Any, Tensor] = {}  # (n,) of the attention modules that ran last
        self._handles: list[RemovableHandle] = []  # within the context

    def __enter__(self) -> "Smoothness":
        for module in self.model.backbone.blocks.modules():
            if isinstance(module, ATTENTION):
                self._handles.append(module.register_forward_pre_hook(self._listen))
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _listen(self, module: Any, inputs: tuple[Any, ...]) -> None:
        prefix = self.model.num_prefix_tokens
        scores = attention_scores(module, inputs[0])[..., prefix:, prefix:]
        self._deviations[module] = scores.std(-1, correction=0).mean((1, 2))

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """See :class:`lsvit.routed.Tap`."""
        if depth == 0:
            _add(self.cosine, 0, patch_cosine(self.model.patches(before)))
        _add(self.cosine, depth + 1, patch_cosine(self.model.patches(after)))
        for module in self.model.backbone.blocks[layer].modules():
            if module in self._deviations:
                _add(self.attention, depth, self._deviations.pop(module))

    def profile(self) -> dict[str, list[float | None]]:
        """Average over the images.

        Returns:
            `patch_cosine` after 0, 1, ... layers (L + 1 numbers); `attention_std` of the layers
            run first, second, ... (L; None where a layer has no attention that timm's ViTs share).
        """
        cosine = {depth: (total / n).item() for depth, (total, n) in self.cosine.items()}
        attention = {depth: (total / n).item() for depth, (total, n) in self.attention.items()}
        return {
            "patch_cosine": [cosine[depth] for depth in range(len(cosine))],
            "attention_std": [attention.get(depth) for depth in range(len(cosine) - 1)],
        }


def _add(sums: dict[int, tuple[Tensor, int]], depth: int, values: Tensor) -> None:
    """Add values (n,), one an image, to the sum of a depth and its number of values."""
    total, count = sums.get(depth, (0, 0))
    summed = values.detach().to(sums_type(values.device)).sum()
    sums[depth] = total + summed, count + len(values)


@torch.inference_mode()
def profile(
    model: RoutedModel,
    split: Split,
    images: int,
    batch_size: int,
    order: Order,
    seed: int,
    execution: Execution,
) -> dict[str, list[float | None]]:
    """Take the profile, as :class:`Smoothness`, of so many images of a split, always the same.

    In `arbitrary` order each has one of its own.
    """
    model.eval()
    chosen = torch.from_numpy(split.subset(images))
    sampler = arbitrary if order == "arbitrary" else sequential
    routes = torch.from_numpy(
        per_sample(sampler, generator("profiles", seed), model.num_layers, len(chosen))
    )
    with Smoothness(model) as found, execution.context():
        for _, batch, _, route in batches_along(split, chosen, routes, batch_size):
            model.tokens(batch, route, [found])
    return found.profile()


def measure(
    config: ProfileConfig,
    data: Path,
    weights: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Take the profile of one model over training images, and write `profile.json`.

    Without weights it is that of the random initialisation.

    Raises:
        UserError: the weights or the data do not fit.
    """
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    model, execution = open_model(config, data, weights)
    check_pairs(model.backbone, "smoothing")
    split = open_split(config, data, "train", model)
    options = config.options
    found = profile(
        model, split, options.images, options.batch_size, config.order, options.seed, execution
    )
    write_json(folder / PROFILE, found)
    report({"text": f"runs on {execution}"})
