"""Weights in and out: a preset's timm model with its starting weights, and files that stock timm loads."""

import json
import math
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lsvit.routed import EXITS_PREFIX, PATCH_HEAD_PREFIX, POSITION_PREFIX, RoutedModel
from papers.exits.branches import token_shape
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import Losses, Variant
from pipeline.errors import UserError
from pipeline.jobs.files import sha256

ADDED = ("attn.proj", "fc2", "linear_tokens")  # the last product of what a layer adds to its input
PARTS = (POSITION_PREFIX, EXITS_PREFIX, PATCH_HEAD_PREFIX)


def create_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model, initialised: outputs for `num_classes` classes, or the preset's own larger number.

    Under ``head: class_token`` a distilled DeiT has no second head; all others that read their class token are as timm has them.

    Raises:
        UserError: timm does not know the model or the tag, or refuses the arguments; under ``weights: hub`` there is no tag; the
            outputs are too few, or there is no class token to read.
    """
    import timm

    import pipeline.models.mixers  # noqa: F401 (registers names)

    name, _, tag = preset.timm.partition(".")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=5)
        raise UserError(
            f"models.*.timm: found {name!r}, accepted: a model of timm {timm.__version__}, for example {', '.join(near)}"
        )
    known_tags = [m.partition(".")[2] for m in timm.list_pretrained(f"{name}.*")]
    if tag not in known_tags and (
        tag or preset.weights == "hub"
    ):  # a bare name is whatever weights timm prefers today
        found = f"has no weights tagged {tag!r}" if tag else "needs the tag of its weights"
        raise UserError(
            f"models.*.timm: {name} {found}, accepted: {', '.join(f'{name}.{known}' for known in known_tags) or 'scratch, a file'}"
        )
    outputs = preset.num_classes or num_classes
    if outputs < num_classes:
        raise UserError(
            f"models.*.num_classes of {preset.timm}: found {outputs}, accepted: null, or at least the data set's {num_classes} classes"
        )
    try:
        model: Any = timm.create_model(preset.timm, **(preset.kwargs | {"num_classes": outputs}))
    except Exception as error:  # timm raises many kinds
        raise UserError(
            f"timm cannot make {preset.timm}: {' '.join(str(error).split())[:200]}"
        ) from None
    if preset.head == "class_token":
        if getattr(model, "global_pool", None) != "token":
            raise UserError(
                f"models.*.head of {preset.timm}: found 'class_token', accepted: timm (its head reads no class token)"
            )
        if hasattr(model, "head_dist"):
            del model.head_dist
    if preset.init_std is not None and preset.weights == "scratch":
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=preset.init_std)
    if preset.init_growth and preset.weights == "scratch":
        for layer, block in enumerate(model.blocks, 1):
            for name, module in block.named_modules():
                if name.endswith(ADDED):
                    module.weight.data.mul_(layer**preset.init_growth)
    return model


def load_start(model: Any, preset: ModelPreset) -> dict[str, str | None]:
    """Load the preset's published or local weights into its model of :func:`create_backbone`.

    timm's own conversion comes first: names of other checkpoints, position embedding and patches resampled to the model's
    size, input channels. Then all must fit but the head: it stays as initialised if that of the weights has another number of
    outputs or, under ``head: class_token``, was one of two (published code: one fresh head on the class token).

    Returns:
        What was loaded: timm's name and tag, where from (no paths), sha256 of the file, licence where the tag tells it, and
        whether the head is "loaded" or "fresh".

    Raises:
        UserError: the weights cannot be had, are another architecture's, or have another sha256 than the preset expects.
    """
    import timm

    path = preset.local_file() or _download(preset)
    if path.parent == Path(preset.weights):
        check_folder(path.parent, preset.timm.partition(".")[0])
    if not path.is_file():
        raise UserError(
            f"weights: found {str(path)!r}, which does not exist, accepted: a .safetensors file or its folder, hub, scratch"
        )
    digest = sha256(path)
    if preset.sha256 and digest != preset.sha256:
        raise UserError(f"{path}: its sha256 is {digest}, params.yaml expects {preset.sha256}")
    head = _fit(model, path)
    name, _, tag = preset.timm.partition(".")
    if preset.weights == "hub":
        cfg: Any = timm.get_pretrained_cfg(preset.timm)
        origin = {
            "timm": preset.timm,
            "tag": tag,
            "hf_hub_id": cfg.hf_hub_id,
            "license": cfg.license,
        }
    else:  # whatever a local file holds, the tag's licence is not known to be its
        origin = {"timm": name, "tag": None, "file": Path(preset.weights).name, "license": None}
    return origin | {"sha256": digest, "head": head}


def _download(preset: ModelPreset) -> Path:
    """The published file, from the hub or its cache."""
    import huggingface_hub
    import timm

    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    try:
        return Path(huggingface_hub.hf_hub_download(cfg.hf_hub_id, "model.safetensors"))
    except Exception as error:  # the hub client raises many kinds
        raise UserError(
            f"weights of {preset.timm} cannot be had ({type(error).__name__}); three ways to get them: run where the Hugging "
            f"Face hub can be reached; copy a filled hub cache here and set HF_HOME; give a local file or folder, "
            f"`-S models.NAME.weights=FILE.safetensors`"
        ) from None


def check_folder(folder: Path, architecture: str) -> None:
    """Check the ``config.json`` of a folder in timm's layout. Raises UserError if it is of another architecture."""
    try:
        found = json.loads((folder / "config.json").read_text())["architecture"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder}: no config.json naming an architecture, accepted: timm's layout (config.json, model.safetensors)"
        ) from None
    if found != architecture:
        raise UserError(
            f"{folder / 'config.json'}: architecture: found {found!r}, accepted: {architecture!r}, that of the preset's timm"
        )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises UserError if it is none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from None


def _fit(model: Any, path: Path) -> str:
    """Load a file of timm's or a known checkpoint's names as :func:`load_start` says; whether the head is "loaded" or "fresh"."""
    from timm.models import adapt_input_conv
    from timm.models.mlp_mixer import MlpMixer
    from timm.models.mlp_mixer import checkpoint_filter_fn as convert_mixer
    from timm.models.vision_transformer import checkpoint_filter_fn as convert_vit

    tensors = {k: t for k, t in read_tensors(path).items() if not k.startswith(PARTS)}
    wanted = {k: t.shape for k, t in model.state_dict().items()}
    try:
        mixer = isinstance(model, MlpMixer)
        tensors = (
            convert_mixer(tensors, model)
            if mixer
            else convert_vit(tensors, model, adapt_layer_scale=True)
        )
        conv = f"{model.pretrained_cfg['first_conv']}.weight"
        if conv in tensors:
            tensors[conv] = adapt_input_conv(
                wanted[conv][1], tensors[conv], base_chans=tensors[conv].shape[1]
            )
    except Exception as error:  # whatever a foreign file makes of timm's conversion
        raise UserError(
            f"{path}: does not fit {type(model).__name__}: {' '.join(str(error).split())[:200]}"
        ) from None
    heads = {k for k in {*wanted, *tensors} if k.startswith(("head.", "head_dist."))}
    one_of_two = (
        "head_dist.weight" in tensors
        and "head_dist.weight" not in wanted
        and "dist_token" in wanted
    )
    fresh = one_of_two or not any(k in tensors and tensors[k].shape == wanted.get(k) for k in heads)
    exempt = heads if fresh else set()
    tensors = {k: t for k, t in tensors.items() if k not in exempt}
    unfit = {k for k, t in tensors.items() if t.shape != wanted.get(k)} | (
        wanted.keys() - exempt - tensors.keys()
    )
    if unfit:
        raise UserError(
            f"{path}: does not fit {type(model).__name__}: {len(unfit)} tensors missing, unknown or of another shape, first {min(unfit)!r}"
        )
    model.load_state_dict(tensors, strict=False)
    return "fresh" if fresh else "loaded"


def build(
    preset: ModelPreset,
    num_classes: int,
    variant: Variant | None = None,
    weights: Path | None = None,
) -> RoutedModel:
    """A routed model of the preset's architecture, with the layers and parts of a variant, and weights from a file.

    The file holds timm's names (of all layers or of those kept) and, below ``position.``, ``exits.`` and ``patch_head.``, the
    parts; parts that the file does not have keep their initialisation, as do the heads' mixing matrices of talking heads.

    Raises:
        UserError: as :func:`create_backbone`, :func:`attach` and :func:`papers.smoothing.talking_heads.talk` do.
    """
    variant = variant or Variant(route="sequential")
    if variant.recipe.drop_path:
        preset = preset.model_copy(
            update={"kwargs": preset.kwargs | {"drop_path_rate": variant.recipe.drop_path}}
        )
    backbone = create_backbone(preset, num_classes)
    if variant.talking_heads:
        from papers.smoothing.talking_heads import talk

        talk(backbone)
    backbone.blocks = backbone.blocks[: variant.layers]
    model = attach(backbone, variant)
    if weights is not None:
        load_weights(model, weights)
    return model


def attach(backbone: Any, variant: Variant) -> RoutedModel:
    """The routed model with a variant's parts.

    Raises:
        UserError: a part or a loss does not fit the model.
    """
    if variant.losses != Losses():
        check_pairs(backbone, "losses")
    return RoutedModel(
        backbone, variant.position, variant.exits, patch_head=variant.losses.mixing is not None
    )


def check_pairs(backbone: Any, key: str) -> None:
    """Raises UserError, naming the key, if images have fewer than two patches: the similarity of patches is one of pairs."""
    count = math.prod(token_shape(backbone).grid)
    if count < 2:
        raise UserError(
            f"{key}: found a model with {count} patch, accepted: 2 or more, for pairs of patches"
        )


def save_weights(model: RoutedModel, path: Path) -> None:
    """Write a safetensors file that stock timm loads (attached parts apart, below ``position.``, ``exits.`` and ``patch_head.``;
    not of talking heads, which it does not have)."""
    from safetensors.torch import save_file

    tensors = {
        name.removeprefix("backbone."): t.detach().cpu().contiguous()
        for name, t in model.state_dict().items()
    }
    save_file(tensors, path)


def load_weights(model: RoutedModel, path: Path) -> None:
    """Load a file written by :func:`save_weights`, or a timm state_dict. Raises RuntimeError on names that do not fit."""
    tensors = {k: t for k, t in read_tensors(path).items() if not _beyond(k, model.num_layers)}
    heads = {
        k: t
        for k, t in model.backbone.state_dict().items()
        if ".attn.proj_l." in k or ".attn.proj_w." in k
    }
    model.backbone.load_state_dict(
        heads | {k: t for k, t in tensors.items() if not k.startswith(PARTS)}
    )
    for part, prefix in (
        (model.position, POSITION_PREFIX),
        (model.exits, EXITS_PREFIX),
        (model.patch_head, PATCH_HEAD_PREFIX),
    ):
        own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        if own and part is not None:
            part.load_state_dict(own)


def _beyond(key: str, num_layers: int) -> bool:
    return key.startswith("blocks.") and int(key.split(".")[1]) >= num_layers


def input_size(model: RoutedModel, preset: ModelPreset) -> tuple[int, int]:
    """(in_chans, img_size) of the images the model takes."""
    height, width = (getattr(model.backbone, "stem", None) or model.backbone.patch_embed).img_size
    if height != width:
        raise UserError(f"img_size: found {height}x{width}, accepted: square images")
    return preset.kwargs.get("in_chans", 3), height


def normalisation(
    preset: ModelPreset, meta: dict[str, Any]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels: the published weights' own, else the data set's."""
    import timm

    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    if (
        preset.weights == "scratch"
        or cfg is None
        or len(cfg.mean) != preset.kwargs.get("in_chans", 3)
    ):
        return tuple(meta["mean"]), tuple(meta["std"])
    return tuple(cfg.mean), tuple(cfg.std)
