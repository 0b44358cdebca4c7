"""Models of any size under timm's names: MLP-Mixer, ResMLP, and models without residuals.

The functions that timm registers for mixers fix patch size, width and depth.
"""

from typing import Any

from timm.models import build_model_with_cfg, register_model
from timm.models.mlp_mixer import Affine, MixerBlock, MlpMixer, ResBlock
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor

CFG = {"first_conv": "stem.proj", "classifier": "head"}


class PlainBlock(Block):
    """A block of a ViT without residual connections: the MLP follows attention."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """x: (B, N, D) -> (B, N, D). The other arguments are those of attention."""
        x = self.ls1(self.attn(self.norm1(x), *args, **kwargs))
        return self.ls2(self.mlp(self.norm2(x)))


class PlainMixerBlock(MixerBlock):
    """A block of an MLP-Mixer without residual connections."""

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D) -> (B, N, D)."""
        x = self.mlp_tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return self.mlp_channels(self.norm2(x))


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


@register_model
def mixer_plain(pretrained: bool = False, **kwargs: Any) -> Any:
    """timm's MLP-Mixer without residual connections; there are no weights."""
    return mixer_custom(pretrained, **kwargs | {"block_layer": PlainMixerBlock})


@register_model
def vit_plain(pretrained: bool = False, **kwargs: Any) -> Any:
    """timm's ViT without residual connections; there are no weights."""
    cfg = {"first_conv": "patch_embed.proj", "classifier": "head"}
    kwargs |= {"block_fn": PlainBlock, "pretrained_cfg": cfg}
    return build_model_with_cfg(VisionTransformer, "vit_plain", pretrained, **kwargs)
