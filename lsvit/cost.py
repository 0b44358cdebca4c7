"""What params.yaml asks for, before anything runs: trainings, images, FLOPs, and time on hardware whose speed is known.

Counted with the functions that the pipeline itself goes by (routes, orders, cells). One multiply-add is 2 FLOPs. Seconds of a
process = batches x batch + operations x operation + elements x element + FLOPs / rate, with the constants that
`benchmarks/cost.py` measured: operations decide the time of small batches, the elements that they put out that of narrow models.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lsvit import inversion_jobs
from lsvit.ablation import ablate
from lsvit.analysis import BATCH_SIZE
from lsvit.branches import token_shape
from lsvit.errors import UserError
from lsvit.flops import Forward, count_branch, count_forward, count_variant, meta_backbone
from lsvit.hardware import Hardware, Work
from lsvit.inversion import make_points
from lsvit.inversion_sections import Inversion
from lsvit.jobs import EvalConfig, run_config
from lsvit.params import BASELINE, TRAINED, Params
from lsvit.presets import ModelPreset
from lsvit.routes import ORDERS
from lsvit.sections import Analysis, BranchName, Exits, Finetune, Position, Pretrain, PruneEval, Smoothing, Variant
from lsvit.smoothing_jobs import Plan
from lsvit.tables import console
from lsvit.work import class_images_job, evaluation_job, inversion_job, route_work, sampler_work, training_job, without_heads

PLAIN = Variant(route="sequential")
NUM_CLASSES = {"cifar100": 100, "imagenet": 1000}  # of sources that have not 10; a folder's are counted as 10 too
NOTES = (
    "FLOPs: 1 multiply-add = 2; attention and position parts included; a training step = 3 forward passes.",
    "sum: the times of all processes; wall: a stage's processes side by side, the stages one after another.",
    "Not in the time: start of processes, reading and writing files, tracking, UMAP, figures; nor what bf16, TF32, checkpointing, a "
    "compilation or several processes a training change.",
    "prune-eval: one epoch a training; where the two protocols choose different ones, both are evaluated.",
    "smoothing: without the losses themselves, and profiles without the attention scores that are computed again for them.",
    "inversion: a step that changes an input = 2 forward passes, in time like those of a training; without what is done to the pixels: "
    "distances, priors, the optimiser.",
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
    return [*found, *exit_stages(params, backbone, sizes), *smoothing_stages(params, sizes), *inversion_stages(params, sizes)]


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


def inversion_stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage inversion: the trainings from scratch, if there are any, the inversions and the class images.

    Raises:
        UserError: timm does not know a family's model, or its blocks are of a kind that parts cannot be taken out of.
    """
    plan, tuning = inversion_jobs.Plan(params), params.scratch_training(Inversion)
    options, subjects, classes = plan.options, plan.subjects(), NUM_CLASSES.get(params.dataset_preset.source, 10)
    counted: dict[tuple[Any, ...], Forward] = {}

    def count(subject: inversion_jobs.Subject) -> Forward:
        key = subject.preset.model_dump_json(), subject.variant.model_dump_json(), subject.ablation
        if key not in counted:
            backbone = meta_backbone(subject.preset, classes)
            if subject.ablation:
                ablate(backbone, subject.ablation)
            counted[key] = count_variant(backbone, subject.preset, without_heads(subject.variant))
        return counted[key]

    trained = [subject for subject in subjects if subject.weights == TRAINED and not plan.is_own(subject.family)]
    trainings = [training_job(count(subject), PLAIN, tuning, *sizes) for subject in trained]
    inversions = []
    for subject, optimiser, order in plan.inverted(subjects):
        model = count(subject)
        points = make_points(model.num_layers, options.depths, subject.alone(order), order, options.images, (options.seed, subject.seed))
        inversions.append(inversion_job(model, points.routes.numpy(), options, options.optimisers[optimiser]))
    judged = plan.judged(subjects)
    class_images = [class_images_job(count(subject), classes, options.class_images, judge is not None) for subject, judge in judged]
    rows = [Stage("inversion", "inversions", inversions), Stage("inversion", "class images", class_images)]
    return [*([Stage("inversion", "trainings", trainings, tuning.threads)] if trainings else []), *rows]


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
