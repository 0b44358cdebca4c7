"""What the recipe does to batches, which images they have, drop path and the cosine schedule."""

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.stats import beta
from timm.data.distributed_sampler import RepeatAugSampler
from torch import Tensor
from torch.nn.functional import one_hot

from lsvit.routed import RoutedModel
from lsvit.routes import generator
from papers import Variant
from papers.smoothing.augmentation import augment, mix_patches
from papers.smoothing.section import Losses, Recipe
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.data.resize import Resize
from pipeline.data.splits import Split
from pipeline.jobs.configs import TrainConfig
from pipeline.models.weights import build
from pipeline.training.loop import Run, seed_libraries, train_epoch
from pipeline.training.objectives import Augment, Batch
from tests.papers.smoothing.by_hand import RECIPE
from tests.pipeline.training.test_loop import rates_of

MIXING = Losses.model_validate({"mixing": 1.0})
MEANS = torch.tensor([10.0, 20.0, 30.0]).view(3, 1, 1)


def seed(number: int) -> None:
    seed_libraries("test", number)


def unique(n: int, height: int = 28, width: int = 28, channels: int = 2) -> Tensor:
    """Images of which no two pixels are equal."""
    shape = (n, channels, height, width)
    return torch.arange(math.prod(shape), dtype=torch.float32).view(shape)


def patches_of(images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Patches numbered row by row as timm's embedding does: (B, h w, values)."""
    size = images.shape[2] // grid[0], images.shape[3] // grid[1]
    return torch.nn.functional.unfold(images, size, stride=size).transpose(1, 2)


def augmentation(channels: int = 3, **recipe: Any) -> Augment:
    """Of 7 classes on a grid of 2 x 3. Normalised images are 4 times their pixels less a mean."""
    scale = torch.full((1, channels, 1, 1), 4.0)
    resize = Resize(24, "bilinear", 24)
    split: Any = SimpleNamespace(
        device="cpu", scale=scale, shift=-4 * MEANS[None, :channels], resize=resize
    )
    return partial(augment, recipe=Recipe(**recipe), num_classes=7, grid=(2, 3), split=split)


def augmented(images: Tensor, **recipe: Any) -> Tensor:
    """Images after a recipe that leaves their labels as they are."""
    seed(0)
    labels = torch.zeros(len(images), dtype=torch.long)
    batch = augmentation(images.shape[1], **recipe)(Batch(images, labels))
    assert batch.labels is labels
    assert batch.images.shape == images.shape
    return batch.images


def tensors(batch: Batch) -> list[Tensor]:
    return [batch.images, batch.labels, *batch.extras.values()]


# ---- mixed patches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "size"),
    [((2, 2), (28, 28)), ((14, 14), (28, 28)), ((2, 3), (16, 24)), ((3, 1), (9, 5))],
)
def test_every_patch_comes_whole_from_the_image_it_is_labelled_by(
    grid: tuple[int, int], size: tuple[int, int]
) -> None:
    images, labels, areas = unique(5, *size), torch.tensor([3, 0, 4, 1, 2]), set()
    image_of = labels.argsort()  # by label: the classes are all different
    originals = patches_of(images, grid)
    numbers = torch.arange(math.prod(grid))
    for draw in range(15):
        seed(draw)
        batch = mix_patches(images, labels, 5, grid, alpha=1.0)
        assert torch.equal(images, unique(5, *size))  # the originals stay
        patch_labels = batch.extras["patch_labels"]
        expected = originals[image_of[patch_labels], numbers]
        assert torch.equal(patches_of(batch.images, grid), expected)
        assert torch.allclose(batch.labels, one_hot(patch_labels, 5).float().mean(1))
        assert all(len(row.unique()) <= 2 for row in patch_labels)  # of one other image
        strange = (patch_labels != labels[:, None]).view(5, *grid)
        assert (strange == strange[0]).all()  # one box for the batch
        assert strange[0].sum() == strange[0].any(0).sum() * strange[0].any(1).sum()  # a rectangle
        areas.add(int(strange[0].sum()))
    assert len(areas) > 1


def test_how_much_is_mixed() -> None:
    """The box has as large a share as torchvision's, and `alpha` says how its area varies."""
    from torchvision.transforms.v2 import CutMix

    labels = torch.arange(3)

    def shares(alpha: float) -> Tensor:
        seed(0)
        drawn = [mix_patches(unique(3), labels, 3, (14, 14), alpha) for _ in range(150)]
        strange = [batch.extras["patch_labels"] != labels[:, None] for batch in drawn]
        return torch.stack(strange).float().mean((1, 2))

    even, rare = shares(1.0), shares(0.1)
    assert (even > 0).float().mean() > 0.95
    assert (rare > 0).float().mean() < 0.8  # Beta(0.1, 0.1) often says that nothing is cut
    seed(0)  # the same boxes, before they are snapped
    theirs = CutMix(alpha=1.0, num_classes=3)
    expected = [1 - theirs(unique(3), labels)[1].amax(1).mean() for _ in range(150)]
    boxes = torch.minimum(even, 1 - even)
    assert boxes.mean() == pytest.approx(float(torch.stack(expected).mean()), abs=0.01)


# ---- the recipe's parts --------------------------------------------------------------------------


def test_without_parts_a_batch_is_what_it_was() -> None:
    """The very same tensors, and no random number drawn."""
    images, labels, augment = unique(4), torch.arange(4), augmentation()
    states = torch.get_rng_state(), random.getstate()
    batch = augment(Batch(images, labels))
    assert (batch.images is images, batch.labels is labels, batch.extras) == (True, True, {})
    assert torch.equal(images, unique(4))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_random_erasing_takes_its_share_of_the_images() -> None:
    """And leaves noise."""
    images = augmented(torch.full((1000, 3, 16, 24), 7.0), erasing=0.3)
    erased = images != 7
    assert float(erased.flatten(1).any(1).float().mean()) == pytest.approx(0.3, abs=0.04)
    noise = images[erased]
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    assert float(noise.std()) == pytest.approx(1, abs=0.02)


def test_mixup_blends_images_as_it_blends_labels() -> None:
    """Shares are of Beta(0.8, 0.8): of 400, those near 0 or 1 deviate by 0.024."""
    seed(0)
    augment, images, eye = augmentation(mixup=0.8), unique(7, 16, 24, 3), torch.eye(7)
    shares = []
    for _ in range(400):
        batch = augment(Batch(images, torch.arange(7)))
        share = float(batch.labels[0, 0])
        blended = share * images + (1 - share) * images.roll(1, 0)
        assert torch.allclose(batch.images, blended, rtol=1e-4)
        assert torch.allclose(batch.labels, share * eye + (1 - share) * eye.roll(1, 0), atol=1e-6)
        shares.append(share)
    extreme = np.mean([share < 0.1 or share > 0.9 for share in shares])
    assert extreme == pytest.approx(2 * beta.cdf(0.1, 0.8, 0.8), abs=0.09)


@pytest.mark.parametrize("mixup", [0.0, 0.8])
def test_mixup_and_cutmix_take_turns(mixup: float) -> None:
    seed(0)
    augment = augmentation(cutmix=1.0, mixup=mixup)
    images = unique(4, 16, 24, 3)
    mixed = [bool(augment(Batch(images, torch.arange(4))).extras) for _ in range(200)]
    assert np.mean(mixed) == pytest.approx(0.5 if mixup else 1, abs=0.12)


def test_flip_takes_its_share_of_the_images() -> None:
    images = pixels(300)
    found = augmented(images, flip=0.3)
    flipped = (found == images.flip(-1)).flatten(1).all(1)
    same = (found == images).flatten(1).all(1)
    assert (flipped ^ same).all()
    assert float(flipped.float().mean()) == pytest.approx(0.3, abs=0.09)


def pixels(count: int, channels: int = 3) -> Tensor:
    """Random images as :func:`augmentation` takes them, of whole pixels."""
    seed(0)
    return 4 * (torch.randint(0, 256, (count, channels, 24, 24)) - MEANS[:channels])


def test_crop_keeps_a_part_of_the_image_at_full_size() -> None:
    """A ramp stays a ramp: less of it, and its slope says how much of the width is left."""
    ramp = (10 * torch.arange(24.0)).expand(400, 3, 24, 24)
    images = augmented(4 * (ramp - MEANS), crop=0.25)
    row = images[:, 0, 12]
    slopes = (row[:, 18] - row[:, 6]) / (4 * 120)
    assert 0.4 < slopes.min() < 0.6  # of a width: at least half, less a bit for the aspect ratio
    assert 0.9 < slopes.max() <= 1.01
    channels_apart = images[:, 1] - images[:, 0]
    assert channels_apart.unique().tolist() == [-40]


@pytest.mark.parametrize("channels", [1, 3])
def test_randaugment_changes_images(channels: int) -> None:
    """Each in its own way, some not at all; what is moved in has the mean colour."""
    images = pixels(1, channels).expand(300, -1, -1, -1)
    for magnitude in (1, 5, 10):  # none is refused by Pillow
        augmented(images, randaugment=magnitude)
    found = augmented(images, randaugment=9)
    assert len(found.flatten(1).unique(dim=0)) > 150
    untouched = (found == images).flatten(1).all(1).float().mean()
    assert float(untouched) == pytest.approx(0.3, abs=0.12)
    assert (found == 0).all(1).flatten(1).float().mean(1).max() > 0.2


@pytest.mark.parametrize("part", [{}, {"mixup": 0.8}, {"cutmix": 1.0}])
def test_label_smoothing_goes_evenly_to_all_classes(part: dict[str, Any]) -> None:
    """Also from labels that are mixed already."""
    labels = torch.tensor([0, 3, 6, 6])
    seed(0)
    plain = augmentation(**part)(Batch(unique(4, 24, 24, 3), labels)).labels
    seed(0)
    smooth = augmentation(label_smoothing=0.2, **part)(Batch(unique(4, 24, 24, 3), labels)).labels
    if not part:
        plain = one_hot(plain, 7)
    assert torch.allclose(smooth, 0.8 * plain + 0.2 / 7)


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_a_split_batch_is_the_batch(parts: int) -> None:
    batch = mix_patches(unique(10), torch.arange(10), 10, (2, 2), 1.0)
    pieces = zip(*map(tensors, batch.split(parts)), strict=True)
    expected = [whole.tensor_split(parts) for whole in tensors(batch)]
    torch.testing.assert_close(list(pieces), expected, rtol=0, atol=0)


# ---- repeated augmentation -----------------------------------------------------------------------


class Places(Split):
    """A split of 96 images whose batches are the places of their images."""

    def __init__(self) -> None:
        """Without files."""

    def __len__(self) -> int:
        return 96

    def _batches(self, order: list[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        return ((torch.from_numpy(places), torch.from_numpy(places)) for places in order)


def batches(batch_size: int, **options: Any) -> list[list[int]]:
    return [places.tolist() for places, _ in Places().shuffled(batch_size, 4, 2, **options)]


def test_without_repeats_an_image_is_shown_once() -> None:
    order = generator("batches", 4, 2).permutation(96)[:80].tolist()
    assert list(chain(*batches(20, repeats=1))) == list(chain(*batches(20))) == order


@pytest.mark.parametrize(
    ("batch_size", "images", "repeats"),
    [(12, 96, 3), (20, 50, 3), (35, 96, 3), (24, 96, 2), (96, 96, 4), (48, 96, 12)],
)
def test_repeated_images(batch_size: int, images: int, repeats: int) -> None:
    """The same images in the same batch as timm's sampler has, and no image beside itself."""
    sampler = RepeatAugSampler(
        range(images), num_replicas=1, rank=0, shuffle=False, num_repeats=repeats, selected_round=0
    )
    order = Places().subset(images)[generator("batches", 4, 2).permutation(images)]
    found = batches(batch_size, repeats=repeats, images=images)
    assert len(found) == images // batch_size
    for start, batch in zip(range(0, images, batch_size), found, strict=False):
        assert sorted(batch) == sorted(order[list(sampler)][start : start + batch_size])
        neighbours = pairwise([*batch, batch[0]])  # around the end, where partners come from
        assert all(a != b for a, b in neighbours)


def test_processes_share_a_batch_of_repeated_images() -> None:
    """Each has another copy of an image; together they have the batch."""
    parts = [batches(12, repeats=3, rank=rank, world=3) for rank in range(3)]
    together = [list(chain(*batch)) for batch in zip(*parts, strict=True)]
    assert together == batches(12, repeats=3)
    assert all(len(set(batch)) == 4 for batch in chain(*parts))


def test_an_epoch_trains_on_augmented_repeated_images(
    train_config: Callable[..., TrainConfig], prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches a step is what the recipe says, the same in the same epoch of the same seed."""
    step = Mock(return_value={"loss": torch.zeros(())})
    monkeypatch.setattr("pipeline.training.loop.backward_in_parts", step)
    recipe = Recipe(repeats=4, flip=0.5, erasing=0.5, cutmix=1.0)
    variant = Variant(route="arbitrary", losses=MIXING, recipe=recipe)
    config = train_config().model_copy(update={"variant": variant})
    opened = Run(config, prepared, None, Mock())
    for epoch in (1, 2, 1):
        train_epoch(opened, epoch)
    batches = [call.args[1] for call in step.call_args_list]
    assert all(batch.extras["patch_labels"].shape == (32, 4) for batch in batches)
    for first, second, again in zip(batches[:3], batches[3:6], batches[6:], strict=True):
        assert torch.equal(first.images, again.images)
        assert torch.equal(first.labels, again.labels)
        assert not torch.equal(first.images, second.images)
    for images, _ in opened.train_split.shuffled(32, config.seed, 1, repeats=4):
        assert len(images.flatten(1).unique(dim=0)) == 8


# ---- drop path -----------------------------------------------------------------------------------


def dropping(pico: ModelPreset, rate: float) -> RoutedModel:
    torch.manual_seed(0)
    return build(pico, 10, Variant(route="sequential", recipe=Recipe(drop_path=rate)))


def test_drop_path_drops_single_samples_in_training_alone(pico: ModelPreset) -> None:
    """Its rate grows linearly from 0; a sample is as it was where both branches are dropped."""
    images, model = torch.randn(200, 1, 28, 28), dropping(pico, 0.75)
    assert torch.equal(model.eval()(images), dropping(pico, 0.0).eval()(images))
    model.train()
    kept: list[float] = []
    with torch.no_grad():
        state = model.embed(images)
        for block in model.backbone.blocks:
            rate = len(kept) / 4
            assert getattr(block.drop_path1, "drop_prob", 0) == pytest.approx(rate)
            changed = (block(state) != state).flatten(1).any(1)
            kept.append(float(changed.float().mean()))
    assert kept == pytest.approx([1 - rate**2 for rate in (0, 0.25, 0.5, 0.75)], abs=0.1)


def test_a_recipe_without_a_part() -> None:
    for part in Recipe.model_fields:
        others = RECIPE.model_dump(exclude={part})
        assert RECIPE.without(part) == Recipe(**others) != RECIPE


# ---- the cosine schedule -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "warmup_epochs", "warm"), [(30, 5, 10), (30, 0, 0), (3, 5, 40), (1, 5, 0)]
)
def test_cosine_warms_up_and_falls(
    params: Params, epochs: int, warmup_epochs: int, warm: int
) -> None:
    """A training of fewer epochs than the warm-up has ends with one epoch of the cosine."""
    changes = {"schedule": "cosine", "lr": 2.0, "epochs": epochs, "warmup_epochs": warmup_epochs}
    options = params.finetune.model_copy(update=changes)
    line = [2 * (step + 1) / (warm + 1) for step in range(warm)]
    curve = [1 + math.cos(math.pi * (step - warm) / (60 - warm)) for step in range(warm, 60)]
    assert rates_of(options, 60) == pytest.approx(line + curve, abs=1e-6)
