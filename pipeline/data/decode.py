"""Image files are decoded once, in parallel processes, to shards; a killed run goes on with the shards that are missing."""

import hashlib
import json
import math
import multiprocessing
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from filelock import FileLock

from pipeline.data.imagefiles import Items
from pipeline.data.shards import BATCH, Arrays, moments, write_arrow
from pipeline.data.splits import Resize
from pipeline.errors import UserError
from pipeline.jobs.display import Display
from pipeline.jobs.files import sha256
from pipeline.jobs.processes import die_with_parent

if TYPE_CHECKING:
    from PIL import Image


FORMAT = 1  # part of every key: raise it when decoded images change
LARGEST = 4096  # images of a shard
UNREADABLE = "unreadable.txt"
REPORT_SECONDS = 5  # between plain lines


class Shards(NamedTuple):
    """What the progress display shows of them."""

    title: str
    total: int


# ---- image files --------------------------------------------------------------------------------------------------------


def key(splits: dict[str, Items], resize: Resize) -> str:
    """Identity of decoded images: the listing with sizes and times, and how they are resized."""
    digest = hashlib.sha256(
        json.dumps(
            [FORMAT, resize, {split: len(items.table) for split, items in splits.items()}]
        ).encode()
    )
    for items in splits.values():
        digest.update(items.table.tobytes())
    return digest.hexdigest()[:20]


def in_mode(image: "Image.Image", mode: str) -> "Image.Image":
    """A PIL image in mode RGB or L, as it lies in the file: EXIF's turns are not made, as torchvision's loader makes none."""
    if image.mode.startswith("I"):  # 16 bits; Pillow would cut them off at 255
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    return image.convert(mode)


def decode(content: bytes, resize: Resize) -> np.ndarray:
    """The pixels (crop, crop, 3) uint8 of an image file, in RGB, as torchvision's transforms of PIL images give them.

    Raises:
        Exception: PIL cannot read it, it is too large to be honest, or so narrow that it would become so.
    """
    from PIL import Image
    from torchvision import transforms
    from torchvision.transforms import InterpolationMode

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        image = in_mode(Image.open(BytesIO(content)), "RGB")
    side = max(resize.size) if isinstance(resize.size, tuple) else resize.size
    if side**2 * max(image.size) / min(image.size) > (Image.MAX_IMAGE_PIXELS or math.inf):
        raise ValueError(f"{image.width} x {image.height} pixels are too narrow to resize")
    image = transforms.Resize(resize.size, InterpolationMode(resize.interpolation), antialias=True)(
        image
    )
    return np.asarray(transforms.CenterCrop(resize.crop)(image))


def make_shard(path: Path, items: Items, resize: Resize) -> dict[str, Any]:
    """Decode images to an Arrow file, unless it is there with its record and the right checksum.

    Returns:
        The record: `images` (count), `sha256` of the file, `moments` of the pixels; or `unreadable`, a line an image.
    """
    note = path.with_suffix(".json")
    if note.exists() and path.exists():
        record: dict[str, Any] = json.loads(note.read_text())
        if sha256(path) == record["sha256"]:
            return record
    shape = (resize.crop, resize.crop, 3)
    unreadable: list[str] = []
    total = np.zeros((2, 3), np.int64)

    def batches() -> Iterator[Arrays]:
        nonlocal total
        for start in range(0, len(items.table), BATCH):
            part = items.at(slice(start, start + BATCH))
            images = np.zeros((len(part.table), *shape), np.uint8)
            for i in range(len(images)):
                try:
                    images[i] = decode(part.read(i), resize)
                except Exception as error:  # damaged files raise almost anything; all are collected
                    reason = re.sub(
                        r" <_io[^>]*>",
                        "",
                        " ".join(str(getattr(error, "strerror", None) or error).split()),
                    )  # no addresses
                    unreadable.append(f"{part.path(i)}: {type(error).__name__}: {reason[:120]}")
            total += moments(images)
            yield Arrays(images, part.labels)

    write_arrow(path, shape, batches())
    if unreadable:
        path.unlink()
        return {"images": len(items.table), "unreadable": unreadable}
    record = {"images": len(items.table), "sha256": sha256(path), "moments": total.tolist()}
    partial = note.with_suffix(".json.partial")
    partial.write_text(json.dumps(record))
    partial.replace(note)  # from here on the shard counts as finished
    return record


def decode_splits(
    title: str, splits: dict[str, Items], resize: Resize, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Decode all images to shards in `folder`, a process a core; finished shards of an earlier run are kept.

    Returns:
        By split the records of :func:`make_shard`, in order, each with its `file` name.

    Raises:
        UserError: images cannot be read (all of them are listed in `folder`/unreadable.txt), the disk is too small, or a
            process died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    images = sum(len(items.table) for items in splits.values())
    needed = images * 3 * resize.crop**2 - sum(
        path.stat().st_size for path in folder.glob("*.arrow")
    )
    if needed > (free := shutil.disk_usage(folder).free):
        raise UserError(
            f"{folder}: found {free / 1e9:.1f} GB free, accepted: at least {needed / 1e9:.1f} GB for {images:,} decoded images"
        )
    jobs: list[tuple[Path, Items]] = []
    for split, items in splits.items():
        count = len(items.table)
        size = min(
            LARGEST, -(-count // (64 * BATCH)) * BATCH
        )  # small sets too are shared among up to 64 cores
        jobs += [
            (folder / f"{split}-{i // size:05d}.arrow", items.at(slice(i, i + size)))
            for i in range(0, count, size)
        ]
    records = _run(title, jobs, resize, folder)
    unreadable = [line for record in records for line in record.get("unreadable", ())]
    if unreadable:
        listing = folder / UNREADABLE
        listing.write_text("".join(f"{line}\n" for line in unreadable))
        raise UserError(
            f"{title}: {len(unreadable):,} of {images:,} images cannot be read, all in {listing}: {'; '.join(unreadable[:3])}"
        )
    named = [{"file": path.name} | record for (path, _), record in zip(jobs, records, strict=True)]
    return {
        split: [record for record in named if record["file"].startswith(f"{split}-")]
        for split in splits
    }


def _run(
    title: str, jobs: list[tuple[Path, Items]], resize: Resize, folder: Path
) -> list[dict[str, Any]]:
    """The records of all shards, made in parallel, with progress shown."""
    total, done = sum(len(items.table) for _, items in jobs), 0
    start = shown = time.monotonic()
    context = multiprocessing.get_context(
        "forkserver"
    )  # threads of this process do not survive a plain fork
    context.set_forkserver_preload(["torchvision.transforms"])
    workers = min(len(os.sched_getaffinity(0)), len(jobs))
    pool = ProcessPoolExecutor(workers, context, initializer=die_with_parent)
    try:
        with FileLock(folder / "lock"), Display([Shards(title, len(jobs))]) as display:
            futures = [pool.submit(make_shard, path, items, resize) for path, items in jobs]
            for future in as_completed(futures):
                done += future.result()["images"]
                now = time.monotonic()
                if display.bars or done == total or now - shown > REPORT_SECONDS:
                    display.show(
                        0,
                        {
                            "cell": f"{done:,} of {total:,} images, {done / (now - start):.0f} images/s"
                        },
                    )
                    shown = now
            return [future.result() for future in futures]
    except BrokenProcessPool:
        raise UserError(
            f"{title}: a process that decodes images died (killed, or out of memory); finished shards are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
