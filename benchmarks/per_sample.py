"""What an order of its own for every sample costs, and what it gains: `python
benchmarks/per_sample.py` -> per_sample.json.

Speed: evaluation images/s of one shared order, of an order a sample, and of the same orders one
image at a time. The three alternate within every repetition; ratios are medians of the ratios
within a repetition. Random images; all CPU threads, or `--threads 1` on a machine that is shared,
where threads wait for each other.
Gain: the standard deviation of an accuracy estimate from one pass, with an order a batch and with
an order a sample.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from machine import machine, show, write

from lsvit.routed import RoutedModel
from lsvit.routes import OneRoute, RouteTable, arbitrary, generator, per_sample
from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.config.variant import Variant
from pipeline.data.prepare import prepare
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import WEIGHTS, read_meta
from pipeline.jobs.plan import run_config
from pipeline.models.weights import build, input_size
from pipeline.training.loop import train
from pipeline.training.scoring import InTurn, open_model, open_split, score

FILE = Path(__file__).with_suffix(".json")
REPETITIONS = 7
ESTIMATES, BATCH_SIZE, EPOCHS = 20, 120, 15  # of the gain


class Geometry(NamedTuple):
    """A 12-layer ViT, the batches to time, and how many images are enough one at a time."""

    width: int
    heads: int
    size: int
    patch: int
    batches: tuple[int, ...]
    singles: int = 16

    def model(self) -> tuple[RoutedModel, tuple[int, int]]:
        """The model and (channels, pixels) of its images.

        224 px in colour, else grey as the embedded ones.
        """
        kwargs = {
            "img_size": self.size,
            "patch_size": self.patch,
            "in_chans": 3 if self.size == 224 else 1,
        }
        preset = ModelPreset(
            timm="vit_small_patch16_224",
            weights="scratch",
            kwargs=kwargs | {"embed_dim": self.width, "num_heads": self.heads, "depth": 12},
        )
        model = build(preset, 10).eval()
        return model, input_size(model, preset)


GEOMETRIES = [
    Geometry(384, 6, 28, 14, (64, 256, 512)),  # ViT-S
    Geometry(384, 6, 28, 7, (64, 192)),
    Geometry(384, 6, 224, 16, (24,), 4),
    Geometry(32, 2, 28, 14, (64, 256, 512, 2000)),  # vit_micro
]


def ways(
    model: RoutedModel, images: torch.Tensor, singles: int
) -> list[tuple[int, Callable[[], object]]]:
    """(images, function to time): shared order, an order a sample, the same orders one by one."""
    routes = torch.from_numpy(
        per_sample(arbitrary, generator("samples", 0), model.num_layers, len(images))
    )
    shared = tuple(range(model.num_layers))
    each = [tuple(route.tolist()) for route in routes[:singles]]
    return [
        (len(images), lambda: model(images, shared)),
        (len(images), lambda: model(images, routes)),
        (singles, lambda: [model(images[i : i + 1], route) for i, route in enumerate(each)]),
    ]


@torch.inference_mode()
def speed(geometry: Geometry) -> list[dict[str, Any]]:
    """A row a batch size: images/s of the three ways, and the two ratios."""
    model, (channels, size) = geometry.model()
    rows = []
    for batch in geometry.batches:
        timed = ways(model, torch.rand(batch, channels, size, size), geometry.singles)
        rates = np.empty((REPETITIONS + 1, 3))  # images/s; the first repetition does not count
        for repetition in range(REPETITIONS + 1):
            for turn in range(3):  # who begins changes
                way = (repetition + turn) % 3
                count, run = timed[way]
                begin = time.perf_counter()
                run()
                rates[repetition, way] = count / (time.perf_counter() - begin)
        shared, own, single = rates[1:].T
        rows.append(
            {
                "width": geometry.width,
                "pixels": size,
                "patch": geometry.patch,
                "tokens": (size // geometry.patch) ** 2 + 1,
                "batch": batch,
                "sequential_images_s": np.median(shared).item(),
                "per_sample_images_s": np.median(own).item(),
                "batch_1_images_s": np.median(single).item(),
                "per_sample_to_sequential": np.median(own / shared).item(),
                "per_sample_to_batch_1": np.median(own / single).item(),
                "sequential_to_batch_1": np.median(shared / single).item(),
            }
        )
    return rows


def gain(route: str, folder: Path) -> dict[str, Any]:
    """Estimates of the accuracy under arbitrary orders of a vit_micro trained on the digits, from
    one pass each.
    """
    params = load(papers=PAPERS).model_copy(update={"dataset": "digits", "model": "vit_micro"})
    data = folder / "digits"
    if not data.exists():
        prepare("digits", params.dataset_preset, data, data)
    run = run_config(params, route, Variant(route=route), read_meta(data)["sha256"], None)
    options = params.resolve(Finetune).model_copy(
        update={"epochs": EPOCHS, "threads": torch.get_num_threads()}
    )
    config = TrainConfig(**run, options=options, seed=0)
    trained = folder / route
    trained.mkdir()
    train(config, data, None, trained, lambda row: None)
    model, execution = open_model(config, data, trained / WEIGHTS)
    split = open_split(config, data, "validation", model)
    batches, estimates = -(-len(split) // BATCH_SIZE), []
    for i in range(ESTIMATES):
        routes = per_sample(arbitrary, generator("samples", 0, i), model.num_layers, len(split))
        a_batch = InTurn(
            [OneRoute(tuple(route)) for route in routes[:batches].tolist()], BATCH_SIZE
        )
        estimates.append(
            [
                score(model, split, orders, BATCH_SIZE, execution).accuracy
                for orders in (a_batch, RouteTable(routes))
            ]
        )
    (mean_batch, mean_sample), (std_batch, std_sample) = (
        np.mean(estimates, axis=0),
        np.std(estimates, axis=0, ddof=1),
    )
    return {
        "trained": route,
        "images": len(split),
        "estimates": ESTIMATES,
        "orders_a_pass": batches,
        "mean_order_a_batch": float(mean_batch),
        "mean_order_a_sample": float(mean_sample),
        "std_order_a_batch": float(std_batch),
        "std_order_a_sample": float(std_sample),
        "ratio": float(std_batch / std_sample),
    }


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(
        description="Speed and gain of an order of its own for every sample."
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="CPU threads (default: all)"
    )
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    rows = [row for geometry in GEOMETRIES for row in speed(geometry)]
    with tempfile.TemporaryDirectory() as temporary:
        gains = [gain(route, Path(temporary)) for route in ("sequential", "arbitrary")]
    write(
        FILE,
        {
            "machine": machine() | {"threads": threads},
            "repetitions": REPETITIONS,
            "speed": rows,
            "gain": gains,
        },
    )
    show("evaluation images/s, 12 layers", rows)
    show("accuracy under arbitrary orders, estimated from one pass", gains)


if __name__ == "__main__":
    main()
