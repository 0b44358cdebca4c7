"""Cross-checks of the section `smoothing`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from papers.smoothing.compute.presets import preset
from papers.smoothing.section import Smoothing
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Limit
from pipeline.errors import UserError, accepted, collect_errors

DEEPEST = 1000  # layers that timm can be asked for


def check(params: Params, file: str) -> Iterator[str]:
    """Of the trainings from scratch: depths, parts removed, sums of losses, pairs of patches."""
    options = params.resolve(Smoothing)
    if "depth" in options.kwargs:
        yield f"{file}: smoothing.kwargs.depth: found {options.kwargs['depth']}, accepted: smoothing.depths"
        return  # no model can be made
    if (deepest := max(options.depths, default=0)) > DEEPEST:
        yield f"{file}: smoothing.depths: found {deepest}, accepted: at most {DEEPEST}"
        return
    for depth in options.talking_heads:
        if depth not in options.depths:
            yield f"{file}: smoothing.talking_heads: found {depth}, {accepted(depth, options.depths)} (of smoothing.depths)"
    for depth in options.depths:
        yield from collect_errors(_check_pairs, preset(params, depth), "smoothing", file)
        if "in_chans" in options.kwargs:  # else they are the chosen model's
            yield from collect_errors(
                params.dataset_preset.check_channels, preset(params, depth), "smoothing", file
            )
    if options.variants:
        yield from collect_errors(_check_pairs, params.model_preset, "smoothing.variants", file)
    for part in options.removed:
        if options.recipe.without(part) == options.recipe:
            parts = [
                name
                for name in type(options.recipe).model_fields
                if options.recipe.without(name) != options.recipe
            ]
            yield f"{file}: smoothing.removed: found {part!r}, accepted: what smoothing.recipe has ({', '.join(parts) or 'nothing'})"
    for losses in options.losses:
        same = [other for other in options.losses if str(other) == str(losses)]
        if len(same) > 1 or (str(options.best) == str(losses) and options.best != losses):
            why = "the tables have one row for each sum of losses"
            yield f"{file}: smoothing.losses: found {losses} twice, or with other values in `best`; accepted: once ({why})"


def image_limits(params: Params, train: int, validation: int) -> list[Limit]:
    """What the number of images allows: the trainings' batch size."""
    return [params.scratch_limit(Smoothing, train)] if params.resolve(Smoothing).depths else []


def build(params: Params, backbone: Any) -> None:
    """Make the models that are trained from scratch, without memory. Raises UserError: timm or a part refuses one."""
    from papers.smoothing.talking_heads import use_talking_heads
    from pipeline.models.weights import create_backbone

    options = params.resolve(Smoothing)
    if options.talking_heads:
        use_talking_heads(deepcopy(backbone))
    for depth in options.depths:
        create_backbone(preset(params, depth).model_copy(update={"init_std": None}), 1)


def _check_pairs(model: ModelPreset, key: str, file: str) -> None:
    """Raises UserError if params.yaml tells that images have one patch: the similarity of patches is one of pairs."""
    size, patch = (model.kwargs.get(name) for name in ("img_size", "patch_size"))
    if size is not None and size == patch:
        raise UserError(
            f"{file}: {key}: found a model whose patch_size {patch} is its img_size, accepted: 2 patches or more, for pairs of them"
        )
