"""Lists image files in folders, by torchvision, and reads them one by one."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from pipeline.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
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
    table.dtype.names = ("name", "offset", "size", "mtime", "label")
    return table


def list_split(folder: Path, classes: list[str] | None = None) -> tuple[Items, list[str]]:
    """The images of folder/<class>/**, and the classes: sorted, or those given.

    Raises:
        UserError: there are no classes, one holds no image, or one is not among those given.
    """
    from torchvision.datasets.folder import find_classes, make_dataset

    try:
        names = [name for name in find_classes(folder)[0] if not name.startswith(".")]
        classes = classes or names
        unknown = set(names) - set(classes)
        if unknown:
            raise UserError(
                f"{folder / min(unknown)}: a class that the training images do not have; "
                f"they have {len(classes)}"
            )
        label_of = {name: classes.index(name) for name in names}
        samples = make_dataset(folder, label_of, EXTENSIONS)
    except OSError as error:
        raise UserError(f"{folder}: {error}, accepted: {folder}/<class>/<image>") from None
    rows: list[Row] = []
    for path, label in samples:
        name = os.path.relpath(path, folder)
        if os.path.basename(name).startswith("."):  # noqa: PTH119
            continue
        try:
            stat = os.stat(path)  # noqa: PTH116
            size, mtime = stat.st_size, stat.st_mtime_ns
        except OSError:  # a broken link is reported with the other unreadable images
            size, mtime = 0, 0
        rows.append((os.fsencode(name), 0, size, mtime, label))
    return Items(folder, to_table(rows)), classes


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
    train, classes = list_split(folder / "train")
    validation, _ = list_split(folder / present[0], classes)
    return {"train": train, "validation": validation}, classes


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
