"""Cross-checks of the section `inversion`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from papers.inversion.compute.presets import family_preset
from papers.inversion.section import Family, Inversion
from pipeline.config.params import Params
from pipeline.config.sections import Limit, at_most
from pipeline.errors import UserError, accepted, collect_errors

MIXERS = (
    "mixer_",
    "gmixer_",
    "resmlp_",
    "gmlp_",
)  # how timm's names of models without a position embedding begin


def check(params: Params, file: str) -> Iterator[str]:
    """Of the families, and of what is taken out of them or put in."""
    options = params.resolve(Inversion)
    presets = {name: family_preset(params, name) for name in options.families}
    if options.families.get(params.model, Family()).timm:
        yield f"{file}: inversion.families: found {params.model!r}, accepted: another name for a model that is not the chosen one"
    for name, family in presets.items():
        if "in_chans" in options.families[name].kwargs:  # else they are the chosen model's
            yield from collect_errors(
                params.dataset_preset.check_channels, family, f"inversion.families.{name}", file
            )
    for key in ("ablations", "transplants"):
        for name in getattr(options, key):
            if name not in options.families:
                yield f"{file}: inversion.{key}: found {name!r}, {accepted(name, options.families)}"
    for name, kinds in options.transplants.items():
        if (
            name in presets
            and presets[name].timm.startswith(MIXERS)
            and any("pos_embed" in parts for parts in kinds)
        ):
            yield (
                f"{file}: inversion.transplants.{name}: found 'pos_embed', accepted: patch_embed, norm1 "
                f"({presets[name].timm} has no position embedding)"
            )


def image_limits(params: Params, train: int, validation: int) -> list[Limit]:
    """What the numbers of images allow: the images inverted, and the trainings' batch size."""
    options = params.resolve(Inversion)
    limits = [
        Limit(
            "inversion.images",
            options.images,
            validation,
            f"{params.dataset!r} uses {validation} validation images",
        )
    ]
    return (
        [*limits, params.scratch_limit(Inversion, train)]
        if any(family.timm for family in options.families.values())
        else limits
    )


def build(params: Params, backbone: Any) -> None:
    """Make the models, without memory, as the stage edits them.

    Raises:
        UserError: timm refuses a model, a part that is taken out or put in is not there, or a layer.
    """
    from lsvit.routed import RoutedModel
    from papers.inversion.compute.ablation import ablate, transplant
    from pipeline.models.weights import create_backbone

    options, depths = params.resolve(Inversion), {params.model: len(backbone.blocks)}
    made = [name for name, family in options.families.items() if family.timm] + [
        *options.ablations,
        *options.transplants,
    ]
    for name in dict.fromkeys(made):
        try:
            model = create_backbone(
                family_preset(params, name).model_copy(update={"init_std": None}), 1
            )
            depths[name] = RoutedModel(model).num_layers
            for parts in options.transplants.get(name, ()):
                transplant(model, model, parts)
            for without in options.ablations.get(name, ()):
                ablate(deepcopy(model), without)
        except UserError as error:
            raise UserError(f"params.yaml: inversion, model {name}: {error}") from None
    least = min(depths.values())
    at_most(
        [
            Limit("inversion.depths", depth, least, "the layers of the smallest of its models")
            for depth in options.depths or ()
        ],
        "params.yaml",
    )
