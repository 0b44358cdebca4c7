"""Reads checkpoints of others: their files, wrappers and names, and what they say of themselves.

Timm's names are those of the result. transformers' ViT, DeiT and DINOv2 are renamed.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

FILES = ("model.safetensors", "pytorch_model.bin")  # of a folder, the first that exists
CONFIG = "config.json"  # in timm's layout, or transformers'
SPEC = "lsvit.json"  # of an export of ours: the variant, and the sha256 of every file
PROCESSOR = "preprocessor_config.json"  # transformers'
# Where a training loop keeps the weights in what it saves: timm takes an average before the model.
WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "model_state_dict")
BACKBONE = "backbone."  # of a RoutedModel's own state_dict
DATA_KEYS = ("mean", "std", "crop_pct", "crop_mode", "interpolation")
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers

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
        ValueError: it holds other things than tensors, several models, or numbers of which no model
            computes.
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
    tensors.pop("n_averaged", None)  # of torch's AveragedModel
    tensors, prefix = _strip(tensors)
    if prefix:
        say(f"{path}: the prefix {prefix!r} of all names is left out")
    tensors = {name.removeprefix(BACKBONE): tensor for name, tensor in tensors.items()}
    if any("embeddings.patch_embeddings.projection." in name for name in tensors):
        tensors = _rename(tensors)
        say(f"{path}: transformers' names are made timm's")
    _check_numbers(tensors, path)
    return tensors


def _check_numbers(tensors: dict[str, Tensor], path: Path) -> None:
    """Raises ValueError if a tensor is quantised, complex, or not finite.

    Loading would cast it to the model's own type, without its scale or imaginary part.
    """
    for name, tensor in tensors.items():
        if not tensor.dim():  # a counter
            continue
        kind = str(tensor.dtype)
        if tensor.is_floating_point():
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
        with torch.serialization.safe_globals([argparse.Namespace]):  # as timm: its `args`
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


def _strip(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """The tensors without a prefix that all names have, and the prefix."""
    prefix = ""
    while True:
        first = {name.partition(".")[0] for name in tensors}
        if len(first) > 1 or any("." not in name for name in tensors):
            return tensors, prefix
        prefix += f"{first.pop()}."
        tensors = {name.partition(".")[2]: tensor for name, tensor in tensors.items()}


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
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    return folder / FILES[0]


def read_about(folder: Path) -> About | None:
    """What the config.json of a folder says of the weights there. None: it says nothing of them.

    Raises:
        ValueError: it is no JSON, or says what cannot be so.
    """
    try:
        config = json.loads((folder / CONFIG).read_bytes())  # bytes: with a byte order mark too
    except OSError:
        return None
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: not JSON ({error})") from None
    if not isinstance(config, dict):
        return None
    try:
        if "architecture" in config:
            about = _read_timm(config)
        elif config.get("model_type") in ARCHITECTURES:
            about = _read_transformers(config, folder)
        else:
            return None
        about.model_args.keys()
        mean = about.data.get("mean", [0])
        if not 0 <= min(mean) <= max(mean) <= 1:  # it may be for pixels from 0 to 255
            raise ValueError(f"mean: found {mean}, accepted: numbers from 0 to 1")
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{folder / CONFIG}: cannot be read ({error!r})") from None
    return about


def read_spec(folder: Path) -> dict[str, Any]:
    """What lsvit.json says of an export; of a folder that timm alone wrote: {}.

    Raises:
        ValueError: it cannot be read.
    """
    path = folder / SPEC
    if not path.is_file():
        return {}
    try:
        spec = json.loads(path.read_text("utf-8"))
        variant = spec["variant"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(variant, dict):
        raise ValueError(f"{path}: variant: found {variant!r}, accepted: a mapping")
    return spec


def check_digests(folder: Path, spec: dict[str, Any]) -> None:
    """Check the files of an export against its lsvit.json.

    Raises:
        ValueError: a file has another sha256.
    """
    for name, digest in spec.get("sha256", {}).items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise ValueError(f"{path}: not what was exported, by the sha256 in {SPEC}")


def _read_timm(config: dict[str, Any]) -> About:
    cfg = config.get("pretrained_cfg", config)  # older ones have one dictionary
    names = config.get("label_names") or cfg.get("label_names") or cfg.get("labels") or ()
    data = {key: cfg[key] for key in ("input_size", *DATA_KEYS) if cfg.get(key) is not None}
    return About(
        config["architecture"], config.get("model_args") or {}, data, _list_names(names), True
    )


def _read_transformers(config: dict[str, Any], folder: Path) -> About:
    kind = config["model_type"]
    architecture = ARCHITECTURES[kind]
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
    side, channels = config.get("image_size", 224), config.get("num_channels", 3)
    data: dict[str, Any] = {"input_size": [channels, side, side]}
    try:
        processor = json.loads((folder / PROCESSOR).read_text(encoding="utf-8"))
    except OSError:
        return About(architecture, arguments, data, names, False)
    if not processor.get("do_rescale", True):
        raise ValueError(f"{PROCESSOR}: do_rescale is false, accepted: pixels from 0 to 1")
    if round(1 / processor.get("rescale_factor", 1 / 255)) != 255:
        raise ValueError(f"{PROCESSOR}: rescale_factor, accepted: 1 / 255")
    data["mean"], data["std"] = [0.0] * channels, [1.0] * channels
    if processor.get("do_normalize", True):
        data["mean"], data["std"] = processor["image_mean"], processor["image_std"]
    data["interpolation"] = RESAMPLING[processor.get("resample", 2)]
    data |= {"crop_pct": 1.0, "crop_mode": "squash"}
    if processor.get("do_center_crop"):
        size, crop = processor["size"], processor["crop_size"]
        data["crop_pct"] = crop["height"] / (size.get("shortest_edge") or size["height"])
        data["crop_mode"] = "center" if "shortest_edge" in size else "squash"
    return About(architecture, arguments, data, names, False)


def _list_names(names: Any) -> list[str]:
    """Names of classes, a list or a dictionary by index, in the order of the outputs."""
    if isinstance(names, dict):
        by_index = {int(index): name for index, name in names.items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError("names of classes, accepted: one for every output, from 0")
        names = [by_index[index] for index in range(len(by_index))]
    return [str(name) for name in names]
