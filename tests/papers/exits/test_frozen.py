"""Training with early exits, exits on a frozen backbone, and what is done with them."""

import csv
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from lsvit.routed import RoutedModel
from lsvit.weights import save_weights
from papers import Variant
from papers.exits.compute import frozen as exits
from papers.exits.compute.counting import write_canvases
from papers.exits.compute.dynamic import attach, deploy, measure
from papers.exits.section import (
    BRANCHES,
    EXIT_COSTS,
    EXIT_WEIGHTS,
    EXITS_IN_USE,
    LAST_EXIT,
    BranchName,
    BranchTraining,
    Counting,
    ExitConfig,
)
from papers.exits.training import ExitTraining
from pipeline.config.datasets import DatasetPreset
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Optimisation
from pipeline.data.prepare import prepare
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import ARRAYS, HISTORY, ROWS, WEIGHTS, read_meta, sha256
from pipeline.models.weights import build
from pipeline.training import loop as training
from pipeline.training.judging import kept_epoch
from pipeline.training.loop import open_run, train, validate
from pipeline.training.objectives import Batch, is_right, task_loss
from pipeline.training.scoring import open_model, open_split
from tests.models import CPU, images, small, step_of, variant, with_parts
from tests.papers.exits.test_branches import FAMILIES, SIZES, heads
from tests.pipeline.training.ranks import gradients
from tests.pipeline.training.test_loop import Killed, outcome, run

Config = Callable[..., TrainConfig]
JUDGED = ("validation/arbitrary/objective", "validation/arbitrary/loss")


def with_exits(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The configuration with exits after 1 and 3 of the 4 layers."""
    return config.model_copy(
        update={"variant": config.variant.model_copy(update={"exits": heads(**changes)})}
    )


@torch.no_grad()
def test_a_training_steps_loss() -> None:
    """Of a model without exits the cross-entropy alone, bit for bit; with exits the objective; of a layer-wise step its exit's."""
    batch, labels, route, backbone = images(), torch.arange(6), (2, 1, 0, 3), small()
    plain = RoutedModel(backbone).eval()
    assert torch.equal(
        step_of(plain)(Batch(batch, labels), route)["loss"],
        cross_entropy(plain(batch, route), labels),
    )
    model = with_parts(backbone, exits=heads()).eval()
    losses = {
        exit: float(cross_entropy(model(batch, route, exit=exit), labels)) for exit in (1, 3, None)
    }
    found = step_of(model, exits=heads())(Batch(batch, labels), route)
    assert float(found["loss"]) == pytest.approx(losses[1] + losses[3] + 2 * losses[None])
    assert torch.equal(found["loss"], found["objective"])
    for step, exit in enumerate((1, 3, None)):
        layer_wise = step_of(model, exits=heads(step=step))
        assert float(layer_wise(Batch(batch, labels), route)["loss"]) == pytest.approx(losses[exit])


def trained(
    config: TrainConfig, data: Path, folder: Path
) -> tuple[set[str], list[dict[str, float]]]:
    """The names of the tensors that a training changes, and its history."""
    torch.manual_seed(1)
    start = folder / "start.safetensors"
    folder.mkdir()
    save_weights(build(config.model, 10, config.variant), start)
    train(config, data, start, folder, lambda event: None)
    before, after = load_file(start), load_file(folder / WEIGHTS)
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}, json.loads(
        (folder / HISTORY).read_text()
    )


def test_end_to_end_trains_everything(train_config: Config, prepared: Path, tmp_path: Path) -> None:
    config = with_exits(train_config(epochs=1, route="sequential"), branch="vit")
    changed, (row,) = trained(config, prepared, tmp_path / "run")
    assert changed == set(load_file(tmp_path / "run" / WEIGHTS))
    for order in ("sequential", "arbitrary"):
        at = f"validation/{order}/"
        assert {f"{at}exit_1_accuracy", f"{at}exit_3_accuracy"} <= row.keys()
        assert row[f"{at}objective"] == pytest.approx(
            2 * row[f"{at}loss"] + row[f"{at}exit_1_loss"] + row[f"{at}exit_3_loss"]
        )
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
    config = with_exits(
        train_config(epochs=1, route="sequential", optimizer="adamw", weight_decay=0.1), step=step
    )
    changed, (row,) = trained(config, prepared, tmp_path / "run")
    assert changed == {
        name for name in load_file(tmp_path / "run" / WEIGHTS) if name.startswith(LAYER_WISE[step])
    }
    own = f"exit_{(1, 3)[step]}_loss" if step < 2 else "loss"
    assert row["validation/sequential/objective"] == row[f"validation/sequential/{own}"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_layer_wise_steps_share_out_every_parameter(family: str) -> None:
    """Each is trained in one step, and reached by that step's loss."""
    taken: list[str] = []
    for step in range(3):
        own_heads = heads("cnn_ignore", step=step)
        model = with_parts(small(**FAMILIES[family]), exits=own_heads)
        ExitTraining(variant(exits=own_heads)).freeze(model)
        batch = Batch(images(), torch.arange(6))
        step_of(model, exits=own_heads)(batch, (0, 1, 2, 3))["loss"].backward()
        own = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        assert own == {
            name for name, parameter in model.named_parameters() if parameter.grad is not None
        }
        taken += own
    assert sorted(taken) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.slow
def test_the_kept_epoch_has_the_lowest_objective(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    config = with_exits(train_config(epochs=8, lr=0.05, route="sequential"), final_weight=0.01)
    _, history = trained(config, prepared, tmp_path / "run")
    objectives, losses = (
        [row[f"validation/sequential/{name}"] for row in history] for name in ("objective", "loss")
    )
    assert objectives.index(min(objectives)) != losses.index(min(losses))  # else this shows nothing
    assert kept_epoch(history, config.variant.route)["validation/sequential/objective"] == min(
        objectives
    )
    model, execution = open_model(config, prepared, tmp_path / "run" / WEIGHTS)
    split = open_split(config, prepared, "validation", model)
    opened = open_run(config, prepared, tmp_path / "run" / WEIGHTS, lambda event: None)
    opened.model.load_state_dict(model.eval().state_dict())
    row = validate(opened, "validation", ["sequential"])
    assert row["validation/sequential/objective"] == pytest.approx(min(objectives), rel=1e-6)
    batch, labels = split.take(slice(None))
    assert float(task_loss(model(batch, exit=3), labels).detach()) == pytest.approx(
        row["validation/sequential/exit_3_loss"], rel=1e-5
    )


@pytest.mark.slow
def test_plateau_and_resuming(
    train_config: Config, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rate falls to 0.6 after more than 2 epochs without gain, training ends after 5."""
    published = {"schedule": "plateau", "plateau_patience": 2, "stop_patience": 5, "lr": 0.001}
    config = with_exits(train_config(epochs=30, batch_size=96, per="sample", **published))
    losses = [
        3.0,
        2.0,
        2.5,
        1.99999,
        2.0,
        1.99999,
        3.0,
        2.0,
        2.0,
        2.0,
    ]  # a small gain is one, an equal loss is none

    def go_on(folder: str, done: int, stop_after: int | None = None) -> list[float]:
        coming = iter(losses[done:])
        monkeypatch.setattr(training, "validate", lambda *_: dict.fromkeys(JUDGED, next(coming)))
        return [row["lr"] / 0.001 for row in run(config, prepared, tmp_path / folder, stop_after)]

    rates = go_on("whole", 0)
    assert rates == pytest.approx([1.0] * 7 + [0.6] * 2)
    for killed in (6, 9):
        with pytest.raises(Killed):
            go_on(str(killed), 0, killed)
        torch.rand(5)  # a generator in another state must not matter
        assert go_on(str(killed), killed) == rates[killed:]
        assert outcome(tmp_path / str(killed)) == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("route", "per"),
    [
        ({"drop": 0.4}, "batch"),
        ({"drop": 0.6}, "sample"),
        ("arbitrary", "sample"),
        ("reversed", "batch"),
    ],
)
def test_exits_along_any_route(
    route: Any, per: str, train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    """LayerDrop's routes often end before an exit: it is then left out; all are trained in the end."""
    changed, (row, *_) = trained(
        with_exits(train_config(epochs=2, route=route, per=per)), prepared, tmp_path / "run"
    )
    assert changed == set(load_file(tmp_path / "run" / WEIGHTS))
    assert all(f"validation/arbitrary/exit_{depth}_accuracy" in row for depth in (1, 3))


@pytest.mark.slow
def test_less_memory_gives_the_same_gradients(
    train_config: Config, prepared: Path, tmp_path: Path
) -> None:
    found = []
    for name, changes in (("plain", {}), ("less", {"micro_batch_size": 5, "checkpointing": True})):
        config = train_config(route={"drop": 0.5}, per="sample", **changes)  # type: ignore[arg-type]
        (tmp_path / name).mkdir()
        gradients(with_exits(config, dropout=0.0), prepared, tmp_path / name, lambda event: None)
        found.append(torch.load(tmp_path / name / "gradients_0.pt"))
    for plain, less in zip(*found, strict=True):
        assert plain.keys() == less.keys()
        assert all(torch.allclose(plain[name], less[name], rtol=1e-4, atol=1e-6) for name in plain)


class Bench:
    """A frozen backbone, and the configuration of its exits."""

    def __init__(self, params: Params, pico: ModelPreset, data: Path, folder: Path) -> None:
        self.params, self.pico, self.data, self.folder = params, pico, data, folder
        self.weights = folder / "backbone.safetensors"
        torch.manual_seed(0)
        save_weights(build(pico, len(read_meta(data)["classes"])), self.weights)

    def config(self, route: Any = "arbitrary", **changes: Any) -> ExitConfig:
        own = {
            "optimizer": "adam",
            "schedule": "plateau",
            "lr": 1.0,
            "epochs": 3,
            "stop_patience": 2,
            "batch_size": 32,
        }
        options = {
            "branches": BRANCHES,
            "depths": None,
            "lrs": [0.01],
            "images": None,
            "keep": 2,
            "seed": 0,
        }
        return ExitConfig(
            title="test",
            dataset="bars",
            model_name="pico",
            model=self.pico,
            variant=Variant(route=route),
            device="cpu",
            seed=0,
            data_sha256="",
            weights_sha256=None,
            precision="fp32",
            options=BranchTraining.model_validate(SIZES.model_dump() | options | changes),
            tuning=Optimisation.model_validate(
                self.params.finetune.model_dump(include=set(Optimisation.model_fields)) | own
            ),
        )

    def train(self, folder: str, **changes: Any) -> Path:
        (self.folder / folder).mkdir(exist_ok=True)
        exits.train_branches(
            self.config(**changes),
            self.data,
            self.weights,
            self.folder / folder,
            lambda event: None,
        )
        return self.folder / folder


def results(folder: Path) -> tuple[str, str, dict[str, list]]:
    with np.load(folder / ARRAYS) as arrays:
        return (
            (folder / ROWS).read_text(),
            sha256(folder / EXIT_WEIGHTS),
            {name: arrays[name].tolist() for name in arrays},
        )


def read_rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / ROWS).read_text().splitlines()))


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
    assert all(
        torch.equal(after[name], tensor) for name, tensor in load_file(bench.weights).items()
    )
    return folder


def test_rows_and_arrays(frozen: Path) -> None:
    rows = read_rows(frozen)
    expected = [(kind, depth) for depth in (1, 2, 3) for kind in BRANCHES] + [("final", 4)]
    for order, reached in (
        ("sequential", expected),
        ("arbitrary", expected),
        ("pruned", [*expected[:14], ("final", 2)]),
    ):
        assert [
            (row["branch"], int(row["depth"])) for row in rows if row["order"] == order
        ] == reached
    with np.load(frozen / ARRAYS) as arrays:
        assert list(zip(arrays["branch"], arrays["depth"], strict=True)) == expected
        assert {name: arrays[name].shape for name in arrays if "_" in name} == {
            f"{name}_{part}": (22, 20)
            for name in ("confidence", "correct")
            for part in ("judge", "report")
        }
        own = [row for row in rows if row["order"] == "arbitrary"]
        assert [float(row["accuracy"]) for row in own] == pytest.approx(
            arrays["correct_report"].mean(axis=1).tolist(), abs=1e-6
        )
        assert ((arrays["confidence_report"] > 0.1) & (arrays["confidence_report"] <= 1)).all()
    assert all(row["mae"] == "" and 0 <= float(row["ece"]) <= 1 for row in rows)
    assert len({row["accuracy"] for row in rows}) > 3


@pytest.mark.slow
def test_few_features_at_once_give_the_same_exits(
    bench: Bench, frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "depths_at_once", lambda *_: 1)
    assert results(bench.train("one by one")) == results(frozen)


@pytest.mark.slow
def test_finished_depths_are_not_trained_again(
    bench: Bench, frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped when all but the last depth are done."""

    def stop(kind: BranchName, depth: int, *rest: Any) -> Any:
        if depth == 3:
            raise KeyboardInterrupt
        return train_exit(kind, depth, *rest)

    train_exit = exits.train_exit
    monkeypatch.setattr(exits, "train_exit", stop)
    with pytest.raises(KeyboardInterrupt):
        bench.train("stopped")
    real = Mock(side_effect=train_exit)
    monkeypatch.setattr(exits, "train_exit", real)
    assert results(bench.train("stopped")) == results(frozen)
    assert [call.args[1] for call in real.call_args_list] == [3] * len(BRANCHES)
    assert not list((bench.folder / "stopped").glob("depth_*"))


@pytest.mark.parametrize("order", exits.ORDERS)
def test_recorded_features_are_the_models_states(
    bench: Bench, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "BATCH_SIZE", 7)  # the last batch has 6
    model, execution = open_model(config := bench.config(), bench.data, bench.weights)
    part = exits.open_parts(config, bench.data, model.eval())["report"]
    routes = exits.draw_routes(order, len(part.rows), 4, config, "report")
    tokens, labels = exits.record(model, part, routes, [1, 2], execution)
    for place, row in enumerate(part.rows.tolist()):
        image, label = part.split.take(slice(row, row + 1))
        assert label == labels[place]
        found = dict(model.states(image, tuple(routes[place].tolist())))
        assert torch.allclose(torch.cat([found[1], found[2]]), tokens[:, place], atol=1e-5)
    assert (len({tuple(route) for route in routes.tolist()}) == 1) == (order == "sequential")


def test_images_that_choose_and_images_that_report(bench: Bench, raw: Path, tmp_path: Path) -> None:
    """Two halves of the validation images; where there are held-out images, these and all validation images."""
    model, _ = open_model(config := bench.config(images=50), bench.data, bench.weights)
    parts = exits.open_parts(config, bench.data, model)
    judge, report = (parts[name].rows.tolist() for name in ("judge", "report"))
    assert sorted(judge + report) == list(range(40))
    assert abs(len(judge) - len(report)) <= 1
    assert len(parts["train"].rows) == 50
    prepare("bars", DatasetPreset(source="embedded", heldout=16), raw, tmp_path / "data")
    parts = exits.open_parts(config, tmp_path / "data", model)
    assert [len(parts[name].rows) for name in ("train", "judge", "report")] == [50, 16, 40]


def test_the_best_epoch_of_the_best_learning_rate_is_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the loss on the judging images, and of several epochs each."""
    fitted: list[exits.Fitted] = []
    real, (model, _) = exits.fit, open_model(bench.config(), bench.data, bench.weights)
    labels = (part := exits.open_parts(bench.config(), bench.data, model)["judge"]).split.take(
        part.rows
    )[1]

    def spy(branch: Any, train: Any, judge: Any, *args: Any) -> exits.Fitted:
        before = task_loss(exits.answers(branch, judge.tokens, CPU), judge.labels).item()
        found = real(branch, train, judge, *args)
        assert found.loss < before or args[0] == 0.3
        again = task_loss(exits.answers(found.branch, judge.tokens, CPU), judge.labels)
        assert float(again) == pytest.approx(found.loss, rel=1e-5)
        assert torch.equal(judge.labels, labels)
        fitted.append(found)
        return found

    monkeypatch.setattr(exits, "fit", spy)
    rows = read_rows(
        bench.train(
            "rates",
            lrs=[1e-6, 0.01, 0.3],
            branches=["mlp", "cnn_add"],
            depths=[1, 3, 4],
            route="sequential",
        )
    )
    best = [min(fitted[i : i + 3], key=lambda each: each.loss) for i in range(0, 12, 3)]
    assert len(fitted) == 12  # 4 is the model's own head
    rows = [row for row in rows if row["order"] == "sequential" and row["branch"] != "final"]
    assert [(float(row["lr"]), int(row["epochs"])) for row in rows] == [
        (each.lr, each.epochs) for each in best
    ]


def test_counting_has_an_error_and_no_calibration(
    params: Params, pico: ModelPreset, prepared: Path, tmp_path: Path
) -> None:
    write_canvases(
        prepared,
        Counting(canvas=28, most=4, train=64, validation=20, heldout=10, epochs=1, seed=0),
        tmp_path / "counting",
    )
    folder = Bench(params, pico, tmp_path / "counting", tmp_path).train(
        "run", branches=["mlp", "resmlp"], depths=[2]
    )
    rows = read_rows(folder)
    assert {row["branch"] for row in rows} == {"mlp", "resmlp", "final"}
    assert all(row["ece"] == "" and 0 < float(row["mae"]) < 5 for row in rows)
    with np.load(folder / ARRAYS) as arrays:
        assert [arrays[f"correct_{part}"].shape for part in ("judge", "report")] == [
            (3, 10),
            (3, 20),
        ]
        assert np.isnan(arrays["confidence_judge"]).all()


def test_attached_exits_answer_as_the_rows_say(bench: Bench, frozen: Path) -> None:
    model, _ = open_model(config := bench.config(), bench.data, bench.weights)
    chosen: dict[int, Any] = {1: "cnn_project", 2: "vit", 3: "mixer"}
    attach(model.eval(), frozen / EXIT_WEIGHTS, chosen, SIZES)
    batch, labels = (part := exits.open_parts(config, bench.data, model)["report"]).split.take(
        part.rows
    )
    accuracy = {
        (row["branch"], row["depth"]): float(row["accuracy"])
        for row in read_rows(frozen)
        if row["order"] == "sequential"
    }
    for depth, kind in chosen.items():
        assert float(is_right(model(batch, exit=depth), labels).float().mean()) == pytest.approx(
            accuracy[kind, str(depth)], abs=1e-6
        )


def test_exits_put_into_use(bench: Bench, frozen: Path, tmp_path: Path) -> None:
    """Those that the stage chose, with what it noted of them; of other weights, or none, they are refused."""
    folder = shutil.copytree(frozen, tmp_path / "ls" / "seed_0")
    chosen: dict[str, Any] = {
        "branches": ["vit", "mlp", LAST_EXIT],
        "depths": [1, 3, 4],
        "order": "arbitrary",
        "sizes": SIZES.model_dump(),
    }
    costs = {
        "flops": [1, 2, 3],
        "spent": [1, 3, 5],
        "latency": [0.1, 0.2, 0.3],
        "accuracy": [0.4, 0.5, 0.6],
    }
    (folder / EXITS_IN_USE).write_text(json.dumps(chosen | costs | {"weights_sha256": "its own"}))
    model, other = (
        open_model(bench.config(), bench.data, bench.weights)[0].eval() for _ in range(2)
    )
    found = deploy(model, folder, "its own")
    attach(other, frozen / EXIT_WEIGHTS, {1: "vit", 3: "mlp"}, SIZES)
    batch = torch.rand(3, 1, 28, 28)
    assert model.exits.keys() == {"1", "3"}
    assert all(torch.equal(model(batch, exit=depth), other(batch, exit=depth)) for depth in (1, 3))
    with np.load(frozen / ARRAYS) as arrays:
        names = list(zip(arrays["branch"], arrays["depth"], strict=True))
        rows = [names.index(exit) for exit in (("vit", 1), ("mlp", 3), (LAST_EXIT, 4))]
        assert np.array_equal(found.confidence, arrays["confidence_judge"][rows])
    assert {name: getattr(found, name).tolist() for name in costs} == costs
    with pytest.raises(UserError, match="exits of other weights, accepted: those of ls, seed_0"):
        deploy(model, folder, "another's")
    with pytest.raises(UserError, match="cannot be read"):
        deploy(model, frozen, "its own")


def test_exits_that_cannot_be_attached(bench: Bench, frozen: Path, tmp_path: Path) -> None:
    model, file, other = (
        build(bench.pico, 10),
        frozen / EXIT_WEIGHTS,
        SIZES.model_copy(update={"hidden": 5}),
    )
    for path, depth, sizes, said in (
        (file, 4, SIZES, r"has no branch 'mlp' after 4 layers, accepted: cnn_add\.1, cnn_add\.2, "),
        (file, 1, other, "does not fit the model: "),
        (tmp_path / "none", 1, SIZES, "not a safetensors file"),
    ):
        with pytest.raises(UserError, match=said) as error:
            attach(model, path, {depth: "mlp"}, sizes)
        assert "\n" not in str(error.value)


def test_costs_of_exits(bench: Bench, tmp_path: Path) -> None:
    """FLOPs: the same for every layer more; the time of every exit that can be taken."""
    begun = time.perf_counter()
    measure(bench.config(), bench.data, tmp_path, lambda event: None)
    found = json.loads((tmp_path / EXIT_COSTS).read_text())
    assert sum(found["latency_ms"].values()) < 1000 * (time.perf_counter() - begun)
    flops, names = found["flops"], {f"{kind}.{depth}" for kind in BRANCHES for depth in (1, 2, 3)}
    assert found["latency_ms"].keys() == names | {"final.4"}
    assert min(found["latency_ms"].values()) > 0
    assert flops.keys() == names | {f"final.{depth}" for depth in (1, 2, 3, 4)}
    steps = {
        flops[f"{kind}.{depth + 1}"] - flops[f"{kind}.{depth}"]
        for kind in (*BRANCHES, "final")
        for depth in (1, 2)
    }
    assert len(steps) == 1
    assert (
        flops["mlp.1"] - found["branch_flops"]["mlp"]
        == flops["vit.1"] - found["branch_flops"]["vit"]
        < flops["final.1"]
    )
    talking = Variant(route="sequential", talking_heads=True)
    config = bench.config(branches=["mlp"]).model_copy(update={"variant": talking})
    measure(config, bench.data, tmp_path, lambda event: None)
    more = json.loads((tmp_path / EXIT_COSTS).read_text())["flops"]
    assert more["mlp.2"] - more["mlp.1"] > steps.pop()
