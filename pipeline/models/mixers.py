"""MLP-Mixer and ResMLP of any size under timm's names.

The functions that timm registers fix patch size, width and depth.
"""

from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

CFG = {"first_conv": "stem.proj", "classifier": "head"}


@register_model
def mixer_custom(pretrained: bool = False, **kwargs: Any) -> Any:
    """timm's MLP-Mixer (Tolstikhin et al.). `kwargs` are its class's; there are no weights."""
    kwargs |= {"pretrained_cfg": CFG}
    return build_model_with_cfg(MlpMixer, "mixer_custom", pretrained, **kwargs)


@register_model
def resmlp_custom(pretrained: bool = False, **kwargs: Any) -> Any:
    """timm's MLP-Mixer with the blocks of a ResMLP (Touvron et al.); there are no weights."""
    parts: dict[str, Any] = {"mlp_ratio": 4, "block_layer": ResBlock, "norm_layer": Affine}
    kwargs = parts | kwargs | {"pretrained_cfg": CFG}
    return build_model_with_cfg(MlpMixer, "resmlp_custom", pretrained, **kwargs)
