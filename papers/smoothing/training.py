"""What the keys `losses`, `recipe` and `talking_heads` do to a model and its training."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lsvit.routed import RoutedModel, Samples, Tap
from lsvit.taps import in_batch_order
from papers.smoothing.augmentation import mix_patches
from papers.smoothing.losses import patch_classification, patch_contrastive, patch_cosine
from papers.smoothing.section import Losses, Recipe
from papers.smoothing.talking_heads import use_talking_heads
from pipeline.models.extensions import Extension
from pipeline.models.tokens import check_pairs, token_shape
from pipeline.training.objectives import Augment, Batch, ForwardPass, Objective, Terms

EVEN = 0.5  # where mixup and mixed patches are asked for, each batch has one (timm's switch_prob)


class SmoothingTraining(Extension):
    """The work of the three keys."""

    def __init__(self, variant: Any) -> None:
        super().__init__(variant)
        self.losses: Losses = variant.losses
        self.recipe: Recipe = variant.recipe
        self.repeats = self.recipe.repeats

    def model_kwargs(self) -> Mapping[str, Any]:
        """The rate of timm's drop path."""
        return {"drop_path_rate": self.recipe.drop_path} if self.recipe.drop_path else {}

    def prepare(self, backbone: Any) -> None:
        """Put talking heads into the blocks."""
        if self.variant.talking_heads:
            use_talking_heads(backbone)

    def attach(self, model: RoutedModel) -> None:
        """Attach the linear head on every patch, which the patch mixing loss trains."""
        if self.losses != Losses():
            check_pairs(model.backbone, "losses")
        if self.losses.mixing:
            width = model.backbone.embed_dim
            model.patch_head = nn.Linear(width, model.backbone.num_classes)

    def objectives(self, model: RoutedModel, objectives: list[Objective]) -> list[Objective]:
        """Add the losses."""
        if self.losses == Losses():
            return objectives
        return [*objectives, SmoothingLoss(self.losses)]

    def augmentation(self, model: RoutedModel, device: torch.device) -> Augment:
        """Random erasing, mixup, and mixed patches."""
        return Augmentation(self.recipe, self.losses, model.backbone, device)


class FirstTokens:
    """A tap that keeps the tokens after the first layer of every sample's route."""

    def __init__(self) -> None:
        self.groups: list[tuple[Samples, Tensor]] = []

    def __call__(
        self, depth: int, layer: int, before: Tensor, after: Tensor, samples: Samples
    ) -> None:
        """See :class:`lsvit.routed.Tap`."""
        if depth == 0:
            self.groups.append((samples, after))

    @property
    def tokens(self) -> Tensor:
        """(B, N, D), in the batch's order."""
        return in_batch_order(self.groups)


class SmoothingLoss:
    """The losses against over-smoothing.

    The last layer's patches are read behind the model's last LayerNorm, as in the published code; a
    model that normalises after pooling has none there.
    """

    def __init__(self, losses: Losses) -> None:
        self.losses = losses

    def taps(self, model: RoutedModel) -> Sequence[Tap]:
        """A reader of the patches after the first layer, for the contrastive loss."""
        return (FirstTokens(),) if self.losses.contrastive else ()

    def terms(self, forward: ForwardPass, taps: Sequence[Any]) -> Terms:
        """One term a loss."""
        model: Any = forward.model
        batch = forward.batch
        terms: Terms = {}
        late = model.patches(model.backbone.norm(forward.state))
        if cosine := self.losses.cosine:
            terms["cosine_loss"] = cosine.weight, patch_cosine(late).mean()
        if contrastive := self.losses.contrastive:
            early = model.patches(taps[0].tokens)
            loss = patch_contrastive(early, late, contrastive.normalize)
            terms["contrastive_loss"] = contrastive.weight, loss
        if mixing := self.losses.mixing:
            labels = batch.extras.get("patch_labels", batch.labels)
            loss = patch_classification(model.patch_head(late), labels)
            terms["mixing_loss"] = mixing.weight, loss
        return terms


class Augmentation:
    """Random erasing, mixup and mixed patches of training batches, from timm's and torchvision's.

    It draws from the global generators of torch and of Python, as the libraries' parts do.
    """

    def __init__(self, recipe: Recipe, losses: Losses, backbone: Any, device: torch.device) -> None:
        from timm.data.random_erasing import RandomErasing
        from torchvision.transforms.v2 import MixUp

        self.num_classes = backbone.num_classes
        self.mixing = losses.mixing
        self.grid = token_shape(backbone).grid if self.mixing else (1, 1)
        self.erase = None
        if recipe.erasing:
            self.erase = RandomErasing(recipe.erasing, mode="pixel", device=str(device))
        self.mixup = None
        if recipe.mixup:
            self.mixup = MixUp(alpha=recipe.mixup, num_classes=self.num_classes)

    def __call__(self, batch: Batch) -> Batch:
        """Augment a batch with classes as labels. Erasing changes its images in place."""
        images = self.erase(batch.images) if self.erase else batch.images
        if self.mixing and not (self.mixup and random.random() < EVEN):
            return mix_patches(images, batch.labels, self.num_classes, self.grid, self.mixing.alpha)
        if self.mixup:
            return Batch(*self.mixup(images, batch.labels))
        return Batch(images, batch.labels)
