"""A data set's source -> the images that a preset uses -> uint8 on disk at one size."""

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsvit.routes import generator
from lsvit.text import plain
from pipeline.config.datasets import DatasetPreset
from pipeline.config.presets import OWN_WEIGHTS, ModelPreset
from pipeline.data.decode import decode_splits, key
from pipeline.data.imagefiles import Items
from pipeline.data.resize import Resize, resizing
from pipeline.data.shards import Arrays, identity, mean_and_std, moments, write_arrow
from pipeline.data.sources import SPLITS, find
from pipeline.errors import UserError
from pipeline.files import write_json
from pipeline.jobs.files import HELDOUT
from pipeline.jobs.processes import root


def choose(
    name: str, preset: DatasetPreset, splits: Mapping[str, Arrays | Items]
) -> dict[str, Any]:
    """The images that the preset uses: train, validation and, if some are held out, heldout.

    A limit takes the first of decoded arrays. Image files lie in the order of their classes: a
    limit takes random ones, always the same. Those of validation also change their order, so that
    the first n of them are of all classes.

    Raises:
        UserError: the preset asks for more images than there are.
    """
    chosen: dict[str, Any] = {}
    for split, wanted in zip(SPLITS, (preset.train, preset.validation), strict=True):
        images = splits[split]
        count = len(images.labels)
        if wanted is not None and wanted > count:
            raise UserError(f"datasets.{name}.{split}: found {wanted}, accepted: at most {count}")
        index: slice | np.ndarray = slice(wanted)
        if isinstance(images, Items):
            index = generator("subset", "prepared", split).permutation(count)[:wanted]
            if split == "train":  # read in the order of the disk, shuffled when it is used
                index = np.sort(index)
        chosen[split] = images.at(index)
    if preset.heldout:
        train = chosen["train"]
        count = len(train.labels)
        if preset.heldout >= count:
            raise UserError(
                f"datasets.{name}.heldout: found {preset.heldout}, "
                f"accepted: fewer than the {count} training images"
            )
        aside = np.zeros(count, dtype=bool)
        aside[generator("heldout", "training").permutation(count)[: preset.heldout]] = True
        chosen["train"] = train.at(~aside)
        chosen[HELDOUT] = train.at(aside)
    had, left = (set(part["train"].labels.tolist()) for part in (splits, chosen))
    if had - left:
        print(
            f"datasets.{name}: train and heldout leave {len(had - left)} of {len(had)} classes "
            "no image to train on"
        )
    return chosen


class Decoded(NamedTuple):
    """Images on disk."""

    shape: tuple[int, ...]  # of one image
    moments: np.ndarray  # of the training pixels
    sha256: str
    shards: dict[str, list[dict[str, Any]]] | None  # by split


def keep_arrays(splits: dict[str, Arrays], reading: str, out: Path) -> Decoded:
    """Write arrays as they are, one file a split."""
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for split, arrays in splits.items():
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        write_arrow(out / f"{split}.arrow", arrays.images.shape[1:], [arrays])
    if reading != "published":  # the same pixels, but the model is given others
        digest.update(reading.encode())
    images = splits["train"].images
    return Decoded(images.shape[1:], moments(images), digest.hexdigest(), None)


def decode_files(name: str, splits: dict[str, Items], resize: Resize) -> Decoded:
    """Decode image files to shards below the root's `.lsvit/data/`."""
    folder = Path(".lsvit", "data", key(splits, resize))
    shards = decode_splits(name, splits, resize, root() / folder)
    total = np.sum([record["moments"] for record in shards["train"]], axis=0)
    digest = hashlib.sha256()
    digests: dict[str, list[str]] = {split: [] for split in splits}
    for split, records in shards.items():
        for record in records:
            digest.update(record["sha256"].encode())
            digests[split] += record.pop("digests")
            del record["moments"]
            record["file"] = str(folder / record["file"])
    trained = set(digests["train"])
    leaked = [i for i, image in enumerate(digests["validation"]) if image in trained]
    if leaked:
        path = splits["validation"].path(leaked[0])
        print(plain(f"{name}: {len(leaked):,} validation images are trained on too, e.g. {path}"))
    return Decoded((resize.crop, resize.crop, 3), total, digest.hexdigest(), shards)


def prepare(
    name: str,
    preset: DatasetPreset,
    embedded: Path,
    out: Path,
    model: ModelPreset | None = None,
    check: Callable[[int, int, int], None] | None = None,
) -> dict[str, Any]:
    """Verify a data set, decode it once, and write `meta.json` and, of small sets, arrays to `out`.

    Args:
        name: of the data set.
        preset: where its images come from, and how many are used.
        embedded: the folder of the embedded images.
        out: gets `meta.json` and, of small sets, `{split}.arrow`. Image files are decoded to shards
            below the root's `.lsvit/data/`, which the metadata lists.
        model: image files are decoded at its size; needed for them.
        check: called with the numbers of images to train on, to validate on and held out, before
            anything is decoded.

    Returns:
        The metadata: name, class names, counts, reading of `resize`, image shape, mean and std of
        the training pixels in [0, 1] by channel, sha256 of all that and of the images; and of image
        files `shards`, by split: file, images, sha256.

    Raises:
        UserError: a file is missing or damaged, the preset asks for more images than there are, or
            pixels that a model from scratch is normalised by do not differ.
    """
    source = find(preset.source, preset.folder, embedded)
    splits = choose(name, preset, source.splits)
    counts = {split: len(images.labels) for split, images in splits.items()}
    if check:
        check(counts["train"], counts["validation"], counts.get(HELDOUT, 0))
    if isinstance(splits["train"], Items):
        assert model is not None
        decoded = decode_files(name, splits, resizing(model, preset.resize))
    else:
        decoded = keep_arrays(splits, preset.resize, out)
    mean, std = mean_and_std(decoded.moments, counts["train"] * math.prod(decoded.shape[:2]))
    if not all(value > 0 for value in std):
        line = f"datasets.{name}: standard deviation of the training pixels by channel: {std}"
        if model is None or model.weights in OWN_WEIGHTS:
            raise UserError(f"{line}, accepted: above 0, images with differences in every channel")
        print(f"{line}; a channel without differences tells nothing")
    meta: dict[str, Any] = {
        "name": name,
        "classes": source.classes,
        "counts": counts,
        "resize": preset.resize,
        "image_shape": list(decoded.shape),
        "mean": mean,
        "std": std,
    }
    meta["sha256"] = identity(decoded.sha256, meta)
    if decoded.shards:
        meta["shards"] = decoded.shards
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "meta.json", meta, 2)
    return meta
