"""Memory does not grow with the data set: `python benchmarks/memory.py` -> memory.json.

The peak anonymous memory of preparing, of one epoch of training and of one evaluation, each in a
process of its own, on a folder of JPEG files and on one four times as large. Anonymous memory is
what a process and its workers allocate; the pages of the memory-mapped images belong to the page
cache, which Linux takes back when it needs them, and are not counted.
"""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch
from loading import write_jpegs
from machine import machine, show, write

from lsvit.routes import OneRoute
from papers import PAPERS
from papers.layershuffle.section import EvalConfig, PruneEval
from pipeline.config.datasets import DatasetPreset
from pipeline.config.load import load
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.config.variant import Variant
from pipeline.data.prepare import prepare
from pipeline.jobs.configs import TrainConfig
from pipeline.jobs.files import read_meta
from pipeline.jobs.plan import run_config
from pipeline.training.loop import train
from pipeline.training.scoring import open_model, open_split, score

FILE = Path(__file__).with_suffix(".json")
SETS, SIZE, BATCH_SIZE = (1_000, 4_000), 64, 50
PARTS = ("prepare", "train", "evaluate")
INTERVAL = 0.02  # seconds between samples


def anonymous(pid: int) -> int:
    """Bytes of a process's anonymous memory and of its children's, proportionally where they share
    it.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("utf-8").splitlines()
        own = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text("utf-8").split()
        ]
    except (OSError, StopIteration):  # it has just ended
        return 0
    return own + sum(anonymous(child) for child in children)


def settings() -> Params:
    """A small ViT on images of SIZE pixels."""
    kwargs = {"img_size": SIZE, "patch_size": 16, "embed_dim": 32, "depth": 12, "num_heads": 2}
    params, name = load(papers=PAPERS), "textures"
    options = {"batch_size": BATCH_SIZE, "validation_batch_size": BATCH_SIZE, "epochs": 1}
    return params.model_copy(
        update={
            "model": name,
            "models": {
                name: ModelPreset(timm="vit_tiny_patch16_224", weights="scratch", kwargs=kwargs)
            },
            "dataset": name,
            "datasets": {name: DatasetPreset(source="image_folder", folder="images")},
            "finetune": params.finetune.model_copy(update=options),
        }
    )


def work(part: str, folder: Path) -> None:
    """One part, in a process of its own, with the pipeline's functions."""
    params, data, variant = settings(), folder / "prepared", Variant(route="arbitrary")
    os.environ["DVC_ROOT"] = str(folder)
    if part == "prepare":
        prepare(params.dataset, params.dataset_preset, folder, data, params.model_preset)
        return
    run = run_config(params, part, variant, read_meta(data)["sha256"], None)
    if part == "train":
        (folder / part).mkdir()
        train(
            TrainConfig(**run, options=params.resolve(Finetune), seed=0),
            data,
            None,
            folder / part,
            lambda row: None,
        )
        return
    config = EvalConfig(**run, options=params.resolve(PruneEval), seed=0, precision="fp32")
    model, execution = open_model(config, data, None)
    score(
        model,
        open_split(config, data, "train", model),
        OneRoute(tuple(range(12))),
        BATCH_SIZE,
        execution,
    )


def peak(part: str, folder: Path) -> float:
    """Megabytes."""
    process = subprocess.Popen(
        [sys.executable, __file__, part, str(folder)], stdout=subprocess.DEVNULL
    )
    highest, ended = 0, threading.Event()
    while not ended.wait(INTERVAL):
        highest = max(highest, anonymous(process.pid))
        if process.poll() is not None:
            ended.set()
    if process.returncode:
        raise SystemExit(process.returncode)
    return highest / 1e6


def main() -> None:
    """Measure, write and print."""
    rows = []
    for images in SETS:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_jpegs(folder / "images", images, (100, 75))
            decoded = (images + images // 10) * 3 * SIZE**2 / 1e6
            rows.append(
                {"images": images, "decoded_mb": decoded}
                | {f"{part}_mb": peak(part, folder) for part in PARTS}
            )
    write(
        FILE,
        {
            "machine": machine() | {"threads": torch.get_num_threads()},
            "pixels": SIZE,
            "batch": BATCH_SIZE,
            "peak": rows,
        },
    )
    show("peak anonymous memory, MB", rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
