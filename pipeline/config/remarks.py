"""What a user is told about values that do not act as they are written."""

from pipeline.config.paper import LEFT_OUT
from pipeline.config.params import Params
from pipeline.config.sections import Finetune, Pretrain
from pipeline.config.types import Merged, Section


def describe_lowered(params: Params) -> list[str]:
    """The values that are lowered to the images there are, a line each."""
    sections: list[type[Section]] = [Pretrain, Finetune, *params.running_sections]
    found = {section.name: params.values(section) for section in sections}
    for trained in params.scratch_sections:
        found[f"{trained.name}.training"] = params.scratch_values(trained)
    lines = []
    for name, values in found.items():
        for key, value in values.items():
            if value.written is not None:
                was = f"{name}.{key}: {value.written} (from {value.source})"
                lines.append(f"{was} lowered to {value.value}, the images there are")
    return lines


def describe_overruled(params: Params, before: Params) -> list[str]:
    """The values that changed since `before` but that a nearer place sets, a line each."""
    lines: list[str] = []
    sections: list[type[Section]] = [Pretrain, Finetune, *params.paper_sections]
    idle = [section for section in params.paper_sections if section not in params.running_sections]
    for section in sections:
        try:
            old_layers = before.layers(section.name)
        except KeyError:  # a preset that is new
            continue
        for place, values in params.layers(section.name).items():
            old_values = old_layers.get(place, {})
            for key, value in values.items():
                if value == old_values.get(key):
                    continue
                if section in idle and place in old_layers:
                    lines.append(f"{place}.{key}: {value} has no effect: {LEFT_OUT}")
                if section in idle or key in section.marks(Merged):
                    continue
                # Of the refinements, each variant may have another source.
                variants = list(params.all_variants) if section is Finetune else [None]
                found = [params.values(section, variant)[key] for variant in variants]
                sources = sorted({value.source for value in found})
                if place not in sources:
                    lines.append(
                        f"{place}.{key}: {value} has no effect with this scale, model and "
                        f"data set: {', '.join(sources)} says {key}"
                    )
    return lines
