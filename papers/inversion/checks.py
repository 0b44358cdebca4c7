"""Cross-checks of the section `inversion`."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from papers.inversion.compute.presets import family_preset
from papers.inversion.section import Family, Inversion
from pipeline.config.params import Params
from pipeline.errors import UserError, at_most, mistake, unknown_name


def check(params: Params) -> Iterator[str]:
    """Check the families, and what is taken out of them or put in."""
    options = params.resolve(Inversion)
    if options.families.get(params.model, Family()).timm:
        wanted = "another name for a model that is not the chosen one"
        yield mistake("inversion.families", params.model, wanted)
    for name, family in options.families.items():
        kwargs = family_preset(params, name).kwargs
        if "in_chans" in family.kwargs:  # else they are the chosen model's
            yield from params.dataset_preset.check_channels(kwargs, f"inversion.families.{name}")
    for key in ("ablations", "transplants"):
        for name in getattr(options, key):
            if name not in options.families:
                yield unknown_name(f"inversion.{key}", name, options.families)


def build(params: Params, backbone: Any) -> Iterator[str]:
    """Make the models as the stage edits them, and check depths against their layers.

    Raises:
        UserError: timm refuses a model, or a part that is taken out or put in is not there.
    """
    from lsvit.routed import RoutedModel
    from papers.inversion.compute.ablation import ablate, transplant
    from pipeline.models.weights import create_backbone

    options = params.resolve(Inversion)
    num_layers = [len(backbone.blocks)]
    for name in options.families:
        preset = family_preset(params, name).model_copy(update={"init_std": None})
        try:
            model = create_backbone(preset, 1)
            num_layers.append(RoutedModel(model).num_layers)
            for parts in options.transplants.get(name, ()):
                transplant(model, model, parts)
            for removed in options.ablations.get(name, ()):
                ablate(deepcopy(model), removed)
        except UserError as error:
            raise UserError(f"params.yaml: inversion, model {name}: {error}") from None
    for depth in options.depths or ():
        why = "the layers of the smallest of its models"
        yield from at_most("inversion.depths", depth, min(num_layers), why)
