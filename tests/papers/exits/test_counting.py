"""The counting data set: labels, where its objects come from, and that other code reads it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papers.exits.compute.counting import write_canvases
from papers.exits.section import Counting
from pipeline.data.shards import Arrays, Maps, write_arrow
from pipeline.jobs.files import read_meta, sha256

OPTIONS = Counting(canvas=32, most=5, train=300, validation=60, heldout=30, epochs=1, seed=0)
GREYS = {"train": 100, "validation": 200, "heldout": 50}


def write_source(
    folder: Path, splits: tuple[str, ...] = tuple(GREYS), colour: tuple[int, ...] = ()
) -> Path:
    """A prepared data set of 10 images of 28 x 28 a split, all of one grey or colour (in %)."""
    folder.mkdir()
    shape = (28, 28, 3) if colour else (28, 28)
    for split in splits:
        value = GREYS[split] * np.array(colour or 100) // 100
        images = np.full((10, *shape), value, np.uint8)
        write_arrow(folder / f"{split}.arrow", shape, [Arrays(images, np.arange(10))])
    (folder / "meta.json").write_text(json.dumps({"counts": dict.fromkeys(splits, 10)}))
    return folder


def read(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """All canvases and labels of a split."""
    maps = Maps([folder / f"{split}.arrow"])
    return maps[np.arange(len(maps))]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("counting") / "source")


@pytest.fixture(scope="module")
def canvases(source: Path) -> Path:
    write_canvases(source, OPTIONS, source.parent / "canvases")
    return source.parent / "canvases"


def test_a_canvas_depends_on_the_seed_and_its_place_alone(
    source: Path, canvases: Path, tmp_path: Path
) -> None:
    known, labels = read_meta(canvases), read(canvases, "train")[1]
    assert write_canvases(source, OPTIONS, tmp_path) == known
    for split in GREYS:
        assert sha256(tmp_path / f"{split}.arrow") == sha256(canvases / f"{split}.arrow")
    write_canvases(source, OPTIONS.model_copy(update={"train": 20}), tmp_path)
    for few, many in zip(read(tmp_path, "train"), read(canvases, "train"), strict=True):
        assert np.array_equal(few, many[:20])
    others = write_canvases(source, OPTIONS.model_copy(update={"seed": 1}), tmp_path)
    assert others["sha256"] != known["sha256"]
    assert not np.array_equal(read(tmp_path, "train")[1], labels)


def test_canvases_of_mirrored_images_have_another_sha256(tmp_path: Path) -> None:
    """Though mean and deviation are equal. No object hides another, as there is one at most."""
    options = OPTIONS.model_copy(update={"most": 1})
    images = np.zeros((10, 8, 8), np.uint8)
    images[:, :, :4] = 200
    found: list[dict[str, Any]] = []
    for turned in (images, images[:, :, ::-1]):
        folder = write_source(tmp_path / str(len(found)))
        for split in GREYS:
            write_arrow(folder / f"{split}.arrow", (8, 8), [Arrays(turned, np.arange(10))])
        found.append(write_canvases(folder, options, folder / "out"))
    first, second = found
    assert first["mean"] == second["mean"]
    assert first["std"] == second["std"]
    assert first["sha256"] != second["sha256"]


def test_labels(canvases: Path) -> None:
    """0 to 5 objects, 50 canvases of each are expected; more objects are brighter."""
    pixels, labels = read(canvases, "train")
    assert labels.dtype == np.int64
    occurring = np.bincount(labels)
    assert len(occurring) == OPTIONS.most + 1
    assert occurring.min() > 25
    brightness = [pixels[labels == count].mean() for count in range(6)]
    assert brightness[0] == 0
    assert brightness == sorted(brightness)
    assert brightness[5] > 3 * brightness[1]
    for split, value in GREYS.items():  # each is made of its own images
        assert set(np.unique(read(canvases, split)[0])) == {0, value}


def test_objects_lie_inside_and_everywhere(canvases: Path) -> None:
    pixels, labels = read(canvases, "train")
    sides = []
    for canvas in pixels[labels == 1] > 0:
        rows, columns = np.flatnonzero(canvas.any(axis=1)), np.flatnonzero(canvas.any(axis=0))
        assert len(rows) == len(columns) == np.ptp(rows) + 1  # a whole square
        sides.append(len(rows))
    assert set(sides) == set(range(4, 9))  # an eighth to a quarter of 32
    used = pixels.max(axis=0)
    assert used[4:-4, 4:-4].all()
    assert all(edge.any() for edge in (used[0], used[-1], used[:, 0], used[:, -1]))


def test_without_held_out_images_training_images_serve(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("train", "validation"))
    meta = write_canvases(source, OPTIONS, tmp_path / "out")
    assert meta["counts"] == {"train": 300, "validation": 60, "heldout": 30}
    pixels, _ = read(tmp_path / "out", "heldout")
    assert set(np.unique(pixels)) == {0, GREYS["train"]}
    assert not np.array_equal(pixels, read(tmp_path / "out", "train")[0][:30])  # other draws


def test_overlapping_objects_show_the_brighter_pixel(tmp_path: Path) -> None:
    """Two images: one bright with a black frame, one darker all over."""
    source = write_source(tmp_path / "source")
    images = np.full((2, 8, 8), 80, np.uint8)
    images[1] = np.pad(np.full((4, 4), 240, np.uint8), 2)
    write_arrow(source / "train.arrow", (8, 8), [Arrays(images, np.arange(2))])
    options = OPTIONS.model_copy(update={"most": 40, "train": 20})
    write_canvases(source, options, tmp_path / "out")
    pixels, labels = read(tmp_path / "out", "train")
    crowded = pixels[labels > 25]
    assert len(crowded)
    assert (crowded == 0).mean() < 0.6  # black frames have hidden little
    assert pixels.max() == 240  # no sum


def test_colour_and_moments(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", colour=(100, 50, 0))
    options = OPTIONS.model_copy(update={"train": 70})
    meta = write_canvases(source, options, tmp_path / "out")
    pixels, _ = read(tmp_path / "out", "train")
    assert pixels.shape == (70, 32, 32, 3)
    assert meta["image_shape"] == [32, 32, 3]
    objects = pixels[pixels.any(axis=-1)]
    assert (objects == (100, 50, 0)).all()
    shares = pixels.reshape(-1, 3) / 255
    assert meta["mean"] == pytest.approx(shares.mean(axis=0), abs=1e-6)
    assert meta["std"] == pytest.approx(shares.std(axis=0), abs=1e-6)


def test_shards_of_image_files_are_read(source: Path, canvases: Path, tmp_path: Path) -> None:
    """As :func:`pipeline.data.prepare.prepare` lists them: here one split in two files."""
    shards = {split: [{"file": str(source / f"{split}.arrow")}] * 2 for split in GREYS}
    meta = {"counts": dict.fromkeys(GREYS, 20), "shards": shards}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    write_canvases(tmp_path, OPTIONS, tmp_path / "out")
    pixels, labels = read(tmp_path / "out", "validation")
    assert set(np.unique(pixels)) == {0, GREYS["validation"]}
    assert np.array_equal(labels, read(canvases, "validation")[1])
