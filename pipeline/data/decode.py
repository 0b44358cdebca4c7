"""Decodes image files once, in parallel processes, to shards, which a killed run keeps."""

import hashlib
import json
import math
import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from lsvit.images import in_mode
from lsvit.text import one_line, plain
from pipeline.data.imagefiles import Items
from pipeline.data.resize import Resize
from pipeline.data.shards import BATCH, Arrays, moments, write_arrow
from pipeline.errors import UserError
from pipeline.files import read_json, replace_text
from pipeline.jobs.display import Display
from pipeline.jobs.files import sha256
from pipeline.jobs.machine import available_cores
from pipeline.jobs.processes import die_with_parent

FORMAT = 2  # part of every key: raise it when decoded images change
LARGEST = 4096  # images of a shard
UNREADABLE = "unreadable.txt"


def key(splits: dict[str, Items], resize: Resize) -> str:
    """Identity of decoded images: the listing with sizes and times, and how they are resized."""
    counts = {split: len(items.table) for split, items in splits.items()}
    digest = hashlib.sha256(json.dumps([FORMAT, resize, counts]).encode())
    for items in splits.values():
        digest.update(items.table.tobytes())
    return digest.hexdigest()[:20]


def decode(content: bytes, resize: Resize) -> np.ndarray:
    """The RGB pixels (crop, crop, 3) uint8 of an image file, by torchvision's transforms.

    Raises:
        Exception: PIL cannot read it, or it has too many pixels to be honest.
    """
    from PIL import Image
    from torchvision import transforms
    from torchvision.transforms import InterpolationMode

    image = in_mode(Image.open(BytesIO(content)), "RGB")
    interpolation = InterpolationMode(resize.interpolation)
    resized = transforms.Resize(resize.size, interpolation, antialias=True)(image)
    return np.asarray(transforms.CenterCrop(resize.crop)(resized))


def make_shard(path: Path, items: Items, resize: Resize) -> dict[str, Any]:
    """Decode images to an Arrow file, unless it is there and has the recorded sha256.

    Returns:
        The record: `images` (count), `sha256` of the file, `digests` of the images as they were,
        `moments` of the pixels; or `unreadable`, a line an image.
    """
    record_path = path.with_suffix(".json")
    if record_path.exists() and path.exists():
        record: dict[str, Any] = read_json(record_path)
        if sha256(path) == record["sha256"]:
            return record
    shape = (resize.crop, resize.crop, 3)
    unreadable: list[str] = []
    digests = []
    batch_moments = []

    def batches() -> Iterator[Arrays]:
        for start in range(0, len(items.table), BATCH):
            batch = items.at(slice(start, start + BATCH))
            images = np.zeros((len(batch.table), *shape), np.uint8)
            for i in range(len(images)):
                try:
                    content = batch.read(i)
                    digests.append(hashlib.blake2b(content, digest_size=8).hexdigest())
                    images[i] = decode(content, resize)
                except Exception as error:  # a damaged file raises almost anything
                    reason = getattr(error, "strerror", None) or one_line(error)
                    reason = re.sub(r" <_io[^>]*>", "", reason)  # an address in memory
                    line = f"{batch.path(i)}: {type(error).__name__}: {reason}"
                    unreadable.append(plain(line))
            batch_moments.append(moments(images))
            yield Arrays(images, batch.labels)

    write_arrow(path, shape, batches())
    if unreadable:
        path.unlink()
        return {"images": len(items.table), "unreadable": unreadable}
    record = {
        "images": len(items.table),
        "sha256": sha256(path),
        "digests": digests,
        "moments": np.sum(batch_moments, axis=0).tolist(),
    }
    replace_text(record_path, json.dumps(record))  # from here on the shard counts as finished
    return record


def decode_splits(
    title: str, splits: dict[str, Items], resize: Resize, folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Decode all images to shards in `folder`, a process a core; finished shards are kept.

    Returns:
        By split the records of :func:`make_shard`, in order, each with its `file` name.

    Raises:
        UserError: images cannot be read (all are listed in `folder`/unreadable.txt), or a process
            died.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(len(items.table) for items in splits.values())
    shards: list[tuple[str, Path, Items]] = []
    for split, items in splits.items():
        count = len(items.table)
        # Small sets too are shared among up to 64 cores.
        size = min(LARGEST, math.ceil(count / (64 * BATCH)) * BATCH)
        for start in range(0, count, size):
            path = folder / f"{split}-{start // size:05d}.arrow"
            shards.append((split, path, items.at(slice(start, start + size))))
    records = run_shards(title, [shard[1:] for shard in shards], resize, folder)
    unreadable = []
    by_split: dict[str, list[dict[str, Any]]] = {split: [] for split in splits}
    for (split, path, _), record in zip(shards, records, strict=True):
        unreadable += record.get("unreadable", [])
        by_split[split].append({"file": path.name} | record)
    if unreadable:
        listing = folder / UNREADABLE
        listing.write_text("\n".join(unreadable) + "\n", "utf-8")
        raise UserError(
            f"{title}: {len(unreadable):,} of {total:,} images cannot be read, "
            f"all in {listing}: {'; '.join(unreadable[:3])}"
        )
    return by_split


def run_shards(
    title: str, shards: list[tuple[Path, Items]], resize: Resize, folder: Path
) -> list[dict[str, Any]]:
    """Make all shards in parallel and show the progress. Returns their records, in order."""
    total = sum(len(items.table) for _, items in shards)
    # A plain fork would copy locks that threads of this process hold.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchvision.transforms"])
    workers = min(available_cores(), len(shards))
    pool = ProcessPoolExecutor(workers, context, initializer=die_with_parent)
    done = 0
    records = []
    try:
        with FileLock(folder / "lock"), Display([(title, len(shards))]) as display:
            for record in pool.map(make_shard, *zip(*shards, strict=True), repeat(resize)):
                records.append(record)
                done += record["images"]
                display.show(0, {"cell": f"{done:,} of {total:,} images"})
    except BrokenProcessPool:
        raise UserError(
            f"{title}: a process that decodes images died (killed, or out of memory); "
            "finished shards are kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
    return records
