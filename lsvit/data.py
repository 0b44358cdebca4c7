"""Images: sources -> uint8 on disk, decoded once -> normalised batches on the device."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lsvit.errors import UserError
from lsvit.imagefiles import Items
from lsvit.routes import generator
from lsvit.sections import DatasetPreset, ModelPreset
from lsvit.shards import Maps, Resize, decode_splits, key, moments, write_arrow
from lsvit.shards import sha256 as sha256
from lsvit.sources import CLASSES as CLASSES
from lsvit.sources import SPLITS, Arrays, find, root
from lsvit.sources import read_digits as read_digits
from lsvit.sources import write_subset as write_subset

if TYPE_CHECKING:  # preparing data needs no torch
    import torch
    from torch import Tensor

HELDOUT = "heldout"  # training images set aside: never trained on, they choose the epoch of protocol heldout
WORKERS = 4  # processes that read ahead, where a split does not fit on the device
SHARE = 3  # a split lives on the device if it takes at most one such part of the free memory
CHUNK = 4096  # images copied to the device at once


def resizing(model: ModelPreset, reading: str) -> Resize:
    """How images are brought to the model's size: as `published`, or as `timm` evaluates the weights.

    Raises:
        UserError: timm evaluates these weights in another way than by resizing and cropping.
    """
    import timm

    cfg: Any = timm.get_pretrained_cfg(model.timm)
    size = model.kwargs.get("img_size") or cfg.input_size[-1]
    if reading == "published":
        return Resize(size, "bilinear", size)
    if cfg is None or cfg.crop_mode not in ("center", "squash"):
        raise UserError(f"datasets.*.resize: found 'timm', accepted: published (timm's crop of {model.timm} is {cfg and cfg.crop_mode!r})")
    scaled = math.floor(size / cfg.crop_pct)
    return Resize((scaled, scaled) if cfg.crop_mode == "squash" else scaled, cfg.interpolation, size)


def choose(name: str, preset: DatasetPreset, splits: Mapping[str, Arrays | Items]) -> dict[str, Arrays | Items]:
    """The images that the preset uses: train, validation and, if some of the training images are held out, heldout.

    Of decoded arrays a limit takes the first images. Image files lie in the order of their classes: a limit takes random
    ones, always the same; those of validation also change their order, so that the first n of them are of all classes.

    Raises:
        UserError: the preset asks for more images than there are.
    """
    chosen: dict[str, Arrays | Items] = {}
    for number, (split, wanted) in enumerate(zip(SPLITS, (preset.train, preset.validation), strict=True)):
        images = splits[split]
        count = len(images.labels)
        if wanted is not None and wanted > count:
            raise UserError(f"datasets.{name}.{split}: found {wanted}, accepted: at most {count}")
        index: slice | np.ndarray = slice(wanted)
        if isinstance(images, Items):
            index = generator("subset", 0, number).permutation(count)[:wanted]
            index = np.sort(index) if split == "train" else index  # shuffled when it is used: read from the disk in its order
        chosen[split] = images.at(index)
    if preset.heldout:
        train = chosen["train"]
        count = len(train.labels)
        if preset.heldout >= count:
            raise UserError(f"datasets.{name}.heldout: found {preset.heldout}, accepted: fewer than the {count} training images")
        aside = np.zeros(count, dtype=bool)
        aside[generator("heldout", 0).permutation(count)[: preset.heldout]] = True
        chosen |= {"train": train.at(~aside), HELDOUT: train.at(aside)}
    return chosen


class Decoded(NamedTuple):
    """What the metadata says of the images on disk: shape of one, moments of the training pixels, identity, shards by split."""

    shape: tuple[int, ...]
    moments: np.ndarray
    sha256: str
    shards: dict[str, list[dict[str, Any]]] | None


def _keep(splits: dict[str, Arrays], reading: str, out: Path) -> Decoded:
    """Write arrays as they are, one file a split."""
    out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for split, arrays in splits.items():
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data)
        write_arrow(out / f"{split}.arrow", arrays.images.shape[1:], [arrays])
    if reading != "published":  # the pixels are the same, what the model is given is not
        digest.update(reading.encode())
    images = splits["train"].images
    return Decoded(images.shape[1:], moments(images), digest.hexdigest(), None)


def _decode(name: str, splits: dict[str, Items], resize: Resize) -> Decoded:
    """Decode image files to shards below the root's `.lsvit/data/`."""
    folder = Path(".lsvit", "data", key(splits, resize))
    records = decode_splits(name, splits, resize, root() / folder)
    digest, shards = hashlib.sha256(), {}
    for split in splits:
        shards[split] = [{"file": str(folder / r["file"]), "images": r["images"], "sha256": r["sha256"]} for r in records[split]]
        for record in shards[split]:
            digest.update(record["sha256"].encode())
    total = np.sum([record["moments"] for record in records["train"]], axis=0)
    return Decoded((resize.crop, resize.crop, 3), total, digest.hexdigest(), shards)


def prepare(
    name: str, preset: DatasetPreset, embedded: Path, out: Path,
    model: ModelPreset | None = None, check: Callable[[int, int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Verify a data set, decode it once, and write `meta.json` and, of small sets, `{split}.arrow` to `out`.

    Image files are decoded, at the size of `model` (needed for them), to shards below the root's `.lsvit/data/`, which the
    metadata lists. `check` is called with the numbers of images to train on, to validate on and held out, before that.

    Returns:
        The metadata: name, class names, counts, reading of `resize`, image shape, mean and std of the training pixels in
        [0, 1] by channel, sha256 of the images; and of image files `shards`, by split: file, images, sha256.

    Raises:
        UserError: a file is missing, damaged or mislabelled, the preset asks for more images than there are, or the model
            takes no colour.
    """
    found = find(preset.source, preset.folder, embedded)
    splits = choose(name, preset, found.splits)
    counts = {split: len(images.labels) for split, images in splits.items()}
    if check:
        check(counts["train"], counts["validation"], counts.get(HELDOUT, 0))
    arrays = {split: images for split, images in splits.items() if isinstance(images, Arrays)}
    items = {split: images for split, images in splits.items() if isinstance(images, Items)}
    channels = model.kwargs.get("in_chans", 3) if model else 3
    if channels != 3 and (items or arrays["train"].images.ndim == 4):
        raise UserError(f"models.*.kwargs.in_chans: found {channels}, accepted: 3 (the images of {name!r} are in colour)")
    if items:
        assert model is not None
        decoded = _decode(name, items, resizing(model, preset.resize))
    else:
        decoded = _keep(arrays, preset.resize, out)
    mean, square = decoded.moments / (counts["train"] * math.prod(decoded.shape[:2]))
    meta: dict[str, Any] = {
        "name": name,
        "classes": found.classes,
        "counts": counts,
        "resize": preset.resize,
        "image_shape": list(decoded.shape),
        "mean": [round(float(m), 6) for m in mean / 255],
        "std": [round(float(s), 6) for s in np.sqrt(square - mean**2) / 255],
        "sha256": decoded.sha256,
    }
    meta |= {"shards": decoded.shards} if decoded.shards else {}
    out.mkdir(parents=True, exist_ok=True)
    (out / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
    return meta


def read_meta(folder: Path) -> dict[str, Any]:
    """The metadata that :func:`prepare` wrote."""
    return json.loads((folder / "meta.json").read_text())


class Split:
    """One prepared split, memory-mapped, giving normalised float batches on a device.

    On CUDA the whole split lives on the device if that takes at most a third of its free memory; else processes read ahead.

    Args:
        folder: where :func:`prepare` wrote.
        split: "train", "validation" or "heldout".
        in_chans, img_size: what the model takes; grey images are repeated over the channels.
        mean, std: per channel, of pixels in [0, 1].
        limit: use the first n images alone.
        resize: done on the device, for images that are square and kept in their own size; None: to `img_size`, bilinear.
        workers: processes that read ahead; None: as the device needs.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(
        self, folder: Path, split: str, device: "torch.device", in_chans: int, img_size: int,
        mean: tuple[float, ...], std: tuple[float, ...], limit: int | None = None,
        resize: Resize | None = None, workers: int | None = None,
    ) -> None:  # fmt: skip
        import torch

        shards = read_meta(folder).get("shards")
        files = [root() / shard["file"] for shard in shards[split]] if shards else [folder / f"{split}.arrow"]
        self.maps = Maps(files, limit)
        self.device, self.in_chans, self.resize = device, in_chans, resize or Resize(img_size, "bilinear", img_size)
        # The operands of one multiplication and one addition. Images lie with their channels last: repeated over a row of
        # pixels, both are read in the same order as the images.
        std_, mean_ = (torch.tensor(values, device=device).expand(in_chans) for values in (std, mean))
        self.scale, self.shift = (v.repeat(self.resize.crop, 1).T[None, :, None] for v in (1 / (255 * std_), -mean_ / std_))
        self.resident: tuple[Tensor, Tensor] | None = None
        if device.type == "cuda" and workers is None:
            if len(self) * math.prod(self.maps.shape) <= torch.cuda.mem_get_info(device)[0] / SHARE:
                self.resident = self._load()
            else:
                workers = WORKERS
        self.workers = workers or 0

    def __len__(self) -> int:
        return len(self.maps)

    def _load(self) -> "tuple[Tensor, Tensor]":
        import torch

        images = torch.empty((len(self), *self.maps.shape), dtype=torch.uint8, device=self.device)
        for start in range(0, len(self), CHUNK):
            part = np.arange(start, min(start + CHUNK, len(self)))
            images[start : start + CHUNK] = torch.from_numpy(self.maps[part][0])
        return images, torch.from_numpy(self.maps.labels).to(self.device)

    def _normalised(self, images: "Tensor") -> "Tensor":
        """(B, H, W) or (B, H, W, C) uint8 on the device -> (B, in_chans, crop, crop) float."""
        import torch
        from torch.nn.functional import interpolate

        # numpy asks Linux for huge pages, torch does not: several times fewer page faults for a batch of large images
        floats = torch.from_numpy(np.empty(images.shape, np.float32)).copy_(images) if images.is_cpu else images.float()
        floats = floats.unsqueeze(1) if images.ndim == 3 else floats.permute(0, 3, 1, 2)
        size, interpolation, crop = self.resize
        side = size if isinstance(size, int) else size[0]
        if floats.shape[-1] != side:
            floats = interpolate(floats, (side, side), mode=interpolation, antialias=True).clamp_(0, 255)  # bicubic oversteps
        if side != crop:
            margin = round((side - crop) / 2)
            floats = floats[:, :, margin : margin + crop, margin : margin + crop]
        out = floats if floats.shape[1] == self.in_chans else None
        return torch.addcmul(self.shift, floats.expand(-1, self.in_chans, -1, -1), self.scale, out=out)

    def take(self, index: "Tensor | slice") -> "tuple[Tensor, Tensor]":
        """images (B, in_chans, img_size, img_size) float, labels (B,) long."""
        import torch

        if self.resident:
            images, labels = (part[index] for part in self.resident)
        else:
            places = np.arange(len(self))[index] if isinstance(index, slice) else index.cpu().numpy()
            images, labels = map(torch.from_numpy, self.maps[places])
        return self._normalised(images.to(self.device)), labels.to(self.device)

    def _batches(self, order: list[np.ndarray]) -> "Iterator[tuple[Tensor, Tensor]]":
        """Batches of the given images. Between them the host waits for no result of the device."""
        import torch
        from torch.utils.data import DataLoader

        if self.workers and order:
            loader: DataLoader = DataLoader(
                self.maps,  # type: ignore[arg-type]
                batch_size=None, sampler=order, num_workers=self.workers, prefetch_factor=4, pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # else the loader draws from the global one, as dropout does
            )  # fmt: skip
            for images, labels in loader:
                yield self._normalised(images.to(self.device, non_blocking=True)), labels.to(self.device, non_blocking=True)
        elif order:
            lengths = [len(part) for part in order]
            for index in torch.from_numpy(np.concatenate(order)).to(self.device).split(lengths):
                yield self.take(index)

    def in_order(self, batch_size: int, rank: int = 0, world: int = 1) -> "Iterator[tuple[int, Tensor, Tensor]]":
        """(i, images, labels) of every `world`-th batch from the `rank`-th on, images in their order; the last may be short."""
        starts = range(0, len(self), batch_size)[rank::world]
        order = [np.arange(start, min(start + batch_size, len(self))) for start in starts]
        for i, (images, labels) in enumerate(self._batches(order)):
            yield rank + i * world, images, labels

    def shuffled(self, batch_size: int, seed: int, epoch: int, rank: int = 0, world: int = 1) -> "Iterator[tuple[Tensor, Tensor]]":
        """All images once, in an order that depends on (seed, epoch) alone; a last incomplete batch is left out.

        Of each batch the `rank`-th of `world` nearly equal parts.
        """
        order = generator("batches", seed, epoch).permutation(len(self))
        starts = range(0, len(self) - batch_size + 1, batch_size)
        yield from self._batches([np.array_split(order[start : start + batch_size], world)[rank] for start in starts])
