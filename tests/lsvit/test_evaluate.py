"""Accuracy over orders: held to sums written out by hand."""

import re
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lsvit
from tests.conftest import Printed, cases_of, refused
from tests.models import images, of_transformers, small

IMAGES = images(10)
TARGETS = torch.tensor([0, 6, 2, 3, 1, 5, 4, 0, 6, 1])
VECTORS = [(torch.randn(5, 5), torch.arange(5))]
BATCHES = [(IMAGES[:7], TARGETS[:7]), (IMAGES[7:], TARGETS[7:])]


def hits_of(routed: lsvit.RoutedModel, routes: list[lsvit.Route], top: int) -> np.ndarray:
    """(routes, images)."""
    rows = []
    for route in routes:
        best = routed(IMAGES, route).topk(top).indices
        rows.append((best == TARGETS[:, None]).any(1).numpy())
    return np.stack(rows).astype(float)


@pytest.mark.parametrize(("encode", "orders"), [(None, 5), (lsvit.Encode(), 5), (None, 2)])
def test_every_row_is_what_its_orders_give(
    encode: lsvit.Encode | None, orders: int, printed: Printed
) -> None:
    routed = lsvit.RoutedModel(small(), lsvit.Position(encode))
    model = routed if encode else routed.backbone
    scores = lsvit.evaluate(model, BATCHES, orders=orders, keep=(3, 2, 4, 3), seed=3)
    kinds = [(layers, order) for layers in (4, 2, 3) for order in ("sequential", "arbitrary")]
    assert [(score.layers, score.order) for score in scores] == kinds
    for score in scores:
        routes = lsvit.evaluation_routes(4, score.layers, score.order, orders, 3)
        first = hits_of(routed, routes, 1)
        assert score.orders == len(routes)
        assert score.top1 == pytest.approx(first.mean())
        assert score.top5 == pytest.approx(hits_of(routed, routes, 5).mean())
        variance = first.mean(0).var() / 10
        if len(routes) == 1:
            assert score.std is None
        else:
            assert score.std == pytest.approx(first.mean(1).std(ddof=1))
            variance += first.mean(1).var(ddof=1) / len(routes)
        n = first.mean() * (1 - first.mean()) / variance
        for end in (score.low, score.high):  # Wilson's ends solve this equation
            assert (end - first.mean()) ** 2 == pytest.approx(1.96**2 * end * (1 - end) / n)
        assert score.low < score.top1 < score.high
    lines = printed().splitlines()
    assert len(lines) == 7
    assert lines[1].split()[:4] == ["4", "sequential", "1", f"{100 * scores[0].top1:.1f}"]


def test_a_quarter_half_and_three_quarters_are_kept() -> None:
    """A model of three blocks keeps one and two."""
    for depth, layers in ((12, [12, 3, 6, 9]), (3, [3, 1, 2])):
        scores = lsvit.evaluate(small(depth=depth), BATCHES, orders=2)
        assert [score.layers for score in scores[::2]] == layers


def test_modes_and_shuffling_stay() -> None:
    model = small(proj_drop_rate=0.5).train()  # which counts in training mode alone
    model.norm.eval()
    shuffled = lsvit.shuffle(model)
    expected = lsvit.evaluate(small(), BATCHES, orders=2, keep=())
    assert lsvit.evaluate(model, BATCHES, orders=2, keep=()) == expected
    assert model.training
    assert not model.norm.training
    assert shuffled.step == 0
    assert shuffled.fixed is None


@pytest.mark.parametrize("classes", [5, 6])
def test_the_table_has_its_columns_and_top_5_from_six_classes_on(
    classes: int, printed: Printed
) -> None:
    model = small(num_classes=classes)
    scores = lsvit.evaluate(model, [(images(4), torch.arange(4))], keep=())
    head = ["layers", "order", "orders", "top-1 %", "std", "95 %", "top-5 %"]
    found = re.split("  +", printed().splitlines()[0].strip())
    assert found == (head if classes > 5 else head[:-1])
    assert [score.orders for score in scores] == [1, 20]


def test_a_transformers_model_and_its_batches() -> None:
    model = of_transformers("ViT", num_labels=3)
    pixels = images(8)[..., :16]
    labels = torch.arange(8) % 3
    mapping = [{"pixel_values": pixels, "labels": labels}]
    scores = lsvit.evaluate(model, mapping, orders=3, keep=(1,))
    assert scores == lsvit.evaluate(model, [(pixels, labels)], orders=3, keep=(1,))
    assert scores[0].top5 is None  # of three classes
    singular = [{"pixel_values": pixels, "label": labels}]  # as data sets of Hugging Face
    assert scores == lsvit.evaluate(model, singular, orders=3, keep=(1,))


def test_a_model_that_keeps_tensors_trains_after_its_evaluation() -> None:
    model = of_transformers("Beit", num_labels=3, use_relative_position_bias=True).train()
    pixels = images(8)[..., :16]
    lsvit.scan(model, [(pixels, torch.arange(8) % 3)], orders=1)
    model(pixels).logits.sum().backward()


@pytest.mark.parametrize(("target", "low", "high"), [(0, 0.7225, 1), (1, 0, 0.2775)])
def test_no_hit_or_only_hits_have_an_interval(target: int, low: float, high: float) -> None:
    """Wilson's of 0 and 10 of 10 images: 3.8416 / (10 + 3.8416) wide."""
    model = small(num_classes=2)
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([1e6, 0]))
    for score in lsvit.evaluate(model, [(IMAGES, torch.full((10,), target))], keep=()):
        assert (score.low, score.high) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *cases_of(__file__)["mistakes"],
        ({"keep": np.ones((2, 2), int)}, r"keep: found array\(\[\[1, 1\], "),
        ({"model": lsvit.load("ls_micro")}, "model: found Opened, accepted: a torch.nn.Module"),
        ({"model": small(num_classes=0, global_pool="")}, r"answer: found \(7, 7, 16\)"),
        ({"model": small(num_classes=0)}, "found no classes, accepted: a classifier"),
        ({"loader": [*BATCHES, (images(3),)]}, "found targets of 10 of 13 images"),
        ({"loader": [images()]}, "found no targets"),
        ({"loader": [(images(2)[:0], TARGETS[:0])]}, "found no batch"),
        ({"loader": [(images(2), ["a", "b"])]}, "found list in a batch, accepted: tensors"),
        ({"loader": [{"x": images(2), "name": "a"}]}, "found str in a batch"),
        ({"loader": [(images(2) * torch.nan, TARGETS[:2])]}, "answer: found NaN"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], message: str) -> None:
    with refused(message, ValueError):
        lsvit.evaluate(**{"model": small(), "loader": BATCHES} | options)


@pytest.mark.parametrize(("targets", "message"), cases_of(__file__)["targets"])
def test_targets_that_are_no_classes_are_refused(targets: list[Any], message: str) -> None:
    with refused(message, ValueError):
        lsvit.evaluate(small(), [(images(2), torch.tensor(targets))])


class Counted(nn.Module):
    """Its loop has a fixed length. With `inner` it calls parts of its blocks, not the blocks."""

    def __init__(self, inner: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.GELU()) for _ in range(4))
        self.inner = inner

    def forward(self, state: Tensor) -> Tensor:
        for i in range(4):
            block: Any = self.layers[i]
            state = block[0](state) if self.inner else block(state)
        return state


def test_a_loop_of_a_fixed_length_takes_orders_of_all_blocks() -> None:
    assert len(lsvit.evaluate(Counted(), VECTORS, orders=2, keep=(4,))) == 2
    with refused("accepted: a loop over the blocks in the list", ValueError):
        lsvit.evaluate(Counted(), VECTORS, orders=2, keep=(2,))


def test_an_error_of_the_models_own_is_raised_as_it_is() -> None:
    """With all blocks in the list, an IndexError is not about them."""
    model = Counted()
    model.layers[3].register_forward_pre_hook(Mock(side_effect=IndexError("its own")))
    with pytest.raises(IndexError, match="its own"):
        lsvit.evaluate(model, VECTORS, orders=2, keep=())
