"""What a configuration costs: FLOPs against formulas, counts against real runs, times against hand-made hardware."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from lsvit.routed import RoutedModel
from lsvit.routes import Order, arbitrary, drop, generator
from papers.exits.branches import token_shape
from papers.inversion.compute import class_images
from papers.inversion.compute import descent as inversion
from papers.inversion.compute.ablation import ablate
from papers.inversion.compute.plan import Plan
from papers.inversion.compute.presets import family_preset
from papers.inversion.section import ClassImagesConfig, Inversion, InversionConfig
from papers.layershuffle.compute.analysis import record
from papers.layershuffle.compute.evaluation import evaluate
from papers.layershuffle.cost import published
from papers.layershuffle.section import EvalConfig, PruneEval
from papers.smoothing.compute.presets import preset
from pipeline.config import datasets
from pipeline.config.datasets import SIZES, DatasetPreset
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.config.variant import Encode, ExitHeads, Position, Predict, Recipe, Variant
from pipeline.cost.estimate import estimate, format_flops, format_seconds, stages
from pipeline.cost.flops import FLOPS, Forward, count_branch, count_forward, meta_backbone
from pipeline.cost.hardware import Hardware, Speed, Work, known_hardware
from pipeline.cost.work import STEP, Stage, mean_length, route_work
from pipeline.data.prepare import prepare
from pipeline.data.sources import CLASSES, read_digits
from pipeline.errors import UserError
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import read_meta
from pipeline.jobs.plan import run_config
from pipeline.models.weights import save_weights
from pipeline.training.loop import train
from pipeline.training.scoring import open_model, open_split
from stages.commands import app
from tests.conftest import PICO, ROOT
from tests.lsvit.test_routed import FAMILIES


def vit(**kwargs: Any) -> ModelPreset:
    return ModelPreset(timm="vit_tiny_patch16_224", kwargs=PICO | kwargs, weights="scratch")


# ---- FLOPs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"patch_size": 7, "embed_dim": 64},
        {"mlp_ratio": 3, "num_heads": 4},
        {"img_size": 56, "in_chans": 3},
    ],
)
def test_flops_of_a_vit_are_the_formulas(kwargs: dict[str, Any]) -> None:
    preset = vit(**kwargs)
    k = preset.kwargs
    width, patch, hidden = (
        k["embed_dim"],
        k["patch_size"],
        int(k["embed_dim"] * k.get("mlp_ratio", 4)),
    )
    patches = (k["img_size"] // patch) ** 2
    tokens = patches + 1
    backbone = meta_backbone(preset, 10)
    forward = count_forward(backbone, preset)
    linear = 2 * tokens * 4 * width**2  # queries, keys, values, projection
    attention = 2 * 2 * tokens**2 * width
    block = linear + attention + 2 * 2 * tokens * width * hidden
    assert forward.block[FLOPS] == block
    assert forward.outside[FLOPS] == 2 * patches * patch**2 * k["in_chans"] * width + 2 * width * 10
    encoding = count_forward(backbone, preset, Position(encode=Encode(dim=8)))
    assert encoding.block[FLOPS] == block + 2 * tokens * (width + 8) * width
    prediction = count_forward(backbone, preset, Position(predict=Predict()))
    assert prediction.block[FLOPS] == block + 2 * width * k["depth"]


def test_flops_of_vit_b16_are_the_known_ones() -> None:
    """17.6 G multiply-adds at 224 px with 1000 classes."""
    preset = ModelPreset(timm="vit_base_patch16_224", weights="scratch")
    forward = count_forward(meta_backbone(preset, 1000), preset)
    assert route_work(forward, 1, 1, 12).flops == pytest.approx(35.1e9, rel=1e-3)
    assert route_work(forward, 1, 1, 12).flops / 2 == pytest.approx(17.58e9, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_models_blocks_cost_the_same(name: str) -> None:
    """Outside plus a block a layer is the whole model of any family, run by timm itself."""
    preset = ModelPreset(
        timm=name,
        kwargs={k: v for k, v in FAMILIES[name].items() if k != "num_classes"},
        weights="scratch",
    )
    backbone = meta_backbone(preset, 7)
    forward = count_forward(backbone, preset)
    size = (getattr(backbone, "stem", None) or backbone.patch_embed).img_size
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone.eval()(torch.empty(1, 3, *size, device="meta"))
    assert route_work(forward, 1, 1, forward.num_layers).flops == counter.get_total_flops() > 0


# ---- counts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(params: Params, pico: ModelPreset) -> Params:
    """80 training images (16 more held out), 40 validation images, a 4-layer model, one set of starting weights."""
    options = {"batch_size": 32, "epochs": 2, "validation_batch_size": 16}
    evaluation = {
        "keep": [2, 4],
        "orders": 3,
        "images": 24,
        "batch_size": 40,
        "samplers": ["arbitrary", {"swap": 2}, {"swap": 6}],
    }
    evaluation["variants"] = ["ls"]
    exits = {
        "variants": {"baseline": None, "ls": None, "refit_3": None},
        "depths": None,
        "placements": [[2], [1, 3]],
        "keep": 3,
        "lrs": [0.1, 0.01],
        "backbone_lrs": [0.1, 0.01],
        "epochs": 5,
        "counting": params.exits.counting.model_copy(update={"epochs": 2}),
        "branches": ["mlp", "vit"],
        "images": 50,
        "batch_size": 20,
        "backbone_epochs": 2,
        "seeds": 1,
    }
    variants = {
        "ls": Variant(route="arbitrary"),
        "ls_pred": Variant(route="arbitrary", position=Position(predict=Predict())),
        "layerdrop": Variant(route={"drop": 0.5}),
        "refit_3": Variant(route="sequential", layers=3),
        "skip": Variant(route={"skip": [1]}, finetune={"images": 40}),
        "sample": Variant(route="arbitrary", per="sample", finetune={"epochs": 1}),
    }
    smoothing = {
        "depths": [2, 3],
        "removed": ["drop_path"],
        "recipe": Recipe(drop_path=0.1),
        "talking_heads": [2],
        "seeds": 1,
        "kwargs": {},
        "training": options,
        "images": 30,
        "batch_size": 20,
        "variants": ["baseline", "ls_pred"],
    }
    mixer = {
        "timm": "mixer_custom",
        "kwargs": {
            "img_size": 28,
            "patch_size": 14,
            "in_chans": 1,
            "embed_dim": 16,
            "num_blocks": 3,
        },
    }
    inversion = {
        "families": {"pico": {}, "mixer": mixer},
        "training": options,
        "images": 2,
        "depths": None,
        "shifts": 3,
        "records": 2,
        "optimisers": {
            "adam": {
                "method": "adam",
                "lrs": [0.1],
                "steps": 5,
                "blur": 0.5,
                "total_variation": 0.1,
            },
            "gd": {"method": "gd", "lrs": [0.03, 0.1], "steps": 4},
        },
        "ablations": {"pico": [["attention"]]},
        "transplants": {"mixer": [["patch_embed"]]},
        "variants": ["baseline", "refit_3"],
        "class_images": params.inversion.class_images.model_copy(
            update={"steps": 6, "batch_size": 4}
        ),
    }
    painters = {
        "variants": ["baseline", "ls"],
        "treated": [2],
        "orders": 2,
        "images": 30,
        "batch_size": 20,
    }
    bars = {"source": "embedded", "train": 96, "validation": 40, "heldout": 16}
    kinds = {
        "models": type(params.models[params.model]),
        "datasets": type(params.datasets[params.dataset]),
    }
    return params.model_copy(
        update={
            "dataset": "bars",
            "datasets": {"bars": kinds["datasets"].model_validate(bars)},
            "model": "pico",
            "models": {"pico": kinds["models"].model_validate(pico.model_dump())},
            "seeds": [0, 1],
            "variants": variants,
            "pretrain": params.pretrain.model_copy(update=options | {"seeds": 1}),
            "finetune": params.finetune.model_copy(update=options | {"threads": 1}),
            "prune_eval": params.prune_eval.model_copy(update=evaluation),
            "analysis": params.analysis.model_copy(
                update={"images": 30, "layer": 2, "variants": ["ls"]}
            ),
            "exits": params.exits.model_copy(update=exits),
            "smoothing": params.smoothing.model_copy(update=smoothing),
            "inversion": Inversion.model_validate(params.inversion.model_dump() | inversion),
            "painters": params.painters.model_copy(update=painters),
            "nodes": params.nodes.model_copy(
                update={"variants": {"baseline": ["strict"], "ls": ["any"]}, "nodes": [4]}
            ),
        }
    )


class Spy:
    """Counts what real models are asked to do; of a backward pass through a model that is not trained, to its input, the images again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images, self.batches = {True: 0, False: 0}, 0
        self.outside, self.blocks = Counter[str](), Counter[str]()
        embed, step = RoutedModel.embed, RoutedModel._step

        def count(run: Counter[str], model: RoutedModel, out: torch.Tensor) -> None:
            run.update(calls=1, images=len(out))
            if out.requires_grad and not model.training:
                out.register_hook(lambda gradient: run.update(images=len(gradient)))

        def count_embed(model: RoutedModel, images: torch.Tensor) -> torch.Tensor:
            self.images[model.training] += len(images)
            self.batches += 1
            count(self.outside, model, out := embed(model, images))
            return out

        def count_step(model: RoutedModel, before: torch.Tensor, *args: Any) -> torch.Tensor:
            count(self.blocks, model, out := step(model, before, *args))
            return out

        monkeypatch.setattr(RoutedModel, "embed", count_embed)
        monkeypatch.setattr(RoutedModel, "_step", count_step)

    def check(self, job: list[Work], model: Forward, rel: float) -> None:
        """Images are equal; operations and FLOPs are equal up to what depends on drawn routes."""
        for training, images in self.images.items():
            assert sum(work.images for work in job if work.training == training) == images
        assert sum(work.batches for work in job) == self.batches
        operations = (
            self.outside["calls"] * model.outside[0] + self.blocks["calls"] * model.block[0]
        )
        assert sum(work.operations for work in job) == pytest.approx(operations, rel=rel)
        flops = (
            self.outside["images"] * model.outside[FLOPS]
            + self.blocks["images"] * model.block[FLOPS]
        )
        assert sum(work.flops / (STEP if work.training else 1) for work in job) == pytest.approx(
            flops, rel=rel
        )


def job_of(params: Params, part: str, name: str, position: int = 0) -> list[Work]:
    return next(
        stage.jobs[position] for stage in stages(params) if (stage.part, stage.name) == (part, name)
    )


@pytest.fixture
def bars(raw: Path, tmp_path: Path, small: Params) -> Path:
    prepare("bars", small.dataset_preset, raw, tmp_path / "prepared")
    return tmp_path / "prepared"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["baseline", "ls", "ls_pred", "layerdrop", "refit_3", "skip", "sample"]
)
def test_counts_of_a_training_are_those_of_a_real_one(
    name: str, small: Params, bars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = small.all_variants[name]
    run = run_config(small, name, variant, read_meta(bars)["sha256"], None)
    model = count_forward(
        meta_backbone(small.model_preset, 10), small.model_preset, variant.position
    )
    job, spy = job_of(small, "finetune", name), Spy(monkeypatch)
    options = small.resolve(Finetune, name)
    train(
        TrainConfig(**run, options=options, seed=0, per=options.per),
        bars,
        None,
        tmp_path,
        lambda row: None,
    )
    drawn = {"layerdrop": 0.3, "sample": 0.03}
    spy.check(job, model, drawn.get(name, 1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ls", "refit_3"])
@pytest.mark.parametrize("per", ["pass", "batch", "sample"])
def test_counts_of_an_evaluation_are_those_of_a_real_one(
    per: str, name: str, small: Params, bars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = small.model_copy(
        update={"prune_eval": small.prune_eval.model_copy(update={"per": per})}
    )
    run = run_config(small, name, small.variants[name], read_meta(bars)["sha256"], None)
    config = EvalConfig(**run, options=small.resolve(PruneEval).of(name), precision="fp32", seed=0)
    save_weights(open_model(config, bars, None)[0], tmp_path / "weights.safetensors")
    model = count_forward(meta_backbone(small.model_preset, 10), small.model_preset)
    first = list(small.all_variants).index(name) * len(small.seeds)
    job, spy = job_of(small, "prune-eval", "", first), Spy(monkeypatch)
    evaluate(config, bars, tmp_path / "weights.safetensors", tmp_path, lambda event: None)
    spy.check(job, model, 0.05)


@pytest.mark.slow
def test_counts_of_the_analysis_are_those_of_a_real_one(
    small: Params, bars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_config(small, "ls", small.variants["ls"], read_meta(bars)["sha256"], None)
    config = EvalConfig(**run, options=small.resolve(PruneEval), precision="fp32", seed=0)
    model, execution = open_model(config, bars, None)
    routes = np.array([arbitrary(generator("analysis", 0, i), model.num_layers) for i in range(30)])
    counted = count_forward(meta_backbone(small.model_preset, 10), small.model_preset)
    job, spy = job_of(small, "analysis", "", 1), Spy(monkeypatch)
    record(
        model, open_split(config, bars, "validation", model), np.arange(30), routes, 2, execution
    )
    spy.check(job, counted, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        ("trained", "none", "gd", "sequential"),
        ("untrained", "none", "adam", "sequential"),
        ("refit_3", "none", "adam", "arbitrary"),
        ("trained", "without attention", "adam", "sequential"),
    ],
)
def test_counts_of_inversions_are_those_of_real_ones(
    asked: tuple[str, str, str, Order],
    small: Params,
    bars: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(small, bars)
    found = plan.inverted(plan.subjects())
    position = [
        (subject.weights, subject.edit, optimiser, order) for subject, optimiser, order in found
    ].index(asked)
    subject, optimiser, order = found[position]
    backbone = meta_backbone(small.model_preset, 10)
    if subject.ablation:
        ablate(backbone, subject.ablation)
    model = count_forward(backbone, small.model_preset)
    job, spy = job_of(small, "inversion", "inversions", position), Spy(monkeypatch)
    config = plan._inversion(subject._replace(file=None, donor=None), optimiser, order).job.config
    assert isinstance(config, InversionConfig)
    inversion.measure(config, bars, None, None, tmp_path, lambda event: None)
    spy.check(job, model, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position", "judged"), [(0, False), (3, True)]
)  # the chosen model, of which there is one; the baseline
def test_counts_of_class_images_are_those_of_real_ones(
    position: int,
    judged: bool,
    small: Params,
    bars: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_config(small, "baseline", small.baseline, read_meta(bars)["sha256"], None)
    config = ClassImagesConfig(
        **run, options=small.inversion.class_images, judge_sha256=None, seed=0
    )
    weights = tmp_path / "weights.safetensors"
    save_weights(open_model(config, bars, None)[0], weights)
    model = count_forward(meta_backbone(small.model_preset, 10), small.model_preset)
    job, spy = job_of(small, "inversion", "class images", position), Spy(monkeypatch)
    class_images.measure(
        config, bars, weights, weights if judged else None, tmp_path, lambda event: None
    )
    spy.check(job, model, 1e-9)


@pytest.mark.slow
def test_stages_and_their_jobs(small: Params) -> None:
    found = {f"{stage.part} {stage.name}".strip(): len(stage.jobs) for stage in stages(small)}
    trained = {f"finetune {name}": 2 for name in small.all_variants}
    branches = (
        2 * 2 * (3 + 3 + 2)
    )  # of two kinds, two learning rates, after each layer of three backbones but the last
    whole = {"end_to_end": 2 * (1 + 2 * 2), "layer_wise": 2 * (2 + 3)}
    exits = {"exits classifier_wise": 3 + branches} | {
        f"exits {strategy}": jobs for strategy, jobs in whole.items()
    }
    counting = {"classifier_wise": 1 + 2 * 2 * 3, "end_to_end": whole["end_to_end"]}
    exits |= {f"exits counting, {strategy}": jobs for strategy, jobs in counting.items()}
    smoothing = {
        "smoothing 3 layers": 8,
        "smoothing 2 layers": 8 + 2 + 1,
        "smoothing profiles": 19 + 2 + 2 * 2,
    }  # untrained ones, variants
    looked_into = 2 + 2 * 2  # trained and untrained: the chosen model once, the mixer of two seeds
    refined = (
        2 * (2 * 2 + 2) - 1
    )  # in both orders: two variants, and the chosen model untrained, which is a family, too
    edited = 2 + 2  # the chosen model without attention, untrained mixers with a trained part
    inversion = {
        "inversion trainings": 2,
        "inversion inversions": 2 + looked_into + refined + edited,
    }
    inversion |= {"inversion class images": 1 + 2 + 2 * 2}
    others = {"prune-eval": 7 * 2, "analysis": 1 + 2, "painters": 2 * 2, "nodes": 2 * 2}
    assert found == {"pretrain": 1, **trained, **others, **exits, **smoothing, **inversion}
    apart = small.model_copy(
        update={"pretrain": small.pretrain.model_copy(update={"seeds": None})}
    )  # starting weights of each seed
    assert [
        len(stage.jobs) for stage in stages(apart) if stage.part in ("pretrain", "analysis")
    ] == [2, 2 + 2]
    chosen = small.exits.model_copy(
        update={"strategies": ["layer_wise"], "counting_strategies": [], "seeds": None}
    )
    only = [
        stage
        for stage in stages(small.model_copy(update={"exits": chosen}))
        if stage.part == "exits"
    ]
    assert [(stage.name, len(stage.jobs)) for stage in only] == [
        ("layer_wise", 2 * whole["layer_wise"])
    ]
    untrained = Inversion.model_validate(
        small.inversion.model_dump() | {"families": {"pico": {}}, "transplants": {}}
    )
    rows = [
        stage.name
        for stage in stages(small.model_copy(update={"inversion": untrained}))
        if stage.part == "inversion"
    ]
    assert rows == ["inversions", "class images"]
    tagged = "vit_tiny_patch16_224.augreg_in21k"
    hub = {
        "models": {
            "pico": small.models["pico"].model_copy(update={"weights": "hub", "timm": tagged})
        }
    }  # counted without the weights
    assert stages(small.model_copy(update=hub))[0].name == "baseline"


@pytest.mark.slow
def test_work_of_exits(small: Params) -> None:
    """80 training, 40 validation and 16 held-out images; at most 50 of them for branches on a frozen backbone."""
    backbone = meta_backbone(small.model_preset, 10)
    plain, shape = count_forward(backbone, small.model_preset), token_shape(backbone)
    whole, vit_branch = (
        (plain.outside + 4 * plain.block)[FLOPS],
        count_branch("vit", shape, 10, small.exits)[FLOPS],
    )
    jobs = {stage.name: stage.jobs for stage in stages(small) if stage.part == "exits"}
    features, *_, branch = jobs["classifier_wise"]
    assert [(work.training, work.images, work.batches, work.flops) for work in features] == [
        (False, images, batches, images * whole) for images, batches in ((50, 3), (16, 1), (120, 6))
    ]
    assert [(work.training, work.images, work.flops) for work in branch] == [
        (True, 5 * 50, 3 * 5 * 50 * vit_branch),
        (False, 5 * 16, 5 * 16 * vit_branch),
        (False, 40, 40 * vit_branch),
    ]
    alone, *_, three = jobs["end_to_end"][:5]  # vit in the second placement
    assert (
        [work.images for work in three] == [work.images for work in alone] == 2 * [40, 40, 40, 16]
    )  # 50 images, complete batches of 20
    assert three[0].flops - alone[0].flops == pytest.approx(3 * 40 * 2 * vit_branch)
    first = jobs["layer_wise"][0]  # cnn_ignore after 2 layers
    expected = (
        plain.outside + 2 * plain.block + count_branch("cnn_ignore", shape, 10, small.exits)
    )[FLOPS]
    assert first[0].flops == pytest.approx(3 * 40 * expected)
    canvases = small.exits.counting
    chosen = small.exits.model_copy(update={"counting_strategies": ["classifier_wise"]})
    trained = next(
        stage.jobs[0]
        for stage in stages(small.model_copy(update={"exits": chosen}))
        if stage.name == "counting, backbone"
    )
    assert [work.images for work in trained] == 2 * [
        40,
        canvases.validation,
        canvases.validation,
        canvases.heldout,
    ]
    assert trained[0].flops == pytest.approx(3 * 40 * (whole - 2 * 16 * 9))  # one output, not ten


@pytest.mark.slow
def test_work_of_smoothing(small: Params) -> None:
    """64 of 80 training images in complete batches, twice; profiles of 30; talking heads mix the scores of two heads twice."""
    counted = {
        depth: count_forward(meta_backbone(preset(small, depth), 10), preset(small, depth))
        for depth in (2, 3)
    }
    jobs = {stage.name: stage.jobs for stage in stages(small) if stage.part == "smoothing"}
    for depth, model in counted.items():
        whole = (model.outside + depth * model.block)[FLOPS]
        for work in (
            jobs[f"{depth} layers"][0][0],
            jobs[f"{depth} layers"][0][4],
        ):  # an epoch: training, two orders, held-out images
            assert (work.training, work.images, work.flops) == (
                True,
                64,
                pytest.approx(3 * 64 * whole),
            )
    talking = jobs["2 layers"][-1][0].flops - jobs["2 layers"][0][0].flops
    assert talking == pytest.approx(
        3 * 64 * 2 * 2 * 2 * 5 * 5 * 2 * 2
    )  # layers x mixes x FLOPs x tokens^2 x heads^2
    first, *_, last = jobs["profiles"]
    assert [(work.training, work.images, work.batches) for work in (*first, *last)] == [
        (False, 30, 2)
    ] * 2


@pytest.mark.slow
def test_work_of_inversion(small: Params) -> None:
    """Of 2 images: the embedding, the states after 1, 2 and 3 of 3 layers, and each of them alone; 3 passes for the embedding of
    originals and found, 3 + 2 for the yardstick and the target, 5 steps of forward and backward, and a last pass."""
    preset = family_preset(small, "mixer")
    model = count_forward(meta_backbone(preset, 10), preset)
    jobs = {stage.name: stage.jobs for stage in stages(small) if stage.part == "inversion"}
    first = jobs["trainings"][0][0]
    whole = (model.outside + 3 * model.block)[FLOPS]
    assert (first.training, first.images, first.flops) == (True, 64, pytest.approx(3 * 64 * whole))
    plan = Plan(small)
    mixer = [subject.family for subject, _, _ in plan.inverted(plan.subjects())].index("mixer")
    job = jobs["inversions"][mixer]
    embedded, layers = 7 * 2, (1 + 2 + 3 + 1 + 1 + 1) * 2
    passes = (3 + 2) + 2 * 5 + 1
    flops = (passes + 3 + 3) * embedded * model.outside + passes * layers * model.block
    assert sum(work.flops for work in job) == pytest.approx(flops[FLOPS])
    assert sum(work.images for work in job) == (5 + 5 + 1 + 6) * embedded
    assert sum(work.batches for work in job) == 2 * (5 + 5 + 1) + 6
    assert [sum(work.images for work in job) for job in jobs["class images"]] == [
        10 * 7,
        *[10 * 8] * 6,
    ]


@pytest.mark.slow
def test_a_variants_own_exits_are_trained_and_evaluated_with_it(small: Params) -> None:
    heads = ExitHeads(branch="mixer", depths=[1, 3])
    variants = small.variants | {"early": Variant(route="arbitrary", exits=heads)}
    small = small.model_copy(update={"variants": variants})
    shape = token_shape(meta_backbone(small.model_preset, 10))
    more = [
        a.flops - b.flops
        for a, b in zip(
            job_of(small, "finetune", "early"), job_of(small, "finetune", "ls"), strict=True
        )
    ]
    branch = count_branch("mixer", shape, 10, heads)[FLOPS]
    assert more[:2] == pytest.approx([3 * 64 * 2 * branch, 40 * 2 * branch])


def test_a_value_that_does_not_fit_the_model_is_refused(small: Params) -> None:
    wrong = small.model_copy(
        update={"prune_eval": small.prune_eval.model_copy(update={"keep": [5]})}
    )
    with pytest.raises(UserError, match=r"prune_eval\.keep: found 5, accepted: at most 4"):
        stages(wrong)


@pytest.mark.parametrize(
    "spec",
    [
        {"drop": 0.3},
        {"drop": 0.6, "schedule": "linear"},
        "arbitrary",
        {"skip": [0, 2]},
        {"order": [1, 1, 0]},
    ],
)
def test_mean_length_of_routes(spec: Any) -> None:
    if "drop" in spec:
        draw = drop(spec["drop"], spec.get("schedule", "constant"))
        rng = generator("samples", 1)
        assert mean_length(spec, 12) == pytest.approx(
            np.mean([len(draw(rng, 12)) for _ in range(4000)]), rel=0.02
        )
    else:
        assert (
            mean_length(spec, 12)
            == {"arbitrary": 12, "skip": 10, "order": 3}[
                spec if isinstance(spec, str) else next(iter(spec))
            ]
        )


def test_sizes_of_data_sets() -> None:
    assert {*SIZES, "image_folder"} == set(
        get_args(DatasetPreset.model_fields["source"].annotation)
    )
    assert datasets.CLASSES.keys() < SIZES.keys()
    digits = read_digits()
    assert SIZES["digits"] == (len(digits["train"].labels), len(digits["validation"].labels))
    assert len(CLASSES) == 10 == len(np.unique(digits["train"].labels))


# ---- time -------------------------------------------------------------------------------------------------------------


def hardware(**kwargs: Any) -> Hardware:
    speed = Speed(batch=2, operation=0.5, element=0.25, rate=10)
    return Hardware(
        training=speed,
        evaluation=Speed(batch=0, operation=0, element=0, rate=1),
        source="a test",
        **kwargs,
    )


def test_seconds_and_processes_side_by_side() -> None:
    training, evaluation = Work(True, 1, 3, 2, 4, 10), Work(False, 1, 9, 9, 9, 7)
    assert training.seconds(hardware()) == 3 * 2 + 2 * 0.5 + 4 * 0.25 + 10 / 10
    assert evaluation.seconds(hardware()) == 7
    assert training._replace(training=False, to_input=True).seconds(hardware()) == training.seconds(
        hardware()
    )
    stage = Stage("finetune", "", [[training, evaluation]] * 5)
    assert stage.time(hardware(cores=2)) == {"sum": 80, "wall": 48}  # two, two, one
    assert stage.time(hardware(gpus=1, cores=16)) == {"sum": 80, "wall": 80}
    assert stage._replace(threads=4).time(hardware(cores=2)) == {"sum": 80, "wall": 80}
    mixed = Stage(
        "prune-eval", "", [[Work(False, 1, 0, 0, 0, seconds)] for seconds in (5, 1, 1, 1)]
    )
    assert mixed.time(hardware(cores=2)) == {"sum": 8, "wall": 5}


@pytest.mark.slow
def test_the_papers_trainings(params: Params) -> None:
    """Counts of section 4; 20 ImageNet epochs of a ViT-B/16 take 7 hours of training on the paper's own hardware."""
    paper = {(stage.part, stage.name): stage for stage in published(params)}
    assert len(paper) == 16
    assert {len(stage.jobs) for stage in paper.values()} == {5}
    for (part, name), stage in paper.items():
        train_images, validation = (1_281_167, 50_000) if "ImageNet" in part else (50_000, 10_000)
        epochs = (
            ({"baseline": 1}.get(name, 20))
            if "ImageNet" in part
            else ({"baseline": 20}.get(name, 100))
        )
        assert (
            sum(work.images for work in stage.jobs[0] if work.training)
            == epochs * (train_images // 128) * 128
        )
        assert (
            sum(work.images for work in stage.jobs[0] if not work.training)
            == epochs * 2 * validation
        )
    h100 = next(
        hardware
        for name, hardware in known_hardware(ROOT / "benchmarks" / "cost.json").items()
        if "from the paper" in name
    )
    work = [work for work in paper["ImageNet, ViT-B/16", "LS"].jobs[0] if work.training]
    assert sum(each.seconds(h100) for each in work) == pytest.approx(7 * 3600, rel=0.01)
    assert h100.training == h100.evaluation
    assert h100.gpus == 1


@pytest.mark.slow
def test_an_estimate_adds_up(small: Params) -> None:
    estimated = estimate(small, {"one": hardware(cores=2), "other": hardware(gpus=1)})
    *rows, total = estimated["stages"]
    for key in ("trainings", "training_images", "validation_images", "evaluation_images", "flops"):
        assert total[key] == pytest.approx(sum(row[key] for row in rows))
    exits = (32 + 10 + 10) + (12 + 10)  # of the data set, of the counting task
    smoothing = 8 + 8 + 2 + 1  # rows of Table 1 at two depths, less drop path, talking heads
    inversion = 2  # of the mixer
    assert total["trainings"] == 1 + 2 * 7 + exits + smoothing + inversion
    assert [row["trainings"] for row in rows[-5:]] == [
        2,
        0,
        0,
        0,
        0,
    ]  # of inversion, painters and nodes
    assert [row["evaluation_images"] > 0 for row in rows[-5:]] == [False, True, True, True, True]
    assert total["seconds"]["one"]["wall"] == pytest.approx(
        sum(row["seconds"]["one"]["wall"] for row in rows)
    )
    assert total["seconds"]["other"]["wall"] == pytest.approx(total["seconds"]["other"]["sum"])
    assert "paper" in estimated["notes"][-1]


def test_numbers_are_readable() -> None:
    assert [format_flops(flops) for flops in (0, 999, 1e9, 35.13e9, 1.39e19)] == [
        "0",
        "999",
        "1 G",
        "35.1 G",
        "13.9 E",
    ]
    assert [format_seconds(s) for s in (0.04, 119, 150, 7 * 3600, 3e6)] == [
        "0.0 s",
        "119.0 s",
        "2.5 min",
        "7.0 h",
        "34.7 d",
    ]


# ---- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_needs_no_data_and_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    with pytest.raises(UserError, match=r"not found; `python benchmarks/cost\.py` makes it"):
        CliRunner().invoke(app, ["cost"], catch_exceptions=False)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "cost.json").write_text("{")
    with pytest.raises(UserError, match="make it anew"):
        CliRunner().invoke(app, ["cost"], catch_exceptions=False)
    shutil.copy(ROOT / "benchmarks" / "cost.json", tmp_path / "benchmarks")
    printed = CliRunner().invoke(app, ["cost"], catch_exceptions=False).stdout
    for words in (
        "params.yaml",
        "The paper's four cells",
        "ImageNet, ViT-B/16",
        "(1) sum",
        "(1) wall",
        "NVIDIA H100 80GB (from the paper",
    ):
        assert words in printed
    rows = json.loads(CliRunner().invoke(app, ["cost", "--json"], catch_exceptions=False).stdout)
    assert rows["stages"][-1]["part"] == "total"
    assert {path.name for path in tmp_path.iterdir()} == {"params.yaml", "benchmarks"}
