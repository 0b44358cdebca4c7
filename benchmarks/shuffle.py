"""What shuffling costs a training step: `python benchmarks/shuffle.py` -> shuffle.json.

Milliseconds of a step (forward, backward, SGD) of a plain timm model, of the same model shuffled
(`lsvit.shuffle`), and of a RoutedModel given a random order. One thread; its processor time is
taken, which other processes change little. The ways alternate step by step in one process, and who
begins changes. Speeds are medians of the ratios to the plain step beside each.
"""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from machine import machine, show, write
from torch.nn.functional import cross_entropy

import lsvit

FILE = Path(__file__).with_suffix(".json")
WAYS = ("plain", "shuffled", "routed")


class Size(NamedTuple):
    """A 12-layer ViT, its batch, and how often each way is timed."""

    width: int
    heads: int
    size: int
    patch: int
    batch: int
    repetitions: int


SIZES = [
    Size(width=64, heads=4, size=28, patch=7, batch=32, repetitions=60),
    Size(width=192, heads=3, size=96, patch=16, batch=16, repetitions=21),
    Size(width=384, heads=6, size=224, patch=16, batch=4, repetitions=9),
]


def steps_of(size: Size) -> list[Callable[[int], None]]:
    """For each way, a function that takes a training step."""
    torch.manual_seed(0)
    plain = timm.create_model(
        "vit_small_patch16_224",
        img_size=size.size,
        patch_size=size.patch,
        embed_dim=size.width,
        num_heads=size.heads,
        num_classes=10,
    ).train()
    shuffled = copy.deepcopy(plain)
    lsvit.shuffle(shuffled)
    routed = lsvit.RoutedModel(copy.deepcopy(plain))
    images = torch.rand(size.batch, 3, size.size, size.size)
    labels = torch.randint(0, 10, (size.batch,))

    def step_of(model: Any) -> Callable[[int], None]:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        def take(number: int) -> None:
            optimizer.zero_grad()
            if model is routed:
                route = lsvit.arbitrary(lsvit.generator("shuffle", 0, number), model.num_layers)
                logits = model(images, route)
            else:
                logits = model(images)
            cross_entropy(logits, labels).backward()
            optimizer.step()

        return take

    return [step_of(model) for model in (plain, shuffled, routed)]


def time_steps(size: Size) -> dict[str, float]:
    """Milliseconds of every way, and its speed over the plain step's."""
    steps = steps_of(size)
    seconds = np.empty((size.repetitions + 1, len(WAYS)))  # the first repetition does not count
    for repetition in range(len(seconds)):
        for turn in range(len(WAYS)):
            way = (repetition + turn) % len(WAYS)
            begin = time.process_time()
            steps[way](repetition)
            seconds[repetition, way] = time.process_time() - begin
    seconds = seconds[1:]
    speeds = np.median(seconds[:, :1] / seconds, axis=0)
    row = {}
    for name, milliseconds in zip(WAYS, 1e3 * np.median(seconds, axis=0), strict=True):
        row[f"{name}_ms"] = float(milliseconds)
    for name, speed in zip(WAYS[1:], speeds[1:], strict=True):
        row[f"{name}_speed"] = float(speed)
    return row


def main() -> None:
    """Measure, write and print."""
    torch.set_num_threads(1)
    rows = []
    for size in SIZES:
        row: dict[str, Any] = size._asdict()
        rows.append(row | time_steps(size))
        print(rows[-1], flush=True)
    write(FILE, {"machine": machine() | {"threads": 1}, "steps": rows})
    show("a training step, 12 layers", rows)


if __name__ == "__main__":
    main()
