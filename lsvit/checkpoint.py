"""Reads checkpoints of others: their files, wrappers and names, and what they say of themselves.

Timm's names are those of the result. transformers' ViT, DeiT and DINOv2 are renamed.
"""

import argparse
import hashlib
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from warnings import catch_warnings

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

FILES = ("model.safetensors", "pytorch_model.bin")  # of a folder, the first that exists
CONFIG = "config.json"  # in timm's layout, or transformers'
SPEC = "lsvit.json"  # of an export of ours: the variant, and the sha256 of every file
PROCESSOR = "preprocessor_config.json"  # transformers'
LARGEST_EPS = 1e-5  # of LayerNorm: timm's 1e-6 gives the same answers up to here
# Where a training loop keeps the weights in what it saves: timm takes an average before the model.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
BACKBONE = "backbone."  # of a RoutedModel's own state_dict
# Names of what torch puts around modules inside a model: torch.compile, FSDP, checkpointing.
INNER = re.compile(r"\b(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
# In names of weights that are only a part of a model's own, and what makes whole ones.
PIECES = {"lora_": "peft's merge_and_unload()", "_flat_param": "FSDP's FULL_STATE_DICT"}
DATA_KEYS = ("mean", "std", "crop_pct", "crop_mode", "interpolation")
CROP_MODES = ("center", "squash", "border")  # timm's
RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's order

# transformers' model types, and the models of timm that they are. Sizes are given as arguments.
ARCHITECTURES = {
    "vit": "vit_base_patch16_224",
    "deit": "deit_base_distilled_patch16_224",
    "dinov2": "vit_base_patch14_dinov2",
    "dinov2_with_registers": "vit_base_patch14_reg4_dinov2",
}
ARGUMENTS = {
    "image_size": "img_size",
    "patch_size": "patch_size",
    "num_channels": "in_chans",
    "hidden_size": "embed_dim",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "qkv_bias": "qkv_bias",
}
RENAMED = (  # in this order: transformers' names, also those of version 5 in memory
    (r"^(vit|deit|dinov2|dinov2_with_registers)\.", ""),
    (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.distillation_token$", "dist_token"),
    (r"^embeddings\.", ""),
    (r"^(encoder\.)?layers?\.", "blocks."),
    (r"\.attention\.(attention\.)?(q|k|v)(uery|ey|alue|_proj)\.", r".attn.\2."),
    (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
    (r"\.(intermediate\.dense|mlp\.weights_in)\.", ".mlp.fc1."),
    (r"\.(output\.dense|mlp\.weights_out)\.", ".mlp.fc2."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.layer_scale(\d)\.lambda1$", r".ls\1.gamma"),
    (r"^layernorm\.", "norm."),
    (r"^(cls_)?classifier\.", "head."),
    (r"^distillation_classifier\.", "head_dist."),
)


class About(NamedTuple):
    """What the folder of a checkpoint says of it."""

    architecture: str  # timm's name
    model_args: dict[str, Any]  # of timm.create_model
    data: dict[str, Any]  # timm's: input_size (C, H, W), mean, std, ..., as far as they are said
    classes: list[str]  # names of the first outputs; none: not said
    is_timm: bool  # else transformers'


def say(line: str) -> None:
    """Print what was done to a checkpoint."""
    print(line, file=sys.stderr, flush=True)


# ---- tensors -----------------------------------------------------------------------------------


def read_checkpoint(path: str | Path, say: Callable[[str], object] = say) -> dict[str, Tensor]:
    """The tensors of a checkpoint, by timm's names.

    It is a safetensors file, or one of torch.save, which is read with ``weights_only=True``.
    Wrappers are taken off: dictionaries around the weights, prefixes that all names have.

    Args:
        path: of the file.
        say: gets a line for each thing that was done.

    Raises:
        ValueError: it holds other things than whole tensors of one model, of finite numbers.
    """
    path = Path(path)
    found: Any = read_tensors(path)
    keys = []
    while key := _find_wrapper(found, path):
        found = found[key]
        keys.append(key)
    if keys:
        say(f"{path}: the weights are taken from {'.'.join(keys)!r}")
    tensors = {str(name): tensor for name, tensor in found.items() if isinstance(tensor, Tensor)}
    if not tensors:
        raise ValueError(f"{path}: found no tensors, accepted: a model's state_dict")
    _check_tensors(tensors, path)
    tensors.pop("n_averaged", None)  # of torch's AveragedModel
    common = os.path.commonprefix(list(tensors))  # noqa: RUF071 (of characters)
    if prefix := common[: common.rfind(".") + 1]:
        tensors = {name.removeprefix(prefix): tensors[name] for name in tensors}
        say(f"{path}: the prefix {prefix!r} of all names is left out")
    if wrapper := next(filter(None, map(INNER.search, tensors)), None):
        say(f"{path}: {wrapper[0]!r} is left out of names")
    count = len(tensors)
    tensors = {INNER.sub("", name).removeprefix(BACKBONE): tensors[name] for name in tensors}
    if len(tensors) < count:
        raise ValueError(
            f"{path}: found the same names with {BACKBONE!r} and without, accepted: one model"
        )
    if any("embeddings.patch_embeddings.projection." in name for name in tensors):
        tensors = _rename(tensors)
        say(f"{path}: transformers' names are made timm's")
    return tensors


def _check_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Raises ValueError if a tensor is a piece, sparse, without memory, quantised or not finite."""
    for name, tensor in tensors.items():
        for piece, whole in PIECES.items():
            if piece in name:
                raise ValueError(f"{path}: found {name!r}, accepted: whole weights, as by {whole}")
        kind = str(tensor.dtype)  # loading would cast it, without its scale or imaginary part
        if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
            kind = "a sparse or nested tensor, or one without memory"
        elif not tensor.dim():  # a counter
            continue
        elif tensor.is_floating_point():
            if tensor.float().isfinite().all():
                continue
            kind = "numbers that are not finite"
        raise ValueError(f"{path}: {name}: found {kind}, accepted: finite floating-point numbers")


def read_tensors(path: Path) -> Any:
    """What a file holds, on the CPU: a safetensors file tensors by name.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # As timm: its `args`. Of files that it refuses torch also warns.
        with (
            torch.serialization.safe_globals([argparse.Namespace]),
            catch_warnings(action="ignore"),
        ):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError) as error:
        kind = "a safetensors file" if path.suffix == ".safetensors" else "a file that can be read"
        raise ValueError(f"{path}: not {kind} ({error})") from None
    except Exception as error:  # torch and the unpickler raise many kinds
        reason = re.sub(r"\s+", " ", str(error))
        blocked = re.search(r"GLOBAL (\S+)", reason)
        holds = f"it holds {blocked[1]}" if blocked else f"{type(error).__name__}"
        raise ValueError(
            f"{path}: torch.load does not read it with weights_only=True ({holds}), accepted: "
            "tensors alone; where it was made, `torch.save(model.state_dict(), FILE)` writes them"
        ) from None


def _find_wrapper(found: Any, path: Path) -> str | None:
    """The key of a dictionary under which the weights are, if they are not the dictionary."""
    if not isinstance(found, Mapping):
        raise ValueError(f"{path}: found {type(found).__name__}, accepted: a dictionary of tensors")
    for key in WRAPPERS:
        if isinstance(found.get(key), Mapping):
            return key
    if any(isinstance(value, Tensor) and value.dim() for value in found.values()):
        return None
    inner = []
    for key, value in found.items():
        if isinstance(value, Mapping) and any(isinstance(v, Tensor) for v in value.values()):
            inner.append(key)
    if len(inner) > 1:
        raise ValueError(
            f"{path}: found weights under {', '.join(map(repr, inner))}, "
            f"accepted: under one key, or {', '.join(WRAPPERS)}"
        )
    return inner[0] if inner else None


def _rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers' ViT, DeiT or DINOv2 as timm has them."""
    renamed = {}
    for name, tensor in tensors.items():
        for theirs, ours in RENAMED:
            name = re.sub(theirs, ours, name)
        if not name.startswith(("pooler.", "mask_token")):  # of no use to a classifier
            renamed[name] = tensor
    for query in [name for name in renamed if ".attn.q." in name]:
        names = [query.replace(".q.", f".{part}.") for part in "qkv"]
        if renamed.keys() >= set(names):
            joined = [renamed.pop(name) for name in names]
            renamed[query.replace(".q.", ".qkv.")] = torch.cat(joined)
    if "register_tokens" in renamed:  # timm adds no position to them, nor to the class token
        renamed["reg_token"] = renamed.pop("register_tokens")
        position = renamed["pos_embed"]  # (1, 1 + N, D)
        renamed["cls_token"] = renamed["cls_token"] + position[:, :1]
        renamed["pos_embed"] = position[:, 1:]
    return renamed


def describe_misfit(tensors: Mapping[str, Tensor], expected: Mapping[str, Any]) -> str:
    """What does not fit a model, in words: three kinds, an example each. Empty if all fits.

    Args:
        tensors: of a checkpoint, by name.
        expected: shapes of the model's tensors, by name.
    """
    misshapen = []
    for name in sorted(expected.keys() & tensors.keys()):
        found, wanted = tuple(tensors[name].shape), tuple(expected[name])
        if found != wanted:
            misshapen.append(f"{name!r} {found} for {wanted}")
    kinds = {
        "missing": [repr(name) for name in sorted(expected.keys() - tensors.keys())],
        "unknown": [repr(name) for name in sorted(tensors.keys() - expected.keys())],
        "of another shape": misshapen,
    }
    return "; ".join(f"{len(names)} {kind}: {names[0]}" for kind, names in kinds.items() if names)


# ---- what a folder says ------------------------------------------------------------------------


def weights_in(folder: Path) -> Path:
    """The file of weights in a folder of timm's or transformers' layout, there or not."""
    files = [folder / name for name in FILES]
    return next(filter(Path.is_file, files), files[0])


def read_about(folder: Path) -> About | None:
    """What the config.json of a folder says of the weights there. None: it says nothing of them.

    Raises:
        ValueError: it is no JSON, or says what cannot be so.
    """
    config = _read_json(folder / CONFIG)
    if not isinstance(config, dict):
        return None
    try:
        if "architecture" in config:
            about = _read_timm(config)
        elif config.get("model_type") in ARCHITECTURES:
            about = _read_transformers(config, _read_json(folder / PROCESSOR))
        else:
            return None
        _check_about(about)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: cannot be read: {error}") from None
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{folder / CONFIG}: cannot be read ({error!r})") from None
    return about


def _read_json(path: Path) -> Any:
    """What a file says; None: there is no file. Raises ValueError if it cannot be read."""
    try:
        return json.loads(path.read_bytes())  # bytes: with a byte order mark too
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from None


def _check_about(about: About) -> None:
    """Raises ValueError if no image can be made as a folder says."""
    about.model_args.keys()
    data = about.data
    size = data.get("input_size", [3, 1, 1])
    if len(size) != 3 or not all(isinstance(number, int) and number > 0 for number in size):
        raise ValueError(f"input_size: found {size}, accepted: channels, height, width")
    mean, std = data.get("mean", [0]), data.get("std", [1])
    if ("mean" in data) != ("std" in data) or len(mean) != len(std):
        raise ValueError(f"mean, std: found {mean}, {std}, accepted: as many numbers in both")
    if not 0 <= min(mean) <= max(mean) <= 1:  # it may be for pixels from 0 to 255
        raise ValueError(f"mean: found {mean}, accepted: numbers from 0 to 1")
    if not 0 < min(std) <= max(std) <= 1:
        raise ValueError(f"std: found {std}, accepted: numbers above 0, at most 1")
    if len(mean) not in (1, 3, size[0]):  # of three, timm takes the mean for one channel
        raise ValueError(f"mean: found {mean}, accepted: {size[0]} numbers, one a channel")
    if len(mean) == 1 and "mean" in data:
        data["mean"], data["std"] = mean * size[0], std * size[0]
    if not 0 < data.get("crop_pct", 1) <= 1:
        raise ValueError(f"crop_pct: found {data['crop_pct']}, accepted: above 0, at most 1")
    for key, known in (("crop_mode", CROP_MODES), ("interpolation", RESAMPLING)):
        if data.get(key, known[0]) not in known:
            raise ValueError(f"{key}: found {data[key]!r}, accepted: {', '.join(known)}")


def read_spec(folder: Path) -> dict[str, Any]:
    """What lsvit.json says of an export; of a folder that timm alone wrote: {}.

    Raises:
        ValueError: it cannot be read, or a file of the export has another sha256.
    """
    path = folder / SPEC
    if not path.is_file():
        return {}
    try:
        spec = json.loads(path.read_text("utf-8"))
        variant = spec["variant"]
        digests = spec.get("sha256", {}).items()
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(variant, dict):
        raise ValueError(f"{path}: variant: found {variant!r}, accepted: a mapping")
    for name, digest in digests:
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{path}: not what was exported, by the sha256 in {SPEC}")
    return spec


def _read_timm(config: dict[str, Any]) -> About:
    cfg = config.get("pretrained_cfg", config)  # older ones have one dictionary
    names = config.get("label_names") or cfg.get("label_names") or cfg.get("labels") or ()
    data = {key: cfg[key] for key in ("input_size", *DATA_KEYS) if cfg.get(key) is not None}
    return About(
        config["architecture"], config.get("model_args") or {}, data, _list_names(names), True
    )


def _read_transformers(config: dict[str, Any], processor: Any) -> About:
    """What transformers' config.json says, and its preprocessor_config.json if there is one."""
    kind = config["model_type"]
    architecture = ARCHITECTURES[kind]
    if config.get("hidden_act", "gelu") != "gelu":
        raise ValueError(f"hidden_act: found {config['hidden_act']!r}, accepted: 'gelu'")
    if config.get("layer_norm_eps", 0) > LARGEST_EPS:
        raise ValueError(f"layer_norm_eps: found {config['layer_norm_eps']}, accepted: timm's 1e-6")
    arguments = {ours: config[key] for key, ours in ARGUMENTS.items() if key in config}
    if config.get("use_swiglu_ffn"):
        architecture = "vit_giant_patch14_dinov2"
    elif kind.startswith("dinov2"):
        arguments["mlp_ratio"] = config.get("mlp_ratio", 4)
    elif "intermediate_size" in config:
        arguments["mlp_ratio"] = config["intermediate_size"] / config["hidden_size"]
    names = _list_names(config.get("id2label", ()))
    arguments["num_classes"] = len(names) or 2  # transformers' own number
    if all(name == f"LABEL_{index}" for index, name in enumerate(names)):
        names = []  # transformers' own, where nobody named them
    size, channels = config.get("image_size", 224), config.get("num_channels", 3)
    sides = size if isinstance(size, list) else [size, size]
    data: dict[str, Any] = {"input_size": [channels, *sides]}
    if processor is not None:
        data |= _read_processor(processor, sides, channels)
    found = data["input_size"][1:]
    if kind.startswith("dinov2"):  # it has its position embedding for larger images
        arguments["img_size"] = found
    elif found != sides:
        raise ValueError(
            f"{PROCESSOR}: found images of height and width {found}, accepted: {sides}, "
            f"the image_size of {CONFIG}"
        )
    return About(architecture, arguments, data, names, False)


def _read_processor(processor: Any, sides: list[int], channels: int) -> dict[str, Any]:
    """How transformers makes a model's images, in timm's words.

    Args:
        processor: what its preprocessor_config.json says.
        sides: height and width of the model's images.
        channels: of the model's images.
    """
    if not processor.get("do_rescale", True):
        raise ValueError(f"{PROCESSOR}: do_rescale is false, accepted: pixels from 0 to 1")
    if abs(255 * processor.get("rescale_factor", 1 / 255) - 1) > 1e-3:
        raise ValueError(f"{PROCESSOR}: rescale_factor, accepted: 1 / 255")
    data: dict[str, Any] = {"mean": [0.0] * channels, "std": [1.0] * channels}
    if processor.get("do_normalize", True):
        mean, std = processor["image_mean"], processor["image_std"]
        if isinstance(mean, float) and isinstance(std, float):
            mean, std = [mean], [std]
        data = {"mean": mean, "std": std}
    data["interpolation"] = RESAMPLING[processor.get("resample", 2)]
    size = processor.get("size") or {"height": sides[0], "width": sides[1]}
    if isinstance(size, int):  # as older versions wrote it
        kind = processor.get("image_processor_type") or processor.get("feature_extractor_type")
        squashes = str(kind).startswith(("ViT", "DeiT", "None"))
        size = {"height": size, "width": size} if squashes else {"shortest_edge": size}
    crop = size
    is_cropped = processor.get("do_center_crop", False)
    if is_cropped:
        crop = processor["crop_size"]
        if isinstance(crop, int):
            crop = {"height": crop, "width": crop}
    height = crop.get("height")
    resized = size.get("shortest_edge") or size["height"]
    is_square = height and height == crop.get("width") and size.get("width") in (None, resized)
    is_other = processor.get("crop_pct") or size.get("longest_edge")
    if not is_square or is_other or (is_cropped and not processor.get("do_resize", True)):
        raise ValueError(
            f"{PROCESSOR}: found size {processor.get('size')}, accepted: images that are resized "
            "to a square, or by their shortest_edge and cropped to a square with crop_size"
        )
    data["crop_pct"] = height / resized
    if math.floor(height / data["crop_pct"]) < resized:  # timm's rounding
        data["crop_pct"] = math.nextafter(data["crop_pct"], 0)
    data["crop_mode"] = "center" if size.get("shortest_edge") else "squash"
    return data | {"input_size": [channels, height, height]}


def _list_names(names: Any) -> list[str]:
    """Names of classes, a list or a dictionary by index, in the order of the outputs."""
    if isinstance(names, dict):
        by_index = {int(index): name for index, name in names.items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError("names of classes, accepted: one for every output, from 0")
        names = [by_index[index] for index in range(len(by_index))]
    if isinstance(names, str) or not all(isinstance(name, str | int) for name in names):
        raise ValueError(f"names of classes: found {names!s:.80}, accepted: a list of names")
    return [str(name) for name in names]
