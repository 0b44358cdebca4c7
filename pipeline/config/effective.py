"""What params.yaml comes to at the chosen scale: a file a section or preset, for stages to depend
on."""

import json
from typing import Any

from pipeline.config.params import Params
from pipeline.config.sections import Finetune, PaperFigures, PaperSection, Pretrain
from pipeline.config.types import Section
from pipeline.config.variant import BASELINE


def stage_params(params: Params) -> dict[str, Any]:
    """What a stage may depend on, by name: presets, variants with their refinement, sections, all
    as they are at the chosen scale."""
    found: dict[str, Any] = {
        "model": [params.model, params.cell.scale, params.model_preset.model_dump()]
    }
    found |= {"dataset": [params.dataset, params.dataset_preset.model_dump()]}
    found |= {
        key: params.model_dump(include={key})[key]
        for key in ("device", "deterministic", "distributed", "seeds", "protocol")
    }
    refined = {
        name: [v.model_dump(), params.resolve(Finetune, name).model_dump()]
        for name, v in params.all_variants.items()
    }
    found |= {"baseline": refined.pop(BASELINE), "variants": refined}
    sections: list[type[Section]] = [Pretrain, Finetune, PaperFigures, *params.paper_sections]
    for section in sections:
        found[section.name] = [params.resolve(section).model_dump()]
        if issubclass(section, PaperSection) and "training" in section.model_fields:
            found[section.name].append(
                {key: value for key, (value, _) in params.scratch_values(section).items()}
            )
    return found


def files(params: Params) -> dict[str, str]:
    """The same as texts, by the names of the files in outs/params/."""
    return {
        f"{name}.json": json.dumps(value, indent=1) + "\n"
        for name, value in stage_params(params).items()
    }
