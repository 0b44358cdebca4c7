"""Precision, attention and compilation are settled by width and processor, and compiled blocks
serve every order.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lsvit.routes import OneRoute, arbitrary, generator, per_sample
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, Encode, Position, Predict, Variant
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build
from pipeline.training import devices
from pipeline.training.devices import compile_blocks, settle
from pipeline.training.loop import make_step
from pipeline.training.objectives import Batch, ClassLoss
from pipeline.training.step import TrainingStep
from tests.conftest import refused
from tests.models import CPU
from tests.pipeline.training.test_loop import outcome, run

Config = Callable[..., TrainConfig]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    settle(CPU.device, 32, "fp32")


@pytest.mark.parametrize(
    ("width", "bf16", "precision", "why"),
    [
        (32, True, "fp32", "width 32 is below 768"),
        (768, True, "bf16", "the processor has bf16"),
        (768, False, "fp32", "no bf16 instructions"),
    ],
)
def test_auto_goes_by_width_and_processor(
    width: int, bf16: bool, precision: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_bf16", lambda device: bf16)
    execution = settle(CPU.device, width, "auto", "auto")
    assert execution.precision == precision
    assert execution.plain_attention == (precision == "bf16")
    assert not execution.compiled
    assert why in str(execution)
    assert settle(CPU.device, width, "bf16").why == ""  # asked for, not picked


def test_a_precision_that_the_processor_lacks() -> None:
    with refused("precision: found 'tf32', accepted on a CPU: auto, fp32, bf16, fp16"):
        settle(CPU.device, 768, "tf32")


def test_deterministic_is_a_switch() -> None:
    assert "deterministic" in str(settle(CPU.device, 32, "fp32", deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    settle(CPU.device, 32, "fp32")
    assert not torch.are_deterministic_algorithms_enabled()


def test_deterministic_training_runs(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    config = train_config(epochs=1, position={"encode": {}, "predict": {}}, per="sample")
    config = config.model_copy(update={"deterministic": True})
    assert len(run(config, prepared, tmp_path / "run")) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler looks at it
def test_a_new_order_compiles_nothing_new(pico: ModelPreset) -> None:
    """One compilation for training and one for evaluation serve all blocks in all orders; other
    sizes of a batch add few.
    """
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    parts = Position(encode=Encode(), predict=Predict())
    model = build(pico, 10, Variant(route="sequential", position=parts))
    counter = CompileCounter()
    compile_blocks(model.backbone.blocks, counter)
    step = make_step(model, PLAIN, 1.0, CPU)
    images, labels = torch.randn(8, 1, 28, 28), torch.arange(8)

    def train(route: object) -> int:
        step(Batch(images, labels), route)["loss"].backward()
        return counter.frame_count

    model.train()
    counts = [train(arbitrary(generator("evaluation", i), 4)) for i in range(6)]
    assert counts == [1] * 6
    assert train((2, 2, 0)) == 1
    model.eval()
    with torch.inference_mode():
        for i in range(4):
            model(images, arbitrary(generator("evaluation", i), 4))
    assert counter.frame_count == 2
    model.train()
    for i in range(6):
        grouped = train(torch.from_numpy(per_sample(arbitrary, generator("samples", i), 4, 8)))
    assert grouped <= 6  # groups of 1 and of several samples
    torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_blocks_give_the_same(pico: ModelPreset) -> None:
    """With the real compiler; the weights keep their names."""
    torch._dynamo.reset()
    model = build(pico, 10).eval()
    images, route = torch.randn(3, 1, 28, 28), (3, 0, 2, 1)
    with torch.inference_mode():
        expected, names = model(images, route), list(model.state_dict())
        compile_blocks(model.backbone.blocks, "aot_eager")
        assert torch.allclose(model(images, route), expected, atol=1e-5)
    assert list(model.state_dict()) == names
    torch._dynamo.reset()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_is_unfused_where_it_says_so(precision: str, pico: ModelPreset) -> None:
    """On a CPU in bf16; also in the blocks that checkpointing runs again, in the backward pass."""
    execution = settle(CPU.device, 16, precision)
    model = build(pico, 10)
    model.checkpointing = True
    step = TrainingStep(model, [ClassLoss()], execution)
    batch = Batch(torch.randn(4, 1, 28, 28), torch.arange(4))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(batch, OneRoute((2, 0)))["loss"].backward()
    is_fused = any("flash_attention" in event.key for event in profile.key_averages())
    assert is_fused == (precision == "fp32")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_training_step_waits_for_the_device(train_config: Config, prepared: Path) -> None:
    """CUDA raises where the host would wait for the device."""
    from pipeline.training.loop import Run, draw_route
    from pipeline.training.step import backward_in_parts

    for changes in ({}, {"per": "sample"}, {"checkpointing": True, "micro_batch_size": 8}):
        config = train_config(precision="bf16", position={"predict": {}}, **changes)
        config = config.model_copy(update={"device": "cuda"})
        opened = Run(config, prepared, None, lambda event: None)
        batches = opened.train_split.shuffled(config.options.batch_size, 0, 1)
        # The order of an epoch's images is copied to the device before the first step
        first = next(batches)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for i, (images, labels) in enumerate(itertools.chain([first], batches)):
                routes = draw_route(config, 4, 1, i)
                opened.optimizer.zero_grad()
                backward_in_parts(opened.step, Batch(images, labels), routes, config.options)
                opened.optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_deterministic_cuda_runs_repeat_bit_for_bit(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    config = train_config(epochs=2, precision="bf16", per="sample")
    config = config.model_copy(update={"device": "cuda", "deterministic": True})
    for name in ("first", "second"):
        run(config, prepared, tmp_path / name)
    assert outcome(tmp_path / "first") == outcome(tmp_path / "second")
