"""What jobs compute on a GPU, as far as a machine without one can tell.

No tensor is on the wrong device, and the files are the CPU's.
"""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

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
from pipeline.jobs.files import EXECUTION, read_meta
from pipeline.models.weights import build
from pipeline.training import devices, loop
from pipeline.training.scoring import open_model, open_split, score
from tests.papers.exits import test_branches
from tests.papers.exits.test_frozen import Bench, with_exits
from tests.papers.inversion import test_descent
from tests.papers.painters import test_painters
from tests.pretended import OnGPU, pretended_gpu

Make = Callable[..., TrainConfig]
Run = Callable[[Any, Path], object]
POSITION = {"encode": {"dim": 8, "dropout": 0.1}, "predict": {}}
LOSSES = {"cosine": 0.5, "contrastive": 1.0, "mixing": 1.0}
TRAININGS: dict[str, dict[str, Any]] = {
    "sequential": {"route": "sequential"},
    "arbitrary, both position parts": {"position": POSITION},
    "a route a sample, accumulated": {
        "per": "sample",
        "position": POSITION,
        "micro_batch_size": 20,
    },
    "Latin, accumulated": {"per": "latin", "position": POSITION, "micro_batch_size": 12},
    "layers dropped, a route a sample": {"route": {"drop": 0.4}, "per": "sample"},
    "checkpointed, on a plateau": {"checkpointing": True, "schedule": "plateau"},
    "losses against over-smoothing": {"losses": LOSSES},
    "talking heads": {"talking_heads": True, "per": "latin"},
    "the first layers alone": {"route": "sequential", "layers": 2},
}
pytestmark = pytest.mark.usefixtures("one_thread", "one_kernel")


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


def same(run: Run, config: RunConfig, folder: Path) -> None:
    """A job's files are those of the CPU."""
    found = []
    for device in ("cpu", "cuda"):
        (folder / device).mkdir()
        torch.manual_seed(0)
        with pretended_gpu(device == "cuda"):
            run(config.model_copy(update={"device": device}), folder / device)
        found.append(
            {
                path.name: path.read_bytes()
                for path in (folder / device).iterdir()
                if path.name not in (EXECUTION, "lock")
            }
        )
    assert found[0].keys() == found[1].keys() != set()
    for name, content in found[0].items():
        assert content == found[1][name], name


def ignore(event: object) -> None:
    """Reports."""


def fields(config: TrainConfig, data: Path, **changes: Any) -> dict[str, Any]:
    """Of a measurement of the same model."""
    names = ("title", "dataset", "model_name", "model", "variant", "device", "seed")
    own = {"data_sha256": read_meta(data)["sha256"], "weights_sha256": None, "precision": "fp32"}
    return {name: getattr(config, name) for name in names} | own | changes


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_trainings(name: str, train_config: Make, prepared: Path, tmp_path: Path) -> None:
    config = train_config(epochs=1, **TRAININGS[name])
    same(
        lambda config, folder: loop.train(config, prepared, None, folder, ignore), config, tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize("step", [None, 0, 1])
def test_trainings_with_exits(
    step: int | None, train_config: Make, prepared: Path, tmp_path: Path
) -> None:
    """All at once; of the layer-wise strategy an early exit's step, and a later one's."""
    config = with_exits(
        train_config(epochs=1, per="sample" if step is None else "batch"),
        step=step,
        branch="cnn_project",
    )
    same(
        lambda config, folder: loop.train(config, prepared, None, folder, ignore), config, tmp_path
    )


@pytest.mark.slow
def test_augmentation(train_config: Make, prepared: Path, tmp_path: Path) -> None:
    """All of DeiT's parts, beside the patch mixing loss."""
    config = train_config(epochs=1, losses={"mixing": 1.0})
    recipe = {"repeats": 2, "erasing": 0.5, "mixup": 0.8, "drop_path": 0.2}
    config = config.model_copy(
        update={"variant": Variant.model_validate(config.variant.model_dump() | {"recipe": recipe})}
    )
    same(
        lambda config, folder: loop.train(config, prepared, None, folder, ignore), config, tmp_path
    )


@pytest.mark.slow
def test_a_training_goes_on(train_config: Make, prepared: Path, tmp_path: Path) -> None:
    """From a checkpoint: model, optimiser and schedule come back to the device."""

    class Killed(Exception):
        pass

    def kill(event: dict) -> None:
        if event.get("epoch") == 1:
            raise Killed

    def run(config: TrainConfig, folder: Path) -> None:
        with pytest.raises(Killed):
            loop.train(config, prepared, None, folder, kill)
        loop.train(config, prepared, None, folder, ignore)

    same(run, train_config(epochs=2, schedule="cosine", optimizer="adamw"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("per", ["sample", "latin", "batch", "pass"])
def test_evaluations(
    per: str, params: Params, train_config: Make, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    values = params.prune_eval.model_dump() | {
        "keep": [2],
        "orders": 2,
        "batch_size": 16,
        "samplers": ["reversed", {"fix_first": 1}],
        "images": 20,
        "per": per,
    }
    config = EvalConfig(
        **fields(train_config(), prepared, variant=Variant(route="arbitrary")),
        options=PruneEval(**values),
    )
    same(
        lambda config, folder: evaluation.evaluate(config, prepared, weights, folder, ignore),
        config,
        tmp_path,
    )


@pytest.mark.slow
def test_the_analysis_and_answers_of_early_exits(
    train_config: Make, prepared: Path, tmp_path: Path
) -> None:
    """Contributions and outputs of layers.

    Images that leave early, also by exits that a file brings; images read as they are asked.
    """
    config = with_exits(train_config(position={"encode": {"dim": 8}}), branch="vit")
    routes, found = per_sample(arbitrary, generator("test"), 4, 40), []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        with pretended_gpu(device == "cuda"):
            model, execution = open_model(
                config.model_copy(update={"device": device}), prepared, None
            )
            split = open_split(config, prepared, "validation", model)
            taken = analysis.record(model.eval(), split, np.arange(40), routes, 2, execution)
            scored = score(model, split, RouteTable(routes), 16, execution)
            images, split.resident = split.take(slice(0, 40))[0], None
            assert torch.equal(split.take(slice(0, 40))[0], images)
            file = tmp_path / "exits.safetensors"
            save_file(
                {f"vit.{name}": tensor.cpu() for name, tensor in model.exits.state_dict().items()},
                file,
            )
            model.exits.clear()
            dynamic.attach(model, file, {1: "vit", 3: "vit"}, test_branches.SIZES)
            with torch.inference_mode():
                early = dynamic.leave_early(model, images, {1: 0.13, 3: 0.12}, (3, 1, 0, 2))
            assert 1 < len(early[1].unique()) == len(set(early[1].tolist()))
            found.append(
                [
                    *map(np.ndarray.tolist, taken),
                    scored.numbers(),
                    scored.correct.tolist(),
                    *(part.tolist() for part in early),
                ]
            )
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
def test_profiles(order: str, train_config: Make, prepared: Path, tmp_path: Path) -> None:
    options = SmoothingProfiles(images=20, batch_size=8, seed=0)
    config = ProfileConfig(**fields(train_config(), prepared), order=order, options=options)
    same(
        lambda config, folder: measures.measure(config, prepared, None, folder, ignore),
        config,
        tmp_path,
    )


@pytest.mark.slow
def test_strategies_of_painters(
    train_config: Make, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    model = fields(train_config(), prepared)
    del model["seed"]
    config = PaintersConfig(**model, options=test_painters.strategies())
    same(
        lambda config, folder: painters.evaluate(config, prepared, weights, folder, ignore),
        config,
        tmp_path,
    )


@pytest.mark.slow
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
    run = partial(frozen.train_branches, data=prepared, weights=bench.weights, report=ignore)
    same(lambda config, folder: run(config, folder=folder), config, tmp_path)


@pytest.mark.slow
def test_costs_of_exits(params: Params, pico: ModelPreset, prepared: Path, tmp_path: Path) -> None:
    """Their times differ; all of them are taken."""
    config = (
        Bench(params, pico, prepared, tmp_path)
        .config(branches=["cnn_add"], depths=[2])
        .model_copy(update={"device": "cuda"})
    )
    with pretended_gpu():
        dynamic.measure(config, prepared, tmp_path, ignore)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
@pytest.mark.parametrize("method", ["adam", "gd"])
def test_inversions(
    method: str, order: str, train_config: Make, prepared: Path, weights: Path, tmp_path: Path
) -> None:
    how = test_descent.descent(
        method=method,
        lrs=[0.01, 0.1],
        steps=3,
        blur=0.5,
        total_variation=0.01,
        schedule="cosine" if method == "adam" else "constant",
    )
    config = InversionConfig(
        **fields(train_config(), prepared, variant=Variant(route="arbitrary")),
        options=test_descent.OPTIONS,
        descent=how,
        alone=False,
        order=order,
        ablation=["residuals"] if order == "sequential" else [],
        transplant=["patch_embed"] if method == "adam" else [],
    )
    run = partial(
        descent.measure,
        data=prepared,
        weights=None,
        donor=weights if method == "adam" else None,
        report=ignore,
    )
    same(lambda config, folder: run(config, folder=folder), config, tmp_path)


@pytest.mark.slow
def test_class_images(train_config: Make, prepared: Path, weights: Path, tmp_path: Path) -> None:
    options = test_descent.SCHEDULE.model_copy(update={"steps": 4, "jitter_after": 2})
    config = ClassImagesConfig(
        **fields(train_config(), prepared), options=options, judge_sha256=None
    )
    judge = Path(shutil.copy(weights, tmp_path / "judge.safetensors"))
    run = partial(class_images.measure, data=prepared, weights=weights, judge=judge, report=ignore)
    same(lambda config, folder: run(config, folder=folder), config, tmp_path)


def test_mixed_devices_are_found(pico: ModelPreset) -> None:
    """The pretence fails where a GPU does, forwards and backwards, and nowhere else."""
    model: Any = RoutedModel(build(pico, 10).backbone, Position(encode=Encode(dim=8)))
    with pretended_gpu():
        with pytest.raises(RuntimeError, match="on the CPU"):
            model(torch.randn(6, 1, 28, 28))
        model.to("cuda")
        assert all(isinstance(parameter, OnGPU) for parameter in model.parameters())
        images, route = torch.randn(6, 1, 28, 28), (3, 1, 0, 2)
        with pytest.raises(RuntimeError, match="same device"):
            model(images, route)
        logits = model(images.to("cuda"), route)
        with pytest.raises(RuntimeError, match="same device"):
            torch.nn.functional.cross_entropy(logits, torch.arange(6))
        torch.nn.functional.cross_entropy(logits, torch.arange(6, device="cuda")).backward()
        with pytest.raises((RuntimeError, TypeError)):
            logits.detach().numpy()
        assert logits.cpu().device.type == "cpu"
        assert all(
            isinstance(parameter.grad, OnGPU)
            for parameter in model.parameters()
            if parameter.grad is not None
        )
    assert not torch.cuda.is_available() or torch.empty(1, device="cuda").is_cuda
