"""Losses as the source writes them, and noisy models, for the tests of over-smoothing."""

from typing import Any

import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor
from torch.nn.functional import cosine_similarity

from lsvit.routes import generator, per_sample
from papers import Variant
from papers.smoothing.section import Losses, Recipe
from papers.smoothing.talking_heads import use_talking_heads
from pipeline.jobs.configs import TrainConfig
from tests.conftest import cases_of
from tests.models import disturb, small

CASES = cases_of(__file__)
LOSSES = Losses.model_validate(CASES["losses"])
PLAIN = Losses.model_validate({"contrastive": 1.0})  # of dot products, which saturate in tests
RECIPE = Recipe.model_validate(CASES["recipe"])


def random(*shape: int, value: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(value))


def changed(config: TrainConfig, **keys: Any) -> TrainConfig:
    """The configuration with other keys of its variant."""
    variant = Variant.model_validate(config.variant.model_dump() | keys)
    return config.model_copy(update={"variant": variant})


def noisy(module: Any) -> Any:
    """With parameters that differ enough for layers, tokens and heads to differ."""
    torch.manual_seed(5)
    disturb(module)
    return module


def cosine_by_pairs(patches: Tensor) -> Tensor:
    """CosSim of one image's patches (N, D), as the source writes it."""
    count = len(patches)
    cosines = cosine_similarity(patches[:, None], patches[None], dim=-1)
    return cosines[~torch.eye(count, dtype=torch.bool)].sum() / (count * (count - 1))


def unit(patches: Tensor) -> Tensor:
    return patches / patches.norm(dim=-1, keepdim=True)


def contrastive_as_written(early: Tensor, late: Tensor) -> Tensor:
    """l_cons of one image's patches (N, D), as the source writes it."""
    near = (early * late).sum(-1).exp()
    far = (early @ late.mean(0)).exp()
    return -torch.log(near / (near + far)).mean()


def table(sampler: Any, n: int = 6) -> Tensor:
    """Routes per sample of 4 layers."""
    return torch.from_numpy(per_sample(sampler, generator("samples", 3), 4, n))


def alone(route: Tensor) -> tuple[int, ...]:
    """One sample's route."""
    return tuple(layer for layer in route.tolist() if layer >= 0)


def talking() -> Any:
    """A backbone whose heads talk, in matrices far from the identity."""
    use_talking_heads(backbone := small())
    return noisy(backbone).eval()


FAMILIES: dict[str, Any] = {
    "vit": small,
    "distilled": lambda: small(VisionTransformerDistilled),
    "average pooling": lambda: small(global_pool="avg"),
    "mixer": lambda: small(MlpMixer),
}
