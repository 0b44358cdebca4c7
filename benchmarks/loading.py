"""How fast prepared images are given, against torchvision decoding them anew: `python
benchmarks/loading.py` -> loading.json.

Shuffled, normalised float batches of the same JPEG files, in the page cache: an epoch of
torchvision's ImageFolder and DataLoader with the published transforms and a worker a core, against
epochs of a prepared Split. The two alternate, the first repetition does not count; the ratio is the
median of the ratios within a repetition. And once: the seconds of preparing, with checksums.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from machine import machine, show, write
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from pipeline.config.datasets import DatasetPreset
from pipeline.config.presets import ModelPreset
from pipeline.data.prepare import prepare
from pipeline.data.splits import Split

FILE = Path(__file__).with_suffix(".json")
IMAGES, CLASSES, SIZE, BATCH_SIZE, REPETITIONS = 1_500, 10, 224, 128, 5
EPOCHS = 10  # of prepared images a repetition: one lasts a fraction of a second
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODEL = ModelPreset(timm="vit_small_patch16_224", weights="scratch")


def write_jpegs(folder: Path, images: int, sides: tuple[int, int] = (500, 375)) -> None:
    """Random textures of about ImageNet's size, as many a class.

    Train/, and a tenth of them in val/.
    """
    rng = np.random.default_rng(0)
    for split, count in (("train", images), ("val", images // 10)):
        for i in range(count):
            width, height = (int(side * rng.uniform(0.8, 1.2)) for side in sides)
            coarse = Image.fromarray(
                rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
            ).resize((width, height))
            grain = rng.integers(-12, 13, (height, width, 3), dtype=np.int16)
            path = folder / split / f"class_{i % CLASSES}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(
                path, quality=90
            )


def loader(folder: Path, workers: int) -> DataLoader:
    """torchvision's own way."""
    published = transforms.Compose(
        [
            transforms.Resize(SIZE, antialias=True),
            transforms.CenterCrop(SIZE),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    return DataLoader(
        ImageFolder(folder, published),
        BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        drop_last=True,
    )


def rate(batches: Callable[[], Iterable]) -> float:
    """Images/s over all batches, the start of the workers included."""
    begin = time.perf_counter()
    images = sum(len(labels) for _, labels in batches())
    return images / (time.perf_counter() - begin)


def main() -> None:
    """Measure, write and print."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_jpegs(folder / "images", IMAGES)
        os.environ["DVC_ROOT"] = temporary  # where the decoded images go
        preset = DatasetPreset(source="image_folder", folder="images")
        begin = time.perf_counter()
        prepare("textures", preset, folder, folder / "prepared", MODEL)
        seconds = time.perf_counter() - begin
        split = Split(folder / "prepared", "train", torch.device("cpu"), 3, SIZE, MEAN, STD)
        theirs = loader(folder / "images" / "train", cores)
        rates = np.array(
            [
                (
                    rate(lambda: theirs),
                    rate(
                        lambda: chain.from_iterable(
                            split.shuffled(BATCH_SIZE, 0, epoch) for epoch in range(EPOCHS)
                        )
                    ),
                )
                for _ in range(REPETITIONS + 1)
            ]
        )[1:]
    decoded = IMAGES + IMAGES // 10
    row = {
        "images": IMAGES,
        "pixels": SIZE,
        "batch": BATCH_SIZE,
        "image_folder_images_s": np.median(rates[:, 0]).item(),
        "prepared_images_s": np.median(rates[:, 1]).item(),
        "ratio": np.median(rates[:, 1] / rates[:, 0]).item(),
        "prepare_seconds": seconds,
        "prepare_images_s": decoded / seconds,
    }
    write(
        FILE,
        {"machine": machine(), "repetitions": REPETITIONS, "page_cache": "warm", "loading": row},
    )
    show("normalised float images/s", [row])


if __name__ == "__main__":
    main()
