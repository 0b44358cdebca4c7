"""Data: the original format is verified, decoded once, and given in batches."""

import gzip
import hashlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

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
from pipeline.data.shards import Arrays, open_arrow, write_arrow
from pipeline.data.sources import CLASSES, DEBIAN_FOLDER, read_checksums, read_idx, write_subset
from pipeline.data.splits import Split, resizing
from pipeline.errors import UserError
from pipeline.jobs.files import read_meta, sha256
from pipeline.smoke import copy_repository
from stages.commands import app
from tests.conftest import ROOT, write_idx

EMBEDDED = DatasetPreset(source="embedded")
CPU = torch.device("cpu")
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def kept(folder: Path, split: str) -> Arrays:
    """A split as a small set keeps it: one record batch."""
    (batch,) = open_arrow(folder / f"{split}.arrow")
    return batch


def test_prepare(raw: Path, tmp_path: Path) -> None:
    meta = prepare("bars", EMBEDDED, raw, tmp_path / "out")
    assert meta == read_meta(tmp_path / "out")
    assert meta["counts"] == {"train": 96, "validation": 40}
    assert meta["image_shape"] == [28, 28]
    images, labels = kept(tmp_path / "out", "train")
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    assert not images.flags.owndata  # the mapped file itself
    assert np.array_equal(images, read_idx(raw / IMAGES))
    assert abs(meta["mean"][0] - images.mean() / 255) < 1e-5
    again = prepare("bars", EMBEDDED, raw, tmp_path / "again")
    assert again == meta
    assert sha256(tmp_path / "out" / "train.arrow") == sha256(tmp_path / "again" / "train.arrow")


def test_limits(raw: Path, tmp_path: Path) -> None:
    meta = prepare(
        "bars", EMBEDDED.model_copy(update={"train": 10, "validation": 5}), raw, tmp_path / "out"
    )
    assert meta["counts"] == {"train": 10, "validation": 5}
    with pytest.raises(UserError, match=r"datasets\.bars\.train: found 97, accepted: at most 96"):
        prepare("bars", EMBEDDED.model_copy(update={"train": 97}), raw, tmp_path / "more")


def test_held_out_images_are_taken_from_the_training_set_alone(raw: Path, tmp_path: Path) -> None:
    whole = prepare("bars", EMBEDDED, raw, tmp_path / "whole")
    meta = prepare("bars", EMBEDDED.model_copy(update={"heldout": 16}), raw, tmp_path / "out")
    assert meta["counts"] == {"train": 80, "heldout": 16, "validation": 40}
    assert meta["sha256"] != whole["sha256"]
    images = {split: kept(tmp_path / "out", split).images for split in meta["counts"]}
    everything = kept(tmp_path / "whole", "train").images
    parts = np.concatenate([images["train"], images["heldout"]])
    assert sorted(image.tobytes() for image in parts) == sorted(
        image.tobytes() for image in everything
    )  # each once
    assert np.array_equal(images["validation"], kept(tmp_path / "whole", "validation").images)
    again = prepare("bars", EMBEDDED.model_copy(update={"heldout": 16}), raw, tmp_path / "again")
    assert again == meta
    with pytest.raises(
        UserError,
        match=r"datasets\.bars\.heldout: found 96, accepted: fewer than the 96 training images",
    ):
        prepare("bars", EMBEDDED.model_copy(update={"heldout": 96}), raw, tmp_path / "none")


@pytest.mark.slow
def test_digits(tmp_path: Path) -> None:
    """The second set of embedded size: every image once, every class in the same share."""
    meta = prepare("digits", DatasetPreset(source="digits"), tmp_path, tmp_path / "out")
    assert meta["counts"] == {"train": 1437, "validation": 360}
    assert meta["image_shape"] == [8, 8]
    assert meta["classes"] == [str(digit) for digit in range(10)]
    labels = [kept(tmp_path / "out", split).labels for split in meta["counts"]]
    shares = [np.bincount(part) / len(part) for part in labels]
    assert np.abs(shares[0] - shares[1]).max() < 0.003
    assert kept(tmp_path / "out", "train").images.max() == 255


def _truncate(raw: Path) -> None:
    (raw / IMAGES).write_bytes((raw / IMAGES).read_bytes()[:-100])


def _cut_content(raw: Path) -> None:
    (raw / IMAGES).write_bytes(gzip.compress(gzip.decompress((raw / IMAGES).read_bytes())[:-1]))


def _other_content(raw: Path) -> None:
    content = bytearray(gzip.decompress((raw / IMAGES).read_bytes()))
    content[-1] ^= 1
    (raw / IMAGES).write_bytes(gzip.compress(content))


def _drop_checksum(raw: Path, name: str) -> None:
    """As if the wrong file had been there from the start."""
    sums = raw / "SHA256SUMS"
    content = hashlib.sha256(gzip.decompress((raw / name).read_bytes())).hexdigest()
    sums.write_text(
        "".join(
            f"{content}  {name}\n" if name in line else f"{line}\n"
            for line in sums.read_text().splitlines()
        )
    )


def _class_11(raw: Path) -> None:
    write_idx(raw / LABELS, np.full(96, 11, np.uint8))
    _drop_checksum(raw, LABELS)


def _too_few_labels(raw: Path) -> None:
    write_idx(raw / LABELS, np.zeros(95, np.uint8))
    _drop_checksum(raw, LABELS)


@pytest.mark.parametrize(
    ("damage", "name", "said"),
    [
        (lambda raw: (raw / IMAGES).unlink(), IMAGES, "missing"),
        (_truncate, IMAGES, "truncated or not gzip"),
        (lambda raw: (raw / IMAGES).write_bytes(b"hello"), IMAGES, "truncated or not gzip"),
        (_cut_content, IMAGES, "its header promises"),
        (
            lambda raw: shutil.copy(raw / LABELS, raw / IMAGES),
            IMAGES,
            "mislabelled: its header is 00000801",
        ),
        (
            lambda raw: shutil.copy(raw / IMAGES, raw / LABELS),
            LABELS,
            "mislabelled: its header is 00000803",
        ),
        (
            lambda raw: (raw / LABELS).write_bytes(gzip.compress(b"")),
            LABELS,
            "its header is nothing",
        ),
        (_other_content, IMAGES, "its content's sha256 is"),
        (_class_11, LABELS, "class 11, accepted: 0 to 9"),
        (_too_few_labels, LABELS, "95 labels for the 96 images"),
        (lambda raw: (raw / "SHA256SUMS").unlink(), "SHA256SUMS", "dvc pull"),
        (
            lambda raw: (raw / "SHA256SUMS").write_text(""),
            "SHA256SUMS",
            "no checksum for train-images",
        ),
        (
            lambda raw: (raw / "SHA256SUMS").write_text("abc"),
            "SHA256SUMS",
            "no checksum for train-images",
        ),
    ],
)
def test_damaged_file_is_named(
    raw: Path, tmp_path: Path, damage: object, name: str, said: str
) -> None:
    damage(raw)  # type: ignore[operator]
    with pytest.raises(UserError, match=said) as error:
        prepare("bars", EMBEDDED, raw, tmp_path / "out")
    assert str(error.value).startswith(str(raw / name))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_embedded_data_is_what_its_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files in the repository: counts, balanced classes; and, where the originals are, made by the kept command."""
    monkeypatch.chdir(ROOT)
    copy_repository(tmp_path / "copy")
    subprocess.run(
        [sys.executable, "-m", "dvc", "pull", "-q", "data.dvc"], cwd=tmp_path / "copy", check=True
    )
    folder = tmp_path / "copy" / "data" / "fashion_mnist_10k"
    meta = prepare("fashion_mnist_10k", EMBEDDED, folder, tmp_path / "out")
    assert meta["counts"] == {"train": 10_000, "validation": 2_000}
    for split, count in (("train", 1000), ("validation", 200)):
        assert np.bincount(kept(tmp_path / "out", split).labels).tolist() == [count] * 10
    if DEBIAN_FOLDER.is_dir():
        write_subset(DEBIAN_FOLDER, tmp_path / "subset", {"train": 10_000, "validation": 2_000}, 0)
        assert (tmp_path / "subset" / "SHA256SUMS").read_text() == (
            folder / "SHA256SUMS"
        ).read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    not DEBIAN_FOLDER.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed"
)
def test_all_of_fashion_mnist(tmp_path: Path) -> None:
    meta = prepare(
        "fashion_mnist", DatasetPreset(source="fashion_mnist"), Path("none"), tmp_path / "debian"
    )
    assert meta["counts"] == {"train": 60_000, "validation": 10_000}
    folder = DatasetPreset(source="fashion_mnist", folder=str(DEBIAN_FOLDER))
    assert (
        prepare("fashion_mnist", folder, Path("none"), tmp_path / "folder")["sha256"]
        == meta["sha256"]
    )


def test_fashion_mnist_that_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The download is torchvision's; where it fails, the line names all three sources."""
    monkeypatch.setattr(sources, "DEBIAN_FOLDER", tmp_path / "none")
    monkeypatch.setattr(sources, "DOWNLOADS", tmp_path / "downloads")
    monkeypatch.setattr("torchvision.datasets.mnist.download_and_extract_archive", _offline)
    with pytest.raises(
        UserError, match=r"dataset-fashion-mnist.*download failed.*fashion_mnist.folder"
    ) as error:
        prepare(
            "fashion_mnist", DatasetPreset(source="fashion_mnist"), Path("none"), tmp_path / "out"
        )
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=f"{tmp_path}/here/{IMAGES}: missing"):
        prepare(
            "f",
            DatasetPreset(source="fashion_mnist", folder=str(tmp_path / "here")),
            Path("none"),
            tmp_path / "out",
        )


def _offline(*_: object, **__: object) -> None:
    raise OSError("no network")


def test_batches(prepared: Path) -> None:
    split = Split(prepared, "train", CPU, 1, 28, (0.5,), (0.25,))
    images, labels = split.take(slice(0, 4))
    raw = kept(prepared, "train").at(np.arange(4))
    assert images.shape == (4, 1, 28, 28)
    assert torch.allclose(images[:, 0], (torch.from_numpy(raw.images) / 255 - 0.5) / 0.25)
    assert labels.tolist() == raw.labels.tolist()
    assert [(i, len(labels)) for i, _, labels in split.in_order(36)] == [(0, 36), (1, 36), (2, 24)]


def test_shuffled_batches_depend_on_seed_and_epoch_alone(prepared: Path) -> None:
    split = Split(prepared, "train", CPU, 1, 28, (0.0,), (1.0,))
    orders = {
        (seed, epoch): torch.cat(
            [images[:, 0, 0, 0] for images, _ in split.shuffled(40, seed, epoch)]
        ).tolist()
        for seed in range(2)
        for epoch in range(2)
    }
    assert all(len(order) == 80 for order in orders.values())  # the incomplete batch is left out
    assert len({tuple(order) for order in orders.values()}) == 4
    assert torch.cat([i[:, 0, 0, 0] for i, _ in split.shuffled(40, 1, 1)]).tolist() == orders[1, 1]


def test_small_grey_images_fill_a_large_colour_model(prepared: Path) -> None:
    split = Split(prepared, "validation", CPU, 3, 56, (0.1, 0.2, 0.3), (1.0, 1.0, 1.0), limit=7)
    images, _ = split.take(slice(0, 100))
    assert images.shape == (7, 3, 56, 56)
    assert torch.allclose(images[:, 0] + 0.1, images[:, 2] + 0.3, atol=1e-6)


def test_subset_counts_must_be_balanced(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"train: found 11, accepted: a multiple of {len(CLASSES)}"):
        write_subset(tmp_path, tmp_path / "out", {"train": 11, "validation": 10}, 0)


def test_a_subset_is_written_whole_or_not_at_all(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be chosen is found before a file is touched; a subset holds as many of each class."""
    monkeypatch.setattr(sources, "FASHION_MNIST_SHA256", read_checksums(raw))
    out = tmp_path / "out"
    for validation, said in ((15, "a multiple of 10 classes"), (1000, "at most")):
        with pytest.raises(UserError, match=f"validation: found {validation}, accepted: {said}"):
            write_subset(raw, out, {"train": 20, "validation": validation}, 0)
        assert not out.exists()
    write_subset(raw, out, {"train": 20, "validation": 10}, 0)
    meta = prepare("bars", EMBEDDED, out, tmp_path / "prepared")
    assert meta["counts"] == {"train": 20, "validation": 10}
    assert np.bincount(kept(tmp_path / "prepared", "train").labels).tolist() == [2] * 10
    for wrong in ("--train=-10", "--validation=0", "--seed=-1"):
        assert (
            CliRunner()
            .invoke(app, ["data", "subset", "--source", str(raw), "--out", str(out), wrong])
            .exit_code
            == 2
        )


def test_processes_share_every_batch(prepared: Path) -> None:
    """Ranks of one training: each takes a part of every shuffled batch, and every world-th of the batches in order."""
    split = Split(prepared, "train", CPU, 1, 28, (0.0,), (1.0,))
    whole = [images for images, _ in split.shuffled(40, 3, 1)]
    parts = [[images for images, _ in split.shuffled(40, 3, 1, rank, 3)] for rank in range(3)]
    assert [len(part[0]) for part in parts] == [14, 13, 13]
    for batch, *shares in zip(whole, *parts, strict=True):
        assert torch.equal(batch, torch.cat(shares))
    ordered = {
        i: labels.tolist() for rank in range(3) for i, _, labels in split.in_order(20, rank, 3)
    }
    assert ordered == {i: labels.tolist() for i, _, labels in split.in_order(20)}
    assert [i for i, _, _ in split.in_order(20, 1, 3)] == [1, 4]
    assert list(split.in_order(100, 1, 3)) == []


@pytest.mark.parametrize("reading", ["published", "timm"])
def test_small_images_are_resized_on_the_device_as_files_are(reading: str, tmp_path: Path) -> None:
    """CIFAR's 32 pixels at 48: files are rounded (and, where bicubic oversteps 255, cut) after each of two passes, here once."""
    resize = resizing(
        ModelPreset(timm="vit_tiny_patch16_224", kwargs={"img_size": 48}, weights="scratch"),
        reading,
    )
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


def test_the_reading_is_part_of_the_identity(raw: Path, tmp_path: Path) -> None:
    """A training on differently resized images is another one, though the pixels on disk are the same."""
    published, timm = (
        prepare("bars", EMBEDDED.model_copy(update={"resize": reading}), raw, tmp_path / reading)
        for reading in ("published", "timm")
    )
    assert published["sha256"] != timm["sha256"]
    assert published["resize"] == "published"
    assert sha256(tmp_path / "published" / "train.arrow") == sha256(
        tmp_path / "timm" / "train.arrow"
    )
