"""What params.yaml asks for, before anything runs: trainings, images, FLOPs, and time on hardware whose speed is known.

Counted with the functions that the pipeline itself goes by (routes, orders, cells). One multiply-add is 2 FLOPs. Seconds of a
process = batches x batch + operations x operation + elements x element + FLOPs / rate, with the constants that
`benchmarks/cost.py` measured: operations decide the time of small batches, the elements that they put out that of narrow models.
"""

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lsvit.analysis import BATCH_SIZE
from lsvit.errors import UserError
from lsvit.evaluation import cells, kept_layers
from lsvit.jobs import EvalConfig, run_config
from lsvit.models import NO_PARTS, PositionLogits, RoutedModel
from lsvit.params import BASELINE, Params
from lsvit.routes import ENDED, ORDERS, Sampler, Spec, count_routes, generator, limit, make_sampler, per_sample, training_order
from lsvit.sections import Analysis, Finetune, ModelPreset, Optimisation, Position, Pretrain, PruneEval, Variant
from lsvit.tables import console
from lsvit.training import validation_routes
from lsvit.weights import create_backbone, input_size

KNOWN_HARDWARE = Path("benchmarks/cost.json")
STEP = 3  # a training step's FLOPs in forward passes: the backward pass takes two
NUM_CLASSES = {"cifar100": 100, "imagenet": 1000}  # of sources that have not 10; a folder's are counted as 10 too
NOTES = (
    "FLOPs: 1 multiply-add = 2; attention and position parts included; a training step = 3 forward passes.",
    "sum: the times of all processes; wall: a stage's processes side by side, the stages one after another.",
    "Not in the time: start of processes, reading and writing files, tracking, UMAP, figures; nor what bf16, TF32, checkpointing, a "
    "compilation or several processes a training change.",
    "prune-eval: one epoch a training; where the two protocols choose different ones, both are evaluated.",
    "Another machine: `uv run python benchmarks/cost.py` measures it and adds it.",
)
# LayerShuffle, section 4: 224 px, batch 640 or 128
PAPER = "batch 128, 5 seeds, every epoch validated in both orders as here"
PAPER_SEEDS, PAPER_OPTIONS = 5, {"batch_size": 128, "validation_batch_size": 200, "threads": 1}
PAPER_DATA = {"ImageNet": (1_281_167, 50_000), "CIFAR-100": (50_000, 10_000)}  # training, validation images
PAPER_CLASSES, PAPER_EPOCHS = {"ImageNet": 1000, "CIFAR-100": 100}, {"ImageNet": (20, 1), "CIFAR-100": (100, 20)}  # others, baseline
PAPER_MODELS = {"ViT-B/16": "vit_base_patch16_224", "DeiT-B dist.": "deit_base_distilled_patch16_224"}
PAPER_POSITIONS: dict[str, dict] = {BASELINE: {}, "LS": {}, "LS-pos": {"encode": {"dim": 32}}, "LS-pred": {"predict": {}}}


class Speed(BaseModel):
    """Constants of one process: seconds a batch, an operation, an element that one puts out; FLOP/s."""

    batch: float = Field(ge=0)
    operation: float = Field(ge=0)
    element: float = Field(ge=0)
    rate: float = Field(gt=0)


class Hardware(BaseModel):
    """A named machine of `benchmarks/cost.json`."""

    cores: int = 0
    gpus: int = 0
    training: Speed
    evaluation: Speed
    source: str

    def workers(self, threads: int) -> int:
        """Processes side by side, as `lsvit.launch` starts them: one a GPU, or one per `threads` cores."""
        return self.gpus or max(1, self.cores // threads)


def known_hardware(path: Path = KNOWN_HARDWARE) -> dict[str, Hardware]:
    """Named hardware and its constants. Raises UserError if the file is missing or is none of `benchmarks/cost.py`'s."""
    try:
        return TypeAdapter(dict[str, Hardware]).validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: not found; `python benchmarks/cost.py` makes it, or run in the repository's root") from None
    except ValidationError:
        raise UserError(f"{path}: not as `python benchmarks/cost.py` writes it; remove it and make it anew") from None


class Work(NamedTuple):
    """What one process runs of one kind: images, batches, and the operations, elements and FLOPs of their forward passes."""

    training: bool
    images: int
    batches: int
    operations: float
    elements: float
    flops: float  # of training steps, if `training`

    def seconds(self, hardware: Hardware) -> float:
        """Time on this hardware."""
        speed = hardware.training if self.training else hardware.evaluation
        return self.batches * speed.batch + self.operations * speed.operation + self.elements * speed.element + self.flops / speed.rate


class Operations(TorchDispatchMode):
    """Counts the operations that are run, views apart, and the elements that they put out."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.elements = 0, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.count += 1
            self.elements += sum(tensor.numel() for tensor in tree_leaves(out))
        return out


@dataclass(frozen=True)
class Forward:
    """One image through a model: operations, elements, FLOPs (3,) outside its blocks, and in a block with its position part."""

    num_layers: int
    outside: np.ndarray
    block: np.ndarray

    def run(self, images: int, batch_size: int, length: float, calls: float | None = None, training: bool = False) -> Work:
        """The work of `images` along routes of `length` layers; `calls` of blocks a batch, by default one a layer."""
        batches = math.ceil(images / batch_size)
        operations = batches * (self.outside + (length if calls is None else calls) * self.block)[0]
        _, elements, flops = images * (self.outside + length * self.block)
        return Work(training, images, batches, float(operations), float(elements), float(flops) * (STEP if training else 1))


def meta_backbone(preset: ModelPreset, num_classes: int) -> Any:
    """The preset's timm model without memory or weights, its attention as matrix products (FlopCounterMode counts 0 if fused)."""
    with torch.device("meta"):
        backbone = create_backbone(preset.model_copy(update={"init_std": None}), num_classes)
    for module in backbone.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return backbone.requires_grad_(False)  # FlopCounterMode expects gradients of what requires them


def count_forward(backbone: Any, preset: ModelPreset, position: Position = NO_PARTS) -> Forward:
    """Counts of a :func:`meta_backbone` with position parts, as torch runs it; all blocks of a model take the same."""
    with torch.device("meta"):
        model = RoutedModel(backbone, position).eval()
        in_chans, size = input_size(model, preset)
        image = torch.empty(1, in_chans, size, size)
    counts = []
    for route in ((), (0,)):
        taps = [PositionLogits(model)] if "predict" in model.position else []
        with FlopCounterMode(display=False) as flops, Operations() as operations, torch.no_grad():
            model(image, route, taps)
        counts.append(np.array([operations.count, operations.elements, flops.get_total_flops()], dtype=float))
    return Forward(model.num_layers, counts[0], counts[1] - counts[0])


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


def sampler_work(model: Forward, spec: Spec, images: int, batch_size: int, training: bool = False) -> Work:
    """A pass in which every sample runs along a route of its own."""
    calls = _sampler_calls(json.dumps(spec), model.num_layers, min(batch_size, images))
    return model.run(images, batch_size, mean_length(spec, model.num_layers), calls, training)


def training_job(model: Forward, variant: Variant, options: Optimisation, train: int, validation: int, heldout: int) -> list[Work]:
    """One training: epochs of complete batches, each validated in every order, the held-out images in one."""
    images = train // options.batch_size * options.batch_size
    if variant.per == "sample":
        epoch = [sampler_work(model, variant.route, images, options.batch_size, training=True)]
    else:
        epoch = [model.run(images, options.batch_size, mean_length(variant.route, model.num_layers), training=True)]
    batch_size = options.validation_batch_size
    routes = validation_routes(model.num_layers, math.ceil(validation / batch_size), variant.route)
    lengths = {order: len(drawn[0]) for order, drawn in routes.items()}
    epoch += [model.run(validation, batch_size, length) for length in lengths.values()]
    epoch += [model.run(heldout, batch_size, lengths[training_order(variant.route)])] if heldout else []
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
            job += [model.run(images, batch_size, keep)] * (1 if options.per == "batch" and not exhaustive else passes)
            if options.per == "sample" and not exhaustive:
                calls = group_calls(kept_layers(keep, order), num_layers, min(batch_size, validation))
                job.append(model.run(validation, batch_size, keep, calls))
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

    def model(variant: Variant, position: Position) -> Forward:
        return replace(count_forward(backbone, preset, position), num_layers=variant.layers or whole.num_layers)

    found: list[Stage] = []
    if preset.weights == "scratch":
        first = params.resolve(Pretrain)
        found.append(Stage("pretrain", "", [training_job(whole, Variant(route="sequential"), first, *sizes)], first.threads))
    evaluations: list[list[Work]] = []
    for name, variant in params.all_variants.items():
        routed, tuning = model(variant, variant.position), params.resolve(Finetune, name)
        found.append(Stage("finetune", name, [training_job(routed, variant, tuning, *sizes)] * seeds, tuning.threads))
        run = run_config(params, name, variant, "", None)
        config = EvalConfig(**run, options=params.resolve(PruneEval), precision=tuning.precision, seed=0)
        evaluations += [evaluation_job(routed, config, sizes[1])] * seeds
    found.append(Stage("prune-eval", "", evaluations))
    options, analysed = params.resolve(Analysis), [whole]
    for variant in map(params.all_variants.__getitem__, options.variants):  # their predictions are not read
        analysed += [model(variant, variant.position.model_copy(update={"predict": None}))] * seeds
    return [*found, Stage("analysis", "", [[sampler_work(each, "arbitrary", options.images, BATCH_SIZE)] for each in analysed])]


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
