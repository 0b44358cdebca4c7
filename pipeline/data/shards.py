"""Decoded images on disk: Arrow IPC files of (image, label), memory-mapped.

Columns are `image`, a fixed-shape tensor of uint8 (H, W) or (H, W, C), and `label`, int64.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from pipeline.errors import UserError

BATCH = 64  # images of a record batch of decoded files: what a process holds in memory
REMEDY = "`dvc repro -f prepare-data` makes it again"


class Arrays(NamedTuple):
    """A split in memory: images (n, H, W) or (n, H, W, C) uint8, labels (n,) integers."""

    images: np.ndarray
    labels: np.ndarray

    def at(self, index: slice | np.ndarray) -> Self:
        """The chosen images alone."""
        return self._replace(images=self.images[index], labels=self.labels[index])


def identity(images: str, meta: dict[str, Any]) -> str:
    """The sha256 of prepared data: of its images' sha256 and of its metadata without the name."""
    without_name = {key: value for key, value in meta.items() if key != "name"}
    content = json.dumps(without_name, sort_keys=True)
    return hashlib.sha256((images + content).encode()).hexdigest()


def write_arrow(path: Path, shape: tuple[int, ...], batches: Iterable[Arrays]) -> None:
    """Write record batches of images of one shape. All but the last have equally many.

    The file appears when it is whole.
    """
    import pyarrow as pa

    schema = pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), shape)), ("label", pa.int64())])
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for images, labels in batches:
            image_column = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(images))
            label_column = pa.array(labels.astype(np.int64))
            writer.write_batch(pa.record_batch([image_column, label_column], schema=schema))
    partial.replace(path)


def open_arrow(path: Path) -> list[Arrays]:
    """The record batches of a file, memory-mapped and read-only.

    Raises:
        UserError: it is missing or damaged.
    """
    import pyarrow as pa

    batches = []
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        for i in range(reader.num_record_batches):
            batch = reader.get_batch(i)
            images = batch.column("image").to_numpy_ndarray()
            batches.append(Arrays(images, batch.column("label").to_numpy()))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; {REMEDY}") from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: damaged ({reason}); {REMEDY}") from None
    return batches


class Maps:
    """The memory-mapped images of a split's files, gathered by index. Only labels are in memory."""

    def __init__(self, files: list[Path], limit: int | None = None) -> None:
        self.batches = [batch for file in files for batch in open_arrow(file)]
        self.batch_size = len(self.batches[0].images)
        self.shape = self.batches[0].images.shape[1:]
        self.labels = np.concatenate([batch.labels for batch in self.batches])[:limit]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images (B, H, W) or (B, H, W, C) uint8 and labels (B,) int64 at `index` (B,), copied."""
        if len(self.batches) == 1:
            return self.batches[0].images[index], self.labels[index]
        images = np.empty((len(index), *self.shape), np.uint8)
        for i, place in enumerate(index):
            batch, row = divmod(place, self.batch_size)
            images[i] = self.batches[batch].images[row]
        return images, self.labels[index]


def moments(images: np.ndarray) -> np.ndarray:
    """(2, channels) int64: sum and sum of squares of the pixels."""
    channels = images.shape[3] if images.ndim == 4 else 1
    total = np.zeros((2, channels), np.int64)
    for start in range(0, len(images), BATCH):  # the squares take four times the memory
        pixels = images[start : start + BATCH].reshape(-1, channels)
        total[0] += pixels.sum(0, dtype=np.int64)
        total[1] += np.square(pixels, dtype=np.uint32).sum(0, dtype=np.int64)
    return total


def mean_and_std(total: np.ndarray, pixels: int) -> tuple[list[float], list[float]]:
    """Mean and standard deviation by channel, in [0, 1], from the :func:`moments` of `pixels`."""
    mean, square = total / pixels
    std = np.sqrt(square - mean**2)
    return [round(float(m), 6) for m in mean / 255], [round(float(s), 6) for s in std / 255]
