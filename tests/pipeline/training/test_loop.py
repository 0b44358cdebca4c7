"""The training loop: deterministic, resumable bit for bit, and doing what the variant says."""

import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from lsvit.position import position_loss
from lsvit.routes import OneRoute
from papers.smoothing.section import Recipe
from pipeline.config.datasets import DatasetPreset
from pipeline.config.samplers import training_order
from pipeline.config.sections import Optimisation
from pipeline.data.prepare import prepare
from pipeline.files import read_json
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import (
    FINAL,
    HISTORY,
    WEIGHTS,
    Row,
    sha256,
    starting_weights,
    weights_file,
)
from pipeline.jobs.job import Job
from pipeline.models.weights import build
from pipeline.training.gather import gather_trainings
from pipeline.training.judging import kept_epoch
from pipeline.training.loop import (
    CHECKPOINT,
    Run,
    train,
    train_epoch,
    validate,
    validation_routes,
)
from pipeline.training.objectives import Batch
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import InTurn, batches_along
from pipeline.training.step import count_passes
from tests.conftest import cases_of, refused

CASES = cases_of(__file__)

Config = Callable[..., TrainConfig]
TrainIn = Callable[..., list[Row]]


PARTS = CASES["resumed"]["position with dropout"]["position"]


class Killed(Exception):
    pass


def run(config: TrainConfig, data: Path, folder: Path, stop_after: int | None = None) -> list[Row]:
    """Train in a folder until the end, or until so many epochs were reported. Returns the rows."""
    folder.mkdir(exist_ok=True)
    seen: list[Row] = []

    def report(row: Row) -> None:
        if "epoch" not in row:  # a text
            return
        seen.append(row)
        if len(seen) == stop_after:
            raise Killed

    with pytest.raises(Killed) if stop_after else nullcontext():
        train(config, data, None, folder, report)
    return seen


@pytest.fixture
def train_in(train_config: Config, prepared: Path, tmp_path: Path) -> TrainIn:
    """:func:`run` in a folder of this name, with these keys of a configuration."""

    def make(name: str = "run", stop_after: int | None = None, **changes: Any) -> list[Row]:
        return run(train_config(**changes), prepared, tmp_path / name, stop_after)

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where trainings without a name of their own run."""
    return tmp_path / "run"


def checkpoint_of(folder: Path) -> dict[str, Any]:
    return torch.load(folder / CHECKPOINT, weights_only=True)


def outcome(folder: Path) -> tuple[str, str]:
    return (folder / HISTORY).read_text(), sha256(folder / WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES["resumed"])
def test_resumed_training_equals_an_undisturbed_one(
    case: str, train_in: TrainIn, tmp_path: Path
) -> None:
    changes = CASES["resumed"][case]
    train_in("whole", **changes)
    for stop_after in (1, 2):
        name = f"stopped_{stop_after}"
        train_in(name, stop_after, **changes)
        assert (tmp_path / name / CHECKPOINT).exists()
        torch.rand(5)  # a generator in another state must not matter
        assert len(train_in(name, **changes)) == 3 - stop_after
        assert outcome(tmp_path / name) == outcome(tmp_path / "whole")
        assert not (tmp_path / name / CHECKPOINT).exists()


@pytest.mark.slow
@pytest.mark.parametrize("per", ["batch", "latin"])
def test_training_learns(train_in: TrainIn, per: str) -> None:
    last = train_in(position={"predict": {}}, epochs=30, lr=0.01, per=per)[-1]
    assert last["validation/arbitrary/accuracy"] > 0.5  # chance 0.1
    assert last["validation/arbitrary/position_accuracy"] > 0.4  # chance 0.25
    total = last["train/class_loss"] + last["train/position_loss"]
    assert last["train/loss"] == pytest.approx(total, rel=1e-5)


def test_position_weight_zero_equals_no_prediction(train_in: TrainIn) -> None:
    zero = train_in("zero", position={"predict": {}}, position_weight=0.0)
    without = train_in("without")
    for key in ("train/loss", "validation/arbitrary/loss"):
        assert [row[key] for row in zero] == [row[key] for row in without]


def test_position_losses() -> None:
    """The sum over depths of the mean over images: the class is the depth."""
    first, second = torch.randn(2, 3, 4)
    expected = -(first.log_softmax(-1)[:, 0] + second.log_softmax(-1)[:, 1]).mean()
    assert torch.isclose(position_loss([first, second]), expected)


# ---- optimiser and schedules ---------------------------------------------------------------------


def rates_of(options: Optimisation, steps: int) -> list[float]:
    """The learning rate of every step."""
    optimizer = make_optimizer(torch.nn.Linear(1, 1), options)
    scheduler = make_scheduler(optimizer, options, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert optimizer.param_groups[0]["betas"] == tuple(options.betas)
    return rates


@pytest.mark.parametrize(("schedule", "expected"), CASES["rates"])
def test_schedules(params: Any, schedule: str, expected: list[float]) -> None:
    options = params.finetune.model_copy(update={"schedule": schedule, "lr": 1.0})
    assert rates_of(options, len(expected)) == pytest.approx(expected, abs=1e-5)


def test_a_warm_up_rises_to_the_rate_and_a_half_cosine_falls(params: Any) -> None:
    """Each takes two epochs of two steps. The first step has a fifth of the rate."""
    changes = {"schedule": "cosine", "lr": 1.0, "epochs": 4, "warmup_epochs": 2}
    expected = [0.2, 0.4, 0.6, 0.8, 1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2]
    rates = rates_of(params.finetune.model_copy(update=changes), 8)
    assert rates == pytest.approx(expected)


def test_a_plateau_lowers_the_rate_after_its_patience(params: Any) -> None:
    changes = {"schedule": "plateau", "lr": 1.0, "plateau_patience": 2, "plateau_factor": 0.5}
    options = params.finetune.model_copy(update=changes)
    optimizer = make_optimizer(torch.nn.Linear(1, 1), options)
    scheduler, rates = make_scheduler(optimizer, options, 1), []
    for loss in (2.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        scheduler.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1, 1, 1, 1, 0.5, 0.5]


def test_when_a_training_stops() -> None:
    assert not stops([2, 1, 3], 2)  # the best is among the last two
    assert stops([3, 2, 1, 2], 1)
    assert stops([1, 2, 1], 2)  # as good as before is no gain
    assert not stops([1, 2], 2)
    assert not stops([1, 2, 3], None)


OTHER_ADAM = {"lr": 0.5, "betas": (0.6, 0.7), "eps": 0.1, "weight_decay": 0.2}


@pytest.mark.parametrize(
    ("optimizer", "changes", "expected"),
    [
        ("adam", {}, {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.0}),
        ("adamw", OTHER_ADAM, OTHER_ADAM),
    ],
)
def test_adam_is_the_papers(
    params: Any, optimizer: str, changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    options = params.finetune.model_copy(update={"optimizer": optimizer} | changes)
    made = make_optimizer(torch.nn.Linear(1, 1), options)
    assert type(made).__name__.lower() == optimizer
    assert {key: made.param_groups[0][key] for key in expected} == expected


def test_validation_orders_are_many_and_fixed() -> None:
    routes = validation_routes(12, 10, {"drop": 0.2})
    assert set(routes) == {"sequential", "arbitrary"}
    assert routes["sequential"] == [OneRoute(tuple(range(12)))]
    assert len(set(routes["arbitrary"])) == 10
    assert validation_routes(12, 10, {"drop": 0.2}) == routes
    backwards = OneRoute(tuple(reversed(range(12))))
    assert validation_routes(12, 10, "reversed")["trained"] == [backwards] * 10


def gradients(config: TrainConfig, data: Path) -> torch.Tensor:
    """All gradients with which the optimiser makes its first step."""
    opened = Run(config, data, None, Mock())
    with patch.object(opened.scaler, "step", side_effect=Killed), pytest.raises(Killed):
        train_epoch(opened, 1)
    gradients = [one.grad for one in opened.model.parameters() if one.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("changes", [{}, {"micro_batch_size": 5}, {"precision": "fp16"}])
def test_gradients_are_clipped_as_a_whole(
    train_config: Config, prepared: Path, changes: dict[str, Any]
) -> None:
    """The gradients of the whole batch, of the loss before it was scaled; shorter ones stay."""
    whole = gradients(train_config(clip=1e6, **changes), prepared)
    norm = whole.norm().item()
    clipped = gradients(train_config(clip=norm / 4, **changes), prepared)
    torch.testing.assert_close(clipped, whole / 4, rtol=1e-3, atol=1e-7)
    free = gradients(train_config(), prepared)
    assert norm == pytest.approx(free.norm().item(), rel=0.02)


def test_fp16_scales_its_loss(train_in: TrainIn, folder: Path) -> None:
    """Steps whose gradients overflow are left out and lower the scale, which a checkpoint holds."""
    train_in(stop_after=1, precision="fp16")
    state = checkpoint_of(folder)
    assert state["scaler"]["_growth_tracker"] == 3  # of 3 steps
    state["scaler"]["scale"] = 2.0**40
    torch.save(state, folder / CHECKPOINT)
    train_in(stop_after=1, precision="fp16")
    after = checkpoint_of(folder)
    assert after["scaler"]["scale"] == 2.0**37
    torch.testing.assert_close(after["model"], state["model"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 1e30}, r"test, seed 0: the loss is not finite in epoch 1; try a smaller lr"),
        ({"batch_size": 97}, "batch_size: found 97, accepted: at most the 96"),
    ],
)
def test_divergence_and_too_large_batches_are_one_line(
    train_in: TrainIn, changes: dict[str, Any], message: str
) -> None:
    with refused(message):
        train_in(**changes)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "world", "micro", "passes"), CASES["passes"])
def test_every_process_makes_as_many_passes(
    train_config: Config, batch: int, world: int, micro: int | None, passes: int
) -> None:
    """As the largest share of a batch asks for, but no more than the smallest has images."""
    options = train_config(batch_size=batch, micro_batch_size=micro).options
    assert count_passes(options, world) == passes


def test_checkpointing_draws_the_same_dropout_again(train_in: TrainIn, tmp_path: Path) -> None:
    train_in("plain", position=PARTS, epochs=1)
    train_in("checkpointed", position=PARTS, epochs=1, checkpointing=True)
    assert outcome(tmp_path / "checkpointed") == outcome(tmp_path / "plain")


@pytest.mark.slow
def test_two_protocols_keep_two_epochs(
    train_config: Config, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation images choose one epoch, held-out training images another; both are kept."""
    data = tmp_path / "data"
    prepare("bars", DatasetPreset(source="embedded", heldout=16), raw, data)
    config = train_config(epochs=12, lr=0.02, batch_size=16)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    job = Job("test", "pipeline.training.loop:train", config)
    job.folder.mkdir(parents=True)
    history = run(config, data, job.folder)
    for judge in ("validation", "heldout"):
        metric = f"{judge}/arbitrary/loss"
        least = min(row[metric] for row in history)
        assert kept_epoch(history, "arbitrary", judge)[metric] == least
        opened = Run(config, data, job.folder / weights_file(judge), lambda event: None)
        assert validate(opened, judge, ["arbitrary"])[metric] == pytest.approx(least, rel=1e-6)
    gather_trainings({0: job}, tmp_path / "out")
    final = read_json(tmp_path / "out" / "seed_0" / FINAL)
    kept = kept_epoch(history, "arbitrary")
    assert final["arbitrary/loss"] == kept["validation/arbitrary/loss"]
    files = {path.name for path in (tmp_path / "out" / "seed_0").glob("weights*")}
    assert files == {"weights.safetensors", "weights_heldout.safetensors"}
    assert starting_weights(0, tmp_path / "out").name == "weights_heldout.safetensors"


def test_variants_see_the_same_images_whatever_paths_they_drop(
    train_config: Config, prepared: Path
) -> None:
    """What augmentation draws does not depend on dropped paths, and is new for every batch."""
    drawn: dict[float, list[tuple[float, ...]]] = {0.0: [], 0.9: []}
    for rate, numbers in drawn.items():
        opened = Run(train_config(recipe=Recipe(drop_path=rate)), prepared, None, Mock())

        def augment(batch: Batch, numbers: Any = numbers) -> Batch:
            numbers.append((torch.rand(()).item(), random.random(), np.random.random()))
            return batch

        opened.augments = [augment]
        train_epoch(opened, 1)
    assert drawn[0.0] == drawn[0.9]
    assert len(set(drawn[0.0])) == opened.steps > 1


def test_every_image_has_the_route_of_its_batch() -> None:
    routes = [OneRoute((0, 1)), OneRoute((1, 0))]
    table = InTurn(routes, 3).rows(8)
    assert table.tolist() == [[0, 1]] * 3 + [[1, 0]] * 3 + [[0, 1]] * 2
    assert InTurn(routes, 2).rows(3).tolist() == [[0, 1], [0, 1], [1, 0]]


def test_images_with_routes_of_their_own_come_batch_by_batch() -> None:
    """With one route where all images of a batch share it, be it a single image."""
    split: Any = Mock(take=lambda rows: (rows, rows))
    routes = torch.tensor([[0, 1], [0, 1], [1, 0], [0, 1], [1, 0]])
    found = []
    for _, images, _, route in batches_along(split, torch.arange(5), routes, 2):
        found.append((images.tolist(), torch.as_tensor(route).tolist()))
    assert found == [([0, 1], [0, 1]), ([2, 3], [[1, 0], [0, 1]]), ([4], [1, 0])]


@pytest.mark.parametrize("schedule", ["linear", "one_cycle", "cosine"])
def test_a_training_follows_its_schedule(
    train_in: TrainIn, train_config: Config, folder: Path, schedule: str
) -> None:
    """The rate at the start of each epoch is that of as many steps, also when it goes on after a
    stop.
    """
    changes = {"schedule": schedule, "epochs": 4, "batch_size": 40, "warmup_epochs": 2}
    train_in(stop_after=2, **changes)
    train_in(**changes)
    rates = rates_of(train_config(**changes).options, 4 * 2)[::2]  # 96 images
    history = read_json(folder / HISTORY, list)
    assert [row["lr"] for row in history] == pytest.approx(rates)
    assert len(set(rates)) == 4


def test_bf16_is_close_to_fp32(train_in: TrainIn) -> None:
    (fp32,), (bf16,) = (train_in(name, epochs=1, precision=name) for name in ("fp32", "bf16"))
    assert fp32["train/loss"] != bf16["train/loss"]
    assert fp32["train/loss"] == pytest.approx(bf16["train/loss"], rel=0.02)


def test_checkpointing_runs_each_block_twice(pico: Any) -> None:
    model = build(pico, 10)
    calls = []
    for i, block in enumerate(model.backbone.blocks):
        block.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
    model.checkpointing = True
    images = torch.randn(2, 1, 28, 28)
    model(images, (2, 0, 3)).sum().backward()
    assert calls == [2, 0, 3, 3, 0, 2]
    with torch.inference_mode():
        model(images, (2, 0, 3))
    assert calls[6:] == [2, 0, 3]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("per", "compile"), [("batch", "none"), ("sample", "none"), ("batch", "blocks")]
)
def test_trains_on_cuda(
    per: str, compile: str, train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    config = train_config(epochs=2, precision="bf16", per=per, compile=compile).model_copy(
        update={"device": "cuda"}
    )
    rows = run(config, prepared, tmp_path / "cuda")
    assert rows[1]["train/loss"] < rows[0]["train/loss"]


@pytest.mark.parametrize(
    ("route", "kept"),
    [("sequential", 1), ({"drop": 0.2}, 1), ("arbitrary", 2), ("reversed", 3), ({"swap": 0.5}, 3)],
)
def test_the_order_that_is_trained_for_chooses_the_epoch(route: Any, kept: int) -> None:
    """The last of equal epochs is kept. Where there is an objective, it counts, not the loss."""
    orders = ("sequential", "arbitrary", "trained")
    history: list[Row] = [
        {"epoch": epoch} | {f"validation/{order}/loss": 0.5 for order in orders}
        for epoch in (0, 1, 2, 3)
    ]
    history[0] |= {f"heldout/{order}/loss": 0.0 for order in orders}
    for epoch, order in enumerate(orders, 1):
        history[epoch][f"validation/{order}/loss"] = 0.1
    assert kept_epoch(history, route)["epoch"] == kept
    for row in history:
        row[f"validation/{training_order(route)}/loss"] = 0.1
    assert kept_epoch(history, route)["epoch"] == 3
    for row in history:
        row[f"validation/{training_order(route)}/objective"] = row["epoch"]
    assert kept_epoch(history, route)["epoch"] == 0


def test_a_sampler_beyond_the_paper_is_judged_under_itself(train_in: TrainIn) -> None:
    history = train_in(route="reversed", epochs=2)
    least = min(row["validation/trained/loss"] for row in history)
    assert kept_epoch(history, "reversed")["validation/trained/loss"] == least
