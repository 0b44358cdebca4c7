"""A list of blocks along Latin orders, inside a model of any kind around it."""

from collections import OrderedDict
from copy import copy

from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from lsvit.latin import Latin
from lsvit.routed import RoutedModel


class TokenModel(RoutedModel):
    """A routed model that begins at its blocks: it takes tokens (B, N, D) in place of images."""

    def embed(self, images: Tensor) -> Tensor:
        """They are tokens already."""
        return images


class LatinBlocks(nn.Module):
    """In the place of all blocks: (B, N, D) -> (B, N, D), along Latin orders."""

    def __init__(self, routed: TokenModel, routes: Latin) -> None:
        super().__init__()
        self.routed = routed
        self.routes = routes

    def forward(self, tokens: Tensor) -> Tensor:
        """Run every sample along its order."""
        return self.routed.tokens(tokens, self.routes)


def route_tokens(model: nn.Module, path: str, made: TokenModel | None = None) -> TokenModel:
    """The blocks as a routed model, which keeps what it stacked; `made` if it still holds them.

    Raises:
        ValueError: the blocks are not those of a model that :class:`lsvit.RoutedModel` takes.
    """
    blocks = list(model.get_submodule(path).children())
    if made is not None and list(made.backbone.blocks) == blocks:
        return made
    parent = model.get_submodule(path.rpartition(".")[0])
    if not isinstance(parent, VisionTransformer | MlpMixer):
        raise ValueError(
            f"latin: found {type(parent).__name__}, accepted: timm's VisionTransformer and "
            "MlpMixer families"
        )
    stand_in = copy(parent)
    stand_in._forward_pre_hooks = OrderedDict()
    stand_in._modules = stand_in._modules | {"blocks": nn.Sequential(*blocks)}
    return TokenModel(stand_in)
