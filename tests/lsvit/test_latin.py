"""Latin routes: their form, and that a batch along them is what each sample gives along its own."""

from copy import deepcopy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from lsvit import routed
from lsvit.latin import Latin, latin
from lsvit.position import Encode, Position, Predict
from lsvit.routed import RoutedModel
from lsvit.routes import generator
from lsvit.stacked import can_stack
from lsvit.taps import ExitLogits, PositionLogits
from papers.smoothing.talking_heads import use_talking_heads
from papers.smoothing.training import FirstTokens
from pipeline.config.samplers import latin_ends

from .test_routed import FAMILIES, SMALL, images_for

PARTS = Position(encode=Encode(dim=5), predict=Predict())
SQUARE, SHORT = latin(generator("test"), 4), latin(generator("test", 1), 4, keep=2)
FORMS = {
    "square": SQUARE,
    "pruned": SHORT,
    "first in place": latin(generator("test", 2), 4, first=1),
    "last in place": latin(generator("test", 3), 4, last=2),
    "all in place": latin(generator("test", 4), 4, first=4),
}


class Head(nn.Module):
    """An early exit: a linear head on the mean of the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(tokens.mean(1))


def double(name: str, position: Position = PARTS, **kwargs: Any) -> RoutedModel:
    torch.manual_seed(0)
    backbone: Any = timm.create_model(name, **(FAMILIES[name] | kwargs)).double()
    backbone.blocks = backbone.blocks[:4]
    exits = {depth: Head(backbone.embed_dim) for depth in (1, 2)}
    model = RoutedModel(backbone, position, exits).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def everything(
    model: RoutedModel, images: Tensor, route: Tensor | Latin, exit: int | None = None
) -> dict[str, Tensor]:
    """What a forward pass and its taps give, in the batch's order, and every gradient."""
    model.zero_grad()
    exits, first, positions = ExitLogits(model), FirstTokens(), PositionLogits(model)
    found = {"logits": model(images, route, [exits, first, positions], exit), "first": first.tokens}
    for depth, (samples, answers) in exits.logits.items():
        assert isinstance(samples, Tensor) or samples == slice(None)
        found[f"exit {depth}"] = (
            answers[samples.argsort()] if isinstance(samples, Tensor) else answers
        )
    found |= {f"position {depth}": u.sum(0) for depth, u in enumerate(positions.logits)}
    sum(value.square().sum() for value in found.values()).backward()  # type: ignore[union-attr]
    return found | {
        name: torch.zeros(()) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        assert (found[name] - value).abs().max().item() <= 1e-12 * scale, name


@pytest.fixture
def any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide models are stacked too."""
    monkeypatch.setattr(routed, "WIDEST_STACK", 10_000)


@pytest.mark.slow
@pytest.mark.usefixtures("any_width")
@pytest.mark.parametrize("name", FAMILIES)
def test_equals_a_route_a_sample(name: str) -> None:
    """In double precision, gradients too, with all parts and taps; 10 samples are not divided by 4
    layers.
    """
    model = double(name)
    images = images_for(model.backbone, 10).double()
    for form in (SQUARE, FORMS["first in place"]):
        assert_same(
            everything(model, images, form),
            everything(model, images, torch.from_numpy(form.rows(10))),
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_any_batch_and_form(form: str, batch: int) -> None:
    """Also fewer samples than layers."""
    model = double("vit_tiny_patch16_224")
    images = images_for(model.backbone, batch).double()
    assert model._stacks()
    exit = 1 if form == "square" else None
    routes = FORMS[form]
    assert_same(
        everything(model, images, routes, exit),
        everything(model, images, torch.from_numpy(routes.rows(batch)), exit),
    )


def test_talking_heads() -> None:
    model = double("vit_tiny_patch16_224")
    use_talking_heads(model.backbone)
    model.double()
    images = images_for(model.backbone, 6).double()
    assert model._stacks()
    assert_same(
        everything(model, images, SQUARE),
        everything(model, images, torch.from_numpy(SQUARE.rows(6))),
    )


def test_wide_models_run_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "WIDEST_STACK", 0)
    model = double("vit_tiny_patch16_224")
    images = images_for(model.backbone, 6).double()
    assert model._stacks() is None
    assert_same(
        everything(model, images, SQUARE),
        everything(model, images, torch.from_numpy(SQUARE.rows(6))),
    )


def test_what_can_be_stacked() -> None:
    kwargs: dict[str, Any] = SMALL
    vit: Any = timm.create_model("vit_tiny_patch16_224", **kwargs)
    assert can_stack(list(vit.blocks))
    dropping: Any = timm.create_model("vit_tiny_patch16_224", **kwargs, drop_path_rate=0.2)
    assert not can_stack(list(dropping.blocks))
    vit.blocks[0].attn.register_parameter("temperature", torch.nn.Parameter(torch.ones(1)))
    assert not can_stack(list(vit.blocks)[:1])
    counting = torch.nn.Identity()
    assert can_stack([counting])
    counting.register_buffer("count", torch.zeros(1))
    assert not can_stack([counting])


def test_present_parameters_count() -> None:
    """A stack holds none of its own: after a change of the model's it gives what they give; both
    modes reach its dropout.
    """
    model = double("vit_tiny_patch16_224", proj_drop_rate=0.5)
    images = images_for(model.backbone, 8).double()
    model.eval()
    model(images, SQUARE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
        assert torch.allclose(
            model(images, SQUARE),
            model(images, torch.from_numpy(SQUARE.rows(8))),
            rtol=0,
            atol=1e-12,
        )
        assert not torch.equal(model.train()(images, SQUARE), model(images, SQUARE))
    assert "stack" not in " ".join(model.state_dict())


def test_a_model_is_copied_after_a_latin_pass() -> None:
    """As averages of weights copy it; the copy runs its own blocks."""
    model = double("vit_tiny_patch16_224")
    images = images_for(model.backbone, 8).double()
    expected = model(images, SQUARE)
    expected.sum().backward()
    averaged: Any = ModelEmaV3(model, decay=0.5)
    copied = deepcopy(model)
    assert torch.equal(copied(images, SQUARE), expected)
    assert torch.equal(averaged.module(images, SQUARE), expected)
    with torch.no_grad():
        copied.backbone.blocks[0].mlp.fc2.weight.zero_()
    assert not torch.equal(copied(images, SQUARE), expected)
    assert torch.equal(model(images, SQUARE), expected)


def test_a_block_that_is_replaced_after_a_latin_pass_runs() -> None:
    """The whole block, or a part of it."""
    model = double("vit_tiny_patch16_224")
    images = images_for(model.backbone, 8).double()
    table = torch.from_numpy(SQUARE.rows(8))
    outputs = [model(images, SQUARE)]
    other: Any = double("vit_tiny_patch16_224").backbone.blocks
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.2)
    model.backbone.blocks[0] = other[0]
    outputs.append(model(images, SQUARE))
    assert torch.allclose(outputs[-1], model(images, table), rtol=0, atol=1e-12)
    model.backbone.blocks[1].mlp = other[1].mlp
    outputs.append(model(images, SQUARE))
    assert torch.allclose(outputs[-1], model(images, table), rtol=0, atol=1e-12)
    for before, after in pairwise(outputs):
        assert (before - after).abs().max() > 1e-3


def test_checkpointing_gives_the_same() -> None:
    model = double("vit_tiny_patch16_224")
    images = images_for(model.backbone, 8).double()
    expected = everything(model, images, SQUARE)
    model.checkpointing = True
    assert_same(everything(model, images, SQUARE), expected)


def test_a_layer_that_does_not_exist() -> None:
    model = double("vit_tiny_patch16_224")
    with pytest.raises(IndexError, match="layer 4 does not exist, the model has layers 0 to 3"):
        model(images_for(model.backbone, 5).double(), latin(generator("test"), 5))
    with pytest.raises(IndexError, match="ends before the exit after 2"):
        model(images_for(model.backbone, 4).double(), latin(generator("test"), 4, keep=1), exit=2)


@pytest.mark.parametrize(
    "routes",
    [((0, 1), (0, 1), (1, 0)), ((0, 1), (1,)), (), ((),), ((0, 1, 2), (1, 2, 3), (2, 0, 1))],
)
def test_what_is_no_latin_table(routes: Any) -> None:
    with pytest.raises(ValueError, match="Latin routes: found"):
        Latin(routes)


@pytest.mark.parametrize(
    ("num_layers", "first", "last", "keep"),
    [(12, 0, 0, None), (12, 3, 0, None), (12, 0, 4, None), (5, 1, 1, None), (7, 0, 0, 3)],
)
def test_form(num_layers: int, first: int, last: int, keep: int | None) -> None:
    drawn = latin(generator("test"), num_layers, first, last, keep)
    free = num_layers - first - last
    assert (drawn.first, drawn.last, len(drawn.routes)) == (first, last, free)
    for i, route in enumerate(drawn.routes):
        assert len(set(route)) == len(route) == (keep or num_layers)
        assert route[:first] == tuple(range(first))
        assert np.array_equal(drawn.rows(3 * free)[free + i], route)
    assert np.array_equal(drawn.part(5, 6).rows(6), drawn.rows(11)[5:])
    assert drawn.to_depth(1).routes == tuple(route[:1] for route in drawn.routes)


def test_each_route_alone_is_a_random_permutation() -> None:
    """Of 3 layers: every order of every group is equally frequent (chi-squared, 5 degrees of
    freedom, 20.5 at 0.001).
    """
    counts: list[dict[tuple[int, ...], int]] = [{} for _ in range(3)]
    for i in range(3000):
        for count, route in zip(counts, latin(generator("test", i), 3).routes, strict=True):
            count[route] = count.get(route, 0) + 1
    for count in counts:
        assert len(count) == 6
        assert sum((n - 500) ** 2 / 500 for n in count.values()) < 20.5


def test_routes_that_have_a_table() -> None:
    found = [
        latin_ends(spec)
        for spec in ("arbitrary", {"fix_first": 0}, {"fix_first": 2}, {"fix_last": 3})
    ]
    assert found == [(0, 0), (0, 0), (2, 0), (0, 3)]
    none: list[Any] = [
        "sequential",
        "reversed",
        {"drop": 0.2},
        {"swap": 1},
        {"order": [0]},
        {"skip": [0]},
    ]
    assert not any(latin_ends(spec) for spec in none)
