"""Training with early exits, exits on a frozen backbone, and what is done with them."""

import copy
import itertools
import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from lsvit.predict import Opened
from lsvit.routed import RoutedModel
from lsvit.routes import Route, generator
from lsvit.weights import save_weights
from papers import Variant
from papers.exits.compute import frozen as exits
from papers.exits.compute.budgets import practical
from papers.exits.compute.counting import write_canvases
from papers.exits.compute.dynamic import (
    ROUNDS,
    Budget,
    answer,
    attach,
    check_routes,
    deploy,
    measure_latency,
)
from papers.exits.compute.flops import count_exits, write_flops
from papers.exits.compute.in_use import InUse
from papers.exits.compute.steps import join
from papers.exits.section import (
    BRANCHES,
    EXIT_COSTS,
    EXIT_WEIGHTS,
    EXITS_IN_USE,
    LAST_EXIT,
    BranchTraining,
    Counting,
    ExitConfig,
)
from papers.exits.training import ExitTraining
from papers.smoothing.section import Recipe
from pipeline.config.datasets import DatasetPreset
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Optimisation
from pipeline.data.prepare import prepare
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import ARRAYS, HISTORY, ROWS, WEIGHTS, read_meta, sha256
from pipeline.jobs.rows import read_rows
from pipeline.models.weights import build
from pipeline.training import loop as training
from pipeline.training.devices import Execution
from pipeline.training.judging import kept_epoch
from pipeline.training.loop import train
from pipeline.training.objectives import Batch, is_right, task_loss
from pipeline.training.scoring import open_model
from tests.conftest import refused, run_fields
from tests.models import CPU, images, small, step_of, variant, with_parts
from tests.papers.exits.test_branches import FAMILIES, SIZES, heads
from tests.pipeline.training.test_loop import outcome, run

ignore = Mock()
Config = Callable[..., TrainConfig]


def with_exits(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The configuration with exits after 1 and 3 of the 4 layers."""
    variant = config.variant.model_copy(update={"exits": heads(**changes)})
    return config.model_copy(update={"variant": variant})


def trained(
    config: TrainConfig, data: Path, folder: Path
) -> tuple[set[str], list[dict[str, float]]]:
    """The names of the tensors that a training changes, and its history."""
    torch.manual_seed(1)
    start = folder / "start.safetensors"
    folder.mkdir()
    save_weights(build(config.model, 10, config.variant), start)
    train(config, data, start, folder, ignore)
    before, after = load_file(start), load_file(folder / WEIGHTS)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    return changed, json.loads((folder / HISTORY).read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "per"),
    [("sequential", "batch"), ({"drop": 0.4}, "batch"), ({"drop": 0.6}, "sample")],
)
def test_end_to_end_trains_everything(
    route: Any, per: str, train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    """LayerDrop's routes often end before an exit, which is then left out."""
    config = with_exits(train_config(epochs=2, route=route, per=per), branch="vit")
    changed, (row, _) = trained(config, prepared, tmp_path / "run")
    assert changed == set(load_file(tmp_path / "run" / WEIGHTS))
    for order in ("sequential", "arbitrary"):
        values = {exit: row[f"validation/{order}/{exit}loss"] for exit in ("exit_1_", "exit_3_")}
        objective = 2 * row[f"validation/{order}/loss"] + sum(values.values())
        assert row[f"validation/{order}/objective"] == pytest.approx(objective)
        assert f"validation/{order}/exit_3_accuracy" in row
    assert row["train/objective"] == row["train/loss"] > row["train/class_loss"]


LAYER_WISE = [
    ("cls_token", "pos_embed", "patch_embed.", "blocks.0.", "exits.1."),
    ("blocks.1.", "blocks.2.", "exits.3."),
    ("blocks.3.", "norm.", "head."),
]


@pytest.mark.slow
@pytest.mark.parametrize("step", range(3))
def test_layer_wise_steps_train_their_layers_and_exit_alone(
    step: int, train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    options = {"epochs": 1, "optimizer": "adamw", "weight_decay": 0.1}
    config = with_exits(train_config(route="sequential", **options), step=step)
    changed, (row,) = trained(config, prepared, tmp_path / "run")
    names = load_file(tmp_path / "run" / WEIGHTS)
    assert changed == {name for name in names if name.startswith(LAYER_WISE[step])}
    loss = ("exit_1_loss", "exit_3_loss", "loss")[step]
    assert row["validation/sequential/objective"] == row[f"validation/sequential/{loss}"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_layer_wise_steps_share_out_every_parameter(family: str) -> None:
    """Each is trained in one step, and reached by that step's loss, which is its exit's."""
    batch, route = Batch(images(), torch.arange(6)), (0, 1, 2, 3)
    taken: list[str] = []
    for step, exit in enumerate((1, 3, None)):
        exits = heads("cnn_ignore", step=step)
        model = with_parts(small(**FAMILIES[family]), exits=exits).eval()
        ExitTraining(variant(exits=exits)).freeze(model)
        loss = step_of(model, exits=exits)(batch, route)["loss"]
        expected = cross_entropy(model(batch.images, route, exit=exit), batch.labels)
        assert loss.item() == pytest.approx(expected.item())
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == (parameter.grad is not None), name
            if parameter.requires_grad:
                taken.append(name)
    assert sorted(taken) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.slow
def test_plateau_and_resuming(
    train_config: Config, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate falls to 0.6 after more than 2 epochs without gain, training ends after 5.

    What gains is the objective. The loss of the last exit alone rises in every epoch.
    """
    published = {"schedule": "plateau", "plateau_patience": 2, "stop_patience": 5, "lr": 0.001}
    config = with_exits(train_config(epochs=30, batch_size=96, per="sample", **published))
    # A small gain is one, an equal loss is none.
    objectives = [3, 2, 2.5, 1.99999, 2, 1.99999, 3, 2, 2, 2]

    def go_on(folder: str, done: int, stop_after: int | None = None) -> list[float]:
        coming = []
        for epoch, objective in list(enumerate(objectives))[done:]:
            place = "validation/arbitrary"
            coming.append({f"{place}/objective": objective, f"{place}/loss": epoch})
        monkeypatch.setattr(training, "validate", Mock(side_effect=coming))
        return [row["lr"] / 0.001 for row in run(config, prepared, tmp_path / folder, stop_after)]

    rates = go_on("whole", 0)
    assert rates == pytest.approx([1.0] * 7 + [0.6] * 2)
    history = json.loads((tmp_path / "whole" / HISTORY).read_text())
    assert kept_epoch(history, "arbitrary") == history[5]
    for killed in (6, 9):
        go_on(str(killed), 0, killed)
        torch.rand(5)  # a generator in another state must not matter
        assert go_on(str(killed), killed) == rates[killed:]
        assert outcome(tmp_path / str(killed)) == outcome(tmp_path / "whole")


class Bench:
    """A frozen backbone, and the configuration of its exits."""

    def __init__(self, params: Params, pico: ModelPreset, data: Path, folder: Path) -> None:
        self.params, self.pico, self.data, self.folder = params, pico, data, folder
        self.weights = folder / "backbone.safetensors"
        torch.manual_seed(0)
        save_weights(build(pico, len(read_meta(data)["classes"])), self.weights)

    def config(self, route: Any = "arbitrary", **changes: Any) -> ExitConfig:
        options = {"branches": BRANCHES, "depths": None, "lrs": [0.01], "images": None}
        options |= {"keep": 2, "seed": 0} | SIZES.model_dump() | changes
        tuning = {"optimizer": "adam", "schedule": "plateau", "lr": 1.0, "epochs": 3}
        tuning |= {"stop_patience": 2, "batch_size": 32}
        return ExitConfig(
            **run_fields(self.data, self.pico, Variant(route=route), precision="fp32"),
            seed=0,
            options=BranchTraining.model_validate(options),
            tuning=self.params.finetune.narrow(Optimisation).model_copy(update=tuning),
        )

    def train(self, name: str, **changes: Any) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        exits.train_branches(self.config(**changes), self.data, self.weights, folder, ignore)
        return folder

    def open(self, **changes: Any) -> tuple[RoutedModel, dict[str, exits.Part]]:
        """The model, and its images by what they serve for."""
        config = self.config(**changes)
        model = open_model(config, self.data, self.weights)[0].eval()
        return model, exits.open_parts(config, self.data, model)


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / ARRAYS) as arrays:
        return dict(arrays)


def digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256(file) for file in folder.iterdir()}


@pytest.fixture(scope="module")
def bench(
    params: Params, pico: ModelPreset, prepared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Bench:
    return Bench(params, pico, prepared, tmp_path_factory.mktemp("exits"))


@pytest.fixture(scope="module")
def frozen(bench: Bench) -> Path:
    """All branches after every layer, for arbitrary orders; the backbone is what it was."""
    opened = open_model(bench.config(), bench.data, bench.weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exits, "open_model", lambda *_: opened)
        folder = bench.train("all")
    after = opened[0].backbone.state_dict()
    for name, tensor in load_file(bench.weights).items():
        assert torch.equal(after[name], tensor)
    return folder


EARLY = list(itertools.product((1, 2, 3), BRANCHES))


def test_rows_are_exits_in_every_order(frozen: Path) -> None:
    """A pruned route of two layers reaches the first two exits alone.

    Arrays, and what is judged, are of the order that exits were trained in.
    """
    rows = read_rows(frozen / ROWS)
    assert set(rows["order"]) == set(exits.ORDERS)
    for order, here in rows.groupby("order"):
        reached = [*EARLY, (4, "final")]
        if order == "pruned":
            reached = [*EARLY[:14], (2, "final")]
        assert list(zip(here["depth"], here["branch"], strict=True)) == reached
    own = rows["order"] == "arbitrary"
    assert rows.loc[~own, ["practical", "judge"]].isna().all(axis=None)
    assert rows["mae"].isna().all()
    rows, arrays = rows[own], arrays_of(frozen)
    places = list(zip(arrays["depth"], arrays["branch"], strict=True))
    assert places == [*EARLY, (4, "final")]
    for name, column in (("report", "accuracy"), ("judge", "judge")):
        assert arrays[f"confidence_{name}"].shape == (22, 20)
        assert arrays[f"score_{name}"].shape == (22, 20)
        means = arrays[f"score_{name}"].mean(axis=1)
        assert means == pytest.approx(rows[column].to_numpy(), abs=1e-6)
    is_practical = practical(rows["flops"].to_numpy(), arrays["score_report"])
    assert rows["practical"].tolist() == is_practical.tolist()


def test_reporting_images_say_which_exit_is_practical(bench: Bench, tmp_path: Path) -> None:
    """On the judging images, which chose it, the dearer exit is no better than the cheaper one."""
    right, wrong = np.ones(50), np.zeros(50)
    scores = {("judge", 1): right, ("judge", 2): wrong, ("report", 1): wrong, ("report", 2): right}
    trained = []
    for depth in (1, 2):
        answered = {
            name: exits.Answered(np.full(50, 0.9), scores[part, depth])
            for name, part in (("judge", "judge"), ("arbitrary", "report"))
        }
        trained.append(exits.Exit("mlp", depth, 0.01, 3, {}, answered))
    flops = count_exits(bench.pico, 12, ("mlp",), SIZES)
    exits.write_exits(trained, flops, bench.config(), tmp_path)
    rows = read_rows(tmp_path / ROWS)
    assert rows["practical"].tolist() == [True, True]
    assert rows["judge"].tolist() == [1, 0]


@pytest.mark.slow
def test_finished_depths_are_not_trained_again(
    bench: Bench, frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when all but the last depth are done."""

    def stop(depth: int, *rest: Any) -> Any:
        if depth == 3:
            raise KeyboardInterrupt
        return train_depth(depth, *rest)

    train_depth = exits.train_depth
    monkeypatch.setattr(exits, "train_depth", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.train("stopped")
    real = Mock(side_effect=train_depth)
    monkeypatch.setattr(exits, "train_depth", real)
    assert digests(bench.train("stopped")) == digests(frozen)
    assert digests(frozen).keys() == {ROWS, ARRAYS, EXIT_WEIGHTS, EXITS_IN_USE}
    assert [call.args[0] for call in real.call_args_list] == [3]


@pytest.mark.parametrize("order", exits.ORDERS)
def test_recorded_features_are_the_models_states(
    bench: Bench, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "BATCH_SIZE", 7)  # the last batch has 6
    model, parts = bench.open()
    part = parts["report"]
    routes = exits.draw_routes(order, len(part.rows), 4, bench.config(), "report")
    tokens, labels = exits.record(model, part, routes, 2, CPU)
    for place, row in enumerate(part.rows.tolist()):
        image, label = part.split.take(slice(row, row + 1))
        assert label == labels[place]
        states = dict(model.states(image, tuple(routes[place].tolist())))
        assert torch.allclose(states[2][0], tokens[place], atol=1e-5)
    assert (len(routes.unique(dim=0)) == 1) == (order == "sequential")
    half = Execution(torch.device("cpu"), "bf16")
    assert exits.record(model, part, routes, 2, half).tokens.dtype == torch.bfloat16


def test_images_that_choose_and_images_that_report(bench: Bench, raw: Path, tmp_path: Path) -> None:
    """Halves of the validation images, or held-out images and all validation images."""
    model, parts = bench.open(images=50)
    judge, report = parts["judge"].rows.tolist(), parts["report"].rows.tolist()
    assert sorted(judge + report) == list(range(40))
    assert abs(len(judge) - len(report)) <= 1
    assert len(parts["train"].rows) == 50
    prepare("bars", DatasetPreset(source="embedded", heldout=16), raw, tmp_path / "data")
    parts = exits.open_parts(bench.config(images=50), tmp_path / "data", model)
    assert [len(parts[name].rows) for name in ("train", "judge", "report")] == [50, 16, 40]


@pytest.mark.parametrize(("epochs", "lr", "dropout"), [(2, 0.005, 0.5), (12, 0.1, 0.0)])
def test_a_branch_trains_as_a_plain_loop_does(
    bench: Bench, epochs: int, lr: float, dropout: float
) -> None:
    """The rate falls after one epoch without gain, and three end the training."""
    config = bench.config()
    values = {"epochs": epochs, "batch_size": 4, "plateau_patience": 0, "stop_patience": 3}
    config = config.model_copy(update={"tuning": config.tuning.model_copy(update=values)})
    torch.manual_seed(6)
    classes = torch.randn(8, 3)
    parts = []
    for count in (50, 30):
        tokens = torch.randn(count, 2, 4)
        labels = (tokens.flatten(1) @ classes + torch.randn(count, 3)).argmax(-1)
        parts.append(exits.Recorded(tokens, labels))
    train, judge = parts
    branch = nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.Dropout(dropout), nn.Linear(16, 3))
    plain = copy.deepcopy(branch)
    torch.manual_seed(1)
    fitted = exits.fit(branch, train, judge, lr, config, CPU)

    optimizer = torch.optim.Adam(
        plain.parameters(),
        lr,
        config.tuning.betas,
        config.tuning.eps,
        config.tuning.weight_decay,
        fused=True,
    )
    losses: list[float] = []
    best: dict[str, torch.Tensor] = {}
    torch.manual_seed(1)
    while len(losses) < epochs and min(losses[-3:], default=0) <= min(losses, default=0):
        plain.train()
        order = generator("batches", config.seed, len(losses)).permutation(50)
        for rows in torch.from_numpy(order).split(4):
            optimizer.zero_grad()
            cross_entropy(plain(train.tokens[rows]), train.labels[rows]).backward()
            optimizer.step()
        plain.eval()
        losses.append(cross_entropy(plain(judge.tokens), judge.labels).item())
        if losses[-1] == min(losses):
            best = copy.deepcopy(plain.state_dict())
        else:
            optimizer.param_groups[0]["lr"] *= config.tuning.plateau_factor
    assert fitted.loss == pytest.approx(min(losses), rel=1e-5)
    assert (fitted.lr, fitted.epochs) == (lr, len(losses))
    torch.testing.assert_close(dict(branch.state_dict()), dict(best))
    best_epoch = losses.index(min(losses))
    rises = np.diff(losses[: best_epoch + 1]) > 0
    if epochs == 2:
        assert best_epoch == 1  # the second one, trained after an evaluation
    else:
        assert rises.any()
        assert best_epoch == len(losses) - 4  # the training ended early


@pytest.mark.slow
def test_a_frozen_backbone_drops_nothing(bench: Bench, tmp_path: Path) -> None:
    """Also if its variant was trained with dropped paths."""
    config = bench.config(branches=["mlp"], depths=[2])
    dropping = Variant(route="arbitrary", recipe=Recipe(drop_path=0.9))
    written = []
    for name, trained_as in (("plain", config.variant), ("dropping", dropping)):
        (tmp_path / name).mkdir()
        one = config.model_copy(update={"variant": trained_as})
        exits.train_branches(one, bench.data, bench.weights, tmp_path / name, ignore)
        written.append(digests(tmp_path / name))
    assert written[0] == written[1]


def test_what_an_exit_answers() -> None:
    """A class with its confidence, or a number, which has none, with its error."""
    outputs = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 3.0]])
    classified = exits.judge_answers(outputs, torch.tensor([1, 1]))
    first = np.exp(2) / (2 + np.exp(2))
    second = np.exp(3) / (1 + 2 * np.exp(3))
    assert classified.confidence == pytest.approx([first, second])
    assert classified.score.tolist() == [1, 0]
    counted = exits.judge_answers(torch.tensor([[2.0], [5.0]]), torch.tensor([3.0, 1.0]))
    assert np.isnan(counted.confidence).all()
    assert counted.score.tolist() == [-1, -4]


def test_small_gradients_are_not_lost_in_fp16(bench: Bench) -> None:
    """A branch that is nearly sure has some below what fp16 holds, unless its loss is scaled."""
    linear = nn.Linear(2, 2, bias=False)
    start = torch.tensor([[12.0, 0.0], [-4.0, 0.0]])
    linear.weight.data.copy_(start)
    branch = nn.Sequential(nn.Flatten(), linear)
    tokens = torch.tensor([[[1.0, 0.0]]]).repeat(64, 1, 1)
    recorded = exits.Recorded(tokens, torch.zeros(64, dtype=torch.long))
    half = Execution(torch.device("cpu"), "fp16")
    exits.fit(branch, recorded, recorded, 0.1, bench.config(), half)
    assert not torch.equal(linear.weight, start)


def test_the_best_epoch_of_the_best_learning_rate_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the loss on the judging images, and of several epochs each."""
    fitted: list[exits.Fitted] = []
    fit = exits.fit
    judging = bench.open()[1]["judge"]
    labels = judging.split.take(judging.rows)[1]

    places = list(itertools.product([1, 3], ["mlp", "cnn_add"]))

    def spy(branch: Any, train: Any, judge: Any, lr: float, *args: Any) -> exits.Fitted:
        assert torch.equal(judge.labels, labels)
        depth, kind = places[len(fitted) // 3]
        assert torch.initial_seed() == generator("train", 0, depth, kind).integers(2**62)
        before = task_loss(exits.answers(branch, judge.tokens, CPU), labels).item()
        best = fit(branch, train, judge, lr, *args)
        after = task_loss(exits.answers(best.branch, judge.tokens, CPU), labels).item()
        assert after == pytest.approx(best.loss, rel=1e-5)
        assert after < before or lr == 0.3
        fitted.append(best)
        return best

    monkeypatch.setattr(exits, "fit", spy)
    options: dict[str, Any] = {"lrs": [1e-6, 0.01, 0.3], "branches": ["mlp", "cnn_add"]}
    folder = bench.train("rates", depths=[1, 3, 4], route="sequential", **options)
    assert len(fitted) == 12  # 4 is the model's own head
    best = [min(fitted[i : i + 3], key=lambda fit: fit.loss) for i in range(0, 12, 3)]
    rows = read_rows(folder / ROWS)
    rows = rows[(rows["order"] == "sequential") & rows["lr"].notna()]
    assert rows["lr"].tolist() == [fit.lr for fit in best]
    assert rows["epochs"].tolist() == [fit.epochs for fit in best]


def test_counting_has_an_error_and_no_confidence(
    params: Params, pico: ModelPreset, prepared: Path, tmp_path: Path
) -> None:
    options = Counting(canvas=28, most=4, train=64, validation=20, heldout=10, epochs=1, seed=0)
    data = tmp_path / "counting"
    write_canvases(prepared, options, data)
    bench = Bench(params, pico, data, tmp_path)
    folder = bench.train("run", branches=["mlp", "resmlp"], depths=[2])
    rows = read_rows(folder / ROWS)
    assert set(rows["branch"]) == {"mlp", "resmlp", "final"}
    assert rows["mae"].between(0, 5, inclusive="neither").all()
    arrays = arrays_of(folder)
    assert arrays["score_judge"].shape == (3, 10)
    assert arrays["score_report"].shape == (3, 20)
    assert np.isnan(arrays["confidence_judge"]).all()
    errors = -arrays["score_report"].mean(axis=1)
    own = rows[rows["order"] == "arbitrary"]
    assert errors == pytest.approx(own["mae"].to_numpy(), abs=1e-6)


@pytest.fixture
def used(frozen: Path, tmp_path: Path) -> tuple[Path, InUse]:
    """A folder with other exits in use than the stage chose, and what it notes of them."""
    folder = shutil.copytree(frozen, tmp_path / "ls" / "seed_0")
    branches: list[Any] = ["cnn_project", "vit", "mixer", LAST_EXIT]
    places = [*map(EARLY.index, zip((1, 2, 3), branches, strict=False)), 21]
    used = InUse.read(frozen)._replace(
        weights_sha256="its own",
        places=places,
        branches=branches,
        depths=[1, 2, 3, 4],
        flops=np.array([10.0, 20.0, 30.0, 40.0]),
        spent=np.array([10.0, 25.0, 38.0, 50.0]),
        accuracy=np.array([0.25, 0.5, 0.75, 0.875]),
        confidence=arrays_of(frozen)["confidence_judge"][places],
    )
    used.write(folder)
    return folder, used


def test_exits_put_into_use(
    bench: Bench, frozen: Path, used: tuple[Path, InUse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the stage chose, with what it noted of them, answer as when it trained them."""
    folder, noted = used
    model, parts = bench.open()
    np.testing.assert_equal(tuple(deploy(model, folder, "its own")), tuple(noted))
    assert model.exits.keys() == {"1", "2", "3"}
    batch, labels = parts["report"].split.take(parts["report"].rows)
    routes = exits.draw_routes("arbitrary", len(batch), 4, bench.config(), "report")
    confidence = arrays_of(frozen)["confidence_report"]
    rows = read_rows(frozen / ROWS).set_index(["order", "branch", "depth"])
    for depth, kind, place in zip((1, 2, 3), noted.branches, noted.places, strict=False):
        found = model(batch, routes, exit=depth).softmax(-1).amax(-1)
        assert found.detach().numpy() == pytest.approx(confidence[place], abs=1e-5)
        right = is_right(model(batch, exit=depth), labels).float().mean()
        expected = rows.loc["sequential", kind, depth]["accuracy"]
        assert right.item() == pytest.approx(expected, abs=1e-6)
    about = {"branch": "mixer", "depth": 3, "accuracy": 0.75}
    assert noted.describe(2, tried=False) == about | {"flops": 30}
    assert noted.describe(2, tried=True) == about | {"flops": 38}
    calls: list[torch.nn.Module] = []
    for block in model.backbone.blocks:
        block.register_forward_hook(lambda block, *_: calls.append(block))
    monkeypatch.setattr(time, "perf_counter", itertools.count(0.0, 0.25).__next__)
    assert measure_latency(model, noted.depths, batch[:1]).tolist() == [250.0] * 4
    assert len(calls) == ROUNDS * sum(noted.depths)  # none runs beyond the exit that is timed


@pytest.mark.parametrize(
    ("order", "routes", "average", "accepted"),
    [
        ("arbitrary", [(2, 0, 1, 3)], True, None),
        ("arbitrary", [(2, 0, 1, 3)] * 2, True, "--order arbitrary --orders 1"),
        ("arbitrary", [(0, 1, 2, 3)], True, "--order arbitrary --orders 1"),
        ("sequential", [(0, 1, 2, 3)], True, None),
        ("sequential", [(2, 0, 1, 3)], True, "--order sequential --orders 1"),
        ("sequential", [(2, 0, 1, 3)] * 2, False, None),
        ("sequential", [(0, 1, 2)], False, "4, the depth of the last exit"),
        ("sequential", [(0, 1, 2, 3, 3)], False, "4, the depth of the last exit"),
    ],
)
def test_routes_that_exits_are_used_on(
    used: tuple[Path, InUse],
    order: str,
    routes: list[Route],
    average: bool,
    accepted: str | None,
) -> None:
    """With `average`, exits accept one route, in the order they were calibrated for."""
    deployed = used[1]._replace(order=order)
    with pytest.raises(UserError, match=f"accepted: {accepted}") if accepted else nullcontext():
        check_routes(deployed, routes, average)
    early = deployed._replace(branches=deployed.branches[:3], depths=[1, 2, 3])
    check_routes(early, [(0, 1, 2, 3)], average=False)


NO_BUDGET = "accepted with either --flops or --latency; --average with --flops"


@pytest.mark.parametrize(
    ("budget", "accepted"),
    [
        (Budget(None, None, False), NO_BUDGET),
        (Budget(20.0, 1.0, False), NO_BUDGET),
        (Budget(None, 1.0, True), NO_BUDGET),
        (Budget(9.0, None, False), "--flops: found 9, accepted: at least 10, the cost of the"),
        (Budget(float("nan"), None, False), "--flops: found nan, accepted: at least 10"),
        (Budget(None, 249.0, False), "--latency: found 249, accepted: at least 250"),
        (Budget(50.0, None, True), "accepted: --order arbitrary --orders 1"),
    ],
)
def test_budgets_that_are_refused(
    bench: Bench, used: tuple[Path, InUse], budget: Budget, accepted: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(time, "perf_counter", itertools.count(0.0, 0.25).__next__)
    opened = Opened(bench.open()[0], {}, [])
    deployed = deploy(opened.model, used[0], "its own")
    with refused(accepted, UserError):
        answer(opened, deployed, torch.zeros(1, 28, 28), [(0, 1, 2, 3)], budget, 1)


def test_the_best_exit_within_a_budget_answers(
    bench: Bench, used: tuple[Path, InUse], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a budget on average, the first exit that is sure enough does. Times are measured."""
    opened = Opened(bench.open()[0], {}, [])
    deployed = deploy(opened.model, used[0], "its own")
    image = torch.linspace(-1, 1, 28 * 28).view(1, 28, 28)
    route = (2, 0, 1, 3)

    def ask(budget: Budget) -> dict[str, Any]:
        answered = answer(opened, deployed, image, [route], budget, 1)
        depth = answered["exit"]["depth"]
        logits = opened.model(image[None], route, exit=depth if depth < 4 else None)
        assert answered["top"][0]["index"] == logits.argmax()
        return dict(answered["exit"])

    for budget, depth in ((10.0, 1), (29.0, 2), (30.0, 3), (40.0, 4), (1e9, 4)):
        assert ask(Budget(budget, None, False)) == deployed.describe(depth - 1, tried=False)
    for sure, depth in ((0.0, 1), (1.0, 4)):
        monkeypatch.setattr(InUse, "thresholds", lambda *_, sure=sure: dict.fromkeys((1, 3), sure))
        assert ask(Budget(50.0, None, True)) == deployed.describe(depth - 1, tried=True)
    monkeypatch.setattr(time, "perf_counter", itertools.count(0.0, 0.25).__next__)
    quick = ask(Budget(None, 250.0, False))  # all exits take as long
    assert quick == deployed.describe(3, tried=False) | {"latency_ms": 250.0}


def test_exits_of_other_weights_are_refused(bench: Bench, used: tuple[Path, InUse]) -> None:
    folder, _ = used
    model = bench.open()[0]
    with pytest.raises(UserError, match="exits of other weights, accepted: those of ls, seed_0"):
        deploy(model, folder, "another's")
    (folder / EXITS_IN_USE).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        deploy(model, folder, "its own")


def test_exits_in_use_are_chosen_on_the_judging_images(bench: Bench, frozen: Path) -> None:
    """The best practical one at each depth that has any, and the model's own head."""
    used = InUse.read(frozen)
    arrays = arrays_of(frozen)
    good = practical(arrays["flops"], arrays["score_judge"], noise=0.0)
    good |= arrays["depth"] == 4
    accuracy = arrays["score_judge"].mean(axis=1)
    candidates = pd.DataFrame({"depth": arrays["depth"], "accuracy": accuracy})[good]
    best = candidates.groupby("depth")["accuracy"].idxmax()
    assert dict(zip(used.depths, used.places, strict=True)) == best.to_dict()
    chosen = used.places
    assert used.branches == arrays["branch"][chosen].tolist()
    assert used.flops.tolist() == arrays["flops"][chosen].tolist()
    assert used.accuracy.tolist() == accuracy[chosen].tolist()
    tried = np.cumsum([0, *arrays["branch_flops"][chosen][:-1]])
    assert used.spent.tolist() == (used.flops + tried).tolist()


@pytest.mark.parametrize(
    ("name", "depth", "sizes", "message"),
    [
        (EXIT_WEIGHTS, 4, {}, "no branch 'mlp' after 4 layers that fits the model"),
        (EXIT_WEIGHTS, 1, {"hidden": 5}, "no branch 'mlp' after 1 layers"),
        ("none", 1, {}, "not a file that can be read"),
    ],
)
def test_exits_that_cannot_be_attached(
    name: str, depth: int, sizes: dict[str, int], message: str, bench: Bench, frozen: Path
) -> None:
    sizes_of_branches = SIZES.model_copy(update=sizes)
    with pytest.raises(UserError, match=message):
        attach(build(bench.pico, 10), frozen / name, {depth: "mlp"}, sizes_of_branches)


def test_flops_of_exits(bench: Bench, tmp_path: Path) -> None:
    """The same for every layer more, of trained models and of branches on frozen ones."""
    write_flops(bench.config(), bench.data, tmp_path, ignore)
    flops = json.loads((tmp_path / EXIT_COSTS).read_text())
    assert flops.keys() == {*BRANCHES, "final"}
    assert len({*np.diff(list(flops.values())).ravel()}) == 1
    assert all(costs[0] < flops["final"][3] for costs in flops.values())
    rows = read_rows(bench.train("few", branches=["mlp"], depths=[2]) / ROWS)
    for _, row in rows.iterrows():
        assert row["flops"] == flops[row["branch"]][row["depth"] - 1]
    talking = {"variant": Variant(route="sequential", talking_heads=True)}
    config = bench.config(branches=["mlp"]).model_copy(update=talking)
    write_flops(config, bench.data, tmp_path, ignore)
    more = json.loads((tmp_path / EXIT_COSTS).read_text())
    assert np.diff(more["mlp"])[0] > np.diff(flops["mlp"])[0]


@pytest.mark.parametrize("later", ["none", "a file"])
def test_layers_behind_the_first_exit_begin_anew(
    later: str, train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    """The first step's layers and exit are its own; the others are drawn, or those of a file."""
    config = with_exits(train_config(route="sequential"), step=0)
    files = {"first": tmp_path / "first.safetensors", "a file": tmp_path / "later.safetensors"}
    for file in files.values():
        save_weights(build(config.model, 10, config.variant), file)
    source = files.get(later)
    join(config, prepared, files["first"], source, tmp_path, ignore)
    found, first = load_file(tmp_path / WEIGHTS), load_file(files["first"])
    others = load_file(files["a file"])
    assert found.keys() == first.keys()
    for name, tensor in found.items():
        if name.startswith(LAYER_WISE[0]):
            assert torch.equal(tensor, first[name]), name
        elif source:
            assert torch.equal(tensor, others[name]), name
    drawn = "blocks.2.mlp.fc1.weight"
    assert source or not torch.equal(found[drawn], first[drawn])
