"""A data set's source -> the images that a preset uses -> uint8 on disk at one size, decoded once."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsvit.routes import generator
from pipeline.config.datasets import DatasetPreset
from pipeline.config.presets import ModelPreset
from pipeline.data.decode import decode_splits, key
from pipeline.data.imagefiles import Items
from pipeline.data.shards import Arrays, identity, moments, write_arrow
from pipeline.data.sources import SPLITS, find
from pipeline.data.splits import Resize, resizing
from pipeline.errors import UserError
from pipeline.jobs.files import HELDOUT
from pipeline.jobs.processes import root


def choose(
    name: str, preset: DatasetPreset, splits: Mapping[str, Arrays | Items]
) -> dict[str, Arrays | Items]:
    """The images that the preset uses: train, validation and, if some of the training images are held out, heldout.

    Of decoded arrays a limit takes the first images. Image files lie in the order of their classes: a limit takes random
    ones, always the same; those of validation also change their order, so that the first n of them are of all classes.

    Raises:
        UserError: the preset asks for more images than there are.
    """
    chosen: dict[str, Arrays | Items] = {}
    for split, wanted in zip(SPLITS, (preset.train, preset.validation), strict=True):
        images = splits[split]
        count = len(images.labels)
        if wanted is not None and wanted > count:
            raise UserError(f"datasets.{name}.{split}: found {wanted}, accepted: at most {count}")
        index: slice | np.ndarray = slice(wanted)
        if isinstance(images, Items):
            index = generator("subset", "prepared", split).permutation(count)[:wanted]
            index = (
                np.sort(index) if split == "train" else index
            )  # shuffled when it is used: read from the disk in its order
        chosen[split] = images.at(index)
    if preset.heldout:
        train = chosen["train"]
        count = len(train.labels)
        if preset.heldout >= count:
            raise UserError(
                f"datasets.{name}.heldout: found {preset.heldout}, accepted: fewer than the {count} training images"
            )
        aside = np.zeros(count, dtype=bool)
        aside[generator("heldout", "training").permutation(count)[: preset.heldout]] = True
        chosen |= {"train": train.at(~aside), HELDOUT: train.at(aside)}
    return chosen


class Decoded(NamedTuple):
    """What the metadata says of the images on disk: shape of one, moments of the training pixels, identity, shards by split."""

    shape: tuple[int, ...]
    moments: np.ndarray
    sha256: str
    shards: dict[str, list[dict[str, Any]]] | None


def _keep(splits: dict[str, Arrays], reading: str, out: Path) -> Decoded:
    """Write arrays as they are, one file a split."""
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for split, arrays in splits.items():
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        write_arrow(out / f"{split}.arrow", arrays.images.shape[1:], [arrays])
    if reading != "published":  # the pixels are the same, what the model is given is not
        digest.update(reading.encode())
    images = splits["train"].images
    return Decoded(images.shape[1:], moments(images), digest.hexdigest(), None)


def _decode(name: str, splits: dict[str, Items], resize: Resize) -> Decoded:
    """Decode image files to shards below the root's `.lsvit/data/`."""
    folder = Path(".lsvit", "data", key(splits, resize))
    records = decode_splits(name, splits, resize, root() / folder)
    digest, shards = hashlib.sha256(), {}
    for split in splits:
        shards[split] = [
            {"file": str(folder / r["file"]), "images": r["images"], "sha256": r["sha256"]}
            for r in records[split]
        ]
        for record in shards[split]:
            digest.update(record["sha256"].encode())
    total = np.sum([record["moments"] for record in records["train"]], axis=0)
    return Decoded((resize.crop, resize.crop, 3), total, digest.hexdigest(), shards)


def prepare(
    name: str,
    preset: DatasetPreset,
    embedded: Path,
    out: Path,
    model: ModelPreset | None = None,
    check: Callable[[int, int, int], None] | None = None,
) -> dict[str, Any]:
    """Verify a data set, decode it once, and write `meta.json` and, of small sets, `{split}.arrow` to `out`.

    Image files are decoded, at the size of `model` (needed for them), to shards below the root's `.lsvit/data/`, which the
    metadata lists. `check` is called with the numbers of images to train on, to validate on and held out, before that.

    Returns:
        The metadata: name, class names, counts, reading of `resize`, image shape, mean and std of the training pixels in
        [0, 1] by channel, sha256 of all that and of the images; and of image files `shards`, by split: file, images, sha256.

    Raises:
        UserError: a file is missing, damaged or mislabelled, the preset asks for more images than there are, or the model
            takes no colour.
    """
    found = find(preset.source, preset.folder, embedded)
    splits = choose(name, preset, found.splits)
    counts = {split: len(images.labels) for split, images in splits.items()}
    if check:
        check(counts["train"], counts["validation"], counts.get(HELDOUT, 0))
    arrays = {split: images for split, images in splits.items() if isinstance(images, Arrays)}
    items = {split: images for split, images in splits.items() if isinstance(images, Items)}
    channels = model.kwargs.get("in_chans", 3) if model else 3
    if channels != 3 and (items or arrays["train"].images.ndim == 4):
        raise UserError(
            f"models.*.kwargs.in_chans: found {channels}, accepted: 3 (the images of {name!r} are in colour)"
        )
    if items:
        assert model is not None
        decoded = _decode(name, items, resizing(model, preset.resize))
    else:
        decoded = _keep(arrays, preset.resize, out)
    mean, square = decoded.moments / (counts["train"] * math.prod(decoded.shape[:2]))
    meta: dict[str, Any] = {
        "name": name,
        "classes": found.classes,
        "counts": counts,
        "resize": preset.resize,
        "image_shape": list(decoded.shape),
        "mean": [round(float(m), 6) for m in mean / 255],
        "std": [round(float(s), 6) for s in np.sqrt(square - mean**2) / 255],
    }
    meta["sha256"] = identity(decoded.sha256, meta)
    meta |= {"shards": decoded.shards} if decoded.shards else {}
    out.mkdir(parents=True, exist_ok=True)
    (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta
