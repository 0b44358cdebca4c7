"""Measure how alike a model's patches become along a route.

Source: over-smoothing, "Examining over-smoothness".
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch
from timm.layers.attention import Attention
from timm.models.cait import TalkingHeadAttn
from torch import Tensor

from lsvit.routed import RoutedModel, Samples
from lsvit.routes import arbitrary, generator, per_sample, sequential
from papers.smoothing.losses import patch_cosine
from papers.smoothing.section import PROFILE, ProfileConfig
from pipeline.files import write_json
from pipeline.models.tokens import check_pairs
from pipeline.training.devices import sums_type
from pipeline.training.scoring import batches_along, open_model, open_split


def attention_scores(attention: Any, tokens: Tensor) -> Tensor:
    """Recompute the softmax attention scores of timm's attention, whatever kernel it uses.

    Args:
        attention: an Attention of timm's ViTs or its TalkingHeadAttn, whose scores are those after
            the softmax, before its second mix of the heads.
        tokens: (B, N, D), the input.

    Returns:
        (B, heads, N, N), rows sum to 1.
    """
    qkv = attention.qkv(tokens).unflatten(-1, (3, attention.num_heads, -1))
    q, k, _ = qkv.permute(2, 0, 3, 1, 4)
    if isinstance(attention, TalkingHeadAttn):
        products = (q * attention.scale @ k.transpose(-2, -1)).permute(0, 2, 3, 1)
        logits = attention.proj_l(products).permute(0, 3, 1, 2)
    else:
        logits = (attention.q_norm(q) * attention.scale) @ attention.k_norm(k).transpose(-2, -1)
    return logits.float().softmax(-1)


class Smoothness(ExitStack):
    """A tap of patch cosine similarity along a route and of the deviation of attention scores.

    Within the context it listens to the inputs of the attention modules and computes their scores
    again beside the forward pass, which stays as it is. It keeps a sum for every depth and nothing
    of an image. With routes per sample it takes images at their own depth; all that runs within
    one context is one profile. The standard deviation is that of a patch's scores for the n
    patches (without the class token; divisor n), mean over patches and heads.
    """

    def __init__(self, model: RoutedModel) -> None:
        super().__init__()
        self.model = model
        # Of a measure after so many layers: the sum over the images, and their number.
        self.sums: dict[tuple[str, int], tuple[Tensor, int]] = {}
        self._deviations: dict[Any, Tensor] = {}  # (n,) of the attention modules that ran last

    def __enter__(self) -> Self:
        for module in self.model.backbone.blocks.modules():
            if isinstance(module, Attention | TalkingHeadAttn):
                self.enter_context(module.register_forward_pre_hook(self._listen))
        return self

    def _listen(self, module: Any, inputs: tuple[Any, ...]) -> None:
        prefix = self.model.num_prefix_tokens
        scores = attention_scores(module, inputs[0])[..., prefix:, prefix:]
        self._deviations[module] = scores.std(-1, correction=0).mean((1, 2))

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """See :class:`lsvit.routed.Tap`."""
        if depth == 0:
            self._add("patch_cosine", 0, patch_cosine(self.model.patches(before)))
        self._add("patch_cosine", depth + 1, patch_cosine(self.model.patches(after)))
        for module in self.model.backbone.blocks[layer].modules():
            if module in self._deviations:
                self._add("attention_std", depth + 1, self._deviations.pop(module))

    def _add(self, measure: str, depth: int, values: Tensor) -> None:
        """Add values (n,), one an image, to the sum of a depth and its number of values."""
        total, count = self.sums.get((measure, depth), (0, 0))
        summed = values.detach().to(sums_type(values.device)).sum()
        self.sums[measure, depth] = total + summed, count + len(values)

    def profile(self) -> dict[str, list[float | None]]:
        """Average over the images.

        Returns:
            `patch_cosine` after 0, 1, ... layers (L + 1 numbers); `attention_std` of the layers
            run first, second, ... (L; None where a layer has no attention that timm's ViTs share).
        """
        means = {key: (total / count).item() for key, (total, count) in self.sums.items()}
        depths = range(1 + max((depth for _, depth in means), default=-1))
        return {
            "patch_cosine": [means["patch_cosine", depth] for depth in depths],
            "attention_std": [means.get(("attention_std", depth)) for depth in depths[1:]],
        }


def measure(
    config: ProfileConfig,
    data: Path,
    weights: Path | None,
    folder: Path,
    report: Callable[[dict], None],
) -> None:
    """Take the profile, as :class:`Smoothness`, of one model, and write `profile.json`.

    It is over so many training images, always the same. In `arbitrary` order each has one of its
    own. Without weights it is that of the random initialisation.

    Raises:
        UserError: the weights or the data do not fit.
    """
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    model, execution = open_model(config, data, weights)
    check_pairs(model.backbone, "smoothing")
    split = open_split(config, data, "train", model)
    options = config.options
    chosen = torch.from_numpy(split.subset(options.images))
    sampler = arbitrary if config.order == "arbitrary" else sequential
    routes = per_sample(sampler, generator("profiles", options.seed), model.num_layers, len(chosen))
    batches = batches_along(split, chosen, torch.from_numpy(routes), options.batch_size)
    model.eval()
    with torch.inference_mode(), Smoothness(model) as found, execution.context():
        for _, images, _, route in batches:
            model.tokens(images, route, [found])
    write_json(folder / PROFILE, found.profile())
    report({"text": f"runs on {execution}"})
