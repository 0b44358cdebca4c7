"""MLP-Mixer and ResMLP of any size under timm's names: the functions that timm registers fix patch size, width and depth."""

from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock


@register_model
def mixer_custom(pretrained: bool = False, **kwargs: Any) -> Any:
    """timm's MLP-Mixer (Tolstikhin et al.), `kwargs` as its class takes them; there are no weights."""
    return build_model_with_cfg(MlpMixer, "mixer_custom", pretrained, **_without_weights(kwargs))


@register_model
def resmlp_custom(pretrained: bool = False, **kwargs: Any) -> Any:
    """timm's MLP-Mixer with the blocks of a ResMLP (Touvron et al.), `kwargs` as its class takes them; there are no weights."""
    parts = {"mlp_ratio": 4, "block_layer": ResBlock, "norm_layer": Affine}
    return build_model_with_cfg(
        MlpMixer, "resmlp_custom", pretrained, **_without_weights(parts | kwargs)
    )


def _without_weights(kwargs: dict[str, Any]) -> dict[str, Any]:
    return kwargs | {"pretrained_cfg": {"first_conv": "stem.proj", "classifier": "head"}}
