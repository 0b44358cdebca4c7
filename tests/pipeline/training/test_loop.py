"""The training loop: deterministic, resumable bit for bit, and doing what the variant says."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from lsvit.position import position_hits, position_loss
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, RouteTable
from lsvit.weights import save_weights
from pipeline.config.datasets import DatasetPreset
from pipeline.config.sections import Optimisation
from pipeline.data.prepare import prepare
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import (
    CONFIG,
    FINAL,
    HISTORY,
    TABLE,
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
from pipeline.training.loop import CHECKPOINT, fetch, open_run, train, validate, validation_routes
from pipeline.training.optimisation import make_optimizer, make_scheduler, stops
from pipeline.training.scoring import batches_along
from pipeline.training.step import count_passes
from tests.pipeline.training.ranks import gradients

Config = Callable[..., TrainConfig]


class Killed(Exception):
    pass


def run(config: TrainConfig, data: Path, folder: Path, stop_after: int | None = None) -> list[Row]:
    folder.mkdir(exist_ok=True)
    seen: list[Row] = []

    def report(row: Row) -> None:
        if "epoch" not in row:  # a text
            return
        seen.append(row)
        if len(seen) == stop_after:
            raise Killed

    train(config, data, None, folder, report)
    return seen


def outcome(folder: Path) -> tuple[str, str]:
    return (folder / HISTORY).read_text(), sha256(folder / WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"route": "sequential", "schedule": "linear", "optimizer": "adamw"},
        {"position": {"encode": {"dropout": 0.1}, "predict": {}}, "schedule": "one_cycle"},
        {"route": {"drop": 0.3}},
        {"route": {"fix_first": 1}, "per": "sample"},
    ],
    ids=["ls", "sequential", "position with dropout", "layerdrop", "an order a sample"],
)
def test_resumed_training_equals_an_undisturbed_one(
    train_config: Config, prepared: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = train_config(**changes)
    run(config, prepared, tmp_path / "whole")
    for stop_after in (1, 2):
        folder = tmp_path / f"stopped_{stop_after}"
        with pytest.raises(Killed):
            run(config, prepared, folder, stop_after)
        assert (folder / CHECKPOINT).exists()
        torch.rand(5)  # a generator in another state must not matter
        assert len(run(config, prepared, folder)) == 3 - stop_after
        assert outcome(folder) == outcome(tmp_path / "whole")
        assert not (folder / CHECKPOINT).exists()


def test_seeds_give_different_runs_and_the_same_seed_the_same(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    outcomes = []
    for i, seed in enumerate((0, 1, 2, 0)):
        run(train_config(seed=seed, epochs=1), prepared, tmp_path / str(i))
        outcomes.append(outcome(tmp_path / str(i)))
    assert len(set(outcomes)) == 3
    assert outcomes[0] == outcomes[3]


@pytest.mark.slow
def test_training_learns(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    rows = run(train_config(epochs=24), prepared, tmp_path / "run")
    assert rows[-1]["validation/arbitrary/accuracy"] > 0.5  # chance 0.1
    assert rows[-1]["train/class_loss"] < rows[0]["train/class_loss"]


def test_kept_weights_are_the_lowest_validation_losss(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    """With a huge last learning rate the best epoch is not the last one."""
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        run(train_config(epochs=3), prepared, folder, stop_after=2)
    first = load_file(folder / WEIGHTS)
    state = torch.load(folder / CHECKPOINT, weights_only=True)
    state["optimizer"]["param_groups"][0]["lr"] = 30.0
    state["scheduler"] |= {"base_lrs": [30.0], "_last_lr": [30.0]}
    torch.save(state, folder / CHECKPOINT)
    run(train_config(epochs=3), prepared, folder)
    history = json.loads((folder / HISTORY).read_text())
    assert history[2]["validation/arbitrary/loss"] > history[1]["validation/arbitrary/loss"]
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.values(), load_file(folder / WEIGHTS).values(), strict=True)
    )
    assert kept_epoch(history, "arbitrary") in history[:2]


def test_position_weight_zero_equals_no_prediction(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    run(train_config(position={"predict": {}}, position_weight=0.0), prepared, tmp_path / "zero")
    run(train_config(), prepared, tmp_path / "absent")
    zero, absent = (
        json.loads((tmp_path / name / HISTORY).read_text()) for name in ("zero", "absent")
    )
    for a, b in zip(zero, absent, strict=True):
        assert a["train/loss"] == b["train/loss"]
        assert a["validation/arbitrary/loss"] == b["validation/arbitrary/loss"]


@pytest.mark.slow
def test_position_prediction_learns(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    rows = run(
        train_config(position={"predict": {}}, epochs=30, lr=0.01), prepared, tmp_path / "run"
    )
    assert rows[-1]["validation/arbitrary/position_accuracy"] > 0.4  # chance 0.25
    assert rows[-1]["train/loss"] == pytest.approx(
        rows[-1]["train/class_loss"] + rows[-1]["train/position_loss"], rel=1e-5
    )


def test_position_losses() -> None:
    logits = [torch.randn(3, 4), torch.randn(3, 4)]
    expected = cross_entropy(logits[0], torch.zeros(3, dtype=torch.long)) + cross_entropy(
        logits[1], torch.ones(3, dtype=torch.long)
    )
    assert torch.isclose(position_loss(logits), expected)
    assert torch.isclose(position_loss([torch.zeros(2, 5)] * 3), torch.tensor(3 * math.log(5)))
    sure = [torch.eye(4)[[t, t, 3]] for t in range(2)]
    assert torch.isclose(position_hits(sure), torch.tensor(2 / 3))


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [1.0, 1.0, 1.0, 1.0]), ("linear", [1.0, 0.75, 0.5, 0.25])],
)
def test_schedules(params: Any, schedule: str, expected: list[float]) -> None:
    options = params.finetune.model_copy(update={"schedule": schedule, "lr": 1.0})
    assert _rates(options, 4) == pytest.approx(expected)


def test_a_warm_up_ends_before_the_training_does(params: Any) -> None:
    """However many epochs are asked for: the last one is left to the fall."""
    for asked in (3, 4, 9):
        options = params.finetune.model_copy(
            update={"schedule": "cosine", "lr": 1.0, "epochs": 4, "warmup_epochs": asked}
        )
        rates = _rates(options, 8)
        assert rates.index(max(rates)) == 6
        assert rates[7] == pytest.approx(0.5)


def test_when_a_training_stops() -> None:
    assert not stops([2, 1, 3], 2)  # the best is among the last two
    assert stops([3, 2, 1, 2], 1)
    assert stops([1, 2, 1], 2)  # as good as before is no gain
    assert not stops([1, 2], 2)
    assert not stops([1, 2, 3], None)


def test_one_cycle_rises_and_falls(params: Any) -> None:
    rates = _rates(params.finetune.model_copy(update={"schedule": "one_cycle", "lr": 1.0}), 20)
    assert max(rates) == pytest.approx(1.0, abs=0.02)
    assert 3 <= rates.index(max(rates)) <= 7
    assert rates[-1] < 0.01


def test_one_cycle_leaves_the_momentum_alone(params: Any) -> None:
    options = params.finetune.model_copy(update={"schedule": "one_cycle"})
    optimizer = make_optimizer(torch.nn.Linear(1, 1), options)
    make_scheduler(optimizer, options, 20)
    assert optimizer.param_groups[0]["betas"] == tuple(options.betas)


def test_a_plateau_lowers_the_rate_after_its_patience(params: Any) -> None:
    options = params.finetune.model_copy(
        update={"schedule": "plateau", "lr": 1.0, "plateau_patience": 2, "plateau_factor": 0.5}
    )
    optimizer = make_optimizer(torch.nn.Linear(1, 1), options)
    scheduler, rates = make_scheduler(optimizer, options, 1), []
    for loss in (2.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        scheduler.step(loss)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1, 1, 1, 1, 0.5, 0.5]


def test_images_with_routes_of_their_own_come_batch_by_batch() -> None:
    """With one route where all images of a batch share it, be it a single image."""
    routes = torch.tensor([[0, 1], [0, 1], [1, 0], [0, 1], [1, 0]])
    batches = list(batches_along(Mock(take=lambda rows: (rows, rows)), torch.arange(5), routes, 2))
    assert [images.tolist() for _, images, *_ in batches] == [[0, 1], [2, 3], [4]]
    assert (batches[0][-1], batches[2][-1]) == ((0, 1), (1, 0))
    assert torch.as_tensor(batches[1][-1]).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("schedule", ["linear", "one_cycle", "cosine"])
def test_a_training_follows_its_schedule(
    train_config: Config, prepared: Path, tmp_path: Path, schedule: str
) -> None:
    """The rate at the start of each epoch is that of as many steps, also when it goes on after a
    stop.
    """
    config = train_config(schedule=schedule, epochs=4, batch_size=40, warmup_epochs=2)
    with pytest.raises(Killed):
        run(config, prepared, tmp_path / "run", stop_after=2)
    run(config, prepared, tmp_path / "run")
    rows = json.loads((tmp_path / "run" / HISTORY).read_text())
    rates = _rates(config.options, 4 * 2)[::2]  # 96 images
    assert [row["lr"] for row in rows] == pytest.approx(rates)
    assert len(set(rates)) == 4


def _rates(options: Optimisation, steps: int) -> list[float]:
    optimizer = make_optimizer(torch.nn.Linear(1, 1), options)
    scheduler = make_scheduler(optimizer, options, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_adam_is_the_papers(params: Any) -> None:
    optimizer = make_optimizer(torch.nn.Linear(1, 1), params.finetune)
    assert type(optimizer) is torch.optim.Adam
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (
        1e-4,
        (0.9, 0.999),
        1e-6,
        0.0,
    )
    other = params.finetune.model_copy(
        update={
            "optimizer": "adamw",
            "lr": 0.5,
            "betas": (0.6, 0.7),
            "eps": 0.1,
            "weight_decay": 0.2,
        }
    )
    group = (optimizer := make_optimizer(torch.nn.Linear(1, 1), other)).param_groups[0]
    assert type(optimizer) is torch.optim.AdamW
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (
        0.5,
        (0.6, 0.7),
        0.1,
        0.2,
    )


def test_validation_orders_are_many_and_fixed() -> None:
    routes = validation_routes(12, 10, {"drop": 0.2})
    assert routes["sequential"] == [OneRoute(tuple(range(12)))]
    assert len(set(routes["arbitrary"])) == 10
    assert validation_routes(12, 10, {"drop": 0.2}) == routes
    assert set(routes) == {"sequential", "arbitrary"}
    assert (
        validation_routes(12, 10, "reversed")["trained"]
        == [OneRoute(tuple(reversed(range(12))))] * 10
    )


def test_refit_trains_k_layers_alone(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    run(train_config(route="sequential", layers=2, epochs=1), prepared, tmp_path / "run")
    layers = {
        name.split(".")[1]
        for name in load_file(tmp_path / "run" / WEIGHTS)
        if name.startswith("blocks.")
    }
    assert layers == {"0", "1"}


def test_divergence_and_too_large_batches_are_one_line(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        UserError, match=r"test, seed 0: the loss is not finite in epoch 1; try a smaller lr"
    ):
        run(train_config(lr=1e30), prepared, tmp_path / "nan")
    with pytest.raises(UserError, match="batch_size: found 97, accepted: at most the 96"):
        run(train_config(batch_size=97), prepared, tmp_path / "batch")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="device: found 'cuda'"):
            run(train_config().model_copy(update={"device": "cuda"}), prepared, tmp_path / "cuda")


def test_bf16_is_close_to_fp32(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    losses = [
        run(train_config(epochs=1, precision=p), prepared, tmp_path / p)[0]["train/loss"]
        for p in ("fp32", "bf16")
    ]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch_size": 5},
        {"checkpointing": True},
        {"micro_batch_size": 31, "checkpointing": True},
    ],
)
@pytest.mark.parametrize("per", ["batch", "sample"])
def test_less_memory_gives_the_same_gradients(
    train_config: Config, prepared: Path, tmp_path: Path, changes: dict[str, Any], per: str
) -> None:
    """Accumulated over parts of a batch, the last one smaller, and with activations computed again
    along the same route.
    """
    setting = {"position": {"encode": {}, "predict": {}}, "route": {"drop": 0.3}, "per": per}
    found = []
    for name, config in (
        ("plain", train_config(**setting)),
        ("less", train_config(**setting, **changes)),
    ):
        (tmp_path / name).mkdir()
        gradients(config, prepared, tmp_path / name, lambda event: None)
        found.append(torch.load(tmp_path / name / "gradients_0.pt"))
    for plain, less in zip(*found, strict=True):
        assert plain.keys() == less.keys()
        assert all(torch.allclose(plain[name], less[name], rtol=1e-4, atol=1e-6) for name in plain)


@pytest.mark.parametrize(
    ("batch", "world", "micro", "passes"),
    [(32, 1, None, 1), (32, 1, 5, 7), (31, 2, 5, 4), (3, 2, 1, 1), (4, 2, 1, 2)],
)
def test_every_process_makes_as_many_passes(
    train_config: Config, batch: int, world: int, micro: int | None, passes: int
) -> None:
    """As the largest share of a batch asks for, but no more than the smallest has images."""
    assert (
        count_passes(train_config(batch_size=batch, micro_batch_size=micro).options, world)
        == passes
    )


def test_checkpointing_draws_the_same_dropout_again(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    dropout = {"position": {"encode": {"dropout": 0.3}}}
    for name, checkpointing in (("plain", False), ("again", True)):
        run(
            train_config(**dropout, epochs=1, checkpointing=checkpointing),
            prepared,
            tmp_path / name,
        )
    assert outcome(tmp_path / "plain") == outcome(tmp_path / "again")


def test_checkpointing_runs_each_block_twice(pico: Any) -> None:
    model = build(pico, 10)
    calls = []
    for i, block in enumerate(model.backbone.blocks):
        block.register_forward_pre_hook(lambda *_, i=i: calls.append(i))
    model.checkpointing = True
    model(torch.randn(2, 1, 28, 28), (2, 0, 3)).sum().backward()
    assert calls == [2, 0, 3, 3, 0, 2]
    calls.clear()
    with torch.inference_mode():
        model(torch.randn(2, 1, 28, 28), (2, 0, 3))
    assert calls == [2, 0, 3]


@pytest.mark.slow
def test_bf16_reaches_the_same_verdict(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    """Low precision must not change what is concluded: LayerShuffle's gain over the baseline under
    arbitrary orders.
    """
    gains = {}
    for precision in ("fp32", "bf16"):
        accuracy = [
            run(
                train_config(epochs=20, route=route, precision=precision),
                prepared,
                tmp_path / f"{precision}_{route}",
            )[-1]["validation/arbitrary/accuracy"]
            for route in ("arbitrary", "sequential")
        ]
        gains[precision] = accuracy[0] - accuracy[1]
    assert gains["fp32"] == pytest.approx(gains["bf16"], abs=0.15)  # 40 images
    assert min(gains.values()) > 0.1


def test_fetched_weights_start_every_variant(
    train_config: Config, prepared: Path, tmp_path: Path, pico: Any
) -> None:
    """A local file: what timm saved is what the variants start from, with a head for the data."""
    save_weights(build(pico, 1000), tmp_path / "published.safetensors")
    config = train_config()
    local = pico.model_copy(update={"weights": str(tmp_path / "published.safetensors")})
    fetch(config.model_copy(update={"model": local}), prepared, None, tmp_path, lambda row: None)
    model: RoutedModel = build(pico, 10, weights=tmp_path / WEIGHTS)
    published = load_file(tmp_path / "published.safetensors")
    assert torch.equal(
        model.backbone.blocks[3].mlp.fc2.weight, published["blocks.3.mlp.fc2.weight"]
    )
    assert json.loads((tmp_path / HISTORY).read_text()) == []


def trained(config: TrainConfig, data: Path) -> Job:
    """A job that was run here, without a worker."""
    job = Job("test", "pipeline.training.loop:train", config)
    job.folder.mkdir(parents=True)
    run(config, data, job.folder)
    return job


def test_gathered_files(
    train_config: Config, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    jobs = {seed: trained(train_config(seed=seed), prepared) for seed in (0, 1)}
    gather_trainings(jobs, tmp_path / "out")
    lines = (tmp_path / "out" / TABLE).read_text().splitlines()
    assert lines[0].startswith("seed,epoch,lr,train/loss")
    assert len(lines) == 1 + 2 * 3
    assert json.loads((tmp_path / "out" / "seed_1" / CONFIG).read_text()) == json.loads(
        json.dumps(jobs[1].record())
    )
    history = json.loads((jobs[1].folder / HISTORY).read_text())
    final = json.loads((tmp_path / "out" / "seed_1" / FINAL).read_text())
    assert final["arbitrary/loss"] == min(row["validation/arbitrary/loss"] for row in history)


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


def test_an_order_a_sample(
    train_config: Config, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`per: sample` draws a route for every sample of a batch, and trains to other weights than
    `per: batch`.
    """
    seen: list[torch.Tensor] = []
    tokens = RoutedModel.tokens

    def spy(
        self: RoutedModel,
        images: torch.Tensor,
        route: Any = None,
        taps: Any = (),
        exit: int | None = None,
    ) -> torch.Tensor:
        if isinstance(route, RouteTable):
            seen.append(torch.from_numpy(route.table))
        return tokens(self, images, route, taps, exit)

    monkeypatch.setattr(RoutedModel, "tokens", spy)
    base, config = (
        train_config(position={"predict": {}}, epochs=1, per=per) for per in ("batch", "sample")
    )
    run(config, prepared, tmp_path / "sample")
    assert [tuple(route.shape) for route in seen] == [(32, 4)] * 3
    assert all((route.sort(dim=1).values == torch.arange(4)).all() for route in seen)
    assert len({tuple(row) for row in torch.cat(seen).tolist()}) > 12
    run(base, prepared, tmp_path / "batch")
    assert outcome(tmp_path / "sample") != outcome(tmp_path / "batch")
    run(config, prepared, tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(tmp_path / "sample")


def test_layer_drop_a_sample(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    """Routes of different lengths in one batch, with both position parts."""
    position: dict[str, dict] = {"encode": {}, "predict": {}}
    config = train_config(
        route={"drop": 0.5, "schedule": "linear"}, position=position, epochs=2, per="sample"
    )
    rows = run(config, prepared, tmp_path / "run")
    assert all(math.isfinite(value) for row in rows for value in row.values())


@pytest.mark.slow
def test_two_protocols_keep_two_epochs(
    train_config: Config, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation images choose one epoch, held-out training images another; both weights are kept,
    each from its epoch.
    """
    prepare("bars", DatasetPreset(source="embedded", heldout=16), raw, tmp_path / "data")
    config = train_config(epochs=12, lr=0.02, batch_size=16)
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    job = trained(config, tmp_path / "data")
    history = json.loads((job.folder / HISTORY).read_text())
    kept = {
        judge: int(kept_epoch(history, "arbitrary", judge)["epoch"])
        for judge in ("validation", "heldout")
    }
    for judge, epoch in kept.items():
        assert history[epoch - 1][f"{judge}/arbitrary/loss"] == min(
            row[f"{judge}/arbitrary/loss"] for row in history
        )
        weights = job.folder / weights_file(judge)
        opened = open_run(config, tmp_path / "data", weights, lambda event: None)
        row = validate(opened, judge, ["arbitrary"])
        assert row[f"{judge}/arbitrary/loss"] == pytest.approx(
            history[epoch - 1][f"{judge}/arbitrary/loss"], rel=1e-6
        )
    gather_trainings({0: job}, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "seed_0").glob("weights*")} == {
        "weights.safetensors",
        "weights_heldout.safetensors",
    }
    assert starting_weights(0, tmp_path / "out").name == "weights_heldout.safetensors"


def test_a_sampler_beyond_the_paper_is_judged_under_itself(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    run(train_config(route="reversed", epochs=2), prepared, tmp_path / "run")
    history = json.loads((tmp_path / "run" / HISTORY).read_text())
    assert kept_epoch(history, "reversed")["validation/trained/loss"] == min(
        row["validation/trained/loss"] for row in history
    )
