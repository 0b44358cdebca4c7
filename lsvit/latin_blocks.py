"""A list of blocks along Latin orders, inside a model of any kind around it."""

from collections import OrderedDict
from copy import copy

from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from lsvit.latin import Latin
from lsvit.routed import RoutedModel


class LatinBlocks(RoutedModel):
    """In the place of all blocks: tokens (B, N, D) -> (B, N, D), along Latin orders."""

    routes: Latin

    def embed(self, images: Tensor) -> Tensor:
        """They are tokens already."""
        return images

    def forward(self, images: Tensor) -> Tensor:  # type: ignore[override]
        """Run every sample along its order."""
        return self.tokens(images, self.routes)


def route_tokens(model: nn.Module, path: str) -> LatinBlocks:
    """The blocks as a routed model.

    Raises:
        ValueError: the blocks are not those of a model that :class:`lsvit.RoutedModel` takes.
    """
    parent = model.get_submodule(path.rpartition(".")[0])
    if not isinstance(parent, VisionTransformer | MlpMixer):
        raise ValueError(
            f"latin: found {type(parent).__name__}, accepted: timm's VisionTransformer and "
            "MlpMixer families"
        )
    stand_in = copy(parent)
    stand_in._forward_pre_hooks = OrderedDict()
    blocks = nn.Sequential(*model.get_submodule(path).children())
    stand_in._modules = stand_in._modules | {"blocks": blocks}
    return LatinBlocks(stand_in)
