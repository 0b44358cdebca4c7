"""What jobs compute on a GPU, as far as a machine without one can tell.

No tensor is on the wrong device, and the files are the CPU's.
"""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from lsvit.position import Encode, Position
from lsvit.routed import RoutedModel
from lsvit.routes import RouteTable, arbitrary, generator, per_sample
from lsvit.weights import save_weights
from papers import Variant
from papers.exits.compute import dynamic, frozen
from papers.inversion.compute import class_images, descent
from papers.inversion.section import ClassImagesConfig, InversionConfig
from papers.layershuffle.compute import analysis, evaluation
from papers.layershuffle.section import EvalConfig, PruneEval
from papers.painters.compute import evaluation as painters
from papers.painters.section import PaintersConfig
from papers.smoothing.compute import measures
from papers.smoothing.section import ProfileConfig, SmoothingProfiles
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.jobs.configs import RunConfig, TrainConfig
from pipeline.jobs.files import EXECUTION
from pipeline.models.weights import build
from pipeline.training import devices, loop
from pipeline.training.scoring import open_model, open_split, score
from tests.conftest import cases_of, run_fields
from tests.papers.exits import test_branches
from tests.papers.exits.test_frozen import Bench, with_exits
from tests.papers.inversion import test_descent
from tests.papers.painters import test_painters
from tests.pretended import OnGPU, pretended_gpu

Make = Callable[..., TrainConfig]
Fields = dict[str, Any]
NOT_COMPARED = (EXECUTION, "lock")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "one_kernel")]


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as torch composes it.

    The fused kernels of CPU and GPU differ in their last bits.
    """
    monkeypatch.setattr(devices.Execution, "plain_attention", property(lambda self: True))


@pytest.fixture
def weights(pico: ModelPreset, tmp_path: Path) -> Path:
    torch.manual_seed(3)
    save_weights(build(pico, 10), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def ignore(event: object) -> None:
    """Reports."""


def same(job: Callable[..., object], config: RunConfig, *inputs: Path | None) -> None:
    """Check that a job's files are those of the CPU.

    Args:
        job: called with configuration, inputs, folder and report.
        config: of the CPU.
        inputs: data, weights and what else it takes.
    """
    found = []
    for device in ("cpu", "cuda"):
        own = config.model_copy(update={"device": device})
        torch.manual_seed(0)
        with TemporaryDirectory() as folder, pretended_gpu(device == "cuda"):
            job(own, *inputs, Path(folder), ignore)
            files = [file for file in Path(folder).iterdir() if file.name not in NOT_COMPARED]
            found.append({file.name: file.read_bytes() for file in files})
    assert found[0]
    assert found[0] == found[1]


@pytest.fixture
def fields(prepared: Path, pico: ModelPreset) -> Fields:
    """Of a measurement."""
    return run_fields(prepared, pico, Variant(route="arbitrary"), precision="fp32")


@pytest.mark.parametrize("keys", cases_of(__file__)["trainings"], ids=str)
def test_trainings(keys: Fields, train_config: Make, prepared: Path) -> None:
    same(loop.train, train_config(epochs=1, **keys), prepared, None)


@pytest.mark.parametrize("step", [None, 0, 1])
def test_trainings_with_exits(step: int | None, train_config: Make, prepared: Path) -> None:
    """All at once; of the layer-wise strategy an early exit's step, and a later one's."""
    config = train_config(epochs=1, per="sample" if step is None else "batch")
    same(loop.train, with_exits(config, step=step, branch="cnn_project"), prepared, None)


def test_a_training_goes_on(train_config: Make, prepared: Path) -> None:
    """From a checkpoint: model, optimiser and schedule come back to the device."""

    def kill(event: dict) -> None:
        if event.get("epoch") == 1:
            raise InterruptedError

    def train(config: TrainConfig, data: Path, folder: Path, report: Any) -> None:
        with pytest.raises(InterruptedError):
            loop.train(config, data, None, folder, kill)
        loop.train(config, data, None, folder, report)

    same(train, train_config(epochs=2, schedule="cosine", optimizer="adamw"), prepared)


@pytest.mark.parametrize("per", ["sample", "latin", "batch", "pass"])
def test_evaluations(
    per: str, params: Params, fields: Fields, prepared: Path, weights: Path
) -> None:
    values: Fields = {"keep": [2], "orders": 2, "batch_size": 16, "images": 20, "per": per}
    values["samplers"] = ["reversed", {"fix_first": 1}]
    options = PruneEval(**(params.prune_eval.model_dump() | values))
    config = EvalConfig(**fields, seed=0, options=options)
    same(evaluation.evaluate, config, prepared, weights)


def test_the_analysis_and_answers_of_early_exits(
    train_config: Make, prepared: Path, tmp_path: Path
) -> None:
    """Contributions and outputs of layers.

    Images that leave early, also by exits that a file brings; images read as they are asked.
    """
    config = with_exits(train_config(position={"encode": {"dim": 8}}), branch="vit")
    routes = per_sample(arbitrary, generator("test"), 4, 40)
    file = tmp_path / "exits.safetensors"
    found = []
    for device in ("cpu", "cuda"):
        own = config.model_copy(update={"device": device})
        torch.manual_seed(0)
        with pretended_gpu(device == "cuda"):
            model, execution = open_model(own, prepared, None)
            split = open_split(own, prepared, "validation", model)
            taken = analysis.record(model.eval(), split, np.arange(40), routes, 2, execution)
            scored = score(model, split, RouteTable(routes), 16, execution)
            images, split.resident = split.take(slice(0, 40))[0], None
            assert torch.equal(split.take(slice(0, 40))[0], images)
            exits = model.exits.state_dict()
            save_file({f"vit.{name}": tensor.cpu() for name, tensor in exits.items()}, file)
            model.exits.clear()
            dynamic.attach(model, file, {1: "vit", 3: "vit"}, test_branches.SIZES)
            with torch.inference_mode():
                early = dynamic.leave_early(model, images, {1: 0.13, 3: 0.12}, (3, 1, 0, 2))
            assert 1 < len(early[1].unique()) == len(set(early[1].tolist()))
            assert (dynamic.measure_latency(model, [1, 3], images[:1]) > 0).all()
            numbers = [scored.numbers(), scored.correct.tolist()]
            numbers += [values.tolist() for values in (*taken, *early)]
            found.append(numbers)
    assert found[0] == found[1]


@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
def test_profiles(order: Any, fields: Fields, prepared: Path) -> None:
    options = SmoothingProfiles(images=20, batch_size=8, seed=0)
    config = ProfileConfig(**fields, seed=0, order=order, options=options)
    same(measures.measure, config, prepared, None)


def test_strategies_of_painters(fields: Fields, prepared: Path, weights: Path) -> None:
    config = PaintersConfig(**fields, options=test_painters.strategies())
    same(painters.evaluate, config, prepared, weights)


@pytest.mark.parametrize("fits", [True, False])
def test_exits_of_a_frozen_backbone(
    fits: bool,
    params: Params,
    pico: ModelPreset,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their features on the device, and where it has no room for them."""
    bench = Bench(params, pico, prepared, tmp_path)
    if not fits:
        monkeypatch.setattr(frozen, "SHARE", 2**40)
    config = bench.config(branches=["mlp", "cnn_add", "vit"], depths=[2])
    config = config.model_copy(update={"tuning": config.tuning.model_copy(update={"epochs": 2})})
    same(frozen.train_branches, config, prepared, bench.weights)


@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
@pytest.mark.parametrize("method", ["adam", "gd"])
def test_inversions(method: str, order: Any, fields: Fields, prepared: Path, weights: Path) -> None:
    is_adam = method == "adam"
    schedule = "cosine" if is_adam else "constant"
    keys: Fields = {"lrs": [0.01, 0.1], "steps": 3, "blur": 0.5}
    how = test_descent.descent(method=method, schedule=schedule, **keys)
    config = InversionConfig(
        **fields,
        seed=0,
        options=test_descent.OPTIONS,
        descent=how,
        alone=False,
        order=order,
        ablation=["residuals"] if order == "sequential" else [],
        transplant=["patch_embed"] if is_adam else [],
    )
    same(descent.measure, config, prepared, None, weights if is_adam else None)


def test_class_images(fields: Fields, prepared: Path, weights: Path) -> None:
    options = test_descent.SCHEDULE.model_copy(update={"steps": 4, "jitter_after": 2})
    config = ClassImagesConfig(**fields, seed=0, options=options, judge_sha256=None)
    same(class_images.measure, config, prepared, weights, weights)


def test_mixed_devices_are_found(pico: ModelPreset) -> None:
    """The pretence fails where a GPU does, forwards and backwards, and nowhere else."""
    model: Any = RoutedModel(build(pico, 10).backbone, Position(encode=Encode(dim=8)))
    with pretended_gpu():
        with pytest.raises(RuntimeError, match="on the CPU"):
            model(torch.randn(6, 1, 28, 28))
        model.to("cuda")
        images, labels = torch.randn(6, 1, 28, 28), torch.arange(6)
        with pytest.raises(RuntimeError, match="same device"):
            model(images)
        logits = model(images.to("cuda"))
        with pytest.raises(RuntimeError, match="same device"):
            cross_entropy(logits, labels)
        cross_entropy(logits, labels.to("cuda")).backward()
        with pytest.raises((RuntimeError, TypeError)):
            logits.detach().numpy()
        assert logits.cpu().device.type == "cpu"
        for parameter in model.parameters():
            assert type(parameter.grad) is type(parameter.data) is OnGPU
    assert not torch.cuda.is_available() or torch.empty(1, device="cuda").is_cuda
