"""Stage check-params: every value of params.yaml is checked here, before any compute."""

from pathlib import Path

from lsvit.errors import UserError, one_line_errors
from lsvit.launch import cuda_devices
from lsvit.params import Params, load
from lsvit.processes import root
from lsvit.sections import Finetune

KNOWN = {"embed_dim", "num_heads", "depth", "patch_size", "img_size"}  # kwargs that say all the checks need


def num_layers(params: Params) -> int:
    """The model's depth: from params.yaml where it says all, else from the model built without memory, which takes seconds."""
    preset, positions = params.model_preset, [v.position for v in params.all_variants.values()]
    reads_class_token = any(p.predict and p.predict.token == "class_token" for p in positions)
    decodes = params.dataset_preset.source in ("imagenet", "image_folder")  # for long: a mistake must not wait for that
    told = preset.kwargs.keys() >= KNOWN and preset.weights != "hub" and preset.head == "timm"
    if told and not reads_class_token and not decodes:
        return preset.kwargs["depth"]
    import torch

    from lsvit.models import RoutedModel
    from lsvit.weights import create_backbone

    with torch.device("meta"):
        backbone = create_backbone(preset.model_copy(update={"init_std": None}), 1)
        return max(RoutedModel(backbone, position).num_layers for position in positions)


@one_line_errors()
def main() -> None:
    """Write outs/check_params.txt, always the same, so that a passed check makes nothing run again."""
    params = load()
    file = params.model_preset.local_file(root())
    if file and not file.is_file():
        raise UserError(f"params.yaml: models.{params.model}.weights: found {str(file)!r}, which does not exist, "
                        "accepted: hub, scratch, a .safetensors file or its folder")  # fmt: skip
    gpus, processes = cuda_devices(), params.distributed.processes
    for name in params.all_variants:
        precision, source = params.values(Finetune, name)["precision"]
        if precision == "tf32" and (params.device == "cpu" or not gpus):
            raise UserError(f"params.yaml: {source}.precision: found 'tf32', accepted on a CPU: auto, fp32, bf16")
    params.check_layers(num_layers(params))
    if params.device == "cuda" and not gpus:
        raise UserError("params.yaml: device: found 'cuda', but this machine has no CUDA device; accepted here: auto, cpu")
    if params.device != "cpu" and gpus and processes > gpus:
        raise UserError(f"params.yaml: distributed.processes: found {processes}, accepted: at most the {gpus} GPUs of this machine")
    out = Path("outs/check_params.txt")
    out.parent.mkdir(exist_ok=True)
    out.write_text("params.yaml is valid\n")


if __name__ == "__main__":
    main()
