"""The models that stage smoothing trains from scratch."""

from papers.smoothing.section import Smoothing
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.resolve import Value, resolved


def preset(params: Params, num_layers: int) -> ModelPreset:
    """The chosen model with so many layers, all drawn alike as the source's, without weights."""
    kwargs, source, _ = params.values(Smoothing)["kwargs"]
    values = params.model_preset.model_dump()
    values |= {"weights": "scratch", "sha256": None, "init_growth": 0.0}
    values["kwargs"] |= kwargs | {"depth": num_layers}
    return resolved(ModelPreset, {key: Value(value, source) for key, value in values.items()})
