"""One training in 1, 2, ... processes: `uv run python benchmarks/scaling.py` -> scaling.json, one
entry a machine.

Weak scaling: every process keeps its batch, so the work of a step grows with the processes. The
pipeline's own launch (torchrun, DDP; NCCL on CUDA with a GPU each, gloo on a CPU with a thread
each) and training epochs, on random images. Efficiency: images/s of n processes over n times those
of one, the median over the repetitions; the numbers of processes alternate within a repetition.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine, show, write_entry

from papers import PAPERS
from pipeline.config.load import load
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Distributed
from pipeline.config.variant import Variant
from pipeline.data.shards import Arrays, write_arrow
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.job import Job
from pipeline.jobs.machine import gpus
from pipeline.jobs.run import run

FILE = Path(__file__).with_suffix(".json")
EPOCHS, STEPS, REPETITIONS = 4, 4, 3
# name, width, heads, pixels, patch, batch of a process
CPU = [("vit_micro", 32, 2, 28, 14, 128), ("ViT-S/16", 384, 6, 224, 16, 4)]
CUDA = [("ViT-B/16", 768, 12, 224, 16, 128)]


def images_s(folder: Path, geometry: tuple, processes: int, device: str, seed: int) -> float:
    """Images/s of a training in so many processes: the median over its epochs after the first."""
    name, width, heads, pixels, patch, batch = geometry
    data, images = folder / f"{width}_{processes}", batch * processes * STEPS
    if not data.exists():
        data.mkdir()
        rng = np.random.default_rng(0)
        arrays = Arrays(
            rng.integers(0, 256, (images, pixels, pixels, 3), dtype=np.uint8),
            rng.integers(0, 10, images),
        )
        write_arrow(data / "train.arrow", arrays.images.shape[1:], [arrays])
        meta = {
            "classes": list(range(10)),
            "counts": {"train": images},
            "mean": [0.5] * 3,
            "std": [0.5] * 3,
            "resize": "published",
        }
        (data / "meta.json").write_text(json.dumps(meta), "utf-8")
    kwargs = {
        "img_size": pixels,
        "patch_size": patch,
        "embed_dim": width,
        "num_heads": heads,
        "depth": 12,
    }
    changes = {"epochs": EPOCHS, "batch_size": batch * processes, "threads": 1}
    config = TrainConfig(
        title=name,
        dataset="random",
        model_name=name,
        device=device,
        data_sha256="",
        weights_sha256=None,
        model=ModelPreset(timm="vit_small_patch16_224", kwargs=kwargs, weights="scratch"),
        variant=Variant(route="arbitrary"),
        options=load(papers=PAPERS).finetune.model_copy(update=changes),
        seed=seed,
        world_size=processes,
    )
    rows: list[dict] = []
    job = Job(
        f"{name}, {processes} processes", "benchmarks.epochs:timed", config, {"data": data}, EPOCHS
    )
    run(
        [job],
        device,
        lambda job, row: rows.append(row),
        1,
        Distributed(processes=processes, nodes=1, endpoint=None, routes="shared"),
    )
    return float(np.median([images / row["seconds"] for row in rows[1:]]))


def main() -> None:
    """Measure, write and print."""
    parser = argparse.ArgumentParser(description="One training in several processes.")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu"))
    device, gpus = parser.parse_args().device, gpus().count
    if device == "cpu":
        gpus = 0
    most = gpus or len(os.sched_getaffinity(0))
    counts = [n for n in (1, 2, 4, 8) if n <= most]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["DVC_ROOT"] = temporary  # where the jobs keep their state
        for geometry in CUDA if gpus else CPU:
            rates = np.array(
                [
                    [images_s(Path(temporary), geometry, n, device, seed) for n in counts]
                    for seed in range(REPETITIONS)
                ]
            )
            for n, column in zip(counts, rates.T, strict=True):
                efficiency = float(np.median(column / (n * rates[:, 0])))
                rows.append(
                    {
                        "model": geometry[0],
                        "batch_a_process": geometry[-1],
                        "processes": n,
                        "images_s": float(np.median(column)),
                        "efficiency": efficiency,
                    }
                )
    name = torch.cuda.get_device_name() if gpus else ""
    write_entry(
        FILE, {"machine": machine(name) | {"gpus": gpus}, "repetitions": REPETITIONS, "rows": rows}
    )
    show("one training in several processes", rows)


if __name__ == "__main__":
    main()
