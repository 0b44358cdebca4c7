"""A regression data set: black canvases with small images on them, whose number is the label.

No torch here. It takes the place of the crowd counting of "Multi-Exit Vision Transformer for
Dynamic Inference" (section IV, DISCO): as there, the answer is a number, spread over the image.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lsvit.routes import generator
from papers.exits.section import Counting
from pipeline.data.shards import Arrays, Maps, identity, mean_and_std, moments, write_arrow
from pipeline.files import write_json
from pipeline.jobs.files import HELDOUT, read_meta
from pipeline.jobs.processes import root

SPLITS = ("train", "validation", HELDOUT)


def _open(source: Path, split: str) -> Maps:
    """The images of a prepared split; training images where none are held out."""
    meta = read_meta(source)
    if split not in meta["counts"]:
        split = "train"
    if "shards" in meta:
        return Maps([root() / shard["file"] for shard in meta["shards"][split]])
    return Maps([source / f"{split}.arrow"])


def _fill(pixels: np.ndarray, images: Maps, most: int, rng: np.random.Generator) -> int:
    """Paste 0 to `most` images on a black canvas, in place. Returns how many.

    Args:
        pixels: (side, side) or (side, side, C) uint8.
        images: to draw from, with replacement.
        most: images.
        rng: of the canvas.
    """
    canvas = len(pixels)
    count = int(rng.integers(most, endpoint=True))
    for pick in rng.integers(len(images), size=(count, 1)):
        side = int(rng.integers(canvas // 8, canvas // 4, endpoint=True))
        top, left = rng.integers(canvas - side, size=2, endpoint=True)
        (image,), _ = images[pick]
        shrunk = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
        place = pixels[top : top + side, left : left + side]
        np.maximum(place, np.asarray(shrunk), out=place)  # a black background hides nothing
    return count


def write_canvases(source: Path, options: Counting, out: Path) -> dict[str, Any]:
    """Write a data set for counting that :class:`pipeline.data.splits.Split` reads.

    A canvas has a uniformly random number of objects, 0 to `most`: images of the source's split of
    the same name, drawn with replacement, shrunk to a random side between an eighth and a quarter
    of the canvas (the mean of the pixels covered), each at a uniformly random place. They may
    overlap, the brighter pixel is seen. Held-out canvases are made of training images if the
    source holds none out. A canvas depends on (seed, split, index) and the source alone.

    Args:
        source: where :func:`pipeline.data.prepare.prepare` wrote; its classes do not matter.
        options: side of the canvases in pixels, most objects, numbers of canvases by split, seed.
        out: gets `meta.json` and, by split, `{split}.arrow`: canvases uint8, (side, side) or
            (side, side, C) as the source's images, and labels int64, how many objects.

    Returns:
        The metadata, as of :func:`pipeline.data.prepare.prepare`, and `largest`, the largest label
        that can occur.

    Raises:
        UserError: a file of the source is missing or damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    counts = dict(zip(SPLITS, (options.train, options.validation, options.heldout), strict=True))
    digest = hashlib.sha256()
    totals = []
    for split in SPLITS:
        images = _open(source, split)
        shape = (options.canvas, options.canvas, *images.shape[2:])
        pixels = np.zeros((counts[split], *shape), np.uint8)
        labels = np.zeros(counts[split], np.int64)
        for i, canvas in enumerate(pixels):
            rng = generator("counting", options.seed, split, i)
            labels[i] = _fill(canvas, images, options.most, rng)
        digest.update(pixels.data)
        digest.update(labels.data)
        write_arrow(out / f"{split}.arrow", shape, [Arrays(pixels, labels)])
        totals.append(moments(pixels))
    mean, std = mean_and_std(totals[0], options.train * options.canvas**2)
    meta: dict[str, Any] = {
        "name": "counting",
        "classes": ["count"],
        "counts": counts,
        "resize": "published",
        "image_shape": list(shape),
        "mean": mean,
        "std": std,
        "largest": options.most,
    }
    meta["sha256"] = identity(digest.hexdigest(), meta)
    write_json(out / "meta.json", meta, indent=2)
    return meta
