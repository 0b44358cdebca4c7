"""Cross-checks of the section `smoothing`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from papers.smoothing.compute.presets import preset
from papers.smoothing.section import Smoothing
from pipeline.config.params import Params
from pipeline.errors import at_most, mistake, unknown_name

DEEPEST = 1000  # layers that timm can be asked for


def check(params: Params) -> Iterator[str]:
    """Check depths, parts removed, sums of losses."""
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
        if "in_chans" in options.kwargs:  # else they are the chosen model's
            yield from params.dataset_preset.check_channels(model.kwargs, "smoothing")
    recipe = options.recipe
    parts = [part for part, _ in recipe if recipe.without(part) != recipe]
    for part in options.removed:
        if part not in parts:
            yield unknown_name("smoothing.removed", part, parts)
    sums = [str(losses) for losses in options.losses]
    for losses, name in zip(options.losses, sums, strict=True):
        if sums.count(name) > 1 or (name == str(options.best) and losses != options.best):
            yield (
                f"params.yaml: smoothing.losses: found {name} twice, or with other values in "
                "`best`; accepted: once (the tables have one row for each sum of losses)"
            )


def build(params: Params, backbone: Any) -> list[str]:
    """Make the models that are trained from scratch.

    Raises:
        UserError: one cannot be made, or a model has no pairs of patches to be compared.
    """
    from papers.smoothing.talking_heads import use_talking_heads
    from pipeline.models.tokens import check_pairs
    from pipeline.models.weights import create_backbone

    options = params.resolve(Smoothing)
    if options.depths and (options.talking_heads or options.drop_paths):
        use_talking_heads(deepcopy(backbone))
    if options.variants:
        check_pairs(backbone, "smoothing.variants")
    for depth in options.depths:
        model = preset(params, depth).model_copy(update={"init_std": None})
        check_pairs(create_backbone(model, 1), "smoothing")
    return []
