"""Weights in and out: a preset's timm model with its starting weights, and files that stock timm loads."""

from pathlib import Path
from typing import Any

from torch import nn

from lsvit.data import sha256
from lsvit.errors import UserError
from lsvit.models import NO_PARTS, POSITION_PREFIX, RoutedModel
from lsvit.sections import ModelPreset, Position


def create_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model with a head of `num_classes`, its starting weights loaded or, for `scratch`, initialised.

    Raises:
        UserError: timm does not know the model, refuses its arguments, or the weights cannot be had.
    """
    import timm

    name, _, tag = preset.timm.partition(".")
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        raise UserError(f"timm: no model {name!r}; timm {timm.__version__} knows, for example, {', '.join(near)}")
    known_tags = [m.partition(".")[2] for m in timm.list_pretrained(f"{name}.*")]
    if tag and tag not in known_tags:
        raise UserError(f"timm: {name} has no weights tagged {tag!r}, accepted: {', '.join(known_tags)}")
    kwargs: dict[str, Any] = dict(preset.kwargs) | {"num_classes": num_classes, "pretrained": preset.weights == "hub"}
    try:
        model: Any = timm.create_model(preset.timm, **kwargs)
    except Exception as error:  # timm and the hub client raise many kinds
        if preset.weights == "hub":
            raise UserError(
                f"weights of {preset.timm} cannot be had ({type(error).__name__}); three ways to get them: run where the Hugging "
                f"Face hub can be reached; copy a filled hub cache here and set HF_HOME; give a local file, "
                f"`-S models.NAME.weights=FILE.safetensors`"
            ) from None
        raise UserError(f"timm cannot make {preset.timm}: {' '.join(str(error).split())[:200]}") from None
    if preset.weights not in ("hub", "scratch"):
        _load_local(model, Path(preset.weights), preset.sha256)
    if preset.init_std is not None and preset.weights == "scratch":
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=preset.init_std)
    return model


def _load_local(model: Any, path: Path, expected_sha256: str | None) -> None:
    """Load a safetensors file of timm's names; a head for another number of classes is left out, all else must fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UserError(f"weights: found {str(path)!r}, which does not exist, accepted: a .safetensors file, hub, scratch")
    if expected_sha256 and sha256(path) != expected_sha256:
        raise UserError(f"{path}: its sha256 is {sha256(path)}, params.yaml expects {expected_sha256}")
    try:
        tensors = {k: t for k, t in load_file(path).items() if not k.startswith(POSITION_PREFIX)}
    except SafetensorError as error:
        raise UserError(f"{path}: not a safetensors file ({error})") from None
    wanted = {k: t.shape for k, t in model.state_dict().items()}
    heads = {k for k in wanted if k.startswith(("head.", "head_dist."))}
    tensors = {k: t for k, t in tensors.items() if k not in heads or t.shape == wanted[k]}
    unfit = {k for k, t in tensors.items() if t.shape != wanted.get(k)} | (wanted.keys() - heads - tensors.keys())
    if unfit:
        raise UserError(
            f"{path}: does not fit {type(model).__name__}: {len(unfit)} tensors missing, unknown or of another shape, first {min(unfit)!r}"
        )
    model.load_state_dict(tensors, strict=False)


def build(
    preset: ModelPreset, num_classes: int, position: Position = NO_PARTS, layers: int | None = None, weights: Path | None = None
) -> RoutedModel:
    """A routed model of the preset's architecture, of its first `layers` layers alone if given, with weights from a file.

    The file holds timm's names (of all layers or of those kept) and, below ``position.``, the position parts; parts the
    file does not have keep their initialisation.
    """
    backbone = create_backbone(preset.model_copy(update={"weights": "scratch"}), num_classes)
    backbone.blocks = backbone.blocks[:layers]
    model = RoutedModel(backbone, position)
    if weights is not None:
        load_weights(model, weights)
    return model


def save_weights(model: RoutedModel, path: Path) -> None:
    """Write a safetensors file that stock timm loads (the position parts apart, below ``position.``)."""
    from safetensors.torch import save_file

    tensors = {name.removeprefix("backbone."): t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, path)


def load_weights(model: RoutedModel, path: Path) -> None:
    """Load a file written by :func:`save_weights`, or a timm state_dict. Raises RuntimeError on names that do not fit."""
    from safetensors.torch import load_file

    tensors = {k: t for k, t in load_file(path).items() if not _beyond(k, model.num_layers)}
    position = {k.removeprefix(POSITION_PREFIX): t for k, t in tensors.items() if k.startswith(POSITION_PREFIX)}
    model.backbone.load_state_dict({k: t for k, t in tensors.items() if not k.startswith(POSITION_PREFIX)})
    if position:
        model.position.load_state_dict(position)


def _beyond(key: str, num_layers: int) -> bool:
    return key.startswith("blocks.") and int(key.split(".")[1]) >= num_layers


def input_size(model: RoutedModel, preset: ModelPreset) -> tuple[int, int]:
    """(in_chans, img_size) of the images the model takes."""
    height, width = (getattr(model.backbone, "stem", None) or model.backbone.patch_embed).img_size
    if height != width:
        raise UserError(f"img_size: found {height}x{width}, accepted: square images")
    return preset.kwargs.get("in_chans", 3), height


def normalisation(preset: ModelPreset, meta: dict[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels: the published weights' own, else the data set's."""
    import timm

    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    if preset.weights == "scratch" or cfg is None or len(cfg.mean) != preset.kwargs.get("in_chans", 3):
        return tuple(meta["mean"]), tuple(meta["std"])
    return tuple(cfg.mean), tuple(cfg.std)
