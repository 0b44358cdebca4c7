"""What params.yaml asks for, before anything runs: trainings, images, FLOPs, and time on hardware whose speed is known.

Counted with the functions that the pipeline itself goes by (routes, orders, cells). One multiply-add is 2 FLOPs. Seconds of a
process = batches x batch + operations x operation + elements x element + FLOPs / rate, with the constants that
`benchmarks/cost.py` measured: operations decide the time of small batches, the elements that they put out that of narrow models.
"""

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lsvit.analysis import BATCH_SIZE
from lsvit.branches import token_shape
from lsvit.errors import UserError
from lsvit.evaluation import cells
from lsvit.flops import Forward, count_branch, count_forward, count_variant, meta_backbone
from lsvit.hardware import Hardware, Work
from lsvit.jobs import EvalConfig, run_config
from lsvit.params import BASELINE, Params
from lsvit.presets import ModelPreset
from lsvit.routes import ENDED, ORDERS, Sampler, Spec, count_routes, generator, kept_layers, limit, make_sampler, per_sample, training_order
from lsvit.sections import Analysis, BranchName, Exits, Finetune, Optimisation, Position, Pretrain, PruneEval, Smoothing, Variant
from lsvit.smoothing_jobs import Plan
from lsvit.tables import console
from lsvit.training import validation_routes

STEP = 3  # a training step's FLOPs in forward passes: the backward pass takes two
PLAIN = Variant(route="sequential")
NUM_CLASSES = {"cifar100": 100, "imagenet": 1000}  # of sources that have not 10; a folder's are counted as 10 too
NOTES = (
    "FLOPs: 1 multiply-add = 2; attention and position parts included; a training step = 3 forward passes.",
    "sum: the times of all processes; wall: a stage's processes side by side, the stages one after another.",
    "Not in the time: start of processes, reading and writing files, tracking, UMAP, figures; nor what bf16, TF32, checkpointing, a "
    "compilation or several processes a training change.",
    "prune-eval: one epoch a training; where the two protocols choose different ones, both are evaluated.",
    "smoothing: without the losses themselves, and profiles without the attention scores that are computed again for them.",
    "exits: roughly: early stopping may end every training sooner; frozen layers of layer_wise count as trained, timing does not.",
    "Another machine: `uv run python benchmarks/cost.py` measures it and adds it.",
)
# LayerShuffle, section 4: 224 px, batch 640 or 128
PAPER = "batch 128, 5 seeds, every epoch validated in both orders as here"
PAPER_SEEDS, PAPER_OPTIONS = 5, {"batch_size": 128, "validation_batch_size": 200, "threads": 1}
PAPER_DATA = {"ImageNet": (1_281_167, 50_000), "CIFAR-100": (50_000, 10_000)}  # training, validation images
PAPER_CLASSES, PAPER_EPOCHS = {"ImageNet": 1000, "CIFAR-100": 100}, {"ImageNet": (20, 1), "CIFAR-100": (100, 20)}  # others, baseline
PAPER_MODELS = {"ViT-B/16": "vit_base_patch16_224", "DeiT-B dist.": "deit_base_distilled_patch16_224"}
PAPER_POSITIONS: dict[str, dict] = {BASELINE: {}, "LS": {}, "LS-pos": {"encode": {"dim": 32}}, "LS-pred": {"predict": {}}}


def without_heads(variant: Variant) -> Variant:
    """The variant where neither its exits nor its position predictions are read."""
    return variant.model_copy(update={"exits": None, "position": variant.position.model_copy(update={"predict": None})})


def mean_length(spec: Spec, num_layers: int) -> float:
    """Layers that a sampler's routes execute on average; only LayerDrop's differ in length."""
    if isinstance(spec, dict) and "drop" in spec:
        rate = spec["drop"] * (num_layers + 1) / (2 * num_layers) if spec.get("schedule") == "linear" else spec["drop"]
        return num_layers * (1 - rate)
    return len(make_sampler(spec)(generator("samples", 0), num_layers))


def group_calls(sampler: Sampler, num_layers: int, samples: int) -> float:
    """Block calls of a batch whose samples run along routes of their own: at each depth one per layer that any runs next."""
    routes = per_sample(sampler, generator("samples", 0), num_layers, samples)
    return sum(len(np.unique(column[column != ENDED])) for column in routes.T)


@cache
def _sampler_calls(spec: str, num_layers: int, samples: int) -> float:
    return group_calls(make_sampler(json.loads(spec)), num_layers, samples)


def route_work(
    model: Forward, images: int, batch_size: int, length: float, calls: float | None = None, training: bool = False
) -> Work:  # fmt: skip
    """The work of `images` along routes of `length` layers; `calls` of blocks a batch, by default one a layer."""
    batches = math.ceil(images / batch_size)
    operations = batches * (model.outside + (length if calls is None else calls) * model.block)[0]
    _, elements, flops = images * (model.outside + length * model.block)
    return Work(training, images, batches, float(operations), float(elements), float(flops) * (STEP if training else 1))


def sampler_work(model: Forward, spec: Spec, images: int, batch_size: int, training: bool = False) -> Work:
    """A pass in which every sample runs along a route of its own."""
    calls = _sampler_calls(json.dumps(spec), model.num_layers, min(batch_size, images))
    return route_work(model, images, batch_size, mean_length(spec, model.num_layers), calls, training)


def training_job(model: Forward, variant: Variant, options: Optimisation, train: int, validation: int, heldout: int) -> list[Work]:
    """One training: epochs of complete batches, each validated in every order, the held-out images in one."""
    images = min(train, options.images or train) // options.batch_size * options.batch_size
    if variant.per == "sample":
        epoch = [sampler_work(model, variant.route, images, options.batch_size, training=True)]
    else:
        epoch = [route_work(model, images, options.batch_size, mean_length(variant.route, model.num_layers), training=True)]
    batch_size = options.validation_batch_size
    routes = validation_routes(model.num_layers, math.ceil(validation / batch_size), variant.route)
    lengths, own = {order: len(drawn[0]) for order, drawn in routes.items()}, training_order(variant.route)
    asked = lengths if options.validation_orders == "all" else (own,)
    epoch += [route_work(model, validation, batch_size, lengths[order]) for order in asked]
    epoch += [route_work(model, heldout, batch_size, lengths[own])] if heldout else []
    return epoch * options.epochs


def evaluation_job(model: Forward, config: EvalConfig, validation: int) -> list[Work]:
    """One model in every cell, as `evaluate_cell` runs it, and under every sampler that fits."""
    options, num_layers, batch_size = config.options, model.num_layers, config.options.batch_size
    part = min(validation, options.images or validation)
    job: list[Work] = []
    for keep in cells(num_layers, config):
        for order in ORDERS:
            found = count_routes(num_layers, keep, order)
            exhaustive, passes = found <= options.orders, min(found, options.orders)
            images = validation if exhaustive or (options.per != "sample" and keep == num_layers) else part
            job += [route_work(model, images, batch_size, keep)] * (1 if options.per == "batch" and not exhaustive else passes)
            if options.per == "sample" and not exhaustive:
                calls = group_calls(kept_layers(keep, order), num_layers, min(batch_size, validation))
                job.append(route_work(model, validation, batch_size, keep, calls))
    return job + [sampler_work(model, spec, validation, batch_size) for spec in options.samplers if limit(spec, num_layers) is None]


class Stage(NamedTuple):
    """Jobs, each the work of one process of `threads` threads; `part` and `name` say which."""

    part: str
    name: str
    jobs: Sequence[list[Work]]
    threads: int = 1

    def time(self, hardware: Hardware) -> dict[str, float]:
        """Seconds of all jobs together, and until the last one ends: each starts in order on the first free worker."""
        seconds = [sum(work.seconds(hardware) for work in job) for job in self.jobs]
        free = [0.0] * hardware.workers(self.threads)
        for duration in seconds:
            heapq.heapreplace(free, free[0] + duration)
        return {"sum": sum(seconds), "wall": max(free)}

    def row(self, known: dict[str, Hardware]) -> dict[str, Any]:
        """A row of :func:`estimate`; passes of a stage that trains count as validation, of another as evaluation."""
        trainings = sum(any(work.training for work in job) for job in self.jobs)
        works = [work for job in self.jobs for work in job]
        passes = sum(work.images for work in works if not work.training)
        return {
            "part": self.part, "name": self.name, "trainings": trainings,
            "training_images": sum(work.images for work in works if work.training),
            "validation_images": passes if trainings else 0, "evaluation_images": 0 if trainings else passes,
            "flops": sum(work.flops for work in works), "seconds": {name: self.time(hardware) for name, hardware in known.items()},
        }  # fmt: skip


def stages(params: Params) -> list[Stage]:
    """The stages of the pipeline that compute, for the chosen model and data set.

    Raises:
        UserError: timm does not know the model, a value does not fit its number of layers, or only the folder tells the images.
    """
    preset, data, seeds = params.model_preset, params.dataset_preset, len(params.seeds)
    if (sizes := data.sizes) is None:
        raise UserError(f"datasets.{params.dataset}: its folder tells how many images there are; accepted here: "
                        "datasets.NAME.train and datasets.NAME.validation")  # fmt: skip
    backbone = meta_backbone(preset, NUM_CLASSES.get(data.source, 10))
    whole = count_forward(backbone, preset)
    params.check_layers(whole.num_layers)

    found: list[Stage] = []
    if preset.weights == "scratch":
        first = params.resolve(Pretrain)
        found.append(Stage("pretrain", "", [training_job(whole, PLAIN, first, *sizes)], first.threads))
    evaluations: list[list[Work]] = []
    for name, variant in params.all_variants.items():
        routed, tuning = count_variant(backbone, preset, variant), params.resolve(Finetune, name)
        found.append(Stage("finetune", name, [training_job(routed, variant, tuning, *sizes)] * seeds, tuning.threads))
        run = run_config(params, name, variant, "", None)
        config = EvalConfig(**run, options=params.resolve(PruneEval), precision=tuning.precision, seed=0)
        evaluations += [evaluation_job(routed, config, sizes[1])] * seeds
    found.append(Stage("prune-eval", "", evaluations))
    options, analysed = params.resolve(Analysis), [whole]
    for variant in map(params.all_variants.__getitem__, options.variants):
        analysed += [count_variant(backbone, preset, without_heads(variant))] * seeds
    found.append(Stage("analysis", "", [[sampler_work(each, "arbitrary", options.images, BATCH_SIZE)] for each in analysed]))
    return [*found, *exit_stages(params, backbone, sizes), *smoothing_stages(params, sizes)]


def smoothing_stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage smoothing, a row a depth: trainings from scratch, and then the profiles of them and of variants.

    Raises:
        UserError: timm refuses the model with another depth.
    """
    plan, tuning, classes = Plan(params), params.scratch_training(Smoothing), NUM_CLASSES.get(params.dataset_preset.source, 10)
    images, batch_size = min(sizes[0], plan.options.images), plan.options.batch_size
    found: dict[int, list[list[Work]]] = {}
    profiles: list[list[Work]] = []
    counted = cache(lambda depth: meta_backbone(params.smoothing_preset(depth), classes))
    for model in plan.models():
        depth = model.preset.kwargs["depth"]
        forward = count_variant(counted(depth), model.preset, model.variant)
        found.setdefault(depth, []).append(training_job(forward, model.variant, tuning, *sizes))
        profiles.append([route_work(forward, images, batch_size, forward.num_layers)])
    backbone = meta_backbone(params.model_preset, classes)
    for model in plan.refined():
        forward = count_variant(backbone, params.model_preset, without_heads(model.variant))
        profiles += [[sampler_work(forward, order, images, batch_size)] for order in ORDERS]
    rows = [Stage("smoothing", f"{depth} layers", jobs, tuning.threads) for depth, jobs in found.items()]
    return [*rows, Stage("smoothing", "profiles", profiles)]


def exit_stages(params: Params, backbone: Any, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage exits, a row a strategy: on the data set, then on the counting task, for which a plain backbone is trained first.

    Raises:
        UserError: a branch does not fit the model.
    """
    options, threads = params.resolve(Exits), params.resolve(Finetune).threads
    frozen = [(params.all_variants[name], branches or options.branches) for name, branches in options.variants.items()]
    jobs = exit_jobs(params, backbone, frozen, sizes, options.backbone_epochs, len(options.backbone_lrs))
    found = [Stage("exits", strategy, jobs[strategy], threads) for strategy in options.strategies]
    if options.counting_strategies:
        counter = meta_backbone(params.model_preset.model_copy(update={"num_classes": None}), 1)
        task = options.counting
        sizes = task.train, task.validation, task.heldout
        jobs = exit_jobs(params, counter, [(PLAIN, options.branches)], sizes, task.epochs, len(task.lrs or options.backbone_lrs))
        own = [] if "end_to_end" in options.counting_strategies else ["backbone"]  # else it is the control of end_to_end
        rows = [*own, *options.counting_strategies]
        found += [Stage("exits", f"counting, {row}", jobs[row], threads) for row in rows]
    return found


def exit_jobs(
    params: Params, backbone: Any, frozen: Sequence[tuple[Variant, Sequence[BranchName]]], sizes: tuple[int, int, int], epochs: int,
    lrs: int,
) -> dict[str, list[list[Work]]]:  # fmt: skip
    """By strategy, and of a plain "backbone": on frozen variants the features are computed once, and each branch is trained on them.

    `epochs` and `lrs`, the number of learning rates, are those of trainings of the backbone.
    """
    options, preset, (train, validation, heldout) = params.resolve(Exits), params.model_preset, sizes
    tuning = params.resolve(Finetune).model_copy(update={"epochs": epochs, "batch_size": options.batch_size, "images": options.images})
    whole, shape, seeds = count_forward(backbone, preset), token_shape(backbone), len(params.seeds[: options.seeds])
    branches = {kind: count_branch(kind, shape, backbone.num_classes, options) for kind in options.every_branch}

    def training(exits: np.ndarray | int = 0, layers: int = whole.num_layers) -> list[Work]:
        return training_job(replace(whole, num_layers=layers, outside=whole.outside + exits), PLAIN, tuning, *sizes)

    jobs: dict[str, list[list[Work]]] = {"backbone": [training()], "classifier_wise": [], "end_to_end": [training()], "layer_wise": []}
    used, batch_size, epochs = min(train, options.images or train), options.batch_size, options.epochs
    for variant, kinds in frozen:
        model = count_variant(backbone, preset, without_heads(variant))
        features = [route_work(model, images, batch_size, model.num_layers) for images in (used, heldout, 3 * validation)]
        jobs["classifier_wise"] += [features] * seeds
        depths = options.depths or range(1, model.num_layers)
        for branch in (Forward(0, branches[kind], np.zeros(3)) for kind in kinds):
            job = [route_work(branch, epochs * used, batch_size, 0, training=True)]
            job += [route_work(branch, images, batch_size, 0) for images in (epochs * heldout, validation)]
            jobs["classifier_wise"] += [job] * (len(depths) * len(options.lrs) * seeds)
    for placement in options.placements:
        jobs["end_to_end"] += [training(len(placement) * branches[kind]) for kind in options.branches]
        for kind in options.layer_wise_branches:
            jobs["layer_wise"] += [*(training(branches[kind], last) for last in placement), training()]
    for strategy in ("backbone", "end_to_end", "layer_wise"):
        jobs[strategy] *= lrs * seeds
    return jobs


def paper_stages(params: Params) -> list[Stage]:
    """The trainings behind the paper's Table 1: two data sets, two models, four approaches."""
    found = []
    for data, sizes in PAPER_DATA.items():
        for model_name, timm_name in PAPER_MODELS.items():
            preset = ModelPreset(timm=timm_name, weights="scratch")
            backbone = meta_backbone(preset, PAPER_CLASSES[data])
            for name, position in PAPER_POSITIONS.items():
                variant = Variant(route="sequential" if name == BASELINE else "arbitrary", position=Position(**position))
                options = params.finetune.model_copy(update=PAPER_OPTIONS | {"epochs": PAPER_EPOCHS[data][name == BASELINE]})
                job = training_job(count_forward(backbone, preset, variant.position), variant, options, *sizes, heldout=0)
                found.append(Stage(f"{data}, {model_name}", name, [job] * PAPER_SEEDS))
    return found


def estimate(params: Params, known: dict[str, Hardware]) -> dict[str, Any]:
    """What `lsvit cost --json` prints: a row a stage and their total, the same for the paper's trainings, and what is known."""
    ours, paper = ([stage.row(known) for stage in found] for found in (stages(params), paper_stages(params)))
    return {
        "dataset": params.dataset, "model": params.model, "seeds": len(params.seeds), "stages": [*ours, total(ours)],
        "paper": [*paper, total(paper)], "hardware": {name: hardware.source for name, hardware in known.items()},
        "notes": [*NOTES, f"paper: {PAPER}"],
    }  # fmt: skip


def total(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sum of rows; stages run one after another, so their walls add up too."""
    sums = {key: sum(row[key] for row in rows) for key, value in rows[0].items() if isinstance(value, int | float)}
    seconds = {name: {key: sum(row["seconds"][name][key] for row in rows) for key in times} for name, times in rows[0]["seconds"].items()}
    return {"part": "total", "name": "", **sums, "seconds": seconds}


def show(estimated: dict[str, Any]) -> None:
    """Print an :func:`estimate` as two tables."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    out = console(180)
    ours = "params.yaml: {dataset}, {model}, {seeds} seeds".format(**estimated)
    times = [f"({i}) {what}" for i in range(1, len(estimated["hardware"]) + 1) for what in ("sum", "wall")]
    counts = ["trainings", "training_images", "validation_images", "evaluation_images"]
    for key, title in (("stages", ours), ("paper", f"The paper's four cells: {PAPER}")):
        table = Table("", "", title=title, box=SIMPLE_HEAD, title_justify="left")
        for column in (*counts, "FLOPs", *times):
            table.add_column(column.replace("_", " "), justify="right")
        for row in estimated[key]:
            if row["part"] == "total":
                table.add_section()
            shown = [f"{row[count]:,}" if row[count] else "" for count in counts] + [format_flops(row["flops"])]
            shown += [format_seconds(seconds) for of_hardware in row["seconds"].values() for seconds in of_hardware.values()]
            table.add_row(row["part"], row["name"], *shown)
        out.print(table)
    out.print(*(f"({i}) {name}: {source}" for i, (name, source) in enumerate(estimated["hardware"].items(), 1)), *NOTES, sep="\n")


def format_flops(flops: float) -> str:
    """1.2e15 -> "1.2 P"."""
    power = min(6, int(math.log10(max(flops, 1)) / 3))
    return f"{flops / 1000**power:.3g} {' kMGTPE'[power]}".rstrip()


def format_seconds(seconds: float) -> str:
    """In the unit that leaves few digits."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"
