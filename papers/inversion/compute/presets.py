"""The models that stage inversion looks into."""

from papers.inversion.section import Inversion
from pipeline.config.params import Params, Value, resolved
from pipeline.config.presets import ModelPreset


def family_preset(params: Params, name: str) -> ModelPreset:
    """A model of stage inversion: the chosen one, or one that the stage trains from scratch."""
    source = params.values(Inversion)["families"].source
    own = params.resolve(Inversion).families[name].model_dump() | {"weights": "scratch"}
    if own["timm"] is None:
        return params.model_preset
    kept = {
        key: params.model_preset.kwargs[key]
        for key in ("img_size", "in_chans")
        if key in params.model_preset.kwargs
    }
    own["kwargs"] = kept | own["kwargs"]
    return resolved(
        ModelPreset, {key: Value(value, f"{source}.families.{name}") for key, value in own.items()}
    )
