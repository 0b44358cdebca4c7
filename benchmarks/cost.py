"""Measure this machine's constants for `lsvit cost` and add them to benchmarks/cost.json: `python benchmarks/cost.py`.

The pipeline's own functions run small trainings and evaluations on random images, in as many processes of one thread side by
side as there are cores. The constants of `pipeline.cost.hardware.Speed` are fitted to some of them and checked on the others.
"""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from machine import machine, show, write
from pipeline.cost.flops import count_forward, meta_backbone
from pipeline.cost.hardware import Hardware, Speed, Work
from pipeline.cost.work import route_work, sampler_work, training_job
from scipy.optimize import nnls

from lsvit.routes import arbitrary, generator, per_sample
from papers import PAPERS
from papers.smoothing.training import Augmentation
from pipeline.config.load import load
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import Variant
from pipeline.data.shards import Arrays, write_arrow
from pipeline.data.sources import SPLITS
from pipeline.data.splits import Split
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build, input_size
from pipeline.training.devices import settle
from pipeline.training.loop import train, train_epoch
from pipeline.training.optimisation import make_optimizer, make_scheduler
from pipeline.training.scoring import score
from pipeline.training.step import TrainingStep

FILE = Path(__file__).with_suffix(".json")
REPETITIONS = 5  # after a first one that does not count
NUM_CLASSES, LAYERS = 10, 12
PAPER_RATE = (
    1016  # training images/s: 20 epochs of 1,281,167 images in about 7 h (LayerShuffle, section 4)
)
PAPER_NAME = f"NVIDIA H100 80GB (from the paper: 20 ImageNet epochs in about 7 h, {PAPER_RATE:,} training images/s)"
PAPER_SOURCE = (
    "derived from the paper, not measured: its images/s x 3 x FLOPs of ViT-B/16; assumed: evaluation at the same FLOP/s, "
    "nothing but FLOPs takes time, so that narrow models take longer than shown"
)
Kind = Literal["training", "evaluation", "whole training"]


@dataclass(frozen=True)
class Case:
    """A 12-layer ViT, a variant, and batches to time. The constants are fitted to cases that are `fitted`, checked on others.

    A "whole training" is an epoch with its validation, its checkpoint and the building of the model.
    """

    kind: Kind
    width: int
    patch: int = 14
    batch_size: int = 128
    batches: int = 2
    size: int = 28
    fitted: bool = False
    variant: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """In words."""
        variant = "".join(f", {key} {value}" for key, value in self.variant.items())
        return f"{self.kind}: width {self.width}, {self.size} px, patch {self.patch}, batch {self.batch_size}{variant}"

    @property
    def images(self) -> int:
        """To train on, or to evaluate."""
        return self.batch_size * self.batches

    @property
    def config(self) -> TrainConfig:
        """One epoch with the paper's optimiser."""
        kwargs = {
            "img_size": self.size,
            "patch_size": self.patch,
            "in_chans": 1 if self.size < 200 else 3,
            "embed_dim": self.width,
            "depth": LAYERS,
            "num_heads": max(2, self.width // 64),
        }
        changes = {
            "epochs": 1,
            "precision": "fp32",
            "batch_size": self.batch_size,
            "validation_batch_size": 200,
            "threads": 1,
        }
        options = load(papers=PAPERS).finetune.model_copy(update=changes)
        return TrainConfig(
            title=self.name,
            dataset="random",
            model_name="vit",
            data_sha256="",
            weights_sha256=None,
            options=options,
            seed=0,
            device="cpu",
            model=ModelPreset(timm="vit_tiny_patch16_224", kwargs=kwargs, weights="scratch"),
            variant=Variant.model_validate({"route": "arbitrary"} | self.variant),
            per=self.variant.get("per", "batch"),
        )

    def works(self) -> list[Work]:
        """What `lsvit cost` counts for it."""
        config = self.config
        backbone = meta_backbone(config.model, NUM_CLASSES)
        forward = count_forward(backbone, config.model, config.variant.position)
        forward = replace(forward, num_layers=config.variant.layers or LAYERS)
        if self.kind == "whole training":
            return training_job(
                forward, config.variant, config.options, self.images, self.images, 0, config.per
            )
        if config.per == "sample":
            return [
                sampler_work(
                    forward,
                    config.variant.route,
                    self.images,
                    self.batch_size,
                    self.kind == "training",
                )
            ]
        return [
            route_work(
                forward,
                self.images,
                self.batch_size,
                forward.num_layers,
                training=self.kind == "training",
            )
        ]

    def write_data(self, folder: Path) -> None:
        """Random images, as stage prepare-data leaves them."""
        rng, shape = (
            np.random.default_rng(0),
            (self.size, self.size) + ((3,) if self.size >= 200 else ()),
        )
        folder.mkdir()
        for split in SPLITS:
            images, labels = (
                rng.integers(0, 256, (self.images, *shape), dtype=np.uint8),
                rng.integers(0, NUM_CLASSES, self.images),
            )
            write_arrow(folder / f"{split}.arrow", shape, [Arrays(images, labels)])
        meta = {
            "classes": list(range(NUM_CLASSES)),
            "counts": dict.fromkeys(SPLITS, self.images),
            "mean": [0.5],
            "std": [0.5],
            "resize": "published",
        }
        (folder / "meta.json").write_text(json.dumps(meta))

    def runner(self, data: Path) -> Callable[[], object]:
        """The function to time."""
        config = self.config
        if self.kind == "whole training":
            return lambda: train(
                config, data, None, Path(tempfile.mkdtemp(dir=data)), lambda row: None
            )
        model = build(config.model, NUM_CLASSES, config.variant)
        execution = settle(torch.device("cpu"), self.width, "fp32")
        split = Split(
            data, "train", execution.device, *input_size(model, config.model), (0.5,), (0.5,)
        )
        if self.kind == "training":
            optimizer = make_optimizer(model, config.options)
            scheduler = make_scheduler(optimizer, config.options, self.batches)
            step, layers = (
                TrainingStep(model, config.options.position_weight, execution),
                model.num_layers,
            )
            augment = Augmentation(config.variant, model.backbone, execution.device)
            return lambda: train_epoch(
                step, split, augment, config, layers, 1, optimizer, scheduler, lambda row: None
            )
        samples = self.images if config.per == "sample" else 1
        routes = per_sample(arbitrary, generator("samples", 0), model.num_layers, samples)
        orders = torch.from_numpy(routes) if samples > 1 else [tuple(routes[0].tolist())]
        return lambda: score(model, split, orders, self.batch_size, execution)


PER_SAMPLE = {"per": "sample"}
CASES = [
    Case("training", 16, batches=4, fitted=True),
    Case("training", 32, batch_size=16, batches=4, fitted=True),
    Case("training", 32, batch_size=16, batches=8, variant={"layers": 3}, fitted=True),
    Case("training", 32, batch_size=64, batches=4, fitted=True),
    Case("training", 64, patch=7, batch_size=64, batches=1, fitted=True),
    Case("training", 192, batch_size=64, batches=1, fitted=True),
    Case("training", 384, batch_size=32, batches=1, fitted=True),
    Case("evaluation", 16, batch_size=500, batches=4, fitted=True),
    Case("evaluation", 32, batch_size=16, batches=8, fitted=True),
    Case("evaluation", 32, batch_size=16, batches=16, variant={"layers": 3}, fitted=True),
    Case("evaluation", 32, batch_size=200, batches=4, fitted=True),
    Case("evaluation", 64, patch=7, batch_size=200, batches=1, fitted=True),
    Case("evaluation", 192, batch_size=100, batches=1, fitted=True),
    Case("evaluation", 384, batch_size=100, batches=1, fitted=True),
    Case("training", 32),
    Case("training", 32, variant={"layers": 6}),
    Case("training", 32, variant={"position": {"encode": {}}}),
    Case("training", 32, variant=PER_SAMPLE),
    Case("training", 64, batch_size=64),
    Case("training", 384, patch=16, size=224, batch_size=1, batches=1),
    Case("whole training", 32, batches=6),
    Case("evaluation", 32, batch_size=1000),
    Case("evaluation", 32, batch_size=1000, variant={"layers": 3}),
    Case("evaluation", 32, batch_size=1000, variant=PER_SAMPLE),
    Case("evaluation", 128, batch_size=200, batches=1),
    Case("evaluation", 384, patch=16, size=224, batch_size=4, batches=1),
]
together: Any = None  # in a process that measures: the barrier that all of them wait at


def start(barrier: Any) -> None:
    """In a new process."""
    global together
    together = barrier


def measure(folder: Path) -> list[float]:
    """Median seconds of each case, in one of the processes; all of them begin each case together."""
    torch.set_num_threads(1)
    runners = [case.runner(folder / str(i)) for i, case in enumerate(CASES)]
    seconds: list[list[float]] = []
    for _ in range(REPETITIONS + 1):
        seconds.append([])
        for run in runners:
            together.wait()
            begin = time.perf_counter()
            run()
            seconds[-1].append(time.perf_counter() - begin)
    return [median(of_case) for of_case in zip(*seconds[1:], strict=True)]


def side_by_side(processes: int) -> np.ndarray:
    """Seconds of each case (cases,): mean over the processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as temporary:
        for i, case in enumerate(CASES):
            case.write_data(Path(temporary) / str(i))
        with context.Pool(processes, start, (context.Barrier(processes),)) as pool:
            return np.mean(pool.map(measure, [Path(temporary)] * processes, chunksize=1), axis=0)


def fit(kind: str, works: list[list[Work]], seconds: np.ndarray) -> Speed:
    """Least squares of the relative error, no constant below 0."""
    chosen = [i for i, case in enumerate(CASES) if case.fitted and case.kind == kind]
    rows = (
        np.array(
            [(w.batches, w.operations, w.elements, w.flops) for w in (works[i][0] for i in chosen)]
        )
        / seconds[chosen, None]
    )
    scale = rows.max(axis=0)
    batch, operation, element, inverse_rate = nnls(rows / scale, np.ones(len(chosen)))[0] / scale
    return Speed(batch=batch, operation=operation, element=element, rate=1 / inverse_rate)


def paper_hardware() -> Hardware:
    """The paper's H100 from its training throughput."""
    preset = ModelPreset(timm="vit_base_patch16_224", weights="scratch")
    forward = count_forward(meta_backbone(preset, 1000), preset)
    speed = Speed(
        batch=0,
        operation=0,
        element=0,
        rate=route_work(forward, PAPER_RATE, 1, forward.num_layers, training=True).flops,
    )
    return Hardware(gpus=1, training=speed, evaluation=speed, source=PAPER_SOURCE)


def main() -> None:
    """Measure, fit, check, and write."""
    here = machine()
    works, seconds = [case.works() for case in CASES], side_by_side(here["cores"])
    source = f"measured by benchmarks/cost.py on {here['date']}, fp32, {here['cores']} processes of one thread side by side"
    fitted = {kind: fit(kind, works, seconds) for kind in ("training", "evaluation")}
    hardware = Hardware(cores=here["cores"], source=source, **fitted)
    estimates = [sum(work.seconds(hardware) for work in of_case) for of_case in works]
    checks = [
        {
            "case": case.name,
            "fitted": case.fitted,
            "measured_s": measured,
            "estimated_s": estimate,
            "ratio": estimate / measured,
        }
        for case, measured, estimate in zip(CASES, seconds.tolist(), estimates, strict=True)
    ]
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    measured_here = {here["hardware"]: hardware.model_dump() | {"machine": here, "checks": checks}}
    write(FILE, known | measured_here | {PAPER_NAME: paper_hardware().model_dump()})
    show(f"{here['hardware']}: seconds, and estimated / measured", checks)


if __name__ == "__main__":
    main()
