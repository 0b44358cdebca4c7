"""What a training does to its batches, which images they have, and the rest of DeiT's recipe: drop
path and the cosine schedule.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

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
from papers.smoothing.augmentation import mix_patches
from papers.smoothing.section import Losses, Recipe
from papers.smoothing.training import Augmentation
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.data.splits import Split
from pipeline.jobs.configs import TrainConfig
from pipeline.models.tokens import token_shape
from pipeline.models.weights import build
from pipeline.training.loop import open_run, train_epoch
from pipeline.training.loop import seed_libraries as seed
from pipeline.training.objectives import Batch
from pipeline.training.optimisation import make_optimizer, make_scheduler
from tests.models import small

CPU = torch.device("cpu")
MIXING = Losses.model_validate({"mixing": 1.0})


def unique(n: int, height: int = 28, width: int = 28, channels: int = 2) -> Tensor:
    """Images of which no two pixels are equal."""
    return torch.arange(n * channels * height * width, dtype=torch.float32).view(
        n, channels, height, width
    )


def patch(images: Tensor, image: int, number: int, grid: tuple[int, int]) -> Tensor:
    """The pixels of one patch of one image, patches numbered row by row as timm's embedding does."""
    height, width = images.shape[2] // grid[0], images.shape[3] // grid[1]
    top, left = number // grid[1] * height, number % grid[1] * width
    return images[image, :, top : top + height, left : left + width]


def augmentation(losses: Losses | None = None, **recipe: Any) -> Augmentation:
    """Of a model on a grid of 2 x 3 with 7 outputs."""
    return Augmentation(Recipe(**recipe), losses or Losses(), small(), CPU)


def tensors(batch: Batch) -> list[Tensor]:
    """All that a batch has."""
    return [batch.images, batch.labels, *batch.extras.values()]


# ---- mixed patches -------------------------------------------------------------------------------


SQUARE, OBLONG = (
    [(2, 2), (4, 4), (14, 14)],
    [((2, 3), (16, 24)), ((1, 4), (7, 28)), ((3, 1), (9, 5))],
)


@pytest.mark.parametrize(("grid", "size"), [*((grid, (28, 28)) for grid in SQUARE), *OBLONG])
def test_every_patch_comes_whole_from_the_image_it_is_labelled_by(
    grid: tuple[int, int], size: tuple[int, int]
) -> None:
    images, labels, sizes = unique(5, *size), torch.tensor([3, 0, 4, 1, 2]), set()
    image_of = labels.argsort()  # by label: the classes are all different
    for draw in range(15):
        seed(draw)
        batch = mix_patches(images, labels, 5, grid, alpha=1.0)
        assert torch.equal(images, unique(5, *size))  # the originals stay
        assert batch.extras
        assert batch.extras["patch_labels"].shape == (5, math.prod(grid))
        for i in range(5):
            for number, label in enumerate(batch.extras["patch_labels"][i].tolist()):
                assert torch.equal(
                    patch(batch.images, i, number, grid),
                    patch(images, int(image_of[label]), number, grid),
                )
            counts = Counter(batch.extras["patch_labels"][i].tolist())
            assert len(counts) <= 2  # an image's own patches and those of one other
            assert batch.labels[i].tolist() == pytest.approx(
                [counts[label] / math.prod(grid) for label in range(5)]
            )
        strange = (batch.extras["patch_labels"] != labels[:, None]).view(5, *grid)
        assert (strange == strange[0]).all()  # one box for the batch
        assert strange[0].sum() == strange[0].any(0).sum() * strange[0].any(1).sum()  # a rectangle
        sizes.add(int(strange[0].sum()))
    assert len(sizes) > 1


def test_patches_of_two_images_of_a_class_have_its_label() -> None:
    seed(1)
    batch = mix_patches(unique(4), torch.tensor([6, 6, 2, 2]), 7, (4, 4), alpha=1.0)
    assert batch.extras
    assert set(batch.extras["patch_labels"].flatten().tolist()) == {2, 6}
    assert torch.equal(batch.labels, one_hot(batch.extras["patch_labels"], 7).float().mean(1))
    assert batch.labels.sum(1).tolist() == pytest.approx([1.0] * 4)


def test_mixed_patches_repeat_with_the_seed() -> None:
    images, labels = unique(6), torch.arange(6)

    def draw(value: int) -> Batch:
        seed(value)
        return mix_patches(images, labels, 6, (14, 14), alpha=1.0)

    again, first, others = draw(3), draw(3), [draw(value) for value in range(4, 8)]
    assert all(torch.equal(a, b) for a, b in zip(tensors(first), tensors(again), strict=True))
    assert not any(torch.equal(first.images, other.images) for other in others)


def test_how_often_and_how_much_is_mixed() -> None:
    """Also on a coarse grid most draws mix; the box has as large a share as torchvision's, and
    `alpha` says how its area varies.
    """
    from torchvision.transforms.v2 import CutMix

    def shares(grid: tuple[int, int], alpha: float) -> Tensor:
        seed(0)
        labels = torch.arange(3)
        batches = [mix_patches(unique(3), labels, 3, grid, alpha) for _ in range(150)]
        patches = [batch.extras["patch_labels"] for batch in batches]
        return torch.stack([(found != labels[:, None]).float().mean() for found in patches])

    coarse, fine, rare = shares((2, 2), 1.0), shares((14, 14), 1.0), shares((14, 14), 0.1)
    assert ((coarse > 0) & (coarse < 1)).float().mean() > 0.7
    assert (fine > 0).float().mean() > 0.95
    assert (rare > 0).float().mean() < 0.8  # Beta(0.1, 0.1) often says that nothing is cut
    seed(0)  # the same boxes, before they are snapped
    theirs = CutMix(alpha=1.0, num_classes=3)
    expected = torch.stack(
        [1 - theirs(unique(3), torch.arange(3))[1].amax(1).mean() for _ in range(150)]
    )
    boxes = torch.minimum(fine, 1 - fine)
    assert boxes.mean() == pytest.approx(float(expected.mean()), abs=0.01)
    assert coarse.mean() == pytest.approx(float(fine.mean()), abs=0.06)


# ---- the recipe's parts --------------------------------------------------------------------------


def test_without_parts_a_batch_is_what_it_was() -> None:
    """The very same tensors, and no random number drawn."""
    images, labels, augment = unique(4), torch.arange(4), augmentation()
    states = torch.get_rng_state(), random.getstate()
    batch = augment(Batch(images, labels))
    assert batch.images is images
    assert batch.labels is labels
    assert not batch.extras
    assert torch.equal(images, unique(4))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_one_part_leaves_what_the_others_change_alone() -> None:
    images, labels = unique(4, 16, 24, 3), torch.arange(4)
    seed(0)
    erased = augmentation(erasing=1.0)(Batch(images, labels))
    assert erased.labels is labels
    assert not erased.extras
    mixed_up = augmentation(mixup=0.8)(Batch(images := unique(4, 16, 24, 3), labels))
    assert not mixed_up.extras
    assert torch.equal(images, unique(4, 16, 24, 3))
    mixed = augmentation(MIXING)(Batch(images, labels))
    assert mixed.extras
    assert set(mixed.images.flatten().tolist()) <= set(
        images.flatten().tolist()
    )  # nothing erased or blended


def test_random_erasing_takes_its_share_of_the_images() -> None:
    seed(0)
    batch = Batch(torch.full((1000, 3, 16, 24), 7.0), torch.zeros(1000, dtype=torch.long))
    images = augmentation(erasing=0.3)(batch).images
    erased = (images != 7).any(1)  # (B, H, W); noise, which 7 is not among
    touched = erased.flatten(1).any(1)
    assert float(touched.float().mean()) == pytest.approx(0.3, abs=0.04)
    for box in erased[touched]:
        assert box.sum() == box.any(0).sum() * box.any(1).sum()  # one rectangle
        assert 0.01 < float(box.float().mean()) < 0.4  # timm: 2 % to a third, rounded to pixels
    noise = images[(images != 7)]
    assert (float(noise.mean()), float(noise.std())) == (
        pytest.approx(0, abs=0.02),
        pytest.approx(1, abs=0.02),
    )


def test_mixup_blends_images_as_it_blends_labels() -> None:
    seed(0)
    augment, images, labels, shares = (
        augmentation(mixup=0.8),
        unique(7, 16, 24, 3),
        torch.arange(7),
        set(),
    )
    for _ in range(20):
        batch = augment(Batch(images, labels))
        share = float(batch.labels[0, 0])
        assert batch.labels.sum(1).tolist() == pytest.approx([1.0] * 7)
        assert torch.allclose(batch.labels.diagonal(), torch.tensor(share))
        assert torch.allclose(
            batch.images, share * images + (1 - share) * images.roll(1, 0), rtol=1e-4
        )
        assert torch.allclose(
            batch.labels, share * torch.eye(7) + (1 - share) * torch.eye(7).roll(1, 0), atol=1e-6
        )
        shares.add(share)
    assert len(shares) == 20


def test_mixups_alpha_says_how_evenly_images_are_blended() -> None:
    """Beta(alpha, alpha): two thirds of the shares within a tenth of 0 or 1 at 0.2 (of 400,
    standard deviation 0.024), a third at 0.8.
    """
    seed(0)
    images, labels = unique(7, 16, 24, 3), torch.arange(7)
    for alpha, expected in ((0.2, beta.cdf(0.1, 0.2, 0.2) * 2), (0.8, beta.cdf(0.1, 0.8, 0.8) * 2)):
        augment = augmentation(mixup=alpha)
        shares = [float(augment(Batch(images, labels)).labels[0, 0]) for _ in range(400)]
        assert np.mean([min(share, 1 - share) < 0.1 for share in shares]) == pytest.approx(
            expected, abs=0.08
        )


def test_mixup_and_mixed_patches_share_the_batches() -> None:
    seed(0)
    augment, images, labels = augmentation(MIXING, mixup=0.8), unique(4, 16, 24, 3), torch.arange(4)
    batches = [augment(Batch(images, labels)) for _ in range(200)]
    mixed = [batch for batch in batches if batch.extras]
    assert 75 < len(mixed) < 125
    assert all(
        batch.labels.shape == (4, 7) and float(batch.labels.sum()) == pytest.approx(4)
        for batch in batches
    )
    assert all(
        set(batch.images.flatten().tolist()) <= set(images.flatten().tolist())
        for batch in mixed[:20]
    )  # not blended as well
    assert all(augmentation(MIXING)(Batch(images, labels)).extras for _ in range(20))


def test_labels_are_as_many_as_the_models_outputs(pico: ModelPreset) -> None:
    """A head of more outputs than the data has classes, as the published code keeps it for CIFAR."""
    backbone = build(pico.model_copy(update={"num_classes": 23}), 10).backbone
    for losses, recipe in ((MIXING, Recipe()), (Losses(), Recipe(mixup=0.5))):
        augment = Augmentation(recipe, losses, backbone, CPU)
        batch = augment(Batch(torch.randn(5, 1, 28, 28), torch.arange(5)))
        assert batch.labels.shape == (5, 23)


def test_seed_sets_both_generators() -> None:
    drawn = []
    for value in (1, 2, 1):
        seed(value)
        drawn.append((random.random(), float(torch.rand(()))))
    assert drawn[0] == drawn[2]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_a_split_batch_is_the_batch(parts: int) -> None:
    seed(0)
    for batch in (
        Batch(unique(10), torch.arange(10)),
        mix_patches(unique(10), torch.arange(10), 10, (2, 2), 1.0),
    ):
        pieces = batch.split(parts)
        assert [len(piece.images) for piece in pieces] == [
            len(part) for part in np.array_split(np.arange(10), parts)
        ]
        whole = tensors(batch)
        for i, joined in enumerate(zip(*map(tensors, pieces), strict=True)):
            assert torch.equal(torch.cat(joined), whole[i])


# ---- repeated augmentation -----------------------------------------------------------------------


class Places(Split):
    """A split whose batches are the places of their images."""

    def __init__(self, images: int) -> None:
        self.images = images

    def __len__(self) -> int:
        return self.images

    def _batches(self, order: list[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        return ((torch.from_numpy(places), torch.from_numpy(places)) for places in order)


def batches(split: int, batch_size: int, **options: Any) -> list[list[int]]:
    return [places.tolist() for places, _ in Places(split).shuffled(batch_size, 4, 2, **options)]


def test_without_repeats_batches_are_as_before() -> None:
    order = generator("batches", 4, 2).permutation(96)
    expected = [order[start : start + 20].tolist() for start in range(0, 80, 20)]
    assert batches(96, 20) == batches(96, 20, repeats=1) == expected


@pytest.mark.parametrize(("batch_size", "repeats"), [(12, 3), (24, 2), (96, 4), (48, 12)])
def test_repeated_images(batch_size: int, repeats: int) -> None:
    """As many batches of as many images, each repeated within one batch and never side by side."""
    found = batches(96, batch_size, repeats=repeats)
    assert [len(batch) for batch in found] == [batch_size] * (96 // batch_size)
    for batch in found:
        assert set(Counter(batch).values()) == {repeats}
        assert all(
            a != b for a, b in zip(batch, batch[1:] + batch[:1], strict=True)
        )  # also around the end, where partners come from
    shown = [image for batch in found for image in batch]
    assert len(set(shown)) == 96 // repeats
    assert shown != [
        image for batch in batches(96, batch_size, repeats=repeats + 1) for image in batch
    ]


@pytest.mark.parametrize(("batch_size", "images"), [(12, None), (32, None), (20, 50), (35, None)])
def test_repeated_images_are_timms(batch_size: int, images: int | None) -> None:
    """The same places of the shuffled images in the same batch as timm's sampler has; it draws
    another shuffle.
    """
    count = images or 96
    sampler = RepeatAugSampler(
        range(count), num_replicas=1, rank=0, shuffle=False, num_repeats=3, selected_round=0
    )
    order = Places(96).subset(images)[generator("batches", 4, 2).permutation(count)]
    theirs = [int(order[place]) for place in sampler]
    assert len(theirs) == count
    found = batches(96, batch_size, repeats=3, images=images)
    assert len(found) == count // batch_size
    for i, batch in enumerate(found):
        assert sorted(batch) == sorted(theirs[i * batch_size : (i + 1) * batch_size])
        assert all(a != b for a, b in pairwise(batch))


def test_processes_share_a_batch_of_repeated_images() -> None:
    """Each has another copy of an image, as with timm's sampler, and together they have the batch."""
    whole = batches(96, 12, repeats=3)
    parts = [batches(96, 12, repeats=3, rank=rank, world=3) for rank in range(3)]
    assert [list(chain(*each)) for each in zip(*parts, strict=True)] == whole
    assert all(len(set(batch)) == 4 for part in parts for batch in part)


def test_an_epoch_trains_on_augmented_repeated_images(
    train_config: Callable[..., TrainConfig],
    pico: ModelPreset,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What reaches a step is what the recipe says, the same in the same epoch of the same seed."""
    seen: list[Batch] = []

    def spy(step: Any, batch: Batch, *rest: Any) -> dict[str, Tensor]:
        seen.append(batch)
        return {"loss": torch.zeros(())}

    monkeypatch.setattr("pipeline.training.loop.backward_in_parts", spy)
    variant = Variant(route="arbitrary", losses=MIXING, recipe=Recipe(repeats=4, erasing=0.5))
    config = train_config().model_copy(update={"variant": variant})
    opened = open_run(config, prepared, None, lambda event: None)
    for epoch in (1, 2, 1):
        train_epoch(opened, epoch)
    first, second, again = seen[:3], seen[3:6], seen[6:]
    assert all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        for a, b in zip(first, again, strict=True)
    )
    assert not any(torch.equal(a.images, b.images) for a, b in zip(first, second, strict=True))
    assert all(batch.extras and batch.extras["patch_labels"].shape == (32, 4) for batch in seen)
    shown = set()
    for images, _ in opened.train_split.shuffled(32, config.seed, 1, repeats=4):
        assert len(images.flatten(1).unique(dim=0)) == 8
        shown |= {tuple(image) for image in images.flatten(1)[:, :40].tolist()}
    assert len(shown) == 24


# ---- drop path -----------------------------------------------------------------------------------


def dropping(pico: ModelPreset, rate: float) -> RoutedModel:
    torch.manual_seed(0)
    return build(pico, 10, Variant(route="sequential", recipe=Recipe(drop_path=rate)))


def test_drop_path_grows_linearly_from_zero(pico: ModelPreset) -> None:
    for rate in (0.3, 0.75):
        blocks = dropping(pico, rate).backbone.blocks
        for name in ("drop_path1", "drop_path2"):
            rates = [getattr(getattr(block, name), "drop_prob", 0.0) for block in blocks]
            assert rates == pytest.approx([0, rate / 3, 2 * rate / 3, rate])
    assert not any(
        hasattr(block.drop_path1, "drop_prob") for block in dropping(pico, 0.0).backbone.blocks
    )


def test_drop_path_drops_single_samples_in_training_alone(pico: ModelPreset) -> None:
    images, model, plain = torch.randn(200, 1, 28, 28), dropping(pico, 0.75), dropping(pico, 0.0)
    assert torch.equal(model.eval()(images), plain.eval()(images))
    model.train()
    with torch.no_grad():
        state = model.embed(images)
        kept = [
            (model.backbone.blocks[layer](state) != state).flatten(1).any(1) for layer in range(4)
        ]
    assert [float(each.float().mean()) for each in kept] == pytest.approx(
        [1, 1 - 0.25**2, 1 - 0.5**2, 1 - 0.75**2], abs=0.1
    )


def test_a_recipe_without_a_part() -> None:
    recipe = Recipe(repeats=3, erasing=0.25, mixup=0.8, drop_path=0.1)
    assert recipe.without("mixup") == Recipe(repeats=3, erasing=0.25, drop_path=0.1)
    assert recipe.without("repeats").repeats == 1
    assert (
        recipe.without("erasing").without("mixup").without("drop_path").without("repeats")
        == Recipe()
    )


# ---- the cosine schedule -------------------------------------------------------------------------


def rates(
    params: Params, steps: int, epochs: int, warmup_epochs: int, stop: int | None = None
) -> list[float]:
    """Of every step; the state of optimiser and schedule goes through `state_dict` before step
    `stop`.
    """
    options = params.finetune.model_copy(
        update={"schedule": "cosine", "lr": 2.0, "epochs": epochs, "warmup_epochs": warmup_epochs}
    )

    def make() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = make_optimizer(torch.nn.Linear(1, 1), options)
        return optimizer, make_scheduler(optimizer, options, steps)

    optimizer, scheduler = make()
    found = []
    for step in range(steps):
        if step == stop:
            states = optimizer.state_dict(), scheduler.state_dict()
            optimizer, scheduler = make()
            optimizer.load_state_dict(states[0])
            scheduler.load_state_dict(states[1])
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("epochs", "warmup_epochs", "warm"), [(30, 5, 10), (30, 0, 0), (3, 5, 40), (1, 5, 0)]
)
def test_cosine_warms_up_and_falls(
    params: Params, epochs: int, warmup_epochs: int, warm: int
) -> None:
    """A training of fewer epochs than the warm-up has ends with one epoch of the cosine."""
    found = rates(params, 60, epochs, warmup_epochs)
    line = [2 * (step + 1) / (warm + 1) for step in range(warm)]
    curve = [1 + math.cos(math.pi * (step - warm) / (60 - warm)) for step in range(warm, 60)]
    assert found == pytest.approx(line + curve, abs=1e-6)
    assert found[0] > 0
    assert all(a < b for a, b in pairwise(found[: warm + 1]))
    assert all(a > b for a, b in pairwise(found[warm:]))
    assert 0 < found[-1] < 0.02
    assert max(found) == found[warm] == pytest.approx(2.0)


@pytest.mark.parametrize("stop", [1, 9, 10, 11, 40])
def test_cosine_goes_on(params: Params, stop: int) -> None:
    assert rates(params, 60, 30, 5, stop) == rates(params, 60, 30, 5)


def test_grid_of_the_models_patches(pico: ModelPreset) -> None:
    """What patches are mixed along is what the model sees: blanking a patch's pixels changes that
    token of the embedding alone.
    """
    backbone = small()
    grid = token_shape(backbone).grid
    images = torch.randn(1, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for number in range(math.prod(grid)):
            changed = images.clone()
            patch(changed, 0, number, grid).zero_()
            differs = (backbone.patch_embed(changed) != backbone.patch_embed(images)).any(-1)[0]
            assert differs.nonzero().flatten().tolist() == [number]
