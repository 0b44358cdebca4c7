"""Small models with parts, and the training steps of variants, for tests of several rooms."""

from typing import Any

import torch
from timm.models.mlp_mixer import MlpMixer
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from lsvit.position import Position
from lsvit.routed import RoutedModel
from papers import Variant
from pipeline.models.extensions import extensions_of
from pipeline.training.devices import Execution
from pipeline.training.loop import make_step
from pipeline.training.step import TrainingStep

CPU = Execution(torch.device("cpu"), "fp32")


def small(kind: type = VisionTransformer, **changes: Any) -> Any:
    """A 4-layer backbone of width 16 on a grid of 2 x 3 patches."""
    sizes: dict[str, Any] = {"num_blocks": 4} if kind is MlpMixer else {"depth": 4, "num_heads": 2}
    sizes |= {"img_size": (16, 24), "patch_size": 8, "embed_dim": 16, "num_classes": 7}
    torch.manual_seed(0)
    model: Any = kind(**(sizes | changes))
    with torch.no_grad():  # so that layers, and tokens, differ enough
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


TRANSFORMERS: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_labels": 7,
    "image_size": 16,
    "patch_size": 8,
    "vocab_size": 30,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "drop_path_rate": 0.0,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "n_positions": 24,
    "pad_token_id": 1,
}


def of_transformers(kind: str, head: str = "ForImageClassification", **changes: Any) -> Any:
    """A 4-layer model of transformers of width 16, without dropout."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(**(TRANSFORMERS | changes))
    return getattr(transformers, f"{kind}{head}")(config)


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


def assert_near(
    found: dict[str, Tensor], expected: dict[str, Tensor], close: float = 1e-12
) -> None:
    """Check tensors of the same names, each to a part of its largest number or of 1."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        assert (found[name] - value).abs().max().item() <= close * scale, name
