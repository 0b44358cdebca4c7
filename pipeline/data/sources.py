"""Where images come from: a reader of every source, which checks what it reads and names the file that is wrong.

Small sets are read as arrays; sets of image files are only listed (`pipeline.data.imagefiles`).
"""

import gzip
import hashlib
import io
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.data.imagefiles import (
    LARGEST,
    Items,
    check_md5,
    list_image_folder,
    list_imagenet,
    read_members,
)
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
IDX_PREFIX = {"train": "train", "validation": "t10k"}  # split -> prefix of the original file names
IDX_KIND = {"images": "idx3", "labels": "idx1"}
# Of the uncompressed content: distributors compress the original files anew.
FASHION_MNIST_SHA256 = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
DOWNLOADS = Path("~/.cache/lsvit").expanduser()
CHECKSUMS = "SHA256SUMS"  # of the uncompressed content, beside the embedded files


class Found(NamedTuple):
    """A data set as its source holds it: the splits train and validation, and the names of the classes."""

    splits: dict[str, Arrays] | dict[str, Items]
    classes: list[str]


def find(source: str, folder: str | None, embedded: Path) -> Found:
    """Read or list the data set of a source; a relative `folder` begins at the real repository.

    Raises:
        UserError: a file is missing, damaged or mislabelled; the line names it.
    """
    where = None if folder is None else root() / Path(folder).expanduser()
    if source == "digits":
        return Found(read_digits(), [str(digit) for digit in range(10)])
    if source in ("cifar10", "cifar100"):
        return read_cifar(source, where)
    if source in ("imagenet", "image_folder"):
        assert where is not None  # DatasetPreset insists
        return Found(*(list_imagenet if source == "imagenet" else list_image_folder)(where))
    files, checksums = (
        (embedded, read_checksums(embedded))
        if source == "embedded"
        else (locate_fashion_mnist(where), FASHION_MNIST_SHA256)
    )
    return Found({split: read_split(files, split, checksums) for split in SPLITS}, CLASSES)


def download(fetch: Callable[[], object], source: str, missing: str) -> None:
    """Run a download. Raises UserError where it fails; `missing` says where the data set was sought."""
    try:
        fetch()
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{source}: {missing}, and the download failed ({reason}); or give a folder: datasets.{source}.folder"
        ) from None


# ---- Fashion-MNIST and its embedded subset ------------------------------------------------------------------------------


def idx_name(split: str, part: str) -> str:
    """The original file name of a split's images or labels."""
    return f"{IDX_PREFIX[split]}-{part}-{IDX_KIND[part]}-ubyte.gz"


def read_idx(path: Path, sha256: str | None = None) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes, checking its name's promise, its header and its checksum.

    Raises:
        UserError: the file is missing, truncated, not what its name says, or has another content than `sha256`.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(LARGEST + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: truncated or not gzip ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > LARGEST:
        raise UserError(f"{path}: decompresses to more than {LARGEST:,} bytes")
    ndim = 3 if "idx3" in path.name else 1
    magic = 0x0800 + ndim
    header = 4 + 4 * ndim
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        found = content[:4].hex() or "nothing"
        raise UserError(
            f"{path}: mislabelled: its header is {found}, an IDX file of {'images' if ndim == 3 else 'labels'} has {magic:08x}"
        )
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) - header != int(np.prod(shape)):
        raise UserError(
            f"{path}: truncated: {len(content) - header} bytes of data, its header promises {int(np.prod(shape))}"
        )
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(
            f"{path}: its content's sha256 is {hashlib.sha256(content).hexdigest()}, expected {sha256}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_split(folder: Path, split: str, checksums: dict[str, str]) -> Arrays:
    """Read one split in the original format. Raises UserError naming the file, as :func:`read_idx` does."""
    names = {part: idx_name(split, part) for part in IDX_KIND}
    images, labels = (
        read_idx(folder / names[part], checksums.get(names[part])) for part in ("images", "labels")
    )
    if len(images) != len(labels):
        raise UserError(
            f"{folder / names['labels']}: {len(labels)} labels for the {len(images)} images of {names['images']}"
        )
    if labels.max(initial=0) >= len(CLASSES):
        raise UserError(
            f"{folder / names['labels']}: mislabelled: class {labels.max()}, accepted: 0 to {len(CLASSES) - 1}"
        )
    return Arrays(images, labels)


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksum file beside the embedded images: file name -> sha256. Raises UserError if it is missing or incomplete."""
    path = folder / CHECKSUMS
    if not path.is_file():
        raise UserError(
            f"{path}: missing; `dvc pull` or `dvc repro --pull` fetches the embedded data"
        )
    lines = [line.split() for line in path.read_text().splitlines()]
    sums = {line[1]: line[0] for line in lines if len(line) == 2}
    for name in FASHION_MNIST_SHA256:
        if name not in sums:
            raise UserError(f"{path}: no checksum for {name}")
    return sums


def locate_fashion_mnist(folder: Path | None) -> Path:
    """The given folder, else Debian's package, else torchvision's download. Raises UserError: no source has the files."""
    if folder is not None:
        return folder
    if DEBIAN_FOLDER.is_dir():
        return DEBIAN_FOLDER
    from torchvision.datasets import FashionMNIST

    missing = f"not in {DEBIAN_FOLDER} (Debian's package dataset-fashion-mnist)"
    download(lambda: FashionMNIST(str(DOWNLOADS), download=True), "fashion_mnist", missing)
    return DOWNLOADS / "FashionMNIST" / "raw"


def write_subset(source: Path, out: Path, counts: dict[str, int], seed: int) -> None:
    """Write a class-balanced random subset of the original files in the original format, with checksums.

    The same arguments give the same bytes. Raises UserError if a count is not a multiple of the number of classes.
    """
    contents: dict[str, bytes] = {}
    for number, (split, count) in enumerate(counts.items()):
        if count % len(CLASSES):
            raise UserError(
                f"{split}: found {count}, accepted: a multiple of {len(CLASSES)} classes"
            )
        arrays = read_split(source, split, FASHION_MNIST_SHA256)
        rng = np.random.default_rng(
            [5, 2, seed, number]
        )  # that the embedded images were drawn with
        of_class = [
            rng.permutation(np.flatnonzero(arrays.labels == c))[: count // len(CLASSES)]
            for c in range(len(CLASSES))
        ]
        chosen = rng.permutation(np.concatenate(of_class))
        if len(chosen) < count:
            raise UserError(
                f"{split}: found {count}, accepted: at most {len(CLASSES) * np.bincount(arrays.labels).min()}"
            )
        for part, array in arrays._asdict().items():
            header = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, count, *array.shape[1:])
            contents[idx_name(split, part)] = header + array[chosen].tobytes()
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (out / name).write_bytes(gzip.compress(content, mtime=0))
    (out / CHECKSUMS).write_text(
        "".join(
            f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents.items()
        )
    )


# ---- digits and CIFAR ---------------------------------------------------------------------------------------------------


def read_digits() -> dict[str, Arrays]:
    """The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings: 1,437 for training, 360 for validation, by class."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)  # 17 levels of grey
    parts = train_test_split(
        images,
        digits.target.astype(np.uint8),
        test_size=360,
        random_state=0,
        stratify=digits.target,
    )
    return {"train": Arrays(parts[0], parts[2]), "validation": Arrays(parts[1], parts[3])}


class ArraysOnly(pickle.Unpickler):
    """Unpickles plain values and numpy arrays; whatever else a file names is neither imported nor called."""

    def find_class(self, module: str, name: str) -> Any:
        """One of the three names that an array is made of. Raises UnpicklingError for any other."""
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, accepted: numpy arrays, lists, text and numbers"
        )


def unpickle(content: bytes, where: str) -> dict[bytes, Any]:
    """A mapping that Python 2 pickled. Raises UserError: damaged, no mapping, or more than plain values and arrays."""
    try:
        found = ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise UserError(
            f"{where}: not a file of CIFAR ({' '.join(str(error).split())[:160]})"
        ) from None
    if not isinstance(found, dict):
        raise UserError(
            f"{where}: not a file of CIFAR (found {type(found).__name__}, accepted: a mapping)"
        )
    return found


def read_cifar(source: str, folder: Path | None) -> Found:
    """CIFAR-10 or CIFAR-100 (fine labels): the official archive, or the folder that it holds; torchvision knows the checksums.

    Raises:
        UserError: neither is there, a checksum differs, or a file does not hold what it should.
    """
    from torchvision import datasets

    official: Any = getattr(datasets, source.upper())
    md5s = dict(
        [
            *official.train_list,
            *official.test_list,
            (official.meta["filename"], official.meta["md5"]),
        ]
    )
    paths = {name: f"{official.base_folder}/{name}" for name in md5s}
    if folder is None:
        folder = DOWNLOADS
        # takes the archive that is there, if its md5 is right
        fetch = datasets.utils.download_url
        download(
            lambda: fetch(official.url, str(DOWNLOADS), md5=official.tgz_md5),
            source,
            f"no {official.filename} in {DOWNLOADS}",
        )
    archive = folder / official.filename
    if not archive.exists() and (folder / official.base_folder).is_dir():
        archive = folder
        for name, md5 in md5s.items():
            check_md5(folder / paths[name], md5)
        contents = [(folder / path).read_bytes() for path in paths.values()]
    else:
        check_md5(archive, official.tgz_md5)
        contents = read_members(archive, list(paths.values()))
    batches = {
        name: unpickle(content, f"{archive}/{paths[name]}")
        for name, content in zip(paths, contents, strict=True)
    }
    names = batches[official.meta["filename"]].get(official.meta["key"].encode())
    if not isinstance(names, list):
        raise UserError(
            f"{archive}/{paths[official.meta['filename']]}: no list {official.meta['key']}"
        )
    splits = {}
    for split, files in (("train", official.train_list), ("validation", official.test_list)):
        parts = [
            cifar_batch(batches[name], len(names), f"{archive}/{paths[name]}") for name, _ in files
        ]
        splits[split] = Arrays(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    return Found(splits, [name.decode() for name in names])


def cifar_batch(batch: dict[bytes, Any], num_classes: int, where: str) -> Arrays:
    """Images (n, 32, 32, 3) and labels (n,) of one file. Raises UserError: of another shape, or with unknown classes."""
    pixels, labels = batch.get(b"data"), batch.get(b"fine_labels", batch.get(b"labels"))
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (3072,)
    ):
        found = (
            f"{pixels.dtype} {pixels.shape}"
            if isinstance(pixels, np.ndarray)
            else type(pixels).__name__
        )
        raise UserError(f"{where}: data: found {found}, accepted: uint8 (n, 3072)")
    if not isinstance(labels, list) or len(labels) != len(pixels):
        raise UserError(f"{where}: labels: accepted: a list of {len(pixels)}, as many as images")
    for label in labels:
        if not isinstance(label, int) or not 0 <= label < num_classes:
            raise UserError(f"{where}: labels: found {label!r}, accepted: 0 to {num_classes - 1}")
    return Arrays(pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.uint8))
