"""The images that the examples train on: 12,000 of Fashion-MNIST, which this repository holds."""

import argparse
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import Dataset

FOLDER = Path(__file__).parent.parent / "data" / "fashion_mnist_10k"
MEAN, STD = 0.2853, 0.3525  # of the training pixels, from 0 to 1


class Fashion(Dataset[tuple[Any, int]]):
    """Grey images of 28 x 28 pixels (PIL) and their classes, 0 to 9.

    Args:
        split: "train" or "validation".
        folder: of the four gzipped files; `uv run dvc pull data.dvc` brings them.
        transform: what is done to an image.
        images: how many to take from the beginning; None: all.
    """

    def __init__(
        self,
        split: str,
        folder: Path = FOLDER,
        transform: Callable[[Image.Image], Any] | None = None,
        images: int | None = None,
    ) -> None:
        prefix = {"train": "train", "validation": "t10k"}[split]
        pixels = gzip.decompress((folder / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((folder / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
        # A header of 16 bytes stands before the pixels, of 8 before the labels.
        self.pixels = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 28, 28)[:images]
        self.labels = np.frombuffer(labels, np.uint8, offset=8)[:images].astype(int).tolist()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = Image.fromarray(self.pixels[index])
        return self.transform(image) if self.transform else image, self.labels[index]


def read_options(description: str | None) -> dict[str, Any]:
    """What the command line says: folder, images (None: all) and epochs."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=FOLDER, dest="folder")
    parser.add_argument("--images", type=int, help="so many of the images; default: all")
    parser.add_argument("--epochs", type=int, default=5)
    return vars(parser.parse_args())
