"""Stage check-params: check every value of params.yaml and resolve them for the stages."""

import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from copy import deepcopy
from pathlib import Path

from lsvit.text import user_path
from papers import PAPERS
from pipeline.config.checks import check, check_layers, check_names
from pipeline.config.effective import stage_params
from pipeline.config.load import parse
from pipeline.config.params import Params
from pipeline.config.presets import OWN_WEIGHTS
from pipeline.config.remarks import describe_lowered, describe_overruled
from pipeline.cost import announce, with_counted_images
from pipeline.data.sources import find
from pipeline.errors import UserError, collect_errors, mistake, raise_all
from pipeline.files import write_json
from pipeline.git import git
from pipeline.jobs.address import check_cluster
from pipeline.jobs.machine import describe_gpus, gpus, memory_limit
from pipeline.jobs.processes import root, stage_process
from pipeline.tracking.store import check_store


def check_machine(params: Params) -> Iterator[str]:
    """Check for what this machine lacks: files, GPUs, a cluster."""
    if params.engine == "ray":
        yield from collect_errors(check_cluster)
    yield from collect_errors(check_store, root())
    folder = params.dataset_preset.folder
    if folder and not os.path.isdir(root() / user_path(folder)):  # noqa: PTH112
        yield (
            f"params.yaml: datasets.{params.dataset}.folder: found {folder!r}, which is no folder, "
            "accepted: the folder with the images"
        )
    elif folder and params.dataset_preset.source == "image_folder":
        with redirect_stdout(None):  # prepare-data says what it leaves out
            yield from collect_errors(find, "image_folder", folder, Path())
    yield from _check_device(params, gpus().count)


def _check_device(params: Params, gpu_count: int) -> Iterator[str]:
    device = params.device
    for precision, source, _ in (values["precision"] for values in params.trainings()):
        if precision == "tf32" and (device == "cpu" or not gpu_count):
            key = f"params.yaml: {source}.precision"
            yield f"{key}: found 'tf32', accepted on a CPU: auto, fp32, bf16, fp16"
    no_cuda = device == "cuda" and not gpu_count
    if no_cuda or (device == "mps" and platform.system() != "Darwin"):
        why = describe_gpus() if device == "cuda" else []
        reason = f" ({why[0]})" if why else ""
        yield (
            f"params.yaml: device: found {device!r}, but this machine has no {device.upper()} "
            f"device that torch can use{reason}, accepted here: auto, cpu"
        )
    spread = params.distributed
    key = f"params.yaml: distributed.processes: found {spread.processes}, accepted"
    if device == "mps" and spread.world_size > 1:
        yield f"{key} with device 'mps': 1"
    is_here = params.engine == "local" or spread.nodes > 1  # a node runs whole trainings
    if is_here and device != "cpu" and 0 < gpu_count < spread.processes:
        yield f"{key}: at most the {gpu_count} GPUs of this machine"


def read_weights_folder(params: Params) -> Params:
    """The parameters with what the folder of local weights says of the model.

    Raises:
        UserError: it says what does not fit, or the weights lie in shards.
    """
    preset = params.model_preset
    file = preset.local_file(root())
    if file is None:
        return params
    from lsvit.checkpoint import read_about
    from lsvit.predict import check_whole, describe_pixels
    from pipeline.models.start import complete
    from pipeline.models.weights import user_errors

    with user_errors():
        check_whole(file)
    params = params.with_model(complete(preset, root()))
    pixels = params.model_preset.pixels
    about = read_about(file.parent)
    is_given = pixels is not None and pixels.mean is not None
    if about and not is_given and (line := describe_pixels(file.parent, about)):
        print(line)
    if pixels and params.dataset_preset.resize == "published" and pixels.crop_pct:
        print(
            f"models.{params.model}: the weights' crop_pct {pixels.crop_pct}, {pixels.crop_mode}, "
            f"{pixels.interpolation} count with datasets.{params.dataset}.resize: timm alone"
        )
    return params


def build(params: Params) -> None:
    """Make every model without memory, as the stages do, and look at the weights.

    Raises:
        UserError: timm or a part refuses a model, a depth does not fit, or the weights do not or
            cannot be had.
    """
    import torch

    from pipeline.models.start import check_start, is_only_online
    from pipeline.models.weights import attach, create_backbone

    with torch.device("meta"):
        backbone = create_backbone(params.model_preset.model_copy(update={"init_std": None}), 1)
        needed = sum(parameter.nbytes for parameter in backbone.parameters()) / 2**30
        memory = memory_limit() / 2**30
        if needed > memory:
            wanted = f"one of at most the {memory:.0f} GiB of memory here, not {needed:,.0f} GiB"
            raise UserError(mistake("model", params.model, wanted))
        for variant in params.all_variants.values():
            model = deepcopy(backbone)
            attach(model, variant)
        check_layers(params, len(backbone.blocks))
    preset = params.model_preset
    if preset.weights not in OWN_WEIGHTS and not is_only_online(preset):
        check_start(backbone, preset, root=root())
    with torch.device("meta"):
        raise_all(line for paper in params.running for line in paper.run("build", params, backbone))


def committed() -> Params | None:
    """The parameters of the last commit; None if this version does not take them.

    Raises:
        UserError: git does not say what they are.
    """
    shown = git("show", "HEAD:./params.yaml") or ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "params.yaml"
        file.write_text(shown, "utf-8", "surrogateescape")
        try:
            return parse(file, papers=PAPERS)
        except UserError:
            return None


@stage_process()
def main() -> None:
    """params.yaml -> outs/params/NAME.json, a file a section or preset.

    A stage runs again where a value it depends on has changed, and nowhere else.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # its retries would drown the one line
    params = parse("params.yaml", papers=PAPERS)
    check_names(params)
    params = read_weights_folder(params)
    raise_all([*collect_errors(check, params), *check_machine(params)])
    counted = with_counted_images(params)
    build(params)
    remarks = describe_lowered(counted)
    if params.device == "auto":
        remarks += describe_gpus()
    try:
        before = committed()
        remarks += describe_overruled(params, before) if before else []
    except UserError as error:
        remarks.append(f"values are not compared with those of the last commit; {error}")
    for line in remarks:
        print(line)
    announce(counted)
    out = Path("outs/params")
    out.mkdir(parents=True, exist_ok=True)
    for name, value in stage_params(params).items():
        write_json(out / f"{name}.json", value)


if __name__ == "__main__":
    main()
