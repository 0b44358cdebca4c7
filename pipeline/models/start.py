"""The weights that models start from: published ones, or those of a file or folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from lsvit.checkpoint import (
    CONFIG,
    DATA_KEYS,
    About,
    describe_misfit,
    read_about,
    read_checkpoint,
    read_spec,
)
from lsvit.text import folder_name, one_line
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import papers_variant
from pipeline.errors import UserError, describe_errors, plain
from pipeline.jobs.files import sha256
from pipeline.models.weights import check_name, user_errors

# Below these names, and those that papers declare, a trained model's file has parts that are no
# start for another model.
PARTS = ("position", "exits")
HEADS = ("head.", "head_dist.")
SHOWN = 4  # names of classes in a line
# Numbers of modules that change no answer: they count in training, or follow from others.
UNTOLD = ("training", "p", "drop_prob", "scale_by_keep", "inplace")


def complete(preset: ModelPreset, root: Path = Path()) -> ModelPreset:
    """The preset with what the folder of its local weights says and params.yaml does not.

    These are arguments of the model, its channels, its size and how its images are made. What
    equals timm's own for the preset's tag is left out.

    Raises:
        UserError: the folder's config.json is of another architecture, or cannot be read.
    """
    import timm
    from timm.models import PretrainedCfg

    file = preset.local_file(root)
    if file is None:
        return preset
    about = _read_about(preset, file)
    if about is None:
        return preset
    kwargs = {}
    for key, value in about.model_args.items():
        if "drop" not in key and key not in ("num_classes", "pretrained"):
            kwargs[key] = value
    check_name(preset)
    stock: Any = timm.get_pretrained_cfg(preset.timm) or PretrainedCfg()
    size = list(about.data.get("input_size", ()))
    if size and size != list(stock.input_size):
        kwargs.setdefault("in_chans", size[0])
        kwargs.setdefault("img_size", size[1:])
    if isinstance(kwargs.get("img_size"), list) and len(set(kwargs["img_size"])) == 1:
        kwargs["img_size"] = kwargs["img_size"][0]
    kwargs |= preset.kwargs
    pixels = {key: about.data[key] for key in DATA_KEYS if key in about.data}
    in_chans = kwargs.get("in_chans", 3)
    if "mean" in pixels and len(pixels["mean"]) != in_chans:
        config = file.parent / CONFIG
        print(f"{config}: mean and std are left out, not for the preset's {in_chans} channels")
        del pixels["mean"], pixels["std"]
    stock_pixels = json.loads(json.dumps({key: getattr(stock, key) for key in pixels}))
    if pixels == stock_pixels:
        pixels = {}
    if preset.pixels:
        pixels |= preset.pixels.model_dump(exclude_none=True)
    values = preset.model_dump() | {"kwargs": kwargs, "pixels": pixels or None}
    try:
        return ModelPreset.model_validate(values)
    except ValidationError as error:
        source = str(file.parent / CONFIG)
        raise UserError(describe_errors(error, ModelPreset, file=source)) from None


def load_start(model: Any, preset: ModelPreset, classes: Sequence[str]) -> dict[str, str | None]:
    """Load the preset's published or local weights into its model of :func:`create_backbone`.

    First come :func:`lsvit.checkpoint.read_checkpoint` and timm's own conversion: names of other
    checkpoints, position embedding and patches resampled to the model's size, input channels. Then
    all must fit but the head. Its outputs are joined to the classes by name. It stays as
    initialised if that of the weights has another number of outputs, is for other classes or, under
    ``head: class_token``, was one of two (published code: one fresh head on the class token). A
    line is printed for each thing that a user may not expect.

    Args:
        model: of the preset.
        preset: says which weights.
        classes: of the data, in the order of the outputs.

    Returns:
        What was loaded: timm's name and tag, where from (no paths), sha256 of the file, licence
        where the tag tells it, and whether the head is "loaded" or "fresh".

    Raises:
        UserError: as :func:`check_start` does.
    """
    import timm

    start = check_start(model, preset)
    head = _join_head(model, start, classes)
    model.load_state_dict(start.body | head, strict=False)
    name, _, tag = preset.timm.partition(".")
    found = {"sha256": start.digest, "head": "loaded" if head else "fresh"}
    if preset.weights != "hub":  # the tag's licence is not known to be that of a local file
        file = Path(preset.weights).name
        return {"timm": name, "tag": None, "file": file, "license": None} | found
    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    hub = {"hf_hub_id": cfg.hf_hub_id, "license": cfg.license}
    return {"timm": preset.timm, "tag": tag} | hub | found


class Start(NamedTuple):
    """Starting weights that fit a model, but for their head."""

    path: Path
    digest: str  # sha256 of the file
    body: dict[str, Tensor]  # as the model names and shapes them
    head: dict[str, Tensor]  # whatever the file has
    names: list[str]  # of the outputs; none: not known


def check_start(model: Any, preset: ModelPreset, root: Path = Path()) -> Start:
    """Read the preset's weights, for a model of :func:`create_backbone`, with memory or without.

    Raises:
        UserError: the weights cannot be had, are another architecture's, have another sha256 than
            the preset expects, or do not fit.
    """
    file = preset.local_file(root)
    about = _read_about(preset, file) if file else None
    path = file or Path(_ask_hub(preset))
    if not path.is_file():
        raise UserError(
            f"weights: found {str(path)!r}, which does not exist, "
            "accepted: a file of weights or its folder, hub, scratch"
        )
    digest = sha256(path)
    if preset.sha256 and digest != preset.sha256:
        raise UserError(f"{path}: its sha256 is {digest}, params.yaml expects {preset.sha256}")
    for part in PARTS:
        if file and file.with_name(f"{part}.safetensors").is_file():
            print(f"{part}.safetensors: left out, since other models do not start from it")
    if about:
        _compare(model, preset, about, path.parent / CONFIG)
    elif file:
        print(
            f"{path}: no {CONFIG} beside it says more; its pixels are read as those of "
            f"{preset.timm}, or as models.*.pixels says"
        )
    names = about.classes if about else _published_names(preset)
    body, head = _fit(model, path)
    return Start(path, digest, body, head, names)


def _published_names(preset: ModelPreset) -> list[str]:
    """Names of the outputs of published weights, ImageNet's synsets; none: not known."""
    import timm
    from timm.data import ImageNetInfo, infer_imagenet_subset

    if preset.weights != "hub":
        return []
    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    subset = infer_imagenet_subset({"num_classes": cfg.num_classes})
    return ImageNetInfo(subset).label_names() if subset else []


def is_only_online(preset: ModelPreset) -> bool:
    """True if published weights are on the hub and not yet in its cache.

    Raises:
        UserError: they are in neither.
    """
    import timm
    from huggingface_hub import try_to_load_from_cache

    if preset.weights != "hub":
        return False
    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    if isinstance(try_to_load_from_cache(cfg.hf_hub_id, "model.safetensors"), str):
        return False
    _ask_hub(preset, dry_run=True)
    return True


def _ask_hub(preset: ModelPreset, **how: Any) -> Any:
    """The published file, from the hub or its cache; with `dry_run` only what is known of it."""
    import huggingface_hub
    import timm

    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    try:
        return huggingface_hub.hf_hub_download(cfg.hf_hub_id, "model.safetensors", **how)
    except Exception as error:  # the hub client raises many kinds
        raise UserError(
            f"weights of {preset.timm}: found neither in {huggingface_hub.constants.HF_HUB_CACHE} "
            f"nor as {cfg.hf_hub_id} on the hub ({type(error).__name__}); three ways to get them: "
            "run where the Hugging Face hub can be reached; copy a filled hub cache here and "
            "set HF_HOME; give a local file or folder, `-S models.NAME.weights=FILE.safetensors`"
        ) from None


def _read_about(preset: ModelPreset, file: Path) -> About | None:
    """What the folder of a file says of it.

    Raises:
        UserError: it is of another architecture, or `weights` names a folder that says nothing.
    """
    folder = file.parent
    with user_errors():
        read_spec(folder)  # checks the files of an export
        about = read_about(folder)
    if about is None and Path(preset.weights).name != file.name:
        raise UserError(
            f"{folder}: no config.json naming an architecture, "
            "accepted: the layout of timm or transformers (config.json, model.safetensors)"
        )
    architecture = preset.timm.partition(".")[0]
    if about and about.is_timm and about.architecture != architecture:
        raise UserError(
            f"{folder / CONFIG}: architecture: found {about.architecture!r}, "
            f"accepted: {architecture!r}, that of the preset's timm"
        )
    return about


def _compare(model: Any, preset: ModelPreset, about: About, config: Path) -> None:
    """Raises UserError if the blocks that the folder describes are others than the preset's.

    Their number of heads, for example, shows in no tensor's shape.
    """
    import timm

    kwargs = {key: value for key, value in about.model_args.items() if key != "pretrained"}
    try:
        with torch.device("meta"):
            described = timm.create_model(preset.timm.partition(".")[0], **kwargs)
    except Exception as error:  # timm raises many kinds
        raise UserError(f"{config}: timm cannot make this model: {one_line(error)}") from None
    theirs = _traits(described)
    for key, own in _traits(model).items():
        if key in theirs and theirs[key] != own:
            raise UserError(
                f"{config}: {key}: found {theirs[key]!r}, accepted: {own!r}, that of the preset's "
                "timm and kwargs"
            )


def _traits(model: Any) -> dict[str, Any]:
    """What a model's blocks compute beside their tensors, and what its head reads, by name."""
    traits = {"global_pool": getattr(model, "global_pool", None)}
    for name, module in model.blocks.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, int | float | str) and key not in UNTOLD:
                traits[f"blocks.{name}.{key}"] = value
    return traits


def _fit(model: Any, path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of a file as :func:`load_start` says, and those of whatever head it has."""
    with user_errors():
        tensors = read_checkpoint(path, print)
    parts = {name.split(".")[0] for name in tensors} & {*PARTS, *papers_variant().parts}
    if parts:
        print(f"{path}: left out, since other models do not start from it: {', '.join(parts)}")
    tensors = {name: tensors[name] for name in tensors if name.split(".")[0] not in parts}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    try:
        tensors = _convert(tensors, model)
    except Exception as error:  # whatever a foreign file makes of timm's conversion
        raise UserError(f"{path}: does not fit {type(model).__name__}: {one_line(error)}") from None
    resized = [
        name for name, tensor in tensors.items() if name in shapes and tensor.shape != shapes[name]
    ]
    if resized:
        print(f"{path}: brought to the model's size: {', '.join(resized)}")
    own = {name: t.shape for name, t in model.state_dict().items() if not name.startswith(HEADS)}
    head = {name: tensors.pop(name) for name in list(tensors) if name.startswith(HEADS)}
    if misfit := describe_misfit(tensors, own):
        raise UserError(f"{path}: does not fit {type(model).__name__}: {misfit}")
    return tensors, head


def _join_head(model: Any, start: Start, classes: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of a head whose outputs are those of the classes. Empty if there is none."""
    path, _, _, head, names = start
    shapes = {name: t.shape for name, t in model.state_dict().items() if name.startswith(HEADS)}
    one_of_two = "head_dist.weight" in head and "head_dist.weight" not in shapes
    if one_of_two and hasattr(model, "dist_token"):
        if head["head_dist.weight"].any():
            print(f"{path}: of its two heads none is kept, one is drawn anew")
            return {}
        # An export of one head: timm averages it, doubled, with zeros.
        head = {name: head[name] / 2 for name in shapes}
    outputs = model.num_classes
    if not head:
        print(f"{path}: it has no head, one is drawn anew")
        return {}
    if not any(head[name].shape == shapes.get(name) for name in head):
        print(f"{path}: its head does not fit {outputs} outputs, one is drawn anew")
        return {}
    if misfit := describe_misfit(head, shapes):
        raise UserError(f"{path}: does not fit {type(model).__name__}: {misfit}")
    if len(names) > outputs:
        raise UserError(
            f"{path.parent / CONFIG}: found {len(names)} names of classes, "
            f"accepted: at most {outputs}, the outputs of {path.name}"
        )
    rows = _find_rows(names, classes, outputs)
    orders = f"outputs {_first(names)}, classes {_first(classes)}"
    if not names:
        print(f"{path}: it names no classes, so its outputs stay in their order: {_first(classes)}")
    elif rows is None and outputs > len(classes):
        print(f"{path}: its head is kept, as num_classes says, though for others: {orders}")
    elif rows is None:
        print(f"{path}: its head is drawn anew, since it is for others: {orders}")
        return {}
    elif rows != sorted(rows):
        print(f"{path}: its head is joined by name: {orders}")
        return {name: tensor[rows] for name, tensor in head.items()}
    return head


def _find_rows(names: Sequence[str], classes: Sequence[str], outputs: int) -> list[int] | None:
    """For each output the row of a head with these names: classes first, then the other rows.

    None if a class is not among the names, or a name stands twice.
    """
    row_of = {folder_name(name): row for row, name in enumerate(names)}
    wanted = [folder_name(name) for name in classes]
    if (
        len(row_of) < len(names)
        or len(set(wanted)) < len(wanted)
        or not row_of.keys() >= set(wanted)
    ):
        return None
    rows = [row_of[name] for name in wanted]
    return rows + [row for row in range(outputs) if row not in rows]


def _first(names: Sequence[str]) -> str:
    """The first names of a list, for a person."""
    shown = list(map(plain, names[:SHOWN]))
    if len(names) > SHOWN:
        shown.append("...")
    return ", ".join(shown)


def _convert(tensors: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """The tensors of timm's or a known checkpoint as the model names and shapes them."""
    from timm.models import adapt_input_conv
    from timm.models.mlp_mixer import MlpMixer
    from timm.models.mlp_mixer import checkpoint_filter_fn as convert_mixer
    from timm.models.vision_transformer import checkpoint_filter_fn as convert_vit

    if isinstance(model, MlpMixer):
        tensors = convert_mixer(tensors, model)
    else:
        tensors = convert_vit(tensors, model, adapt_layer_scale=True)
    conv = f"{model.pretrained_cfg['first_conv']}.weight"
    if conv in tensors:
        in_chans = model.state_dict()[conv].shape[1]
        own_chans = tensors[conv].shape[1]
        tensors[conv] = adapt_input_conv(in_chans, tensors[conv], base_chans=own_chans)
    return tensors
