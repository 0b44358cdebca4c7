"""An order counts only if the model's blocks ran in it: all else is refused, or said."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lsvit
from lsvit.scanning import similarity
from tests.lsvit.test_evaluate import BATCHES, VECTORS, Counted
from tests.models import images, small


class Around(nn.Module):
    """A classifier of one's own, which calls a method of its encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = small(num_classes=0)
        self.head = nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder.forward_features(x)[:, 0])


class Looping(Counted):
    """Its loop takes at most four blocks. With `plain` it reads another list of the same blocks."""

    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        self.plain = list(self.layers) if plain else None

    def forward(self, state: Tensor) -> Tensor:
        return nn.Sequential(*(self.plain or self.layers[:4]))(state)


def test_an_encoder_whose_method_is_called_is_refused_and_its_classifier_taken() -> None:
    net = Around()
    scores = lsvit.evaluate(net, BATCHES, orders=3)
    lsvit.shuffle(net.encoder)
    for measure in (lsvit.evaluate, lsvit.scan):
        with pytest.raises(
            ValueError, match=r"Around: found a forward pass that ran blocks \[0, 1"
        ):
            measure(net, BATCHES, orders=3)
    lsvit.unshuffle(net)
    assert lsvit.evaluate(net, BATCHES, orders=3) == scores


def test_a_loop_over_another_list_is_refused() -> None:
    for measure in (lsvit.evaluate, lsvit.scan):
        with pytest.raises(ValueError, match="loops over its list of blocks"):
            measure(Looping(plain=True), VECTORS, orders=2)


def test_one_module_in_every_place_is_measured() -> None:
    model = Looping()
    model.layers = nn.ModuleList([model.layers[0]] * 4)
    assert lsvit.evaluate(model, VECTORS, orders=2)[0].layers == 4


def test_a_loop_of_a_fixed_length_runs_no_block_twice() -> None:
    """A longer order is refused, and a scan is without that column."""
    model = Looping()
    blocks = [*model.layers]
    state = torch.ones(2, 5)
    with (
        pytest.raises(ValueError, match=r"accepted: orders of at most 4 blocks"),
        lsvit.in_order(model, (0, 0, 1, 2, 3)),
    ):
        model(state)
    assert [*model.layers] == blocks
    with lsvit.in_order(model, (3, 3, 1, 2)):
        model(state)
    assert "i twice" not in lsvit.scan(model, VECTORS, orders=1).agreement


def test_blocks_of_several_kinds_in_sequence_stand_in_other_stages_too() -> None:
    """As in timm's DaViT, whose longest stage is not its depth."""

    def stage(length: int) -> nn.Sequential:
        return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(length)))

    model = nn.Sequential(stage(1), stage(3))
    with pytest.raises(ValueError, match="none is the model's whole depth"):
        lsvit.shuffle(model)
    assert lsvit.shuffle(nn.Sequential(nn.Linear(4, 4), stage(3))).blocks == "1"


def test_the_similarity_is_that_of_images() -> None:
    with pytest.raises(ValueError, match="found outputs of 4 rows for 6 images"):
        similarity(Transposed(), [torch.randn(6, 4, 5)], "layers")


class Transposed(Counted):
    """The first dimension of its blocks' states are the tokens."""

    def forward(self, state: Tensor) -> Tensor:
        return super().forward(state.transpose(0, 1))


def test_a_backbone_of_ones_own_may_have_no_classes() -> None:
    net = Around()
    net.backbone = small(num_classes=0)
    assert lsvit.evaluate(net, BATCHES, orders=2, blocks="encoder.blocks")[0].orders == 1


def test_hooks_after_the_pass_find_the_list_in_place() -> None:
    """One that was there before the model was shuffled, and one from afterwards."""
    model = small()
    found: list[list[Any]] = []

    def look(module: nn.Module, *_: object) -> None:
        found.append([*model.blocks])

    blocks = [*model.blocks]
    model.register_forward_hook(look)
    lsvit.shuffle(model, lsvit.fixed((3, 2, 1, 0)))
    model.register_forward_hook(look)
    model.train()(images(2))
    assert found == [blocks, blocks]
