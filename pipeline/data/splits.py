"""Prepared images -> normalised batches on the device."""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader

from lsvit.routes import generator
from pipeline.data.resize import Resize
from pipeline.data.shards import Maps
from pipeline.jobs.files import read_meta
from pipeline.jobs.machine import available_cores
from pipeline.jobs.processes import root

WORKERS = 4  # processes that read ahead, where a split does not fit on the device
SHARE = 3  # a split lives on the device if it takes at most one such part of the free memory
CHUNK = 4096  # images copied to the device at once


class Split:
    """One prepared split, memory-mapped, giving normalised float batches on a device.

    On CUDA the whole split lives on the device if that takes at most a third of its free memory.
    Otherwise processes read ahead.

    Args:
        folder: where :func:`pipeline.data.prepare.prepare` wrote.
        split: "train", "validation" or "heldout".
        device: of the batches.
        in_chans: channels that the model takes; grey images are repeated over them.
        img_size: side of the images that the model takes.
        mean, std: per channel, of pixels in [0, 1].
        limit: use the first n images alone.
        resize: done on the device, for square images kept in their own size; None: bilinear, to
            `img_size`.

    Raises:
        UserError: a file is missing or damaged.
    """

    def __init__(
        self,
        folder: Path,
        split: str,
        device: torch.device,
        in_chans: int,
        img_size: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        limit: int | None = None,
        resize: Resize | None = None,
    ) -> None:
        shards = read_meta(folder).get("shards")
        files = [folder / f"{split}.arrow"]
        if shards:
            files = [root() / shard["file"] for shard in shards[split]]
        self.maps = Maps(files, limit)
        self.device = device
        self.in_chans = in_chans
        self.resize = resize or Resize(img_size, "bilinear", img_size)
        # A pixel is normalised by one multiplication and one addition. Images lie with their
        # channels last: repeated over a row of pixels, the operands are read in the same order.
        channel_std = torch.tensor(std, device=device).expand(in_chans)
        channel_mean = torch.tensor(mean, device=device).expand(in_chans)
        self.scale = self._to_row(1 / (255 * channel_std))
        self.shift = self._to_row(-channel_mean / channel_std)
        self.resident: tuple[Tensor, Tensor] | None = None
        self.workers = 0  # processes that read ahead
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
            if len(self) * math.prod(self.maps.shape) <= free / SHARE:
                self.resident = self.load()
            else:
                self.workers = min(WORKERS, available_cores())

    def __len__(self) -> int:
        return len(self.maps)

    def _to_row(self, values: Tensor) -> Tensor:
        """(in_chans,) -> (1, in_chans, 1, crop)."""
        return values.repeat(self.resize.crop, 1).T[None, :, None]

    def load(self) -> tuple[Tensor, Tensor]:
        """All images, uint8, and labels, on the device."""
        images = torch.empty((len(self), *self.maps.shape), dtype=torch.uint8, device=self.device)
        for start in range(0, len(self), CHUNK):
            index = np.arange(start, min(start + CHUNK, len(self)))
            images[start : start + CHUNK] = torch.from_numpy(self.maps[index][0])
        return images, torch.from_numpy(self.maps.labels).to(self.device)

    def _normalised(self, images: Tensor) -> Tensor:
        """(B, H, W) or (B, H, W, C) uint8 on the device -> (B, in_chans, crop, crop) float."""
        floats = images.float()
        floats = floats.unsqueeze(1) if floats.ndim == 3 else floats.permute(0, 3, 1, 2)
        size, interpolation, crop = self.resize
        side = size if isinstance(size, int) else size[0]
        if floats.shape[-1] != side:
            floats = interpolate(floats, (side, side), mode=interpolation, antialias=True)
            floats = floats.clamp_(0, 255)  # bicubic oversteps
        if side != crop:
            margin = round((side - crop) / 2)
            floats = floats[:, :, margin : margin + crop, margin : margin + crop]
        in_place = floats if floats.shape[1] == self.in_chans else None
        floats = floats.expand(-1, self.in_chans, -1, -1)
        return torch.addcmul(self.shift, floats, self.scale, out=in_place)

    def take(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """images (B, in_chans, crop, crop) float, labels (B,) long."""
        if self.resident:
            images, labels = self.resident
            return self._normalised(images[index]), labels[index]
        if isinstance(index, slice):
            index = torch.arange(len(self))[index]
        images, labels = map(torch.from_numpy, self.maps[index.cpu().numpy()])
        return self._normalised(images.to(self.device)), labels.to(self.device)

    def _batches(self, indices: list[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the given images. Between them the host waits for no result of the device."""
        if not self.workers:
            for index in indices:
                yield self.take(torch.from_numpy(index).to(self.device, non_blocking=True))
            return
        loader: DataLoader = DataLoader(
            self.maps,  # type: ignore[arg-type]
            batch_size=None,
            sampler=indices,
            num_workers=self.workers,
            prefetch_factor=4,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # otherwise it draws from the global one, as dropout does
        )
        for images, labels in loader:
            on_device = images.to(self.device, non_blocking=True)
            yield self._normalised(on_device), labels.to(self.device, non_blocking=True)

    def in_order(
        self, batch_size: int, rank: int = 0, world: int = 1
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(i, images, labels) of batches `rank`, `rank` + `world`, ... in the images' order.

        The last batch may be short.
        """
        indices = []
        for start in range(0, len(self), batch_size)[rank::world]:
            indices.append(np.arange(start, min(start + batch_size, len(self))))
        for i, (images, labels) in enumerate(self._batches(indices)):
            yield rank + i * world, images, labels

    def subset(self, images: int | None) -> np.ndarray:
        """Indices of so many random images, always the same, sorted; None: of all."""
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
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All images once, or those of a :meth:`subset`, in an order set by (seed, epoch) alone.

        An incomplete last batch is left out. Of each batch the `rank`-th of `world` nearly equal
        parts is given. With repeated augmentation as many batches show fewer images, each `repeats`
        times, one after another in the epoch (as timm's RepeatAugSampler) and, as between DeiT's
        processes, far from each other within a batch.
        """
        chosen = self.subset(images)
        permuted = chosen[generator("batches", seed, epoch).permutation(len(chosen))]
        shown = permuted.repeat(repeats)[: len(permuted)]
        # With repeats=3 the batch a a a b b b is given as a b a b a b.
        copies_apart = np.argsort(np.arange(batch_size) % repeats, kind="stable")
        indices = []
        for start in range(0, len(shown) - batch_size + 1, batch_size):
            batch = shown[start : start + batch_size][copies_apart]
            indices.append(np.array_split(batch, world)[rank])
        yield from self._batches(indices)
