"""Images: sources -> uint8 arrays on disk -> normalised batches on the device."""

import gzip
import hashlib
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lsvit.errors import UserError
from lsvit.routes import generator
from lsvit.sections import DatasetPreset

if TYPE_CHECKING:  # preparing data needs no torch
    import torch
    from torch import Tensor

SPLITS = ("train", "validation")
HELDOUT = "heldout"  # training images set aside: never trained on, they choose the epoch of protocol heldout
CLASSES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]
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


class Arrays(NamedTuple):
    """One split: images (n, H, W) or (n, H, W, C) uint8, labels (n,) uint8."""

    images: np.ndarray
    labels: np.ndarray


def idx_name(split: str, part: str) -> str:
    """The original file name of a split's images or labels."""
    return f"{IDX_PREFIX[split]}-{part}-{IDX_KIND[part]}-ubyte.gz"


def read_idx(path: Path, sha256: str | None = None) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes, checking its name's promise, its header and its checksum.

    Raises:
        UserError: the file is missing, truncated, not what its name says, or has another content than `sha256`.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: missing") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: truncated or not gzip ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    ndim = 3 if "idx3" in path.name else 1
    magic = 0x0800 + ndim
    header = 4 + 4 * ndim
    if len(content) < header or struct.unpack(">I", content[:4])[0] != magic:
        found = content[:4].hex() or "nothing"
        raise UserError(f"{path}: mislabelled: its header is {found}, an IDX file of {'images' if ndim == 3 else 'labels'} has {magic:08x}")
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) - header != int(np.prod(shape)):
        raise UserError(f"{path}: truncated: {len(content) - header} bytes of data, its header promises {int(np.prod(shape))}")
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(f"{path}: its content's sha256 is {hashlib.sha256(content).hexdigest()}, expected {sha256}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_split(folder: Path, split: str, checksums: dict[str, str]) -> Arrays:
    """Read one split in the original format. Raises UserError naming the file, as :func:`read_idx` does."""
    names = {part: idx_name(split, part) for part in IDX_KIND}
    images, labels = (read_idx(folder / names[part], checksums.get(names[part])) for part in ("images", "labels"))
    if len(images) != len(labels):
        raise UserError(f"{folder / names['labels']}: {len(labels)} labels for the {len(images)} images of {names['images']}")
    if labels.max(initial=0) >= len(CLASSES):
        raise UserError(f"{folder / names['labels']}: mislabelled: class {labels.max()}, accepted: 0 to {len(CLASSES) - 1}")
    return Arrays(images, labels)


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksum file beside the embedded images: file name -> sha256. Raises UserError if it is missing or incomplete."""
    path = folder / CHECKSUMS
    if not path.is_file():
        raise UserError(f"{path}: missing; `dvc pull` or `dvc repro --pull` fetches the embedded data")
    lines = [line.split() for line in path.read_text().splitlines()]
    sums = {line[1]: line[0] for line in lines if len(line) == 2}
    for name in FASHION_MNIST_SHA256:
        if name not in sums:
            raise UserError(f"{path}: no checksum for {name}")
    return sums


def locate(preset: DatasetPreset, embedded: Path) -> tuple[Path, dict[str, str]]:
    """The folder that holds the preset's files, and their checksums.

    `fashion_mnist` takes the preset's folder, else Debian's package, else torchvision's download.

    Raises:
        UserError: no source has the files.
    """
    if preset.source == "embedded":
        return embedded, read_checksums(embedded)
    if preset.folder is not None:
        return Path(preset.folder), FASHION_MNIST_SHA256
    if DEBIAN_FOLDER.is_dir():
        return DEBIAN_FOLDER, FASHION_MNIST_SHA256
    from torchvision.datasets import FashionMNIST

    try:
        FashionMNIST(str(DOWNLOADS), download=True)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"fashion_mnist: not in {DEBIAN_FOLDER} (Debian's package dataset-fashion-mnist), and the download failed "
            f"({' '.join(str(error).split())[:120]}); or give a folder: datasets.fashion_mnist.folder"
        ) from None
    return DOWNLOADS / "FashionMNIST" / "raw", FASHION_MNIST_SHA256


def read_digits() -> dict[str, Arrays]:
    """The 1,797 handwritten digits of 8 x 8 pixels that scikit-learn brings: 1,437 for training, 360 for validation, by class."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.images * (255 / 16)).round().astype(np.uint8)  # 17 levels of grey
    parts = train_test_split(images, digits.target.astype(np.uint8), test_size=360, random_state=0, stratify=digits.target)
    return {"train": Arrays(parts[0], parts[2]), "validation": Arrays(parts[1], parts[3])}


def hold_out(train: Arrays, count: int, key: str) -> dict[str, Arrays]:
    """Split `count` random images off the training set, always the same ones. Raises UserError if none would be left."""
    if count >= len(train.labels):
        raise UserError(f"{key}: found {count}, accepted: fewer than the {len(train.labels)} training images")
    chosen = np.zeros(len(train.labels), dtype=bool)
    chosen[generator("heldout", 0).permutation(len(chosen))[:count]] = True
    return {"train": Arrays(*(array[~chosen] for array in train)), HELDOUT: Arrays(*(array[chosen] for array in train))}


def prepare(name: str, preset: DatasetPreset, embedded: Path, out: Path) -> dict[str, Any]:
    """Verify a data set, decode it once and write `{split}_images.npy`, `{split}_labels.npy` and `meta.json` to `out`.

    The splits are train, validation and, if the preset holds images out of the training set, heldout.

    Returns:
        The metadata: name, class names, counts, image shape, mean and std of the training pixels in [0, 1], sha256 of the arrays.

    Raises:
        UserError: a file is missing, truncated or mislabelled, or the preset asks for more images than there are.
    """
    if preset.source == "digits":
        splits, classes = read_digits(), [str(digit) for digit in range(10)]
    else:
        folder, checksums = locate(preset, embedded)
        splits, classes = {split: read_split(folder, split, checksums) for split in SPLITS}, CLASSES
    for split, wanted in (("train", preset.train), ("validation", preset.validation)):
        if wanted is not None and wanted > len(splits[split].labels):
            raise UserError(f"datasets.{name}.{split}: found {wanted}, accepted: at most {len(splits[split].labels)}")
        splits[split] = Arrays(*(array[:wanted] for array in splits[split]))
    if preset.heldout:
        splits |= hold_out(splits["train"], preset.heldout, f"datasets.{name}.heldout")
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for split, arrays in splits.items():
        for part, array in arrays._asdict().items():
            np.save(out / f"{split}_{part}.npy", array)
            digest.update(np.ascontiguousarray(array).data)
    pixels = splits["train"].images / np.float32(255)
    meta: dict[str, Any] = {
        "name": name,
        "classes": classes,
        "counts": {split: len(arrays.labels) for split, arrays in splits.items()},
        "image_shape": list(splits["train"].images.shape[1:]),
        "mean": [round(float(pixels.mean(dtype=np.float64)), 6)],
        "std": [round(float(pixels.std(dtype=np.float64)), 6)],
        "sha256": digest.hexdigest(),
    }
    (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta


def write_subset(source: Path, out: Path, counts: dict[str, int], seed: int) -> None:
    """Write a class-balanced random subset of the original files in the original format, with checksums.

    The same arguments give the same bytes. Raises UserError if a count is not a multiple of the number of classes.
    """
    out.mkdir(parents=True, exist_ok=True)
    sums = []
    for number, (split, count) in enumerate(counts.items()):
        if count % len(CLASSES):
            raise UserError(f"{split}: found {count}, accepted: a multiple of {len(CLASSES)} classes")
        arrays = read_split(source, split, FASHION_MNIST_SHA256)
        rng = generator("subset", seed, number)
        of_class = [rng.permutation(np.flatnonzero(arrays.labels == c))[: count // len(CLASSES)] for c in range(len(CLASSES))]
        chosen = rng.permutation(np.concatenate(of_class))
        if len(chosen) < count:
            raise UserError(f"{split}: found {count}, accepted: at most {len(CLASSES) * np.bincount(arrays.labels).min()}")
        for part, array in arrays._asdict().items():
            header = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, count, *array.shape[1:])
            content = header + array[chosen].tobytes()
            (out / idx_name(split, part)).write_bytes(gzip.compress(content, mtime=0))
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {idx_name(split, part)}\n")
    (out / CHECKSUMS).write_text("".join(sums))


def sha256(path: str | Path) -> str:
    """The sha256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_meta(folder: Path) -> dict[str, Any]:
    """The metadata that :func:`prepare` wrote."""
    return json.loads((folder / "meta.json").read_text())


class Split:
    """One prepared split, memory-mapped, giving normalised float batches on a device.

    Args:
        folder: where :func:`prepare` wrote.
        split: "train", "validation" or "heldout".
        in_chans, img_size: what the model takes; grey images are repeated over the channels, sizes interpolated (bilinear,
            antialiased) on the device.
        mean, std: per channel, of pixels in [0, 1].
        limit: use the first n images alone.
    """

    def __init__(
        self, folder: Path, split: str, device: "torch.device", in_chans: int, img_size: int,
        mean: tuple[float, ...], std: tuple[float, ...], limit: int | None = None,
    ) -> None:  # fmt: skip
        import torch

        images, labels = (np.load(folder / f"{split}_{part}.npy", mmap_mode="c")[:limit] for part in ("images", "labels"))
        self.images, self.labels = torch.from_numpy(images), torch.from_numpy(labels)
        if device.type == "cuda":  # small sets live on the device
            self.images, self.labels = self.images.to(device), self.labels.to(device)
        self.device, self.in_chans, self.img_size = device, in_chans, img_size
        self.mean = torch.tensor(mean, device=device).view(1, -1, 1, 1)
        self.std = torch.tensor(std, device=device).view(1, -1, 1, 1)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: "Tensor | slice") -> "tuple[Tensor, Tensor]":
        """images (B, in_chans, img_size, img_size) float, labels (B,) long."""
        from torch.nn.functional import interpolate

        images = self.images[index].to(self.device)
        images = (images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2)).float() / 255
        if images.shape[-2:] != (self.img_size, self.img_size):
            images = interpolate(images, (self.img_size, self.img_size), mode="bilinear", antialias=True)
        images = images.expand(-1, self.in_chans, -1, -1)
        return (images - self.mean) / self.std, self.labels[index].to(self.device).long()

    def in_order(self, batch_size: int) -> "Iterator[tuple[Tensor, Tensor]]":
        """All images once, in their order."""
        for start in range(0, len(self), batch_size):
            yield self.take(slice(start, start + batch_size))

    def shuffled(self, batch_size: int, seed: int, epoch: int) -> "Iterator[tuple[Tensor, Tensor]]":
        """All images once, in an order that depends on (seed, epoch) alone; a last incomplete batch is left out."""
        import torch

        order = torch.from_numpy(generator("batches", seed, epoch).permutation(len(self))).to(self.images.device)
        for start in range(0, len(self) - batch_size + 1, batch_size):
            yield self.take(order[start : start + batch_size])
