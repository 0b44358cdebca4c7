"""The models that stage smoothing trains from scratch."""

from papers.smoothing.section import Smoothing
from pipeline.config.params import Params, Value, resolved
from pipeline.config.presets import ModelPreset


def preset(params: Params, num_layers: int) -> ModelPreset:
    """The chosen model with so many layers and without weights, as stage smoothing trains it: its layers drawn alike, as the source's."""
    kwargs, source = params.values(Smoothing)["kwargs"]
    own = params.model_preset.model_dump() | {
        "weights": "scratch",
        "sha256": None,
        "init_growth": 0.0,
    }
    own["kwargs"] = own["kwargs"] | kwargs | {"depth": num_layers}
    return resolved(ModelPreset, {key: Value(value, source) for key, value in own.items()})
