"""ImageNet-2012 in folders, or in its official tar files, of which nothing is extracted."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np

from pipeline.config.datasets import CLASSES, SIZES
from pipeline.data.imagefiles import Items, Row, check_md5, list_image_folder, to_table
from pipeline.errors import UserError

NUM_CLASSES = CLASSES["imagenet"]
TRAIN_IMAGES, VALIDATION_IMAGES = SIZES["imagenet"]
TRAIN_TAR = "ILSVRC2012_img_train.tar"  # a tar file of one tar file a synset
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
DEVKIT = "ILSVRC2012_devkit_t12"


def list_imagenet(folder: Path) -> tuple[dict[str, Items], list[str]]:
    """List train/<synset>/ and val/<synset>/, or without train/ the official tar files.

    Returns:
        The splits, and the classes: the synsets, sorted.

    Raises:
        UserError: a file is missing or damaged, or the numbers of classes and images are not
            ImageNet's.
    """
    if (folder / "train").is_dir():
        splits, synsets = list_image_folder(folder)
    elif (folder / TRAIN_TAR).is_file():
        splits, synsets = list_tars(folder)
    else:
        raise UserError(
            f"{folder.resolve()}: found no ImageNet there (datasets.*.folder), accepted: "
            f"train/<synset>/ and val/<synset>/, or {TRAIN_TAR}, {VALIDATION_TAR}, {DEVKIT}.tar.gz"
        )
    train, validation = splits["train"], splits["validation"]
    if len(synsets) != NUM_CLASSES:
        raise UserError(f"{train.root}: found {len(synsets)} classes, accepted: {NUM_CLASSES:,}")
    for items, count in ((train, TRAIN_IMAGES), (validation, VALIDATION_IMAGES)):
        if len(items.table) != count:
            raise UserError(f"{items.root}: found {len(items.table):,} images, accepted: {count:,}")
    return splits, synsets


def list_tars(folder: Path) -> tuple[dict[str, Items], list[str]]:
    """List the official tar files. Returns and raises as :func:`list_imagenet`."""
    truth = read_devkit(folder / f"{DEVKIT}.tar.gz")
    train_path, validation_path = folder / TRAIN_TAR, folder / VALIDATION_TAR
    try:
        parts = list_train_tar(train_path)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f"{train_path}: truncated or not a tar file ({error})") from None
    synsets = sorted(parts)
    label_of = {synset: label for label, synset in enumerate(synsets)}
    for synset, label in label_of.items():
        parts[synset]["label"] = label
    try:
        mtime = validation_path.stat().st_mtime_ns
        with tarfile.open(validation_path, "r:") as archive:
            members = [member for member in archive if member.isfile()]
    except (OSError, tarfile.TarError) as error:
        raise UserError(
            f"{validation_path}: missing, truncated or not a tar file ({error})"
        ) from None
    members.sort(key=lambda member: member.name)
    rows: list[Row] = []
    for member, synset in zip(members, truth, strict=False):  # the caller counts both
        label = label_of.get(synset, -1)
        rows.append((os.fsencode(member.name), member.offset_data, member.size, mtime, label))
    train = Items(train_path, np.concatenate([parts[synset] for synset in synsets]))
    validation = Items(validation_path, to_table(rows))
    return {"train": train, "validation": validation}, synsets


def list_train_tar(path: Path) -> dict[str, np.ndarray]:
    """Records of the training images by synset, with labels 0. Raises OSError or TarError."""
    mtime = path.stat().st_mtime_ns
    parts = {}
    with tarfile.open(path, "r:") as outer:
        for member in outer:
            if not member.isfile():
                continue
            synset = member.name.removesuffix(".tar")
            rows: list[Row] = []
            with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
                for image in inner:
                    offset = member.offset_data + image.offset_data
                    rows.append(
                        (os.fsencode(f"{synset}/{image.name}"), offset, image.size, mtime, 0)
                    )
            parts[synset] = to_table(rows)
    return parts


def read_devkit(path: Path) -> list[str]:
    """The synset of every validation image, in order. Raises UserError: not the official file."""
    from scipy.io import loadmat
    from torchvision.datasets.imagenet import ARCHIVE_META

    check_md5(path, ARCHIVE_META["devkit"][1])
    with tarfile.open(path) as archive:
        meta = archive.extractfile(f"{DEVKIT}/data/meta.mat")
        truth = archive.extractfile(f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt")
        assert meta
        assert truth
        synsets = loadmat(io.BytesIO(meta.read()), squeeze_me=True)["synsets"]
        indices = [int(line) for line in truth]
    classes = synsets[synsets["num_children"] == 0]  # the others are groups of them
    synset_of = dict(zip(classes["ILSVRC2012_ID"], classes["WNID"], strict=True))
    return [str(synset_of[index]) for index in indices]
