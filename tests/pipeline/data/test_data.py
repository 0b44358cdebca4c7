"""Data: the original format is verified, decoded once, and given in batches."""

import gzip
import io
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pipeline.config.datasets import DatasetPreset
from pipeline.config.presets import ModelPreset
from pipeline.data import sources
from pipeline.data.decode import decode
from pipeline.data.prepare import prepare
from pipeline.data.resize import resizing
from pipeline.data.shards import Arrays, open_arrow, write_arrow
from pipeline.data.sources import CLASSES, DEBIAN_FOLDER, read_checksums, write_subset
from pipeline.data.splits import Split
from pipeline.jobs.files import read_meta, sha256
from pipeline.smoke import copy_repository
from stages.commands import app
from tests.conftest import ROOT, refused

EMBEDDED = DatasetPreset(source="embedded")
Make = Callable[..., dict[str, Any]]
CPU = torch.device("cpu")
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def kept(folder: Path, split: str) -> Arrays:
    """A split as a small set keeps it: one record batch."""
    (batch,) = open_arrow(folder / f"{split}.arrow")
    return batch


@pytest.fixture
def plain(prepared: Path) -> Split:
    """The training images, grey, in [0, 1]."""
    return Split(prepared, "train", CPU, 1, 28, (0.0,), (1.0,))


@pytest.fixture
def make(raw: Path, tmp_path: Path) -> Make:
    """Prepares the raw files in a folder of this name, with these keys of the data set."""

    def prepared(name: str = "out", **keys: Any) -> dict[str, Any]:
        return prepare("bars", EMBEDDED.model_copy(update=keys), raw, tmp_path / name)

    return prepared


def test_prepare(make: Make, raw: Path, tmp_path: Path) -> None:
    meta = make()
    assert meta == read_meta(tmp_path / "out")
    assert meta["counts"] == {"train": 96, "validation": 40}
    assert meta["image_shape"] == [28, 28]
    images, labels = kept(tmp_path / "out", "train")
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert not images.flags.owndata  # the mapped file itself
    content = gzip.decompress((raw / IMAGES).read_bytes())
    expected = np.frombuffer(content, np.uint8, offset=16).reshape(-1, 28, 28)
    assert np.array_equal(images, expected)
    assert abs(meta["mean"][0] - images.mean() / 255) < 1e-5
    assert abs(meta["std"][0] - images.std() / 255) < 1e-5
    assert make("resized", resize="timm")["sha256"] != meta["sha256"]  # of the same pixels
    assert sha256(tmp_path / "resized" / "train.arrow") == sha256(tmp_path / "out" / "train.arrow")
    assert make("limited", train=10, validation=5)["counts"] == {"train": 10, "validation": 5}
    assert np.array_equal(kept(tmp_path / "limited", "train").images, expected[:10])


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"train": 97}, "train: found 97, accepted: at most 96"),
        ({"heldout": 96}, "heldout: found 96, accepted: fewer than the 96 training images"),
    ],
)
def test_more_images_than_there_are(make: Make, keys: dict[str, int], reason: str) -> None:
    with refused(rf"datasets\.bars\.{reason}"):
        make(**keys)


def test_held_out_images_are_taken_from_the_training_set_alone(make: Make, tmp_path: Path) -> None:
    whole = make("whole")
    meta = make(heldout=16)
    assert meta["counts"] == {"train": 80, "heldout": 16, "validation": 40}
    assert meta["sha256"] != whole["sha256"]
    train, heldout = (kept(tmp_path / "out", split).images for split in ("train", "heldout"))
    everything = kept(tmp_path / "whole", "train").images
    parts = sorted(image.tobytes() for image in (*train, *heldout))
    assert parts == sorted(image.tobytes() for image in everything)  # each once
    validation = kept(tmp_path / "whole", "validation").images
    assert np.array_equal(kept(tmp_path / "out", "validation").images, validation)
    assert make("again", heldout=16) == meta


@pytest.mark.slow
def test_digits(tmp_path: Path) -> None:
    """Every class has the same share of both splits."""
    meta = prepare("digits", DatasetPreset(source="digits"), tmp_path, tmp_path / "out")
    assert meta["counts"] == {"train": 1437, "validation": 360}
    assert meta["image_shape"] == [8, 8]
    assert meta["classes"] == [str(digit) for digit in range(10)]
    train, validation = (kept(tmp_path / "out", split).labels for split in meta["counts"])
    shares = np.bincount(train) / len(train) - np.bincount(validation) / len(validation)
    assert np.abs(shares).max() < 0.003
    assert kept(tmp_path / "out", "train").images.max() == 255


def truncate(raw: Path) -> None:
    (raw / IMAGES).write_bytes((raw / IMAGES).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "name", "reason"),
    [
        (lambda raw: (raw / IMAGES).unlink(), IMAGES, "missing"),
        (truncate, IMAGES, "truncated or not gzip"),
        (lambda raw: (raw / IMAGES).write_bytes(b"hello"), IMAGES, "truncated or not gzip"),
        (lambda raw: shutil.copy(raw / LABELS, raw / IMAGES), IMAGES, "its content's sha256 is"),
        (lambda raw: (raw / "SHA256SUMS").unlink(), "SHA256SUMS", "dvc pull"),
        (lambda raw: (raw / "SHA256SUMS").write_text("abc"), "SHA256SUMS", "no checksum for train"),
    ],
)
def test_damaged_file_is_named(
    make: Make,
    raw: Path,
    tmp_path: Path,
    damage: Callable[[Path], object],
    name: str,
    reason: str,
) -> None:
    damage(raw)
    with refused(f"^{raw / name}.*{reason}"):
        make()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_embedded_data_is_what_its_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts, balanced classes and, where the originals are, the same bytes made again."""
    monkeypatch.chdir(ROOT)
    copy_repository(tmp_path / "copy")
    pull = [sys.executable, "-m", "dvc", "pull", "-q", "data.dvc"]
    subprocess.run(pull, cwd=tmp_path / "copy", check=True)
    folder = tmp_path / "copy" / "data" / "fashion_mnist_10k"
    meta = prepare("fashion_mnist_10k", EMBEDDED, folder, tmp_path / "out")
    assert meta["counts"] == {"train": 10_000, "validation": 2_000}
    for split, count in (("train", 1000), ("validation", 200)):
        assert np.bincount(kept(tmp_path / "out", split).labels).tolist() == [count] * 10
    if DEBIAN_FOLDER.is_dir():
        write_subset(DEBIAN_FOLDER, tmp_path / "subset", {"train": 10_000, "validation": 2_000}, 0)
        sums = (tmp_path / "subset" / "SHA256SUMS").read_text()
        assert sums == (folder / "SHA256SUMS").read_text()


def test_fashion_mnist_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The download is torchvision's; where it fails, the line names all three sources."""
    offline = Mock(side_effect=OSError("no network"))
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", tmp_path / "none")
    monkeypatch.setattr(sources, "DOWNLOADS", tmp_path / "downloads")
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", offline)
    preset = DatasetPreset(source="fashion_mnist")
    with refused(r"dataset-fashion-mnist.*download failed.*fashion_mnist.folder"):
        prepare("fashion_mnist", preset, Path("none"), tmp_path / "out")
    preset = DatasetPreset(source="fashion_mnist", folder=str(tmp_path / "here"))
    with refused(f"{tmp_path}/here/{IMAGES}: missing"):
        prepare("f", preset, Path("none"), tmp_path / "out")


def test_batches(prepared: Path) -> None:
    split = Split(prepared, "train", CPU, 1, 28, (0.5,), (0.25,))
    images, labels = split.take(slice(0, 4))
    raw = kept(prepared, "train").at(np.arange(4))
    assert images.shape == (4, 1, 28, 28)
    assert torch.allclose(images[:, 0], (torch.from_numpy(raw.images) / 255 - 0.5) / 0.25)
    assert labels.tolist() == raw.labels.tolist()
    assert [(i, len(labels)) for i, _, labels in split.in_order(36)] == [(0, 36), (1, 36), (2, 24)]


def test_shuffled_batches_depend_on_seed_and_epoch_alone(plain: Split) -> None:
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 1)):
        images = torch.cat([images for images, _ in plain.shuffled(40, seed, epoch)])
        assert len(images) == 80  # the incomplete batch is left out
        orders.append(tuple(images[:, 0, 0, 0].tolist()))
    assert len(set(orders)) == 4
    assert orders[-1] == orders[-2]


def test_small_grey_images_fill_a_large_colour_model(prepared: Path) -> None:
    split = Split(prepared, "validation", CPU, 3, 56, (0.1, 0.2, 0.3), (1.0, 1.0, 1.0), limit=7)
    images, _ = split.take(slice(0, 100))
    assert images.shape == (7, 3, 56, 56)
    assert torch.allclose(images[:, 0] + 0.1, images[:, 2] + 0.3, atol=1e-6)


def test_a_subset_is_written_whole_or_not_at_all(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be chosen is found before a file is touched. Classes are balanced."""
    monkeypatch.setattr(sources, "FASHION_MNIST_SHA256", read_checksums(raw))
    out = tmp_path / "out"
    for validation, reason in ((15, f"a multiple of {len(CLASSES)} classes"), (1000, "at most")):
        with refused(f"validation: found {validation}, accepted: {reason}"):
            write_subset(raw, out, {"train": 20, "validation": validation}, 0)
        assert not out.exists()
    write_subset(raw, out, {"train": 20, "validation": 10}, 0)
    meta = prepare("bars", EMBEDDED, out, tmp_path / "prepared")
    assert meta["counts"] == {"train": 20, "validation": 10}
    assert np.bincount(kept(tmp_path / "prepared", "train").labels).tolist() == [2] * 10
    for wrong in ("--train=-10", "--validation=0", "--seed=-1"):
        command = ["data", "subset", "--source", str(raw), "--out", str(out), wrong]
        assert CliRunner().invoke(app, command).exit_code == 2


def test_processes_share_every_batch(plain: Split) -> None:
    """A rank takes a part of every shuffled batch, and every world-th of the batches in order."""
    parts = [plain.shuffled(40, 3, 1, rank, 3) for rank in range(3)]
    for (batch, _), *shares in zip(plain.shuffled(40, 3, 1), *parts, strict=True):
        assert [len(share) for share, _ in shares] == [14, 13, 13]
        assert torch.equal(batch, torch.cat([share for share, _ in shares]))
    ordered = [list(plain.in_order(20, rank, 3)) for rank in range(3)]
    batches = sorted(itertools.chain(*ordered), key=itemgetter(0))
    torch.testing.assert_close(batches, list(plain.in_order(20)), rtol=0, atol=0)
    assert [i for i, _, _ in ordered[1]] == [1, 4]
    assert list(plain.in_order(100, 1, 3)) == []


@pytest.mark.parametrize("reading", ["published", "timm"])
def test_small_images_are_resized_on_the_device_as_files_are(reading: str, tmp_path: Path) -> None:
    """CIFAR's 32 pixels at 48: files are rounded after each of two passes, here once."""
    model = ModelPreset(timm="vit_tiny_patch16_224", kwargs={"img_size": 48}, weights="scratch")
    resize = resizing(model, reading)
    noise = np.random.default_rng(0).integers(64, 192, (5, 32, 32, 3), dtype=np.uint8)
    write_arrow(tmp_path / "train.arrow", noise.shape[1:], [Arrays(noise, np.arange(5))])
    (tmp_path / "meta.json").write_text("{}")
    split = Split(tmp_path, "train", CPU, 3, 48, (0.0,), (1.0,), resize=resize)
    images, _ = split.take(slice(0, 5))
    for image, pixels in zip(images, noise, strict=True):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        expected = torch.from_numpy(decode(file.getvalue(), resize).copy()).permute(2, 0, 1) / 255
        assert (image - expected).abs().max() < 2 / 255
    assert images.min() >= 0
    assert images.max() <= 1
