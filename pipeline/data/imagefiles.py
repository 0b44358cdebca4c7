"""Sets of image files: listed, in folders or inside tar files, and read one by one; nothing is ever extracted."""

import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from pipeline.config.datasets import CLASSES, SIZES
from pipeline.errors import UserError

LARGEST = 2**28  # bytes of an uncompressed file: a small one may decompress to any size
IMAGENET_CLASSES, IMAGENET_IMAGES = (
    CLASSES["imagenet"],
    dict(zip(("train", "validation"), SIZES["imagenet"], strict=True)),
)
IMAGENET_TARS = {"train": "ILSVRC2012_img_train.tar", "validation": "ILSVRC2012_img_val.tar"}
DEVKIT = "ILSVRC2012_devkit_t12"
EXTENSIONS = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"}
VALIDATION_FOLDERS = ("val", "validation", "test")  # the first there is
Row = tuple[bytes, int, int, int, int]  # name, offset, size, mtime, label


class Items(NamedTuple):
    """A listed split of image files: a record an image, compact enough for millions.

    `root` is a folder and `name` a path in it, or `root` is a tar file and the image its `size` bytes at `offset`.
    """

    root: Path
    table: np.ndarray  # (n,) records of name (bytes), offset and size (bytes), mtime (ns), label

    @property
    def labels(self) -> np.ndarray:
        """(n,) class indices."""
        return self.table["label"]

    def at(self, index: slice | np.ndarray) -> Self:
        """The chosen images alone."""
        return self._replace(table=self.table[index])

    def path(self, i: int) -> Path:
        """The image's path, below the tar file if it lies in one."""
        return self.root / os.fsdecode(self.table["name"][i])

    def read(self, i: int) -> bytes:
        """The image file's bytes. Raises OSError."""
        offset, size = int(self.table["offset"][i]), int(self.table["size"][i])
        if not offset:  # in a tar file a header comes first
            return self.path(i).read_bytes()
        with open(self.root, "rb") as file:
            file.seek(offset)
            return file.read(size)


def table(rows: list[Row]) -> np.ndarray:
    """Rows as records; names as wide as the longest."""
    width = max((len(row[0]) for row in rows), default=1)
    return np.array(
        rows,
        [("name", f"S{width}"), ("offset", "i8"), ("size", "i8"), ("mtime", "i8"), ("label", "i4")],
    )


def files_below(folder: Path) -> Iterator[str]:
    """Every file below a folder, hidden ones left out, sorted. Raises UserError: a folder cannot be read."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror})")

    for where, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(where, name) for name in sorted(names) if not name.startswith("."))  # noqa: PTH118 - a million of them


def list_split(folder: Path, classes: list[str] | None = None) -> tuple[Items, list[str]]:
    """The images of folder/<class>/**, and the classes: sorted, or those given. Other files are counted and named in one line.

    Raises:
        UserError: there are no classes, one holds no image, or one is not among those given.
    """
    found = sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if not found:
        raise UserError(
            f"{folder}: found no folders in it, accepted: a folder a class, {folder}/<class>/<image>"
        )
    classes = classes or found
    label_of = {name: label for label, name in enumerate(classes)}
    parts, ignored = [], []
    for name in found:
        if name not in label_of:
            raise UserError(
                f"{folder / name}: a class that the training images do not have; they have {len(classes)}"
            )
        rows: list[Row] = []
        for path in files_below(folder / name):
            if os.path.splitext(path)[1].lower() not in EXTENSIONS:  # noqa: PTH122
                ignored.append(path)
                continue
            try:
                stat = os.stat(path)  # noqa: PTH116
                size, mtime = stat.st_size, stat.st_mtime_ns
            except OSError:  # a broken link: reported with the other unreadable images
                size, mtime = 0, 0
            rows.append(
                (os.fsencode(os.path.relpath(path, folder)), 0, size, mtime, label_of[name])
            )
        if not rows:
            raise UserError(
                f"{folder / name}: found no images in it, accepted: {', '.join(sorted(EXTENSIONS))}"
            )
        parts.append(table(rows))
    if ignored:
        print(
            f"{folder}: {len(ignored)} other files ignored: {', '.join(ignored[:3])}{', ...' if len(ignored) > 3 else ''}",
            flush=True,
        )
    return Items(folder, np.concatenate(parts)), classes


def list_image_folder(folder: Path) -> tuple[dict[str, Items], list[str]]:
    """folder/train/<class>/** and folder/val/<class>/**. Raises UserError: a split is missing, or :func:`list_split` refuses."""
    accepted = f"accepted: {folder}/train/<class>/<image> and {folder}/val/<class>/<image> (or validation, or test)"
    if not (folder / "train").is_dir():
        raise UserError(f"{folder / 'train'}: no such folder, {accepted}")
    validation = next(
        (folder / name for name in VALIDATION_FOLDERS if (folder / name).is_dir()), None
    )
    if validation is None:
        raise UserError(f"{folder / 'val'}: no such folder, {accepted}")
    train, classes = list_split(folder / "train")
    return {"train": train, "validation": list_split(validation, classes)[0]}, classes


def check_md5(path: Path, md5: str) -> None:
    """Raises UserError: the file is missing, or is not the official one."""
    if not path.is_file():
        raise UserError(f"{path}: missing")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        raise UserError(
            f"{path}: its md5 is {found}, the official file's is {md5}: damaged, or another file"
        )


def read_members(archive: Path, names: list[str]) -> list[bytes]:
    """Files of a .tar.gz, read in memory. Raises UserError: the archive is damaged, or lacks one."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            return [_read_member(tar, name) for name in names]
    except KeyError as error:
        raise UserError(f"{archive}: incomplete: {error.args[0]}") from None
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{archive}: truncated or not a .tar.gz ({error})") from None


def _read_member(tar: tarfile.TarFile, name: str) -> bytes:
    content = file.read(LARGEST + 1) if (file := tar.extractfile(tar.getmember(name))) else None
    if content is None or len(content) > LARGEST:
        raise tarfile.ReadError(f"{name}: no file of at most {LARGEST:,} bytes")
    return content


# ---- ImageNet-2012 ------------------------------------------------------------------------------------------------------


def list_imagenet(folder: Path) -> tuple[dict[str, Items], list[str]]:
    """train/<synset>/ and val/<synset>/, or without train/ the official tar files; classes are the synsets, sorted.

    Raises:
        UserError: a file is missing or damaged, or the numbers of classes and images are not ImageNet's.
    """
    if (folder / "train").is_dir():
        splits, synsets = list_image_folder(folder)
    elif (folder / IMAGENET_TARS["train"]).is_file():
        splits, synsets = list_tars(folder)
    else:
        names = ", ".join([*IMAGENET_TARS.values(), f"{DEVKIT}.tar.gz"])
        raise UserError(
            f"{folder.resolve()}: found no ImageNet there (datasets.*.folder), accepted: train/<synset>/ and val/<synset>/, or {names}"
        )
    if len(synsets) != IMAGENET_CLASSES:
        raise UserError(
            f"{splits['train'].root}: found {len(synsets)} classes, accepted: {IMAGENET_CLASSES:,}"
        )
    for split, items in splits.items():
        if len(items.table) != IMAGENET_IMAGES[split]:
            raise UserError(
                f"{items.root}: found {len(items.table):,} images, accepted: {IMAGENET_IMAGES[split]:,}"
            )
    return splits, synsets


def list_tars(folder: Path) -> tuple[dict[str, Items], list[str]]:
    """The official tar files: a tar of one tar a synset, the validation images, and the devkit with their classes."""
    synset_of, truth = read_devkit(folder / f"{DEVKIT}.tar.gz")
    archives = {split: folder / name for split, name in IMAGENET_TARS.items()}
    parts: dict[str, np.ndarray] = {}
    path = archives["train"]
    try:
        mtime = path.stat().st_mtime_ns
        with tarfile.open(path, "r:") as tar:
            for member in (m for m in tar if m.isfile()):
                synset = member.name.removesuffix(".tar")
                with tarfile.open(fileobj=tar.extractfile(member), mode="r:") as inner:
                    rows = [
                        (
                            f"{synset}/{m.name}".encode(),
                            member.offset_data + m.offset_data,
                            m.size,
                            mtime,
                            0,
                        )
                        for m in inner
                        if m.isfile()
                    ]
                parts[synset] = table(rows)
        synsets = sorted(parts)
        for label, synset in enumerate(synsets):
            parts[synset]["label"] = label
        path = archives["validation"]
        mtime = path.stat().st_mtime_ns
        with tarfile.open(path, "r:") as tar:
            members = sorted((m for m in tar if m.isfile()), key=lambda m: m.name)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise UserError(f"{path}: missing, truncated or not a tar file ({error})") from None
    if len(members) != len(truth):
        raise UserError(
            f"{path}: found {len(members):,} images, the devkit has classes for {len(truth):,}"
        )
    unknown = {synset_of.get(index, str(index)) for index in truth} - set(synsets)
    if unknown:
        raise UserError(
            f"{archives['train']}: the validation images' class {min(unknown)} is missing in it"
        )
    rows = [
        (m.name.encode(), m.offset_data, m.size, mtime, synsets.index(synset_of[index]))
        for m, index in zip(members, truth, strict=True)
    ]
    train = np.concatenate([parts[synset] for synset in synsets])
    return {
        "train": Items(archives["train"], train),
        "validation": Items(path, table(rows)),
    }, synsets


def read_devkit(path: Path) -> tuple[dict[int, str], list[int]]:
    """ILSVRC index -> synset, and the index of every validation image, read in memory.

    Raises:
        UserError: the archive is missing or damaged.
    """
    from scipy.io import loadmat
    from torchvision.datasets.imagenet import ARCHIVE_META

    check_md5(path, ARCHIVE_META["devkit"][1])
    names = [f"{DEVKIT}/data/meta.mat", f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt"]
    meta, truth = read_members(path, names)
    synsets = loadmat(io.BytesIO(meta), squeeze_me=True)["synsets"]
    leaves = synsets[synsets["num_children"] == 0]
    return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}, [
        int(line) for line in truth.split()
    ]
