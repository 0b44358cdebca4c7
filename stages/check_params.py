"""Stage check-params: every value of params.yaml is checked here, before any compute."""

from copy import deepcopy
from pathlib import Path

from lsvit.errors import UserError, one_line_errors
from lsvit.inversion_sections import Inversion
from lsvit.launch import cuda_devices
from lsvit.params import Params, load
from lsvit.processes import root
from lsvit.sections import Exits, Finetune, Smoothing

KNOWN = {"embed_dim", "num_heads", "depth", "patch_size", "img_size"}  # kwargs that say all the checks need
UNUSUAL = {"class_token", "global_pool", "patch_drop_rate"}  # kwargs after which a model may have no class token or no grid


def num_layers(params: Params) -> int:
    """The model's depth: from params.yaml where it says all, else from the model built without memory, which takes seconds.

    Raises:
        UserError: a part, a loss or a depth does not fit the model that was built.
    """
    preset, variants, exits = params.model_preset, params.all_variants.values(), params.resolve(Exits)
    smoothing = params.resolve(Smoothing)
    reads_class_token = any(v.position.predict and v.position.predict.token == "class_token" for v in variants)
    decodes = params.dataset_preset.source in ("imagenet", "image_folder")  # for long: a mistake must not wait for that
    told = preset.kwargs.keys() >= KNOWN and not preset.kwargs.keys() & UNUSUAL and preset.weights != "hub" and preset.head == "timm"
    if told and not reads_class_token and not decodes:
        return preset.kwargs["depth"]
    import torch

    from lsvit.branches import make_branch, token_shape
    from lsvit.talking_heads import talk
    from lsvit.weights import attach, create_backbone

    with torch.device("meta"):
        backbone = create_backbone(preset.model_copy(update={"init_std": None}), 1)
        models = [attach(backbone, variant) for variant in variants]
        if smoothing.talking_heads or any(variant.talking_heads for variant in variants):
            talk(deepcopy(backbone))
        for depth in smoothing.depths:
            create_backbone(params.smoothing_preset(depth).model_copy(update={"init_std": None}), 1)
        for kind in exits.every_branch if exits.strategies or exits.counting_strategies else ():
            make_branch(kind, token_shape(backbone), 1, exits)
    return models[0].num_layers


def check_inversion(params: Params, num_layers: int) -> None:
    """Build the models of stage inversion without memory, as it edits them.

    Args:
        params: what to check.
        num_layers: of the chosen model.

    Raises:
        UserError: timm refuses a model, a part that is taken out or put in is not there, or a layer.
    """
    options, depths = params.resolve(Inversion), {params.model: num_layers}
    made = [name for name, family in options.families.items() if family.timm] + [*options.ablations, *options.transplants]
    if made:
        import torch

        from lsvit.ablation import ablate, transplant
        from lsvit.models import RoutedModel
        from lsvit.weights import create_backbone

        for name in dict.fromkeys(made):
            try:
                with torch.device("meta"):
                    backbone = create_backbone(params.family_preset(name).model_copy(update={"init_std": None}), 1)
                    depths[name] = RoutedModel(backbone).num_layers
                    for parts in options.transplants.get(name, ()):
                        transplant(backbone, backbone, parts)
                    for without in options.ablations.get(name, ()):
                        ablate(deepcopy(backbone), without)
            except UserError as error:
                raise UserError(f"params.yaml: inversion, model {name}: {error}") from None
    for depth in options.depths or ():
        if depth > min(depths.values()):
            raise UserError(f"params.yaml: inversion.depths: found {depth}, accepted: at most {min(depths.values())}, the layers of the "
                            "smallest of its models")  # fmt: skip


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
    found = num_layers(params)
    params.check_layers(found)
    check_inversion(params, found)
    if params.device == "cuda" and not gpus:
        raise UserError("params.yaml: device: found 'cuda', but this machine has no CUDA device; accepted here: auto, cpu")
    if params.device != "cpu" and gpus and processes > gpus:
        raise UserError(f"params.yaml: distributed.processes: found {processes}, accepted: at most the {gpus} GPUs of this machine")
    out = Path("outs/check_params.txt")
    out.parent.mkdir(exist_ok=True)
    out.write_text("params.yaml is valid\n")


if __name__ == "__main__":
    main()
