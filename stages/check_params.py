"""Stage check-params: every value of params.yaml is checked here, before any compute, and resolved for the stages to depend on."""

import platform
import subprocess
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

from papers import PAPERS
from pipeline.config.checks import check, check_layers, check_names
from pipeline.config.effective import files
from pipeline.config.load import parse
from pipeline.config.params import Params
from pipeline.errors import UserError, collect_errors, one_line_errors, raise_all
from pipeline.jobs.address import check_cluster
from pipeline.jobs.processes import cuda_devices, root


def check_machine(params: Params) -> Iterator[str]:
    """What a value asks for that this machine does not have: files, GPUs, a cluster."""
    if params.engine == "ray":
        yield from collect_errors(check_cluster)
    if (file := params.model_preset.local_file(root())) and not file.is_file():
        yield (
            f"params.yaml: models.{params.model}.weights: found {str(file)!r}, which does not exist, "
            "accepted: hub, scratch, a .safetensors file or its folder"
        )
    folder = params.dataset_preset.folder
    if folder and not (root() / Path(folder).expanduser()).is_dir():
        yield f"params.yaml: datasets.{params.dataset}.folder: found {folder!r}, which is no folder, accepted: the folder with the images"
    gpus, processes = cuda_devices(), params.distributed.processes
    for precision, source in (values["precision"] for values in params.trainings()):
        if precision == "tf32" and (params.device == "cpu" or not gpus):
            yield f"params.yaml: {source}.precision: found 'tf32', accepted on a CPU: auto, fp32, bf16"
    if (params.device == "cuda" and not gpus) or (
        params.device == "mps" and platform.system() != "Darwin"
    ):
        yield (
            f"params.yaml: device: found {params.device!r}, but this machine has no {params.device.upper()} device, "
            "accepted here: auto, cpu"
        )
    if params.device == "mps" and params.distributed.world_size > 1:
        yield f"params.yaml: distributed.processes: found {processes}, accepted with device 'mps': 1"
    here = params.engine == "local" or params.distributed.nodes > 1  # a node runs whole trainings
    if here and params.device != "cpu" and gpus and processes > gpus:
        yield f"params.yaml: distributed.processes: found {processes}, accepted: at most the {gpus} GPUs of this machine"


def build(params: Params) -> None:
    """Make every model without memory, as the stages do. Raises UserError: timm or a part refuses one, or a depth does not fit."""
    import torch
    from psutil import virtual_memory

    from pipeline.models.weights import attach, create_backbone

    with torch.device("meta"):
        backbone = create_backbone(params.model_preset.model_copy(update={"init_std": None}), 1)
        needed, there = sum(each.nbytes for each in backbone.parameters()), virtual_memory().total
        if needed > there:
            raise UserError(
                f"params.yaml: model: found {params.model!r}, whose parameters take {needed / 2**30:,.0f} GiB, "
                f"accepted here: at most the {there / 2**30:.0f} GiB of memory"
            )
        for variant in params.all_variants.values():
            model = deepcopy(backbone)
            attach(model, variant)
        check_layers(params, len(backbone.blocks))
        for paper in params.papers:
            if build_models := paper.import_function("build"):
                build_models(params, backbone)


def committed() -> Params | None:
    """The parameters of the last commit, if there are any that this version takes."""
    shown = subprocess.run(["git", "show", "HEAD:./params.yaml"], capture_output=True, check=False)
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "params.yaml").write_bytes(shown.stdout)
        try:
            return parse(file, papers=PAPERS)
        except UserError:
            return None


@one_line_errors()
def main() -> None:
    """Write outs/params/NAME.json: a stage runs again where what it depends on has another effective value, and nowhere else."""
    params = parse("params.yaml", papers=PAPERS)
    check_names(params)
    raise_all([*collect_errors(check, params), *collect_errors(raise_all, check_machine(params))])
    build(params)
    out = Path("outs/params")
    out.mkdir(parents=True, exist_ok=True)
    before = committed()
    for line in params.lowered() + (params.overruled(before) if before else []):
        print(line)
    for name, text in files(params).items():
        (out / name).write_text(text)


if __name__ == "__main__":
    main()
