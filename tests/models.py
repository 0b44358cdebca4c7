"""Small models with parts, and the training steps of variants, for tests of several rooms."""

from pathlib import Path
from typing import Any

import timm
import torch
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from lsvit.position import Position
from lsvit.routed import RoutedModel
from papers import Variant
from pipeline.models.extensions import extensions_of
from pipeline.training.devices import Execution
from pipeline.training.loop import make_step
from pipeline.training.step import TrainingStep
from tests.conftest import SIZES, cases_of

CPU = Execution(torch.device("cpu"), "fp32")


def small(kind: type = VisionTransformer, **changes: Any) -> Any:
    """A 4-layer backbone of width 16 on a grid of 2 x 3 patches."""
    sizes: dict[str, Any] = {"num_blocks": 4} if kind is MlpMixer else {"depth": 4, "num_heads": 2}
    sizes |= {"img_size": (16, 24), "patch_size": 8, "embed_dim": 16, "num_classes": 7}
    torch.manual_seed(0)
    model: Any = kind(**(sizes | changes))
    disturb(model)
    return model.eval()


def disturb(model: nn.Module, by: float = 0.2) -> None:
    """Move all weights at random: layers and tokens differ enough, and no head is of zeros."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def of_transformers(kind: str, head: str = "ForImageClassification", **changes: Any) -> Any:
    """A 4-layer model of transformers of width 16, without dropout."""
    import transformers

    sizes = cases_of(__file__)["transformers"]
    config = getattr(transformers, f"{kind}Config")(**(sizes | changes))
    return getattr(transformers, f"{kind}{head}")(config)


def save_vit(folder: Path, num_classes: int) -> None:
    """A ViT of 3 layers in a folder of timm's layout."""
    kwargs: dict[str, Any] = SIZES | {"depth": 3}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=num_classes, **kwargs)
    timm.models.save_for_hf(model, str(folder), model_args=kwargs, safe_serialization=True)


def images(n: int = 6) -> Tensor:
    """Images for it."""
    return torch.randn(n, 3, 16, 24, generator=torch.Generator().manual_seed(1))


def variant(**keys: Any) -> Any:
    """A variant with keys of papers."""
    return Variant(**({"route": "sequential"} | keys))


NO_PARTS = Position()


def with_parts(backbone: Any, position: Position = NO_PARTS, **keys: Any) -> Any:
    """The routed model with what a variant's keys attach."""
    model = RoutedModel(backbone, position)
    for extension in extensions_of(variant(**keys)):
        extension.attach(model)
    return model


def step_of(model: RoutedModel, position_weight: float = 1.0, **keys: Any) -> TrainingStep:
    """The training step of a variant with these keys, on a CPU."""
    return make_step(model, variant(**keys), position_weight, CPU)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check that tensors of the same names are equal bit for bit."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def assert_near(
    found: dict[str, Tensor], expected: dict[str, Tensor], close: float = 1e-12
) -> None:
    """Check tensors of the same names, each to a part of its largest number or of 1."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        assert (found[name] - value).abs().max().item() <= close * scale, name
