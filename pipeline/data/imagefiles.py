"""Lists image files in folders, in torchvision's order, and reads them one by one."""

import hashlib
import os
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from lsvit.images import Unused, describe_unused, list_images
from lsvit.text import folder_name, plain
from pipeline.errors import UserError

VALIDATION_FOLDERS = ("val", "validation", "test")  # the first that exists is taken
Row = tuple[bytes, int, int, int, int]  # name, offset, size, mtime, label


class Items(NamedTuple):
    """A listed split of image files: a record an image, compact enough for millions.

    `root` is a folder and `name` a path in it, or `root` is a tar file that has the image's `size`
    bytes at `offset`.
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
        offset = int(self.table["offset"][i])
        if offset == 0:  # not in a tar file, where a header comes first
            return self.path(i).read_bytes()
        with open(self.root, "rb") as file:
            file.seek(offset)
            return file.read(int(self.table["size"][i]))


def to_table(rows: list[Row]) -> np.ndarray:
    """Rows as records; names as wide as the longest."""
    width = max((len(row[0]) for row in rows), default=1)
    columns = f"S{width}, i8, i8, i8, i4"
    table = np.array(rows, columns)
    table.dtype.names = ("name", "offset", "size", "time", "label")
    return table


def list_split(folder: Path, classes: list[str] | None = None) -> tuple[Items, list[str]]:
    """The images of folder/<class>/**, and the names of its folders: sorted, or those given.

    A line tells how many files are left out, and another which of the given classes have no image.

    Raises:
        UserError: a folder cannot be opened, there are no classes, one to train on holds no image,
            or one is not among those given.
    """
    from torchvision.datasets.folder import find_classes

    unused: Unused = {}
    try:
        files = list_images(folder, unused)
        left_out = {path for paths in unused.values() for path in paths}
        names = [name for name in find_classes(folder)[0] if f"{folder}/{name}" not in left_out]
    except OSError as error:
        raise UserError(f"{folder}: {error}, accepted: {folder}/<class>/<image>") from None
    known = classes or names
    if len(set(map(folder_name, names))) < len(names):
        raise UserError(f"{folder}: two folders whose names differ by Unicode's normal form alone")
    label_of = {folder_name(name): label for label, name in enumerate(known)}
    if unknown := {name for name in names if folder_name(name) not in label_of}:
        raise UserError(
            f"{folder / min(unknown)}: a class that the training images do not have; "
            f"they have {len(known)}"
        )
    labelled = set()  # device, inode, label
    rows: list[Row] = []
    for place, name in files:
        path = f"{place}/{name}"
        inside = path.removeprefix(f"{folder}/")
        own_class, slash, _ = inside.partition("/")
        if slash:
            stat = os.stat(path)  # noqa: PTH116
            label = label_of[folder_name(own_class)]
            labelled.add((stat.st_dev, stat.st_ino, label))
            # Unpacking an archive sets the time of modification, but not that of change.
            rows.append((os.fsencode(inside), 0, stat.st_size, stat.st_ctime_ns, label))
        else:
            unused.setdefault("beside the class folders", []).append(path)
    if unused:
        print(describe_unused(folder, unused))
    if several := len(labelled) - len({file[:2] for file in labelled}):
        print(plain(f"{folder}: {several:,} images have a second class too, through links"))
    rows.sort(key=itemgetter(4))  # as torchvision: class by class
    filled = {row[4] for row in rows}
    empty = [name for name, label in label_of.items() if label not in filled]
    if empty or not rows:
        line = f"{folder}: no image of {len(empty)} of {len(known)} classes: {', '.join(empty[:3])}"
        if not classes or not rows:
            raise UserError(f"{line}, accepted: {folder}/<class>/<image>")
        print(plain(line))
    return Items(folder, to_table(rows)), known


def list_image_folder(folder: Path) -> tuple[dict[str, Items], list[str]]:
    """folder/train/<class>/** and folder/val/<class>/**, and the classes.

    Raises:
        UserError: a split is missing, or :func:`list_split` refuses it.
    """
    accepted = (
        f"accepted: {folder}/train/<class>/<image> and {folder}/val/<class>/<image> "
        "(or validation, or test)"
    )
    if not (folder / "train").is_dir():
        raise UserError(f"{folder / 'train'}: no such folder, {accepted}")
    present = [name for name in VALIDATION_FOLDERS if (folder / name).is_dir()]
    if not present:
        raise UserError(f"{folder / 'val'}: no such folder, {accepted}")
    others = set(os.listdir(folder)) - {"train", present[0]}  # noqa: PTH208
    if others:
        unused = {f"beside train and {present[0]}": [f"{folder}/{name}" for name in others]}
        print(describe_unused(folder, unused))
    train, classes = list_split(folder / "train")
    if len(classes) == 1:
        found = plain(classes[0])
        raise UserError(f"{train.root}: found one class, {found}, accepted: at least 2")
    validation, _ = list_split(folder / present[0], classes)
    if validation.root.samefile(train.root):
        print(plain(f"{validation.root}: the images to train on; accuracies are not of new images"))
    return {"train": train, "validation": validation}, [plain(name) for name in classes]


def check_md5(path: Path, md5: str) -> None:
    """Raise UserError if the file is missing or has another md5."""
    if not path.is_file():
        raise UserError(f"{path}: missing")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    if digest != md5:
        raise UserError(
            f"{path}: its md5 is {digest}, the official file's is {md5}: damaged, or another file"
        )
