"""Latin routes: their form, and that a batch along them is what each sample gives along its own."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from lsvit import routed
from lsvit.latin import Latin, latin
from lsvit.position import Encode, Position, Predict, position_loss
from lsvit.routed import RoutedModel
from lsvit.routes import Sampler, arbitrary, drop, generator, per_sample
from lsvit.stacked import Stack, can_stack
from lsvit.taps import ExitLogits, PositionLogits, in_batch_order
from papers.smoothing.talking_heads import use_talking_heads
from papers.smoothing.training import FirstTokens
from tests.conftest import cases_of, refused
from tests.models import assert_near, disturb

from .test_routed import FAMILIES, SMALL, create, images_for

CASES = cases_of(__file__)
VIT = "vit_tiny_patch16_224"
PARTS = Position(encode=Encode(dim=5), predict=Predict())
SQUARE = latin(generator("test"), 4)
FORMS = {
    "square": SQUARE,
    "pruned": latin(generator("test", 1), 4, keep=2),
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


def double(name: str = VIT, **kwargs: Any) -> RoutedModel:
    """Four layers with position parts and two exits, in double precision."""
    backbone = create(name, **kwargs)
    exits = {depth: Head(backbone.embed_dim) for depth in (1, 2)}
    model = RoutedModel(backbone, PARTS, exits).double()
    disturb(model)
    return model


def everything(
    model: RoutedModel, images: Tensor, route: Any, exit: int | None = None
) -> dict[str, Tensor]:
    """What a forward pass and its taps give, in the batch's order, and every gradient.

    Position predictions and gradients are sums over the batch.
    """
    model.zero_grad()
    exits, first, positions = ExitLogits(model), FirstTokens(), PositionLogits(model)
    found = {
        "logits": model(images, route, [exits, first, positions], exit),
        "first": in_batch_order(first.groups),
    }
    assert exits.logits
    for depth, (samples, answers) in exits.logits.items():
        order = samples.argsort() if isinstance(samples, Tensor) else samples
        found[f"exit {depth}"] = answers[order]
    loss = torch.stack([value.square().sum() for value in found.values()]).sum()
    (loss + len(images) * position_loss(positions.logits)).backward()
    sums = {f"position {depth}": u.sum(0) for depth, u in enumerate(positions.logits)}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        sums[name] = torch.zeros_like(parameter) if gradient is None else gradient.clone()
    return found | sums


def runs_as_its_rows(
    model: RoutedModel, routes: Latin = SQUARE, batch: int = 8, exit: int | None = None
) -> Tensor:
    """Check that all that a batch gives is what its samples give along their own routes.

    Returns:
        The logits.
    """
    images = images_for(model.backbone, batch).double()
    found = everything(model, images, routes, exit)
    assert_near(found, everything(model, images, torch.from_numpy(routes.rows(batch)), exit))
    return found["logits"].detach()


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("sampler", [arbitrary, drop(0.5)], ids=["permutations", "lengths"])
def test_a_route_a_sample_is_running_each_sample_alone(name: str, sampler: Sampler) -> None:
    model = double(name)
    images = images_for(model.backbone, 7).double()
    routes = torch.from_numpy(per_sample(sampler, generator("samples", 3), 4, 7))
    alone: dict[str, list[Tensor]] = {}
    for image, padded in zip(images.split(1), routes.tolist(), strict=True):
        route = tuple(layer for layer in padded if layer >= 0)
        for key, value in everything(model, image, route).items():
            alone.setdefault(key, []).append(value)
    expected = {}
    for key, values in alone.items():
        is_batch = key in ("logits", "first") or key.startswith("exit ")
        expected[key] = torch.cat(values) if is_batch else torch.stack(values).sum(0)
    assert_near(everything(model, images, routes), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_all_families(name: str) -> None:
    """10 samples are not divided by 4 layers."""
    model = double(name)
    for form in (SQUARE, FORMS["first in place"]):
        runs_as_its_rows(model, form, 10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("batch", [1, 3, 8, 9])
def test_any_batch_and_form(form: str, batch: int) -> None:
    """Also fewer samples than layers."""
    model = double()
    assert model._stacks()
    runs_as_its_rows(model, FORMS[form], batch, exit=1 if form == "square" else None)


def test_wide_models_run_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routed, "WIDEST_STACK", 0)
    model = double()
    assert model._stacks() is None
    runs_as_its_rows(model)


def scale(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.5)


def replace_a_part(model: Any) -> None:
    model.backbone.blocks[1].mlp = deepcopy(model.backbone.blocks[0].mlp)


def use_other_heads(model: Any) -> None:
    use_talking_heads(model.backbone)
    scale(model.double())


class Tripled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def use_a_subclass(model: Any) -> None:
    for block in model.backbone.blocks:
        own = Tripled(*block.mlp.fc1.weight.shape[::-1]).double()
        own.load_state_dict(block.mlp.fc1.state_dict())
        block.mlp.fc1 = own


def hook_a_block(model: Any) -> None:
    model.backbone.blocks[1].register_forward_hook(lambda block, args, output: 2 * output)


def hook_a_part(model: Any) -> None:
    model.backbone.blocks[0].attn.register_forward_pre_hook(lambda part, args: (2 * args[0],))


def switch_all(model: Any, start: int = 0) -> None:
    for block in model.backbone.blocks[start:]:
        block.attn.fused_attn = False
        block.attn.scale = 3.0


def switch_one(model: Any) -> None:
    switch_all(model, start=3)


def replace_a_forward(model: Any) -> None:
    attention = model.backbone.blocks[0].attn
    attention.forward = lambda x, **_: 2 * type(attention).forward(attention, x)


def use_a_tensor(model: Any) -> None:
    for scale, block in enumerate(model.backbone.blocks, 1):
        block.attn.fused_attn = False
        block.attn.scale = torch.tensor(scale)


STACKED = (scale, replace_a_part, use_other_heads, switch_all)
# Code and hooks that blocks cannot share run in groups of samples.
GROUPED = (
    use_a_subclass,
    hook_a_block,
    hook_a_part,
    switch_one,
    replace_a_forward,
    use_a_tensor,
)


@pytest.mark.parametrize("change", [*STACKED, *GROUPED])
def test_a_changed_model_runs_as_it_is_now(change: Callable[[Any], None]) -> None:
    """Also one that has run along Latin routes before."""
    model = double()
    before = runs_as_its_rows(model)
    change(model)
    assert bool(model._stacks()) == (change in STACKED)
    assert (runs_as_its_rows(model) - before).abs().max() > 1e-3
    assert "stack" not in " ".join(model.state_dict())


def test_both_modes_reach_dropout() -> None:
    model = double(proj_drop_rate=0.5)
    images = images_for(model.backbone, 8).double()
    dropped = [model.train()(images, SQUARE) for _ in range(2)]
    assert not torch.equal(*dropped)
    model.eval()
    runs_as_its_rows(model)


def test_a_part_keeps_its_mode() -> None:
    """Dropout that is off inside blocks in training stays off."""
    model = double(proj_drop_rate=0.5).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    runs_as_its_rows(model)
    assert model._stacks()


def test_a_model_is_copied_after_a_latin_pass() -> None:
    """As averages of weights copy it; the copy runs its own blocks."""
    model = double()
    expected = runs_as_its_rows(model)
    averaged: Any = ModelEmaV3(model, decay=0.5)
    copied = deepcopy(model)
    for other in (copied, averaged.module):
        assert torch.equal(runs_as_its_rows(other), expected)
    with torch.no_grad():
        copied.backbone.blocks[0].mlp.fc2.weight.zero_()
    assert not torch.equal(runs_as_its_rows(copied), expected)
    assert torch.equal(runs_as_its_rows(model), expected)


def test_what_can_be_stacked() -> None:
    vit: Any = timm.create_model(VIT, **SMALL)
    dropping: Any = timm.create_model(VIT, **SMALL, drop_path_rate=0.2)
    counting = nn.Identity()
    assert can_stack(list(vit.blocks))
    assert can_stack([counting])
    vit.blocks[0].attn.register_parameter("temperature", nn.Parameter(torch.ones(1)))
    counting.register_buffer("count", torch.zeros(1))
    for modules in (list(dropping.blocks), list(vit.blocks)[:1], [counting]):
        assert not can_stack(modules)


def test_routes_that_the_model_cannot_run() -> None:
    model = double()
    images = images_for(model.backbone, 5).double()
    with refused("layer 4 does not exist, the model has layers 0 to 3", IndexError):
        model(images, latin(generator("test"), 5))
    with refused("ends before the exit after 2", IndexError):
        model(images, latin(generator("test"), 4, keep=1), exit=2)


def test_norms_without_a_shift_run_side_by_side() -> None:
    norms = [nn.Sequential(nn.LayerNorm(8, bias=False)) for _ in range(3)]
    for norm in norms:
        torch.nn.init.normal_(next(norm.parameters()))
    state = torch.randn(6, 5, 8)
    found = Stack(norms).load([2, 0], 3)(state)
    torch.testing.assert_close(found, torch.cat([norms[2](state[:3]), norms[0](state[3:])]))


@pytest.mark.parametrize("routes", CASES["wrong"])
def test_what_is_no_latin_table(routes: list[list[int]]) -> None:
    with refused("Latin routes: found", ValueError):
        Latin(tuple(map(tuple, routes)))


@pytest.mark.parametrize(("num_layers", "first", "last", "keep"), CASES["forms"])
def test_form(num_layers: int, first: int, last: int, keep: int | None) -> None:
    drawn = latin(generator("test"), num_layers, first, last, keep)
    free = num_layers - first - last
    assert (drawn.first, drawn.last, len(drawn.routes)) == (first, last, free)
    assert not drawn.shared
    again = generator("test")
    layers = first + again.permutation(free)
    shifts = again.permutation(free)[:keep]
    for i, route in enumerate(drawn.routes):
        assert route[first : len(route) - last] == tuple(layers[(i + shifts) % free])
        assert len(set(route)) == len(route) == (keep or num_layers)
        assert route[:first] == tuple(range(first))
        assert np.array_equal(drawn.rows(3 * free)[free + i], route)
    assert np.array_equal(drawn.part(5, 6).rows(6), drawn.rows(11)[5:])
    assert drawn.to_depth(1).routes == tuple(route[:1] for route in drawn.routes)


def test_each_route_alone_is_a_random_permutation() -> None:
    """Of 3 layers: every order of every group is equally frequent (chi-squared, 5 degrees of
    freedom, 20.5 at 0.001).
    """
    draws = [latin(generator("test", i), 3).routes for i in range(3000)]
    for group in range(3):
        count = Counter(routes[group] for routes in draws)
        assert len(count) == 6
        assert sum((n - 500) ** 2 / 500 for n in count.values()) < 20.5
