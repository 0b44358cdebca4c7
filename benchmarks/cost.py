"""Measure the rates behind `lsvit cost` on this machine and add them to benchmarks/cost.json.

A process of one thread per core, all at once, trains and evaluates ViTs of 12 layers on random
images.
"""

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from machine import machine, show, write
from torch.nn.functional import cross_entropy

from lsvit.routes import arbitrary, generator
from pipeline.config.presets import ModelPreset
from pipeline.cost import TRAINING_STEP
from pipeline.flops import count_variant
from pipeline.models.weights import build

FILE = Path(__file__).with_suffix(".json")
REPETITIONS = 5  # after a first one that does not count
NUM_CLASSES = 10
LAYERS = 12
# Width -> images in a batch of a training, and of an evaluation.
BATCHES = {16: (128, 500), 32: (64, 200), 64: (64, 200), 192: (64, 100), 384: (32, 100)}
together: Any = None  # in a process that measures: the barrier at which all of them wait


def preset_of(width: int) -> ModelPreset:
    """A ViT of this width for images of 28 pixels, in 4 patches."""
    kwargs = {
        "img_size": 28,
        "patch_size": 14,
        "in_chans": 1,
        "embed_dim": width,
        "depth": LAYERS,
        "num_heads": max(2, width // 64),
    }
    return ModelPreset(timm="vit_tiny_patch16_224", kwargs=kwargs, weights="scratch")


def start(barrier: Any) -> None:
    """Begin a process that measures."""
    global together
    together = barrier
    torch.set_num_threads(1)


def time_together(run: Callable[[], object]) -> float:
    """Median seconds of `run`, which all processes begin at once."""
    seconds = []
    for _ in range(REPETITIONS + 1):
        together.wait()
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return median(seconds[1:])


def measure(width: int) -> tuple[float, float]:
    """Seconds of a training step and of an evaluation."""
    model = build(preset_of(width), NUM_CLASSES)
    optimizer = torch.optim.AdamW(model.parameters())
    train_size, evaluation_size = BATCHES[width]
    images = torch.randn(evaluation_size, 1, 28, 28)
    labels = torch.randint(NUM_CLASSES, (evaluation_size,))
    route = arbitrary(generator("samples", 0), LAYERS)

    def train() -> None:
        model.train()
        cross_entropy(model(images[:train_size], route), labels[:train_size]).backward()
        optimizer.step()
        optimizer.zero_grad()

    @torch.inference_mode()
    def evaluate() -> None:
        model.eval()
        model(images, route)

    return time_together(train), time_together(evaluate)


def rates_of(width: int, processes: int) -> dict[str, float]:
    """FLOP/s of one process, as an entry of cost.json."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, start, (context.Barrier(processes),)) as pool:
        seconds = pool.map(measure, [width] * processes, chunksize=1)
    training, evaluation = (fmean(times) for times in zip(*seconds, strict=True))
    flops = count_variant(preset_of(width), NUM_CLASSES).whole(LAYERS)
    train_size, evaluation_size = BATCHES[width]
    return {
        "width": width,
        "training": TRAINING_STEP * train_size * flops / training,
        "evaluation": evaluation_size * flops / evaluation,
    }


def main() -> None:
    """Measure and write."""
    here = machine()
    rates = [rates_of(width, here["cores"]) for width in BATCHES]
    source = f"measured on {here['date']}, fp32, a process of one thread per core"
    known = json.loads(FILE.read_text("utf-8"))
    known[here["hardware"]] = {"workers": here["cores"], "rates": rates, "source": source}
    write(FILE, known)
    show(f"{here['hardware']}: FLOP/s of one process", rates)


if __name__ == "__main__":
    main()
