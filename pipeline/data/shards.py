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


class Arrays(NamedTuple):
    """A split in memory: images (n, H, W) or (n, H, W, C) uint8, labels (n,) integers."""

    images: np.ndarray
    labels: np.ndarray

    def at(self, index: slice | np.ndarray) -> Self:
        """The chosen images alone."""
        return self._replace(images=self.images[index], labels=self.labels[index])


def identity(images: str, meta: dict[str, Any]) -> str:
    """The sha256 of prepared data: of that of its images and labels, and of what goes with them but for their name."""
    content = json.dumps(
        {key: value for key, value in meta.items() if key != "name"}, sort_keys=True
    )
    return hashlib.sha256((images + content).encode()).hexdigest()


def write_arrow(path: Path, shape: tuple[int, ...], batches: Iterable[Arrays]) -> None:
    """Write record batches of images of one shape; all but the last have equally many. A kill leaves no half file."""
    import pyarrow as pa

    schema = pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), shape)), ("label", pa.int64())])
    partial = path.with_suffix(".partial")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for images, labels in batches:
            tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(images))
            writer.write_batch(
                pa.record_batch([tensor, pa.array(labels.astype(np.int64))], schema=schema)
            )
    partial.replace(path)


def open_arrow(path: Path) -> list[Arrays]:
    """The record batches of a file, memory-mapped and read-only. Raises UserError: it is missing or damaged."""
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        return [
            Arrays(batch.column("image").to_numpy_ndarray(), batch.column("label").to_numpy())
            for batch in batches
        ]
    except FileNotFoundError:
        raise UserError(f"{path}: missing; `dvc repro -f prepare-data` makes it again") from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{path}: damaged ({reason}); `dvc repro -f prepare-data` makes it again"
        ) from None


class Maps:
    """The memory-mapped images of a split's files, gathered by index; only the labels are in memory."""

    def __init__(self, files: list[Path], limit: int | None = None) -> None:
        self.batches = [batch for file in files for batch in open_arrow(file)]
        self.shape, self.rows = self.batches[0].images.shape[1:], len(self.batches[0].images)
        self.labels = np.concatenate([batch.labels for batch in self.batches])[:limit]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images (B, H, W) or (B, H, W, C) uint8 and labels (B,) int64 at `index` (B,), copied."""
        if len(self.batches) == 1:
            return self.batches[0].images[index], self.labels[index]
        places = zip(*np.divmod(index, self.rows), strict=True)
        return np.stack([self.batches[batch].images[row] for batch, row in places]), self.labels[
            index
        ]


def moments(images: np.ndarray) -> np.ndarray:
    """(2, channels) int64: sum and sum of squares of the pixels."""
    total = np.zeros((2, images.shape[3] if images.ndim == 4 else 1), np.int64)
    for start in range(0, len(images), BATCH):  # the squares take four times the memory
        pixels = images[start : start + BATCH].reshape(-1, total.shape[1])
        total += (
            pixels.sum(0, dtype=np.int64),
            np.square(pixels, dtype=np.uint32).sum(0, dtype=np.int64),
        )
    return total
