"""Stage check-params: every value of params.yaml is checked here, before any compute, and resolved for the stages to depend on."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from lsvit.config.checks import check_layers
from lsvit.config.papers import rooms
from lsvit.config.params import Params, load, paper_sections
from lsvit.config.sections import Finetune, PaperFigures, PaperSection, Pretrain
from lsvit.config.types import Section
from lsvit.config.variant import BASELINE
from lsvit.errors import UserError, one_line_errors
from lsvit.jobs.processes import cuda_devices, root


def check_hardware(params: Params) -> None:
    """Raises UserError: a value asks for hardware that this machine does not have."""
    gpus, processes = cuda_devices(), params.distributed.processes
    for name in params.all_variants:
        precision, source = params.values(Finetune, name)["precision"]
        if precision == "tf32" and (params.device == "cpu" or not gpus):
            raise UserError(f"params.yaml: {source}.precision: found 'tf32', accepted on a CPU: auto, fp32, bf16")
    if params.device == "cuda" and not gpus:
        raise UserError("params.yaml: device: found 'cuda', but this machine has no CUDA device; accepted here: auto, cpu")
    if params.device != "cpu" and gpus and processes > gpus:
        raise UserError(f"params.yaml: distributed.processes: found {processes}, accepted: at most the {gpus} GPUs of this machine")


def build(params: Params) -> None:
    """Make every model without memory, as the stages do. Raises UserError: timm or a part refuses one, or a depth does not fit."""
    import torch

    from lsvit.models.talking_heads import talk
    from lsvit.models.weights import attach, create_backbone

    with torch.device("meta"):
        backbone = create_backbone(params.model_preset.model_copy(update={"init_std": None}), 1)
        for variant in params.all_variants.values():
            model = deepcopy(backbone)
            if variant.talking_heads:
                talk(model)
            attach(model, variant)
        check_layers(params, len(backbone.blocks))
        for checks in rooms("checks"):
            if hasattr(checks, "build"):
                checks.build(params, backbone)


def resolved(params: Params) -> dict[str, Any]:
    """What a stage may depend on, by name: presets, variants with their refinement, sections, all as they are at the chosen scale."""
    found: dict[str, Any] = {"model": [params.model, params.cell.scale, params.model_preset.model_dump()]}
    found |= {"dataset": [params.dataset, params.dataset_preset.model_dump()]}
    found |= {key: params.model_dump(include={key})[key] for key in ("device", "deterministic", "distributed", "seeds", "protocol")}
    refined = {name: [v.model_dump(), params.resolve(Finetune, name).model_dump()] for name, v in params.all_variants.items()}
    found |= {"baseline": refined.pop(BASELINE), "variants": refined}
    sections: list[type[Section]] = [Pretrain, Finetune, PaperFigures, *paper_sections()]
    for section in sections:
        found[section.name] = [params.resolve(section).model_dump()]
        if issubclass(section, PaperSection) and "training" in section.model_fields:
            found[section.name].append({key: value for key, (value, _) in params.scratch_values(section).items()})
    return found


@one_line_errors()
def main() -> None:
    """Write outs/params/NAME.json: a stage runs again where what it depends on has another effective value, and nowhere else."""
    params = load()
    file = params.model_preset.local_file(root())
    if file and not file.is_file():
        raise UserError(f"params.yaml: models.{params.model}.weights: found {str(file)!r}, which does not exist, "
                        "accepted: hub, scratch, a .safetensors file or its folder")  # fmt: skip
    check_hardware(params)
    build(params)
    out = Path("outs/params")
    out.mkdir(parents=True, exist_ok=True)
    for line in params.lowered():
        print(line)
    for name, value in resolved(params).items():
        (out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
