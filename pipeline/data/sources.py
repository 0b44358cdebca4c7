"""Reads or lists the data set of a source; whatever is wrong is named by its file.

Small sets are read as arrays. Sets of image files are only listed (`pipeline.data.imagefiles`).
"""

import gzip
import hashlib
import os
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lsvit.text import one_line, user_path
from pipeline.data.imagefiles import Items, check_md5, list_image_folder
from pipeline.data.imagenet import list_imagenet
from pipeline.data.shards import Arrays
from pipeline.errors import UserError
from pipeline.jobs.processes import root

SPLITS = ("train", "validation")
CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
IDX_PREFIX = {"train": "train", "validation": "t10k"}  # of the original file names
IDX_KIND = {"images": "idx3", "labels": "idx1"}
# Of the uncompressed content, because distributors compress the original files anew.
FASHION_MNIST_SHA256 = {
    f"{name}-ubyte.gz": sha256
    for name, sha256 in (
        ("train-images-idx3", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"),
        ("train-labels-idx1", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"),
        ("t10k-images-idx3", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"),
        ("t10k-labels-idx1", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
    )
}
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DOWNLOADS = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lsvit"
CHECKSUMS = "SHA256SUMS"  # of the uncompressed content, beside the embedded files


class Source(NamedTuple):
    """A data set as its source holds it: the splits train and validation, and the class names."""

    splits: dict[str, Arrays] | dict[str, Items]
    classes: list[str]


def find(source: str, folder: str | None, embedded: Path) -> Source:
    """Read or list the data set of a source; a relative `folder` begins at the real repository.

    Raises:
        UserError: a file is missing, damaged or another one; the line names it.
    """
    path = None if folder is None else root() / user_path(folder)
    try:
        if source == "embedded":
            return read_fashion_mnist(embedded, read_checksums(embedded))
        if source == "fashion_mnist":
            return read_fashion_mnist(locate_fashion_mnist(path), FASHION_MNIST_SHA256)
        if source == "digits":
            return read_digits()
        if source in ("cifar10", "cifar100"):
            return read_cifar(source, path)
        assert path is not None  # DatasetPreset insists
        list_files = list_imagenet if source == "imagenet" else list_image_folder
        return Source(*list_files(path))
    except OSError as error:  # of a folder that may not be opened
        raise UserError(f"datasets.*.folder: {error}") from None


def ask_torchvision(dataset: Any, folder: Path, source: str, missing: str, **keys: Any) -> Any:
    """Open or download one of torchvision's data sets; `missing` says what was not found.

    Raises:
        UserError: the download or the data set's own check fails.
    """
    try:
        return dataset(str(folder), download=True, **keys)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{source}: {missing}, and the download failed ({one_line(error)}); "
            f"or give a folder: datasets.{source}.folder"
        ) from None


# ---- Fashion-MNIST and its embedded subset -------------------------------------------------------


def idx_name(split: str, part: str) -> str:
    """The original file name of a split's images or labels."""
    return f"{IDX_PREFIX[split]}-{part}-{IDX_KIND[part]}-ubyte.gz"


def read_idx(path: Path, sha256: str) -> np.ndarray:
    """Read images (n, H, W) or labels (n,) uint8 from a gzipped IDX file.

    torchvision reads no gzip.

    Raises:
        UserError: the file is missing or damaged, or its content has another sha256.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: truncated or not gzip ({error})") from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise UserError(f"{path}: its content's sha256 is {digest}, expected {sha256}")
    ndim = content[3]
    shape = struct.unpack_from(f">{ndim}I", content, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 * (1 + ndim)).reshape(shape)


def read_fashion_mnist(folder: Path, checksums: dict[str, str]) -> Source:
    """Read both splits in the original format. Raises UserError as :func:`read_idx` does."""
    return Source({split: read_split(folder, split, checksums) for split in SPLITS}, CLASSES)


def read_split(folder: Path, split: str, checksums: dict[str, str]) -> Arrays:
    """Read one split in the original format. Raises UserError as :func:`read_idx` does."""
    image_file = idx_name(split, "images")
    label_file = idx_name(split, "labels")
    images = read_idx(folder / image_file, checksums[image_file])
    labels = read_idx(folder / label_file, checksums[label_file])
    return Arrays(images, labels)


def read_checksums(folder: Path) -> dict[str, str]:
    """Read sha256 by file name. Raises UserError if the checksum file is missing or incomplete."""
    path = folder / CHECKSUMS
    if not path.is_file():
        raise UserError(
            f"{path}: missing; `dvc pull` or `dvc repro --pull` fetches the embedded data"
        )
    checksums = {}
    for line in path.read_text("utf-8").splitlines():
        digest, _, name = line.partition("  ")
        checksums[name] = digest
    for name in FASHION_MNIST_SHA256:
        if name not in checksums:
            raise UserError(f"{path}: no checksum for {name}")
    return checksums


def locate_fashion_mnist(folder: Path | None) -> Path:
    """The given folder, else Debian's package, else torchvision's download.

    Raises:
        UserError: no source has the files.
    """
    if folder is not None:
        return folder
    if DEBIAN_FOLDER.is_dir():
        return DEBIAN_FOLDER
    from torchvision.datasets import FashionMNIST

    missing = f"not in {DEBIAN_FOLDER} (Debian's package dataset-fashion-mnist)"
    return Path(ask_torchvision(FashionMNIST, DOWNLOADS, "fashion_mnist", missing).raw_folder)


def choose_balanced(labels: np.ndarray, split: str, count: int, rng: Any) -> np.ndarray:
    """Indices (count,) of random images, equally many of each class, in random order.

    Raises:
        UserError: `count` is not a multiple of the number of classes, or there are too few images.
    """
    if count % len(CLASSES):
        raise UserError(f"{split}: found {count}, accepted: a multiple of {len(CLASSES)} classes")
    most = len(CLASSES) * np.bincount(labels).min()
    if count > most:
        raise UserError(f"{split}: found {count}, accepted: at most {most}")
    chosen = []
    for label in range(len(CLASSES)):
        of_class = rng.permutation(np.flatnonzero(labels == label))
        chosen.append(of_class[: count // len(CLASSES)])
    return rng.permutation(np.concatenate(chosen))


def write_subset(source: Path, out: Path, counts: dict[str, int], seed: int) -> None:
    """Write a class-balanced random subset in the original format, with its checksums.

    The same arguments give the same bytes. Raises UserError as :func:`choose_balanced` does.
    """
    contents: dict[str, bytes] = {}
    for number, (split, count) in enumerate(counts.items()):
        arrays = read_split(source, split, FASHION_MNIST_SHA256)
        # The embedded images were drawn with this key.
        rng = np.random.default_rng([5, 2, seed, number])
        chosen = choose_balanced(arrays.labels, split, count, rng)
        for part, array in arrays._asdict().items():
            header = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, count, *array.shape[1:])
            contents[idx_name(split, part)] = header + array[chosen].tobytes()
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, content in contents.items():
        (out / name).write_bytes(gzip.compress(content, mtime=0))
        lines.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
    (out / CHECKSUMS).write_text("".join(lines), "utf-8")


# ---- digits and CIFAR ----------------------------------------------------------------------------


def read_digits() -> Source:
    """Read scikit-learn's 1,797 handwritten digits of 8 x 8 pixels: 1,437 to train on, 360 not."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)  # 17 levels of grey
    labels = digits.target.astype(np.uint8)
    parts = train_test_split(  # of images, then of labels
        images, labels, test_size=360, random_state=0, stratify=digits.target
    )
    splits = {"train": Arrays(*parts[::2]), "validation": Arrays(*parts[1::2])}
    return Source(splits, [str(digit) for digit in range(10)])


def read_cifar(source: str, folder: Path | None) -> Source:
    """Read CIFAR-10 or CIFAR-100 (fine labels) through torchvision, which unpacks the archive.

    Args:
        source: cifar10 or cifar100.
        folder: of the official archive, or of what it holds; None: torchvision downloads it.

    Raises:
        UserError: a file is missing or has another md5 than the official one.
    """
    from torchvision import datasets

    official: Any = getattr(datasets, source.upper())
    data_folder = DOWNLOADS if folder is None else folder
    if folder is not None:  # torchvision would download what is missing, and names no file
        archive = folder / official.filename
        unpacked = folder / official.base_folder
        if archive.is_file() or not unpacked.is_dir():
            check_md5(archive, official.tgz_md5)
        else:
            for name, md5 in official.train_list + official.test_list:
                check_md5(unpacked / name, md5)
            check_md5(unpacked / official.meta["filename"], official.meta["md5"])
    missing = f"no {official.filename} in {data_folder}"
    splits = {}
    for split in SPLITS:
        train = split == "train"
        dataset = ask_torchvision(official, data_folder, source, missing, train=train)
        splits[split] = Arrays(dataset.data, np.array(dataset.targets, np.uint8))
    return Source(splits, dataset.classes)
