"""The models that stage inversion looks into."""

from papers.inversion.section import Inversion
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.resolve import Value, resolved


def family_preset(params: Params, name: str) -> ModelPreset:
    """A model of stage inversion: the chosen one, or one that the stage trains from scratch."""
    family = params.resolve(Inversion).families.get(name)
    if family is None or family.timm is None:
        return params.model_preset
    values = family.model_dump() | {"weights": "scratch"}
    for key in ("img_size", "in_chans"):
        if key in params.model_preset.kwargs:
            values["kwargs"].setdefault(key, params.model_preset.kwargs[key])
    source = f"{params.values(Inversion)['families'].source}.families.{name}"
    return resolved(ModelPreset, {key: Value(value, source) for key, value in values.items()})
