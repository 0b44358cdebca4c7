"""What the keys `losses`, `recipe` and `talking_heads` do to a model and its training."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from lsvit.routed import RoutedModel, Samples, Tap
from lsvit.taps import in_batch_order
from papers.smoothing.augmentation import augment
from papers.smoothing.losses import patch_classification, patch_contrastive, patch_cosine
from papers.smoothing.section import Losses, Recipe
from papers.smoothing.talking_heads import use_talking_heads
from pipeline.data.splits import Split
from pipeline.models.extensions import Extension
from pipeline.models.tokens import check_pairs, token_shape
from pipeline.training.objectives import Augment, ForwardPass, Objective, Terms


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
        return objectives if self.losses == Losses() else [*objectives, SmoothingLoss(self.losses)]

    def augmentation(self, model: RoutedModel, split: Split) -> Augment | None:
        """What the recipe does to images and labels."""
        if self.recipe.without("repeats").without("drop_path") == Recipe():
            return None
        grid = token_shape(model.backbone).grid if self.recipe.cutmix else (1, 1)
        return partial(
            augment,
            recipe=self.recipe,
            num_classes=model.backbone.num_classes,
            grid=grid,
            split=split,
        )


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
        terms: Terms = {}
        late = model.patches(model.backbone.norm(forward.state))
        if cosine := self.losses.cosine:
            terms["cosine_loss"] = cosine.weight, patch_cosine(late).mean()
        if contrastive := self.losses.contrastive:
            early = model.patches(in_batch_order(taps[0].groups))
            loss = patch_contrastive(early, late, contrastive.normalize)
            terms["contrastive_loss"] = contrastive.weight, loss
        if mixing := self.losses.mixing:
            labels = forward.batch.extras.get("patch_labels", forward.batch.labels)
            loss = patch_classification(model.patch_head(late), labels)
            terms["mixing_loss"] = mixing.weight, loss
        return terms
