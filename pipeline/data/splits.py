"""Prepared images -> normalised batches on the device."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lsvit.routes import generator
from pipeline.config.presets import ModelPreset
from pipeline.data.shards import Maps
from pipeline.errors import UserError
from pipeline.jobs.files import read_meta
from pipeline.jobs.processes import root

if TYPE_CHECKING:  # stages read metadata without torch
    import torch
    from torch import Tensor


WORKERS = 4  # processes that read ahead, where a split does not fit on the device
SHARE = 3  # a split lives on the device if it takes at most one such part of the free memory
CHUNK = 4096  # images copied to the device at once


class Resize(NamedTuple):
    """The published evaluation transform: resized, then the centre cropped.

    `size` is the shorter side, or (height, width) of an image squeezed into a square; `crop` is the side of what is left.
    """

    size: int | tuple[int, int]
    interpolation: str  # bilinear or bicubic, with antialiasing
    crop: int


def resizing(model: ModelPreset, reading: str) -> Resize:
    """How images are brought to the model's size: as `published`, or as `timm` evaluates the weights.

    Raises:
        UserError: timm evaluates these weights in another way than by resizing and cropping.
    """
    import timm

    cfg: Any = timm.get_pretrained_cfg(
        model.timm
    )  # check-params has seen that timm knows the model
    size = model.kwargs.get("img_size") or cfg.input_size[-1]
    if reading == "published":
        return Resize(size, "bilinear", size)
    if cfg is None or cfg.crop_mode not in ("center", "squash"):
        raise UserError(
            f"datasets.*.resize: found 'timm', accepted: published (timm's crop of {model.timm} is {cfg and cfg.crop_mode!r})"
        )
    scaled = math.floor(size / cfg.crop_pct)
    return Resize(
        (scaled, scaled) if cfg.crop_mode == "squash" else scaled, cfg.interpolation, size
    )


class Split:
    """One prepared split, memory-mapped, giving normalised float batches on a device.

    On CUDA the whole split lives on the device if that takes at most a third of its free memory; else processes read ahead.

    Args:
        folder: where :func:`pipeline.data.prepare.prepare` wrote.
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
        self,
        folder: Path,
        split: str,
        device: "torch.device",
        in_chans: int,
        img_size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        limit: int | None = None,
        resize: Resize | None = None,
        workers: int | None = None,
    ) -> None:
        import torch

        shards = read_meta(folder).get("shards")
        files = (
            [root() / shard["file"] for shard in shards[split]]
            if shards
            else [folder / f"{split}.arrow"]
        )
        self.maps = Maps(files, limit)
        self.device, self.in_chans, self.resize = (
            device,
            in_chans,
            resize or Resize(img_size, "bilinear", img_size),
        )
        # The operands of one multiplication and one addition. Images lie with their channels last: repeated over a row of
        # pixels, both are read in the same order as the images.
        std_, mean_ = (
            torch.tensor(values, device=device).expand(in_chans) for values in (std, mean)
        )
        self.scale, self.shift = (
            v.repeat(self.resize.crop, 1).T[None, :, None]
            for v in (1 / (255 * std_), -mean_ / std_)
        )
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
        floats = (
            torch.from_numpy(np.empty(images.shape, np.float32)).copy_(images)
            if images.is_cpu
            else images.float()
        )
        floats = floats.unsqueeze(1) if images.ndim == 3 else floats.permute(0, 3, 1, 2)
        size, interpolation, crop = self.resize
        side = size if isinstance(size, int) else size[0]
        if floats.shape[-1] != side:
            floats = interpolate(floats, (side, side), mode=interpolation, antialias=True).clamp_(
                0, 255
            )  # bicubic oversteps
        if side != crop:
            margin = round((side - crop) / 2)
            floats = floats[:, :, margin : margin + crop, margin : margin + crop]
        out = floats if floats.shape[1] == self.in_chans else None
        return torch.addcmul(
            self.shift, floats.expand(-1, self.in_chans, -1, -1), self.scale, out=out
        )

    def take(self, index: "Tensor | slice") -> "tuple[Tensor, Tensor]":
        """images (B, in_chans, img_size, img_size) float, labels (B,) long."""
        import torch

        if self.resident:
            images, labels = (part[index] for part in self.resident)
        else:
            places = (
                np.arange(len(self))[index] if isinstance(index, slice) else index.cpu().numpy()
            )
            images, labels = map(torch.from_numpy, self.maps[places])
        return self._normalised(images.to(self.device)), labels.to(self.device)

    def _batches(self, order: list[np.ndarray]) -> "Iterator[tuple[Tensor, Tensor]]":
        """Batches of the given images. Between them the host waits for no result of the device."""
        import torch
        from torch.utils.data import DataLoader

        if self.workers and order:
            loader: DataLoader = DataLoader(
                self.maps,  # type: ignore[arg-type]
                batch_size=None,
                sampler=order,
                num_workers=self.workers,
                prefetch_factor=4,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # else the loader draws from the global one, as dropout does
            )
            for images, labels in loader:
                yield (
                    self._normalised(images.to(self.device, non_blocking=True)),
                    labels.to(self.device, non_blocking=True),
                )
        elif order:
            lengths = [len(part) for part in order]
            for index in torch.from_numpy(np.concatenate(order)).to(self.device).split(lengths):
                yield self.take(index)

    def in_order(
        self, batch_size: int, rank: int = 0, world: int = 1
    ) -> "Iterator[tuple[int, Tensor, Tensor]]":
        """(i, images, labels) of every `world`-th batch from the `rank`-th on, images in their order; the last may be short."""
        starts = range(0, len(self), batch_size)[rank::world]
        order = [np.arange(start, min(start + batch_size, len(self))) for start in starts]
        for i, (images, labels) in enumerate(self._batches(order)):
            yield rank + i * world, images, labels

    def subset(self, images: int | None) -> np.ndarray:
        """The places of so many random images, always the same, in their order; None: of all."""
        return np.sort(generator("subset", "training").permutation(len(self))[:images])

    def shuffled(
        self,
        batch_size: int,
        seed: int,
        epoch: int,
        rank: int = 0,
        world: int = 1,
        images: int | None = None,
        repeats: int = 1,
    ) -> "Iterator[tuple[Tensor, Tensor]]":
        """All images once, or those of a :meth:`subset`, in an order that depends on (seed, epoch) alone; no last incomplete batch.

        Of each batch the `rank`-th of `world` nearly equal parts. With repeated augmentation as many batches show fewer images,
        each `repeats` times, one after another in the epoch (as timm's RepeatAugSampler) and, as between DeiT's processes, far from
        each other within a batch.
        """
        chosen = self.subset(images)
        order = chosen[generator("batches", seed, epoch).permutation(len(chosen))].repeat(repeats)[
            : len(chosen)
        ]
        starts, apart = (
            range(0, len(order) - batch_size + 1, batch_size),
            np.argsort(np.arange(batch_size) % repeats, kind="stable"),
        )
        yield from self._batches(
            [
                np.array_split(order[start : start + batch_size][apart], world)[rank]
                for start in starts
            ]
        )
