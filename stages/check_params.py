"""Stage check-params: every value of params.yaml is checked here, before any compute."""

from copy import deepcopy
from pathlib import Path

from lsvit.config.papers import rooms
from lsvit.config.params import Params, load
from lsvit.config.sections import Finetune
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
        params.check_layers(len(backbone.blocks))
        for checks in rooms("checks"):
            if hasattr(checks, "build"):
                checks.build(params, backbone)


@one_line_errors()
def main() -> None:
    """Write outs/check_params.txt, always the same, so that a passed check makes nothing run again."""
    params = load()
    file = params.model_preset.local_file(root())
    if file and not file.is_file():
        raise UserError(f"params.yaml: models.{params.model}.weights: found {str(file)!r}, which does not exist, "
                        "accepted: hub, scratch, a .safetensors file or its folder")  # fmt: skip
    check_hardware(params)
    build(params)
    out = Path("outs/check_params.txt")
    out.parent.mkdir(exist_ok=True)
    out.write_text("params.yaml is valid\n")


if __name__ == "__main__":
    main()
