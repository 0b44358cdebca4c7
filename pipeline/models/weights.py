"""Models of presets and variants, and the weights they start from."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import lsvit.position
import lsvit.weights
from lsvit.routed import RoutedModel
from lsvit.weights import load_weights
from pipeline.config.presets import OWN_WEIGHTS, ModelPreset
from pipeline.config.variant import PLAIN, Position, Variant, papers_variant
from pipeline.errors import UserError
from pipeline.jobs.files import sha256
from pipeline.models.extensions import extensions_of
from pipeline.models.tokens import patch_embed

# Below these names, and those that papers declare, a trained model's file has parts that are no
# start for another model.
PARTS = ("position", "exits")
# The last product of what a layer adds to its input.
ADDED = ("attn.proj", "fc2", "linear_tokens")


@contextmanager
def user_errors() -> Iterator[None]:
    """Raise the library's ValueError as a UserError."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from None


def _shorten(error: Exception) -> str:
    """An error's text on one line of at most 200 characters."""
    return " ".join(str(error).split())[:200]


# ---- models ------------------------------------------------------------------------------------


def create_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model, initialised.

    It has outputs for `num_classes` classes, or the preset's own larger number. Under
    ``head: class_token`` a distilled DeiT has no second head.

    Raises:
        UserError: timm does not know the model or the tag, or refuses the arguments; under
            ``weights: hub`` there is no tag; the outputs are too few, or there is no class token
            to read.
    """
    import timm

    import pipeline.models.mixers  # noqa: F401 (registers names)

    _check_name(preset)
    outputs = preset.num_classes or num_classes
    if outputs < num_classes:
        raise UserError(
            f"models.*.num_classes of {preset.timm}: found {outputs}, "
            f"accepted: null, or at least the data set's {num_classes} classes"
        )
    try:
        model: Any = timm.create_model(preset.timm, **(preset.kwargs | {"num_classes": outputs}))
    except Exception as error:  # timm raises many kinds
        raise UserError(f"timm cannot make {preset.timm}: {_shorten(error)}") from None
    if preset.head == "class_token":
        if getattr(model, "global_pool", None) != "token":
            raise UserError(
                f"models.*.head of {preset.timm}: found 'class_token', "
                "accepted: timm (its head reads no class token)"
            )
        if hasattr(model, "head_dist"):
            del model.head_dist
    if preset.weights in OWN_WEIGHTS:
        _initialise(model, preset)
    return model


def _check_name(preset: ModelPreset) -> None:
    """Raises UserError if timm has no such model, or no such weights of it."""
    import timm

    name, _, tag = preset.timm.partition(".")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=5)
        raise UserError(
            f"models.*.timm: found {name!r}, accepted: a model of timm {timm.__version__}, "
            f"for example {', '.join(near)}"
        )
    tags = [model.partition(".")[2] for model in timm.list_pretrained(f"{name}.*")]
    needs_tag = preset.weights == "hub"  # a bare name is whatever weights timm prefers today
    if tag not in tags and (tag or needs_tag):
        problem = f"has no weights tagged {tag!r}" if tag else "needs the tag of its weights"
        accepted = ", ".join(f"{name}.{tag}" for tag in tags) or "scratch, a file"
        raise UserError(f"models.*.timm: {name} {problem}, accepted: {accepted}")


def _initialise(model: Any, preset: ModelPreset) -> None:
    """Draw and scale the weights of the blocks as the preset says."""
    if preset.init_std is not None:
        for module in model.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=preset.init_std)
    if preset.init_growth:
        for number, block in enumerate(model.blocks, 1):
            for name, module in block.named_modules():
                if name.endswith(ADDED):
                    module.weight.data.mul_(number**preset.init_growth)


def position_parts(position: Position) -> lsvit.position.Position:
    """A variant's position parts as the library takes them."""
    encode = position.encode
    predict = position.predict
    return lsvit.position.Position(
        lsvit.position.Encode(**dict(encode)) if encode else None,
        lsvit.position.Predict(**dict(predict)) if predict else None,
    )


def attach(backbone: Any, variant: Variant) -> RoutedModel:
    """The routed model of a timm model with a variant's layers and parts.

    Raises:
        UserError: a part does not fit the model, or the model is not routable.
    """
    extensions = extensions_of(variant)
    for extension in extensions:
        extension.prepare(backbone)
    if variant.layers:
        backbone.blocks = backbone.blocks[: variant.layers]
    with user_errors():
        model = RoutedModel(backbone, position_parts(variant.position))
    for extension in extensions:
        extension.attach(model)
    return model


def build(
    preset: ModelPreset,
    num_classes: int,
    variant: Variant = PLAIN,
    weights: Path | None = None,
) -> RoutedModel:
    """A routed model of the preset with the layers and parts of a variant.

    `weights` is a file of :func:`lsvit.weights.save_weights`. Parts that it does not have keep
    their initialisation.

    Raises:
        UserError: as :func:`create_backbone` and :func:`attach` do, or the file is damaged.
    """
    kwargs = dict(preset.kwargs)
    for extension in extensions_of(variant):
        kwargs |= extension.model_kwargs()
    backbone = create_backbone(preset.model_copy(update={"kwargs": kwargs}), num_classes)
    model = attach(backbone, variant)
    if weights is not None:
        with user_errors():
            load_weights(model, weights)
    return model


def input_size(model: RoutedModel, preset: ModelPreset) -> tuple[int, int]:
    """(in_chans, img_size) of the model's images. Raises UserError if they are no squares."""
    height, width = patch_embed(model.backbone).img_size
    if height != width:
        raise UserError(f"img_size: found {height}x{width}, accepted: square images")
    return preset.kwargs.get("in_chans", 3), height


def normalisation(
    preset: ModelPreset, meta: dict[str, Any]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels: of the published weights, else of the data."""
    import timm

    cfg: Any = timm.get_pretrained_cfg(preset.timm)
    in_chans = preset.kwargs.get("in_chans", 3)
    if preset.weights in OWN_WEIGHTS or cfg is None or len(cfg.mean) != in_chans:
        return tuple(meta["mean"]), tuple(meta["std"])
    return tuple(cfg.mean), tuple(cfg.std)


# ---- starting weights --------------------------------------------------------------------------


def load_start(model: Any, preset: ModelPreset) -> dict[str, str | None]:
    """Load the preset's published or local weights into its model of :func:`create_backbone`.

    timm's own conversion comes first: names of other checkpoints, position embedding and patches
    resampled to the model's size, input channels. Then all must fit but the head. It stays as
    initialised if that of the weights has another number of outputs or, under
    ``head: class_token``, was one of two (published code: one fresh head on the class token).

    Returns:
        What was loaded: timm's name and tag, where from (no paths), sha256 of the file, licence
        where the tag tells it, and whether the head is "loaded" or "fresh".

    Raises:
        UserError: the weights cannot be had, are another architecture's, or have another sha256
            than the preset expects.
    """
    import timm

    name, _, tag = preset.timm.partition(".")
    path = preset.local_file() or _download(preset)
    if path.parent == Path(preset.weights):
        check_folder(path.parent, name)
    if not path.is_file():
        raise UserError(
            f"weights: found {str(path)!r}, which does not exist, "
            "accepted: a .safetensors file or its folder, hub, scratch"
        )
    digest = sha256(path)
    if preset.sha256 and digest != preset.sha256:
        raise UserError(f"{path}: its sha256 is {digest}, params.yaml expects {preset.sha256}")
    head = _fit(model, path)
    origin: dict[str, str | None]
    if preset.weights == "hub":
        cfg: Any = timm.get_pretrained_cfg(preset.timm)
        origin = {"timm": preset.timm, "tag": tag}
        origin |= {"hf_hub_id": cfg.hf_hub_id, "license": cfg.license}
    else:  # whatever a local file holds, the tag's licence is not known to be its
        origin = {"timm": name, "tag": None}
        origin |= {"file": Path(preset.weights).name, "license": None}
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
            f"weights of {preset.timm} cannot be had ({type(error).__name__}); three ways to get "
            "them: run where the Hugging Face hub can be reached; copy a filled hub cache here and "
            "set HF_HOME; give a local file or folder, `-S models.NAME.weights=FILE.safetensors`"
        ) from None


def check_folder(folder: Path, architecture: str) -> None:
    """Raises UserError if the ``config.json`` of a folder in timm's layout is of another model."""
    try:
        found = json.loads((folder / "config.json").read_text())["architecture"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{folder}: no config.json naming an architecture, "
            "accepted: timm's layout (config.json, model.safetensors)"
        ) from None
    if found != architecture:
        raise UserError(
            f"{folder / 'config.json'}: architecture: found {found!r}, "
            f"accepted: {architecture!r}, that of the preset's timm"
        )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises UserError if it is none."""
    with user_errors():
        return lsvit.weights.read_tensors(path)


def _fit(model: Any, path: Path) -> str:
    """Load a file as :func:`load_start` says. Returns "loaded" or "fresh", of the head."""
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    parts = {*PARTS, *papers_variant().parts}
    tensors = read_tensors(path)
    tensors = {name: tensors[name] for name in tensors if name.split(".")[0] not in parts}
    try:
        tensors = _convert(tensors, model)
    except Exception as error:  # whatever a foreign file makes of timm's conversion
        raise UserError(f"{path}: does not fit {type(model).__name__}: {_shorten(error)}") from None
    heads = {name for name in {*shapes, *tensors} if name.startswith(("head.", "head_dist."))}
    one_of_two = (
        "head_dist.weight" in tensors
        and "head_dist.weight" not in shapes
        and "dist_token" in shapes
    )
    fitting = [name for name in heads & tensors.keys() if tensors[name].shape == shapes.get(name)]
    is_fresh = one_of_two or not fitting
    if is_fresh:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in heads}
        shapes = {name: shape for name, shape in shapes.items() if name not in heads}
    unfit = shapes.keys() - tensors.keys()
    unfit |= {name for name, tensor in tensors.items() if tensor.shape != shapes.get(name)}
    if unfit:
        raise UserError(
            f"{path}: does not fit {type(model).__name__}: {len(unfit)} tensors missing, unknown "
            f"or of another shape, first {min(unfit)!r}"
        )
    model.load_state_dict(tensors, strict=False)
    return "fresh" if is_fresh else "loaded"


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
