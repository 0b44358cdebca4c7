"""Training and evaluation speed beside plain timm and transformers: `uv run --group bench python
benchmarks/throughput.py`.

All ways of one geometry alternate within every repetition, and who begins changes; ratios to plain
timm are medians of the ratios within a repetition. Plain timm: `model(images)`, cross-entropy,
fused Adam, in the same precision, attention and compilation. Random images that are on the device
already. Peak: what the device reaches in one large matrix product of the same precision in the same
run. -> throughput.json, one entry a machine.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from machine import machine, show, write_entry
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from lsvit.position import Encode, Position, Predict
from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, Routes, RouteTable, arbitrary, generator, per_sample
from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.sections import Finetune
from pipeline.training.devices import Execution, compile_blocks, has_bf16, pick_device, settle
from pipeline.training.objectives import Batch, ClassLoss
from pipeline.training.optimisation import make_optimizer
from pipeline.training.step import TrainingStep, backward_in_parts

FILE = Path(__file__).with_suffix(".json")
NUM_CLASSES, NUM_LAYERS = 1000, 12
POSITIONS = {"LS-pos": Position(encode=Encode()), "LS-pred": Position(predict=Predict())}


class Geometry(NamedTuple):
    """A model, the batch to time, and steps a measurement."""

    name: str
    width: int
    heads: int
    size: int
    batch: int
    steps: int
    micro_batch: int | None = None

    @property
    def kwargs(self) -> dict[str, Any]:
        """For timm.create_model: patches of 16 pixels at 224, else of 14 as in the micro models."""
        patch = 16 if self.size == 224 else 14
        return {
            "img_size": self.size,
            "patch_size": patch,
            "embed_dim": self.width,
            "num_heads": self.heads,
            "depth": NUM_LAYERS,
            "num_classes": NUM_CLASSES,
        }


GEOMETRIES = {
    "cpu": [
        Geometry("vit_micro", 32, 2, 28, 128, 20),
        Geometry("ViT-S/16", 384, 6, 224, 8, 1),
        Geometry("ViT-B/16", 768, 12, 224, 2, 1),
    ],
    "cuda": [
        Geometry("ViT-B/16", 768, 12, 224, 128, 10),
        Geometry("ViT-B/16", 768, 12, 224, 640, 4, micro_batch=160),
    ],
}


def transformers_vit(geometry: Geometry) -> nn.Module:
    """transformers' ViT of the same geometry, random weights.

    Its forward gives an object with `logits`.
    """
    from transformers import ViTConfig, ViTForImageClassification

    config: dict[str, Any] = {
        "hidden_size": geometry.width,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": geometry.heads,
        "intermediate_size": 4 * geometry.width,
        "image_size": geometry.size,
        "patch_size": geometry.kwargs["patch_size"],
        "num_labels": NUM_CLASSES,
        "attn_implementation": "sdpa",
    }
    return ViTForImageClassification(ViTConfig(**config))


class Bench:
    """The ways to run one geometry, each a function that does `steps` training steps or forward
    passes.
    """

    def __init__(self, geometry: Geometry, execution: Execution, options: Finetune) -> None:
        self.geometry, self.execution, device = geometry, execution, execution.device
        self.options = options.model_copy(update={"batch_size": geometry.batch})
        self.images = torch.rand(geometry.batch, 3, geometry.size, geometry.size, device=device)
        self.labels = torch.randint(NUM_CLASSES, (geometry.batch,), device=device)
        self.draws = itertools.count()

    def route(self, kind: str) -> Routes:
        """The next route: all layers in order, a random order, or one for every sample."""
        rng = generator("samples", next(self.draws))
        if kind == "per sample":
            return RouteTable(per_sample(arbitrary, rng, NUM_LAYERS, self.geometry.batch))
        return OneRoute(
            tuple(range(NUM_LAYERS)) if kind == "sequential" else arbitrary(rng, NUM_LAYERS)
        )

    def plain(self, model: Any, training: bool) -> Callable[[], None]:
        """A model that maps images to logits, as its library's users run it."""
        model = model.to(self.execution.device).train(training)
        optimizer = make_optimizer(model, self.options)
        if self.execution.compiled:
            compile_blocks(
                next(
                    m
                    for m in model.modules()
                    if isinstance(m, nn.Sequential | nn.ModuleList) and len(m) == NUM_LAYERS
                )
            )

        def logits() -> Tensor:
            with self.execution.context():
                out = model(self.images)
                return out if isinstance(out, Tensor) else out.logits

        def steps() -> None:
            for _ in range(self.geometry.steps):
                optimizer.zero_grad()
                cross_entropy(logits(), self.labels).backward()
                optimizer.step()

        return steps if training else self.inference(logits)

    def routed(
        self, kind: str, training: bool, position: Position | None = None, **changes: Any
    ) -> Callable[[], None]:
        """The pipeline's own training step and forward pass."""
        backbone = timm.create_model("vit_base_patch16_224", **self.geometry.kwargs)
        model = (
            RoutedModel(backbone, position or Position()).to(self.execution.device).train(training)
        )
        model.checkpointing = changes.pop("checkpointing", False)
        options = self.options.model_copy(update=changes)
        if self.execution.compiled:
            compile_blocks(model.backbone.blocks)
        step = TrainingStep(model, [ClassLoss()], self.execution)
        optimizer = make_optimizer(model, options)

        def steps() -> None:
            for _ in range(self.geometry.steps):
                optimizer.zero_grad()
                backward_in_parts(step, Batch(self.images, self.labels), self.route(kind), options)
                optimizer.step()

        def logits() -> Tensor:
            with self.execution.context():
                return model(self.images, self.route(kind))

        return steps if training else self.inference(logits)

    def inference(self, logits: Callable[[], Tensor]) -> Callable[[], None]:
        """Forward passes alone."""

        def passes() -> None:
            with torch.inference_mode():
                for _ in range(self.geometry.steps):
                    logits()

        return passes

    def ways(self, training: bool) -> dict[str, Callable[[], None]]:
        """By name, plain timm first."""
        timed = {
            "timm": self.plain(
                timm.create_model("vit_base_patch16_224", **self.geometry.kwargs), training
            ),
            "routed, original order": self.routed("sequential", training),
            "LS": self.routed("arbitrary", training),
            **{
                name: self.routed("arbitrary", training, position)
                for name, position in POSITIONS.items()
            },
        }
        if self.geometry.size == 224:  # transformers' pays for more than it computes in narrow ones
            timed["transformers"] = self.plain(transformers_vit(self.geometry), training)
        if training:
            timed["LS, checkpointing"] = self.routed("arbitrary", training, checkpointing=True)
        if training and self.geometry.micro_batch:
            timed["LS, accumulated"] = self.routed(
                "arbitrary", training, micro_batch_size=self.geometry.micro_batch
            )
        if (
            not self.execution.compiled
        ):  # groups of any size would leave the other ways with the compiler's code for any batch
            timed["LS, an order a sample"] = self.routed("per sample", training)
        return timed


def seconds(run: Callable[[], None], device: torch.device) -> float:
    """Of one call, with what it left to do on the device."""
    begin = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def peak(execution: Execution) -> float:
    """FLOP/s of a large matrix product in this precision: the best of some."""
    size = 8192 if execution.device.type == "cuda" else 2048
    a, b = (torch.rand(size, size, device=execution.device) for _ in range(2))

    def product() -> None:
        with execution.context():
            torch.mm(a, b)

    if execution.precision == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
    return 2 * size**3 / min(seconds(product, execution.device) for _ in range(10))


def flops(geometry: Geometry) -> int:
    """Of one image's forward pass, attention included (counted in the unfused form, which no kernel
    hides).
    """
    model = timm.create_model("vit_base_patch16_224", **geometry.kwargs).eval()
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(torch.zeros(1, 3, geometry.size, geometry.size))
    return counter.get_total_flops()


def measure(
    geometry: Geometry, execution: Execution, options: Finetune, repetitions: int, whole: bool
) -> list[dict[str, Any]]:
    """A row a way, for training and for evaluation.

    Unless `whole`, of plain timm, the routed model and LS alone.
    """
    rows = []
    top, work = peak(execution), flops(geometry)
    for training in (True, False):
        torch._dynamo.reset()
        used = (
            execution if training else replace(execution, compiled=False)
        )  # as stage prune-eval evaluates
        timed = Bench(geometry, used, options).ways(training)
        names = list(timed)[: None if whole else 3]
        rates = np.empty(
            (repetitions + 1, len(names))
        )  # the first repetition compiles and warms up
        for repetition in range(repetitions + 1):
            for turn in range(len(names)):
                way = (repetition + turn) % len(names)
                rates[repetition, way] = (
                    geometry.batch * geometry.steps / seconds(timed[names[way]], execution.device)
                )
        ratios = np.quantile(rates[1:] / rates[1:, :1], (0.25, 0.5, 0.75), axis=0).T
        for name, rate, (low, ratio, high) in zip(
            names, np.median(rates[1:], axis=0), ratios, strict=True
        ):
            rows.append(
                {
                    "model": geometry.name,
                    "batch": geometry.batch,
                    "precision": execution.precision,
                    "compiled": used.compiled,
                    "deterministic": execution.deterministic,
                    "pass": "training" if training else "evaluation",
                    "way": name,
                    "repetitions": repetitions,
                    "images_s": float(rate),
                    "to_timm": float(ratio),
                    "quartiles": [float(low), float(high)],
                    "of_peak": float(rate) * work * (3 if training else 1) / top,
                }
            )
    return rows


def settings(geometry: Geometry, device: torch.device) -> list[Execution]:
    """What `auto` picks, its alternatives, and what the deterministic switch costs."""
    chosen = settle(device, geometry.width, "auto", "auto")
    found = [chosen]
    if device.type == "cuda":
        found += [
            settle(device, geometry.width, chosen.precision, "none"),
            settle(device, geometry.width, chosen.precision, "auto", True),
        ]
    others = ("bf16", "tf32") if device.type == "cuda" else ("fp32", "bf16")
    if not has_bf16(device):  # many times slower: `emulated_bf16` times little of it
        return found
    return found + [
        settle(device, geometry.width, precision, "auto")
        for precision in others
        if precision != chosen.precision
    ]


def emulated_bf16(geometry: Geometry, options: Finetune) -> dict[str, Any]:
    """A row.

    How much slower a processor without instructions for bf16 trains in it, from single LS steps of
    few images.
    """
    small = geometry._replace(batch=16 if geometry.size < 200 else 1, steps=1)
    rates: dict[str, float] = {}
    for precision in ("fp32", "bf16"):
        run = Bench(small, settle(torch.device("cpu"), geometry.width, precision), options).routed(
            "arbitrary", True
        )
        rates[precision] = small.batch / min(seconds(run, torch.device("cpu")) for _ in range(3))
    return {
        "model": geometry.name,
        "batch": small.batch,
        **{f"{p}_images_s": rate for p, rate in rates.items()},
        "bf16_to_fp32": rates["bf16"] / rates["fp32"],
    }


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(
        description="Training and evaluation speed beside plain timm and transformers."
    )
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: all)"
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=5,
        help="of all ways; plain timm, routed and LS alone have three times as many",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device, options = pick_device(arguments.device), load(papers=PAPERS).finetune
    computer = machine(torch.cuda.get_device_name(device) if device.type == "cuda" else "") | {
        "threads": arguments.threads
    }
    rows: list[dict[str, Any]] = []
    for geometry in GEOMETRIES[device.type]:
        for i, setting in enumerate(settings(geometry, device)):
            whole = i == 0 or not (
                setting.compiled or device.type == "cpu"
            )  # an order a sample is timed uncompiled
            # Settled anew: TF32, the attention kernel and determinism are the process's.
            again = settle(
                device,
                geometry.width,
                setting.precision,
                "blocks" if setting.compiled else "none",
                setting.deterministic,
            )
            try:
                rows += measure(geometry, again, options, arguments.repetitions, whole)
                rows += (
                    measure(geometry, again, options, 3 * arguments.repetitions, whole=False)
                    if i == 0
                    else []
                )
            except torch.OutOfMemoryError:
                print(f"{geometry}: out of memory, {again}")
            # after every setting, so that what ends the run takes nothing away
            write_entry(FILE, {"machine": computer, "rows": rows})
    if device.type == "cpu" and not has_bf16(device):
        emulated = [emulated_bf16(geometry, options) for geometry in GEOMETRIES["cpu"][:2]]
        write_entry(FILE, {"machine": computer, "rows": rows, "emulated_bf16": emulated})
        show("training in bf16 without instructions for it", emulated)
    show("images/s; to_timm: ratio to plain timm within a repetition", rows)


if __name__ == "__main__":
    main()
