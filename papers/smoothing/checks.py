"""Cross-checks of the section `smoothing`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from papers.smoothing.compute.presets import preset
from papers.smoothing.section import Smoothing
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.errors import at_most, mistake, unknown_name

DEEPEST = 1000  # layers that timm can be asked for


def check(params: Params) -> Iterator[str]:
    """Check depths, parts removed, sums of losses, pairs of patches of the trainings."""
    options = params.resolve(Smoothing)
    if "depth" in options.kwargs:
        yield mistake("smoothing.kwargs.depth", options.kwargs["depth"], "smoothing.depths")
        return  # no model can be made
    deepest = max(options.depths, default=0)
    if deepest > DEEPEST:
        yield from at_most("smoothing.depths", deepest, DEEPEST, "layers that timm makes")
        return
    for depth in options.talking_heads:
        if depth not in options.depths:
            yield unknown_name("smoothing.talking_heads", depth, options.depths)
    for depth in options.depths:
        model = preset(params, depth)
        yield from _check_pairs(model, "smoothing")
        if "in_chans" in options.kwargs:  # else they are the chosen model's
            yield from params.dataset_preset.check_channels(model.kwargs, "smoothing")
    if options.variants:
        yield from _check_pairs(params.model_preset, "smoothing.variants")
    recipe = options.recipe
    parts = [part for part in type(recipe).model_fields if recipe.without(part) != recipe]
    for part in options.removed:
        if part not in parts:
            names = ", ".join(parts) or "nothing"
            yield mistake("smoothing.removed", part, f"what smoothing.recipe has ({names})")
    sums = [str(losses) for losses in options.losses]
    for losses, name in zip(options.losses, sums, strict=True):
        if sums.count(name) > 1 or (name == str(options.best) and losses != options.best):
            yield (
                f"params.yaml: smoothing.losses: found {name} twice, or with other values in "
                "`best`; accepted: once (the tables have one row for each sum of losses)"
            )


def build(params: Params, backbone: Any) -> list[str]:
    """Make the models that are trained from scratch. Raises UserError if one cannot be made."""
    from papers.smoothing.talking_heads import use_talking_heads
    from pipeline.models.weights import create_backbone

    options = params.resolve(Smoothing)
    if options.depths and (options.talking_heads or options.drop_paths):
        use_talking_heads(deepcopy(backbone))
    for depth in options.depths:
        create_backbone(preset(params, depth).model_copy(update={"init_std": None}), 1)
    return []


def _check_pairs(model: ModelPreset, key: str) -> Iterator[str]:
    """Check that images have pairs of patches, whose similarity is measured."""
    size = model.kwargs.get("img_size")
    if size is not None and size == model.kwargs.get("patch_size"):
        yield (
            f"params.yaml: {key}: found a model whose patch_size {size} is its img_size, "
            "accepted: 2 patches or more, for pairs of them"
        )
