"""Shuffled models of timm, transformers and torchvision: orders, gradients, traces."""

import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import lsvit
from lsvit.blocks import find_blocks
from lsvit.latin import latin
from tests.conftest import cases_of, refused
from tests.models import assert_same, disturb, images, of_transformers, small

IMAGES = images()
LABELS = torch.tensor([0, 6, 2, 3, 1, 5])
SQUARES = images(3)[..., :16]
TOKENS = torch.arange(2, 14).view(2, 6)
VECTORS = torch.linspace(-1, 1, 15).view(3, 5)
Model = Any
Copy = Callable[[Model], Model]


def drawn(step: int, seed: int = 0, num_layers: int = 4) -> lsvit.Route:
    return lsvit.arbitrary(lsvit.generator("shuffle", seed, step), num_layers)


# ---- models of several libraries ---------------------------------------------------------------


def torchvision_vit() -> Model:
    from torchvision.models import VisionTransformer

    return VisionTransformer(16, 8, num_layers=4, num_heads=2, hidden_dim=16, mlp_dim=16)


class Nested(nn.Module):
    """A list of blocks in a ModuleDict, which nobody calls, as in nanoGPT."""

    def __init__(self) -> None:
        super().__init__()
        blocks = nn.ModuleList(nn.Sequential(nn.Linear(5, 5), nn.GELU()) for _ in range(4))
        self.parts = nn.ModuleDict({"h": blocks})

    def forward(self, state: Tensor) -> Tensor:
        for block in self.parts["h"].children():
            state = block(state)
        return state


# Its maker, its input, where its blocks are.
MODELS: dict[str, Any] = {
    "timm": (small, IMAGES, "blocks"),
    "ViT": (partial(of_transformers, "ViT"), SQUARES, "vit.layers"),
    "DeiT": (partial(of_transformers, "DeiT"), SQUARES, "deit.layers"),
    "Dinov2": (partial(of_transformers, "Dinov2"), SQUARES, "dinov2.encoder.layer"),
    "Beit": (partial(of_transformers, "Beit"), SQUARES, "beit.layers"),
    "BERT": (
        partial(of_transformers, "Bert", "ForSequenceClassification"),
        TOKENS,
        "bert.encoder.layer",
    ),
    "GPT-2": (partial(of_transformers, "GPT2", "LMHeadModel"), TOKENS, "transformer.h"),
    "torchvision": (torchvision_vit, SQUARES, "encoder.layers"),
    "nested": (Nested, VECTORS, "parts.h"),
}
ORDERS = [(2, 0, 3, 1), (3, 1), (1, 1, 2, 0, 3, 3)]


def make(name: str) -> tuple[Model, Tensor]:
    build, inputs, _ = MODELS[name]
    torch.manual_seed(0)
    model = build()
    disturb(model)
    return model.eval(), inputs


def run(model: Model, inputs: Tensor) -> Tensor:
    output = model(inputs, use_cache=False) if hasattr(model, "transformer") else model(inputs)
    return getattr(output, "logits", output)


def pickled(model: Model) -> Model:
    return pickle.loads(pickle.dumps(model))


def rebuilt(model: Model, path: str, order: lsvit.Route) -> Model:
    """A copy whose list holds copies of these blocks: the reference."""
    other = copy.deepcopy(model)
    container = other.get_submodule(path)
    blocks: Any = list(container.children())
    container._modules.clear()
    for depth, layer in enumerate(order):
        container.add_module(str(depth), copy.deepcopy(blocks[layer]))
    return other


@pytest.mark.parametrize("name", MODELS)
def test_any_order_is_that_of_a_model_built_so(name: str) -> None:
    model, inputs = make(name)
    path = MODELS[name][2]
    assert find_blocks(model) == path
    plain = run(model, inputs)
    for order in ORDERS:
        expected = run(rebuilt(model, path, order), inputs)
        assert not torch.allclose(plain, expected)
        with lsvit.in_order(model, order):
            assert torch.equal(run(model, inputs), expected)
    with lsvit.in_order(model, range(4)):
        assert torch.equal(run(model, inputs), plain)
    assert torch.equal(run(model, inputs), plain)


@pytest.mark.parametrize("name", MODELS)
def test_training_runs_the_drawn_order_and_evaluation_the_original_one(name: str) -> None:
    model, inputs = make(name)
    keys = list(model.state_dict())
    names = [name for name, _ in model.named_modules()]
    plain = run(model, inputs)
    expected = [run(rebuilt(model, MODELS[name][2], drawn(step)), inputs) for step in range(3)]
    shuffled = lsvit.shuffle(model)
    for step in range(3):
        assert torch.equal(run(model.train(), inputs), expected[step])
        assert shuffled.order == drawn(step)
        assert torch.equal(run(model.eval(), inputs), plain)
    assert shuffled.step == 3
    assert list(model.state_dict()) == keys
    assert [name for name, _ in model.named_modules()] == names


# ---- options -----------------------------------------------------------------------------------


def orders_of(steps: int = 200, **options: Any) -> list[tuple[int, ...]]:
    model = Nested().train()
    shuffled = lsvit.shuffle(model, **options)
    orders = []
    for _ in range(steps):
        model(VECTORS)
        orders.append(shuffled.order)
    return orders  # type: ignore[return-value]


def test_orders_are_uniform_and_depend_on_seed_and_step_alone() -> None:
    orders = orders_of()
    assert orders == orders_of()
    assert orders != orders_of(seed=1)
    assert orders_of(seed=7, steps=2)[1] == drawn(1, seed=7)
    assert len(set(orders)) == 24


def test_drop_leaves_out_blocks_at_its_rate_and_never_all() -> None:
    orders = orders_of(drop=0.75)
    lengths = np.array([len(order) for order in orders])
    assert lengths.min() == 1
    assert lengths.mean() == pytest.approx(1 / (1 - 0.75**4), abs=0.15)
    assert any(order != tuple(sorted(order)) for order in orders)


def test_first_and_last_stay_in_place_also_under_drop() -> None:
    assert set(orders_of(first=1, last=1)) == {(0, 1, 2, 3), (0, 2, 1, 3)}
    dropped = {(0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3), (0, 2, 1, 3)}
    assert set(orders_of(first=1, last=1, drop=0.5)) == dropped
    rng = lsvit.generator("shuffle", 0, 0)
    assert orders_of(first=2, steps=1)[0] == lsvit.fix_first(2)(rng, 4)


def test_a_sampler_of_ones_own() -> None:
    assert orders_of(steps=1, sampler=lsvit.reverse) == [(3, 2, 1, 0)]
    assert orders_of(steps=1, sampler=lambda rng, n: np.array([n - 1, 0])) == [(3, 0)]
    for order in orders_of(sampler=lsvit.drop(0.5)):  # LayerDrop
        assert list(order) == sorted(order)


def test_latin_orders_equal_those_of_the_routed_model() -> None:
    model = small(depth=5).train()
    routes = latin(lsvit.generator("shuffle", 0, 0), 5, first=1, last=1)
    expected = lsvit.RoutedModel(copy.deepcopy(model))(images(7), routes)
    shuffled = lsvit.shuffle(model, latin=True, first=1, last=1)
    assert torch.equal(model(images(7)), expected)
    assert shuffled.order == routes
    kept = shuffled._routed
    model(images(7))
    assert shuffled._routed is kept  # stacked once
    copy.deepcopy(model)(images(7))
    lsvit.unshuffle(model)
    with lsvit.in_order(model, routes):
        assert torch.equal(model(images(7)), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *cases_of(__file__)["mistakes"],
        ({"sampler": lsvit.reverse, "drop": 0.1}, "sampler: found with"),
        ({"model": None}, "model: found NoneType, accepted: a torch.nn.Module"),
        ({"model": small}, "model: found function, accepted: a torch.nn.Module"),
        ({"model": nn.ModuleList()}, "model: found ModuleList, which has no forward pass"),
        ({"sampler": lsvit.drop}, "routes.drop'>, accepted: a function"),
        ({"blocks": nn.ModuleList()}, "blocks: found 'ModuleList', lists of blocks of one shape"),
    ],
)
def test_mistakes_are_one_line(options: dict[str, Any], message: str) -> None:
    with refused(message, ValueError):
        lsvit.shuffle(**{"model": Nested()} | options)


def test_orders_that_cannot_run_are_refused() -> None:
    model = Nested().train()
    for order in ((4,), (0, -1)):
        said = "does not exist, the model has blocks 0 to 3"
        with refused(said, IndexError), lsvit.in_order(model, order):
            pass
    with refused("accepted: single blocks", ValueError), lsvit.in_order(model, (0, (1, 2))):
        pass
    assert not has_trace(model)
    shuffled = lsvit.shuffle(model, lsvit.fixed((9,)))
    with refused("block 9", IndexError):
        model(VECTORS)
    assert shuffled.step == 0
    with refused("shuffled already", ValueError):
        lsvit.shuffle(model)


def test_the_list_of_blocks_is_one_or_named() -> None:
    with refused("found no list of blocks", ValueError):
        lsvit.shuffle(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    uneven = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 4)))
    with refused("found no list of blocks", ValueError):
        lsvit.shuffle(uneven)
    pair = Nested()
    pair.other = Nested()
    with refused(r"'parts.h', 'other.parts.h'; name one", ValueError):
        lsvit.shuffle(pair)
    assert lsvit.shuffle(pair, blocks="other.parts.h").blocks == "other.parts.h"
    listed = pair.get_submodule("parts.h")
    assert lsvit.shuffle(pair, blocks=listed).blocks == "parts.h"
    with (
        pytest.warns(match="was not called"),
        lsvit.in_order(pair, (1, 0), blocks=listed) as runner,
    ):
        assert runner is lsvit.get_shuffle(pair, listed)


def test_a_stage_of_a_resnet_is_not_its_depth() -> None:
    from torchvision.models import resnet18

    with torch.device("meta"):
        model = resnet18()
    with refused(r"none is the model's whole depth, .* 'layer1'; name one", ValueError):
        lsvit.shuffle(model)
    assert lsvit.shuffle(model, blocks="layer1").num_layers == 2


# ---- in_order ----------------------------------------------------------------------------------


def test_in_order_goes_before_shuffling_and_nests() -> None:
    model = small().train()
    shuffled = lsvit.shuffle(model)
    with lsvit.in_order(model, (1, 0)):
        expected = model(IMAGES)
        with lsvit.in_order(model, (2,)):
            assert not torch.equal(model(IMAGES), expected)
        assert torch.equal(model(IMAGES), expected)
        assert shuffled.order == (1, 0)
    assert shuffled.step == 0
    model(IMAGES)
    assert shuffled.order == drawn(0)
    assert shuffled.passes == 4


def test_two_models_in_one_have_orders_of_their_own() -> None:
    pair = nn.Sequential(Nested(), Nested()).train()
    alone = copy.deepcopy(pair)
    first = lsvit.shuffle(pair, blocks="0.parts.h", seed=1)
    second = lsvit.shuffle(pair[1], seed=2)
    answer = pair(VECTORS)
    assert (first.order, second.order) == (drawn(0, 1), drawn(0, 2))
    with lsvit.in_order(alone[0], drawn(0, 1)), lsvit.in_order(alone[1], drawn(0, 2)):
        assert torch.equal(alone(VECTORS), answer)
    with lsvit.in_order(pair, (0,), blocks="1.parts.h"):  # finds what is attached below
        pair(VECTORS)
    assert second.order == (0,)
    lsvit.unshuffle(pair)
    assert torch.equal(pair(VECTORS), alone(VECTORS))


@pytest.mark.parametrize("wrap", [nn.Sequential, lsvit.RoutedModel])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_list_that_a_model_around_shuffles_is_refused_and_can_be_freed(
    wrap: Copy, duplicate: Copy
) -> None:
    inner = small().train()
    plain = inner(IMAGES)
    outer = wrap(inner)
    lsvit.shuffle(outer)
    other = duplicate(outer)
    for part in (inner, next(other.children())):
        with refused(r"shuffled already, as .* of a model around", ValueError):
            lsvit.shuffle(part)
    with refused("give that model", ValueError), lsvit.in_order(inner, (1, 0)):
        pass
    copied = duplicate(duplicate(inner))  # the hooks of the model around are not in it
    with lsvit.in_order(copied, (1, 0)):
        assert not torch.equal(copied(IMAGES), plain)
    lsvit.shuffle(copied)
    copied(IMAGES)
    lsvit.unshuffle(copied)
    assert not has_trace(copied)
    lsvit.unshuffle(inner)
    assert not has_trace(outer)
    assert torch.equal(outer(IMAGES), plain)
    shuffled = lsvit.shuffle(inner)
    inner(IMAGES)
    assert shuffled.order == drawn(0)


# ---- traces ------------------------------------------------------------------------------------


def saved(model: Model) -> Model:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def averaged(model: Model) -> Model:
    return ModelEmaV3(model).module.train()


@pytest.mark.parametrize("options", [{"drop": 0.2}, {"sampler": lsvit.drop(0.2)}])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved, averaged])
def test_a_copy_is_shuffled_by_itself(duplicate: Copy, options: dict[str, Any]) -> None:
    model = small().train()
    shuffled = lsvit.shuffle(model, **options)
    model(IMAGES)
    other = duplicate(model)
    expected = model(IMAGES)
    assert torch.equal(other(IMAGES), expected)
    assert shuffled.step == 2  # the copy counts its own
    assert lsvit.get_shuffle(model) is shuffled
    copied = lsvit.get_shuffle(other)
    assert copied is not shuffled
    assert (copied.step, copied.order) == (2, shuffled.order)
    lsvit.unshuffle(other)
    with refused("blocks is not shuffled", ValueError):
        lsvit.get_shuffle(other)
    assert not has_trace(other)
    model(IMAGES)
    assert shuffled.step == 3


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_does_not_keep_the_order_of_a_context(duplicate: Copy) -> None:
    model = small()
    plain = model(IMAGES)
    with lsvit.in_order(model, (1, 0)):
        other = duplicate(model)
        model(IMAGES)
    assert torch.equal(other(IMAGES), plain)


def has_trace(model: nn.Module) -> bool:
    for module in model.modules():
        for name, value in vars(module).items():
            if "hooks" in name and "Shuffle(" in repr(value):
                return True
    return False


@pytest.mark.parametrize("options", [{}, {"latin": True}, {"drop": 0.5}])
def test_unshuffle_leaves_no_trace(options: dict[str, Any]) -> None:
    model = small().train()
    before = [pickle.dumps(vars(module)) for module in model.modules()]
    listed = model.blocks._modules
    lsvit.shuffle(model, **options)
    assert has_trace(model)
    model(IMAGES)
    lsvit.unshuffle(model)
    assert [pickle.dumps(vars(module)) for module in model.modules()] == before
    assert type(model.blocks._modules) is type(listed)
    assert model.blocks._modules == listed
    lsvit.shuffle(model)  # again
    lsvit.unshuffle(model)
    lsvit.unshuffle(model)  # nothing to do


def test_names_are_in_place_after_an_exception() -> None:
    model = small().train()
    before = list(model.blocks)
    lsvit.shuffle(model)
    with pytest.raises(AssertionError):
        model(IMAGES[..., :8])
    assert list(model.blocks) == before


@pytest.mark.parametrize("change", ["append", "cut"])
def test_a_list_that_changes_is_followed(change: str) -> None:
    """A cut makes a new list."""
    model = small().train()
    shuffled = lsvit.shuffle(model)
    model(IMAGES)
    if change == "append":
        model.blocks.append(copy.deepcopy(model.blocks[0]))
    else:
        model.blocks = model.blocks[:2]
    num_layers = len(model.blocks)
    for step in range(1, 4):
        model(IMAGES)
        assert shuffled.order == drawn(step, num_layers=num_layers)
    with lsvit.in_order(model, (num_layers - 1,)):
        model(IMAGES)
    with refused(f"blocks 0 to {num_layers - 1}", IndexError):
        lsvit.in_order(model, (num_layers,)).__enter__()
    lsvit.unshuffle(model)
    assert not has_trace(model)


@pytest.mark.parametrize("reader", ["state_dict", "load_state_dict", "forward", "unshuffle"])
def test_names_are_in_place_after_ctrl_c(reader: str) -> None:
    """torch runs no hook after KeyboardInterrupt."""
    model = small().train()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(IMAGES)
    lsvit.shuffle(model)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = model.norm.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(IMAGES)
    handle.remove()
    if reader == "state_dict":
        assert_same(model.state_dict(), weights)
    elif reader == "load_state_dict":
        model.load_state_dict(weights)
    elif reader == "unshuffle":
        lsvit.unshuffle(model)
    assert torch.equal(model.eval()(IMAGES), expected)


def test_who_reads_the_list_after_a_pass_finds_its_order() -> None:
    """A hook of the model, added before ours, and whoever catches Ctrl-C around an order."""
    model = small().train()
    blocks = [*model.blocks]
    seen = []
    model.register_forward_hook(lambda *_: seen.append([*model.blocks]))
    lsvit.shuffle(model)
    model(IMAGES)
    assert seen == [blocks]
    model.norm.register_forward_hook(Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), lsvit.in_order(model, (2, 0, 1)):
        model(IMAGES)
    assert [*model.blocks] == blocks


# ---- training ----------------------------------------------------------------------------------


def train(model: Model, forward: Callable[[int], Tensor], steps: int = 4) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        loss = cross_entropy(forward(step), LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("with_latin", [False, True])
def test_training_equals_that_of_the_routed_model(with_latin: bool) -> None:
    draw: Any = latin if with_latin else lsvit.arbitrary
    routed = lsvit.RoutedModel(small()).train()
    expected = train(
        routed, lambda step: routed(IMAGES, draw(lsvit.generator("shuffle", 3, step), 4))
    )
    model = small().train()
    lsvit.shuffle(model, seed=3, latin=with_latin)
    assert train(model, lambda step: model(IMAGES)) == expected
    assert_same(model.state_dict(), routed.backbone.state_dict())


def gradients(model: Model, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def same_gradients(
    model: Model, inputs: Tensor, turn_on: Callable[[], None], **options: Any
) -> None:
    """Of two forward passes, so that the second one's order is not that of the first one's."""
    runs = count_runs(model.get_submodule(find_blocks(model)))
    shuffled = lsvit.shuffle(model.train(), **options)

    def two_passes() -> Tensor:
        return (run(model, inputs) + run(model, inputs)).square().sum()

    expected = gradients(model, two_passes())
    plain_runs = len(runs)
    turn_on()
    shuffled.step = 0
    checkpointed = gradients(model, two_passes())
    assert len(runs) == 3 * plain_runs  # every block runs again in the backward pass
    torch.testing.assert_close(checkpointed, expected)


def count_runs(blocks: nn.Module) -> list[nn.Module]:
    """A list that each run of a block makes longer by one.

    A layer inside the block tells it: transformers runs no hooks of a block that it recomputes.
    """
    runs: list[nn.Module] = []
    for block in blocks.children():
        layer = next(part for part in block.modules() if isinstance(part, nn.Linear | nn.LayerNorm))
        layer.register_forward_pre_hook(lambda layer, args: runs.append(layer))
    return runs


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("torchvision", "nested")])
def test_checkpointing_gives_the_same_gradients(
    name: str, reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = make(name)
    if name == "timm":
        monkeypatch.setattr("timm.models._manipulate.use_reentrant_ckpt", lambda: reentrant)
        same_gradients(model, inputs, model.set_grad_checkpointing, drop=0.3, seed=1)
    else:
        kwargs = {"use_reentrant": reentrant}
        turn_on = partial(model.gradient_checkpointing_enable, gradient_checkpointing_kwargs=kwargs)
        same_gradients(model, inputs, turn_on, drop=0.3, seed=1)


@pytest.mark.parametrize("options", [{"latin": True}, {"sampler": lsvit.fixed((1, 1, 3, 0, 1))}])
def test_checkpointing_of_latin_and_repeated_blocks(options: dict[str, Any]) -> None:
    """`checkpoint_seq` takes `children()`, which gives no module twice."""
    model = small()
    same_gradients(model, IMAGES, model.set_grad_checkpointing, **options)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_of_the_whole_model_is_refused(reentrant: bool) -> None:
    model = small().train()
    lsvit.shuffle(model)
    batch = IMAGES.clone().requires_grad_()
    loss = checkpoint(model, batch, use_reentrant=reentrant).sum()
    with refused("checkpoint its blocks", ValueError):
        loss.backward()
    lsvit.unshuffle(model)
    with lsvit.in_order(model, (1, 0)):  # one order: nothing to refuse
        checkpoint(model, batch, use_reentrant=reentrant).sum().backward()


class LooksUp(Nested):
    """Checkpoints a function that finds its blocks in the list: at its index, or in a slice."""

    def __init__(self, reentrant: bool, many: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.many = many

    def forward(self, state: Tensor) -> Tensor:
        for start in range(0, 4, 2 if self.many else 1):
            state = checkpoint(self.run, state, start, use_reentrant=self.reentrant)
        return state

    def run(self, state: Tensor, start: int) -> Tensor:
        blocks: Any = self.parts["h"]
        if self.many:
            first, second = blocks[start : start + 2]
            return second(first(state))
        return blocks[start](state)


@pytest.mark.parametrize("many", [False, True], ids=["index", "slice"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_that_looks_blocks_up_is_refused(reentrant: bool, many: bool) -> None:
    """It would run them again in their original order. Afterwards nothing is refused."""
    model = LooksUp(reentrant, many).train()
    state = VECTORS.clone().requires_grad_()
    lsvit.shuffle(model, lsvit.fixed((2, 0, 3, 1)))
    loss = model(state).sum()
    with refused("checkpoint a block itself", ValueError):
        loss.backward()
    loss = model(state).sum()
    copied = copy.deepcopy(model)
    with refused("checkpoint a block itself", ValueError):
        loss.backward()
    for other in (model, copied):
        lsvit.unshuffle(other)
        assert type(other.parts["h"]._modules) is dict
        other(state).sum().backward()


def test_a_checkpoint_in_evaluation_mode_is_right_after_a_training() -> None:
    """Of the whole model, which is recomputed in its original order as it ran."""
    model = small()
    batch = IMAGES.clone().requires_grad_()
    expected = gradients(model, model(batch).square().sum())
    lsvit.shuffle(model.train())
    loss = model(IMAGES).sum()
    found = gradients(model.eval(), checkpoint(model, batch, use_reentrant=False).square().sum())
    torch.testing.assert_close(found, expected)
    loss.backward()


def test_a_list_that_is_put_back_is_free_again() -> None:
    """And so is the one that was trained in its place."""
    model = Nested().train()
    first = model.parts["h"]
    lsvit.shuffle(model)
    model(VECTORS)
    second = copy.deepcopy(first)
    model.parts["h"] = second
    model(VECTORS)
    model.parts["h"] = first
    lsvit.unshuffle(model)
    assert type(first._modules) is type(second._modules) is dict


# ---- compiled models ---------------------------------------------------------------------------


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
def test_compiled_blocks_are_not_compiled_again(fresh_compiler: None) -> None:
    from torch._dynamo.utils import counters

    model = small().train()
    for block in model.blocks:
        block.compile(backend="eager")
    shuffled = lsvit.shuffle(model)
    expected = lsvit.RoutedModel(small().train())
    counters.clear()
    model(IMAGES)
    assert counters["stats"]["unique_graphs"] > 0
    counters.clear()
    for _ in range(10):
        torch.testing.assert_close(model(IMAGES), expected(IMAGES, shuffled.order))
    assert counters["stats"]["unique_graphs"] == 0


def test_a_model_compiled_as_a_whole_is_refused(fresh_compiler: None) -> None:
    in_place = small()
    in_place.compile(backend="eager")
    whole: Model = torch.compile(small(), backend="eager")
    for compiled in (whole, in_place):
        with refused("cannot be compiled as a whole", ValueError):
            lsvit.shuffle(compiled)
        with refused("cannot be compiled as a whole", ValueError):
            lsvit.shuffle(nn.Sequential(compiled))


def test_a_shuffled_model_compiled_later_is_refused(fresh_compiler: None) -> None:
    model = small().train()
    plain = model(IMAGES)
    lsvit.shuffle(model)
    compiled = torch.compile(model, backend="eager")
    loss = torch.compile(lambda batch: model(batch).sum(), backend="eager")
    for call in (compiled, loss):
        with refused("cannot be compiled as a whole", ValueError):
            call(IMAGES)
    model.eval()
    torch.testing.assert_close(compiled(IMAGES), plain)
    model.train()(IMAGES).sum().backward()
    model.eval()
    torch.compiler.reset()
    torch.testing.assert_close(compiled(IMAGES), plain)


# ---- transformers' own ways --------------------------------------------------------------------


def test_a_cache_of_keys_follows_the_blocks() -> None:
    model, ids = make("GPT-2")
    options = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    for order in ((2, 0, 3, 1), (3, 1)):
        with lsvit.in_order(model, order):
            assert torch.equal(
                model.generate(ids, use_cache=True, **options),
                model.generate(ids, use_cache=False, **options),
            )
    with lsvit.in_order(model, (0, 1, 1)):
        model(ids, use_cache=False)
        for return_dict in (True, False):  # a tuple does not name its cache
            with refused(r"order \(0, 1, 1\): .* accepted: use_cache=False", ValueError):
                model(ids, return_dict=return_dict)
    model(ids)
    assert not any(block._forward_pre_hooks for block in model.transformer.h)


@pytest.mark.parametrize("name", ["ViT", "Dinov2", "BERT"])
def test_outputs_of_layers_are_those_of_depths(name: str) -> None:
    model, inputs = make(name)
    model(inputs, output_hidden_states=True)
    for order in ORDERS:
        expected = rebuilt(model, MODELS[name][2], order)(inputs, output_hidden_states=True)
        with lsvit.in_order(model, order):
            states = model(inputs, output_hidden_states=True).hidden_states
        assert len(states) == len(order) + 1
        for state, other in zip(states, expected.hidden_states, strict=True):
            assert torch.equal(state, other)


# ---- routed models, and their parts ------------------------------------------------------------


def test_a_routed_model_takes_the_order_as_its_route() -> None:
    position = lsvit.Position(lsvit.Encode(), lsvit.Predict())
    model = lsvit.RoutedModel(small(), position).train()
    expected = model(IMAGES, drawn(0))
    along_own = model(IMAGES, (1, 0))
    shuffled = lsvit.shuffle(model)
    assert torch.equal(model(IMAGES, (1, 0)), along_own)  # it is given a route and draws none
    assert torch.equal(model(IMAGES, route=(1, 0)), along_own)
    assert (shuffled.order, shuffled.step) == (None, 0)
    positions = lsvit.PositionLogits(model)
    assert torch.equal(model(IMAGES, taps=[positions]), expected)
    assert shuffled.order == drawn(0)
    assert len(positions.logits) == 4
    with lsvit.in_order(model, ((0, 1), 2)):
        side_by_side = model(IMAGES)
    lsvit.unshuffle(model)
    assert torch.equal(side_by_side, model(IMAGES, ((0, 1), 2)))
    lsvit.shuffle(model, latin=True)
    model(IMAGES)
    with refused(r"give the lsvit.RoutedModel in it", ValueError):
        lsvit.shuffle(nn.Sequential(model))
    with refused("blocks: found 'blocks'", ValueError):
        lsvit.shuffle(lsvit.RoutedModel(small()), blocks="blocks")


# ---- several processes -------------------------------------------------------------------------


def test_replicas_of_data_parallel_are_refused() -> None:
    model: Model = small().train()
    shuffled = lsvit.shuffle(model)
    replica = model._replicate_for_data_parallel()
    assert shuffled(replica.eval(), (), {}) is None
    with refused("accepted: DistributedDataParallel", ValueError):
        replica.train()(IMAGES)


RANK = """
import sys
import torch
from torch import nn
from torch.nn.functional import cross_entropy
import lsvit

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
store = torch.distributed.FileStore(f"{folder}/store", 2)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
model, batch, labels = torch.load(f"{folder}/model.pt", weights_only=False)
parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
shuffled = lsvit.shuffle(parallel, drop=0.3)
mine = slice(3 * rank, 3 * rank + 3)
orders = []
for _ in range(3):
    parallel.zero_grad()
    cross_entropy(parallel(batch[mine]), labels[mine]).backward()
    orders.append(shuffled.order)
gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
lsvit.unshuffle(parallel)
by_rank = lsvit.shuffle(parallel, per_rank=True)
parallel(batch[mine]).sum().backward()
result = {"orders": orders, "gradients": gradients, "by_rank": by_rank.order}
torch.save(result, f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_draw_the_same_orders_or_their_own(tmp_path: Path) -> None:
    model = small().train()
    torch.save((model, IMAGES, LABELS), tmp_path / "model.pt")
    processes = []
    for rank in range(2):
        command = [sys.executable, "-c", RANK, str(rank), str(tmp_path)]
        processes.append(subprocess.Popen(command))
    assert [process.wait() for process in processes] == [0, 0]
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert ranks[0]["orders"] == ranks[1]["orders"]
    assert ranks[0]["by_rank"] == lsvit.arbitrary(lsvit.generator("shuffle", 0, 0, 0), 4)
    assert ranks[1]["by_rank"] == lsvit.arbitrary(lsvit.generator("shuffle", 0, 0, 1), 4)
    lsvit.shuffle(model, drop=0.3).step = 2
    expected = gradients(model, cross_entropy(model(IMAGES), LABELS))
    for rank in ranks:
        torch.testing.assert_close(rank["gradients"], expected)
