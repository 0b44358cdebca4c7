"""The values that stages depend on, a file a section or preset."""

from typing import Any

from pipeline.config.paper import LEFT_OUT
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, PaperFigures, Pretrain
from pipeline.config.types import Section
from pipeline.config.variant import BASELINE


def stage_params(params: Params) -> dict[str, Any]:
    """What a stage may depend on, by name, as it is at the chosen scale."""
    values: dict[str, Any] = {
        "model": [params.model, params.cell.scale, params.model_preset.model_dump()],
        "dataset": [params.dataset, params.dataset_preset.model_dump()],
    }
    values |= params.model_dump(
        include={"device", "deterministic", "portable", "distributed", "seeds", "protocol"}
    )
    refined = {}
    for name, variant in params.all_variants.items():
        refined[name] = [variant.model_dump(), params.resolve(Finetune, name).model_dump()]
    values["baseline"] = refined.pop(BASELINE)
    values["variants"] = refined
    for own in params.paper_sections:
        values[own.name] = LEFT_OUT
    sections: list[type[Section]] = [Pretrain, Finetune, PaperFigures, *params.running_sections]
    for section in sections:
        values[section.name] = [params.resolve(section).model_dump()]
    for trained in params.scratch_sections:
        training = params.scratch_values(trained)
        values[trained.name].append({key: value.value for key, value in training.items()})
    return values
