"""What a training step along Latin routes costs: `python benchmarks/latin.py` -> latin.json.

Milliseconds of a step (forward, backward, Adam) with one random order a batch, with Latin routes,
layers stacked and in groups, and with an order a sample. The ways alternate within every
repetition; ratios are medians of the ratios to one order a batch within it. Memory: peak resident
set of a process that takes two such steps, less that before the first.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from machine import machine, show, write
from torch.nn.functional import cross_entropy

from lsvit import routed
from lsvit.latin import Latin, latin
from lsvit.position import Position, Predict, position_loss
from lsvit.routed import RoutedModel
from lsvit.routes import Route, arbitrary, generator, per_sample
from lsvit.taps import PositionLogits

FILE = Path(__file__).with_suffix(".json")
WAYS = ("batch", "stacked", "groups", "sample")


class Geometry(NamedTuple):
    """A 12-layer ViT, its batch, and how often each way is timed."""

    width: int
    heads: int
    size: int
    patch: int
    batch: int
    repetitions: int
    predict: bool = False  # LS-pred: all layers' positions are predicted

    def model(self) -> RoutedModel:
        """With random weights."""
        sizes: dict[str, Any] = {
            "img_size": self.size,
            "patch_size": self.patch,
            "in_chans": 1,
            "num_classes": 10,
        }
        backbone = timm.create_model(
            "vit_small_patch16_224", **sizes, embed_dim=self.width, num_heads=self.heads, depth=12
        )
        return RoutedModel(backbone, Position(predict=Predict() if self.predict else None))


GEOMETRIES = [
    Geometry(32, 2, 28, 14, 60, 15),
    Geometry(32, 2, 28, 14, 132, 15),
    Geometry(32, 2, 28, 14, 132, 15, predict=True),
    Geometry(64, 4, 28, 14, 132, 15),
    Geometry(64, 4, 28, 7, 132, 9),
    Geometry(384, 6, 224, 16, 24, 2),
    Geometry(768, 12, 224, 16, 12, 2),
]


def step(geometry: Geometry) -> Callable[[str, int], float]:
    """A function that takes one training step in one of the ways and gives its seconds."""
    torch.manual_seed(0)
    model = geometry.model()
    stacked, images = (
        RoutedModel(model.backbone),
        torch.rand(geometry.batch, 1, geometry.size, geometry.size),
    )
    stacked.position = model.position
    labels, optimizer = (
        torch.randint(0, 10, (geometry.batch,)),
        torch.optim.Adam(model.parameters(), fused=True),
    )

    def take(way: str, number: int) -> float:
        rng = generator("latin benchmark", number)
        route: Route | torch.Tensor | Latin = latin(rng, model.num_layers)
        if way == "batch":
            route = arbitrary(rng, model.num_layers)
        elif way == "sample":
            route = torch.from_numpy(per_sample(arbitrary, rng, model.num_layers, geometry.batch))
        routed.WIDEST_STACK = 10_000 if way == "stacked" else 0
        chosen = stacked if way == "stacked" else model
        begin = time.perf_counter()
        optimizer.zero_grad()
        taps = [PositionLogits(chosen)] if geometry.predict else []
        loss = cross_entropy(chosen(images, route, taps), labels)
        (loss + position_loss(taps[0].logits) if taps else loss).backward()
        optimizer.step()
        return time.perf_counter() - begin

    return take


def timed(geometry: Geometry) -> dict[str, float]:
    """Milliseconds of every way, and ratios to one order a batch."""
    take = step(geometry)
    seconds = np.empty((geometry.repetitions + 1, len(WAYS)))  # the first repetition does not count
    for repetition, turn in itertools.product(range(geometry.repetitions + 1), range(len(WAYS))):
        way = (repetition + turn) % len(WAYS)  # who begins changes
        seconds[repetition, way] = take(WAYS[way], repetition)
    found = {
        f"{way}_ms": 1e3 * float(np.median(column))
        for way, column in zip(WAYS, seconds[1:].T, strict=True)
    }
    ratios = np.median(seconds[1:] / seconds[1:, :1], axis=0)
    return found | {
        f"{way}_to_batch": float(ratio) for way, ratio in zip(WAYS[1:], ratios[1:], strict=True)
    }


def peak() -> float:
    """Largest resident set of this process so far, in MiB.

    What getrusage gives a process begins with its parent's.
    """
    return (
        int(
            re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("utf-8"), re.M)[0]
        )
        / 1024
    )


def memory(geometry: Geometry, way: str) -> float:
    """MiB that two steps take, in a process of its own."""
    command = [sys.executable, __file__, "--memory", way, json.dumps(geometry)]
    return float(subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout)


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description="What a training step along Latin routes costs.")
    parser.add_argument("--memory", nargs=2, help="used by the script itself")
    given = parser.parse_args().memory
    torch.set_num_threads(1)
    if given:
        geometry = Geometry(*json.loads(given[1]))
        take, before = step(geometry), peak()
        for number in range(2):
            take(given[0], number)
        print(peak() - before)
        return
    rows: list[dict[str, Any]] = []
    for geometry in GEOMETRIES:
        row: dict[str, Any] = {
            key: value for key, value in geometry._asdict().items() if key != "repetitions"
        }
        row |= timed(geometry)
        row |= {
            f"{way}_mib": memory(geometry, way) if geometry.size > 28 else None for way in WAYS
        }  # a micro model's is lost in torch's own
        rows.append(row)
        print(row, flush=True)
    write(FILE, {"machine": machine() | {"threads": 1}, "steps": rows})
    show("a training step, 12 layers", rows)


if __name__ == "__main__":
    main()
