"""What a paper adds to models and trainings, where a variant sets one of the paper's keys."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lsvit.routed import RoutedModel
from pipeline.config.variant import Variant

if TYPE_CHECKING:
    from pipeline.data.splits import Split
    from pipeline.training.objectives import Augment, Objective
    from pipeline.training.scoring import Score


class Extension:
    """The work of a paper's keys of a variant. A method does nothing unless it is overridden.

    Attributes:
        variant: of the class `papers.Variant`, which has the paper's keys.
        repeats: how often an epoch of training shows an image.
        exit: the depth of the early exit that answers in training; None: the model's own head.
    """

    repeats: int = 1
    exit: int | None = None

    def __init__(self, variant: Any) -> None:
        self.variant = variant

    def model_kwargs(self) -> Mapping[str, Any]:
        """Arguments for timm's model, beside those of the preset."""
        return {}

    def prepare(self, backbone: Any) -> None:
        """Change timm's model, before weights are loaded into it."""

    def attach(self, model: RoutedModel) -> None:
        """Attach parts to the routed model, each under a name of its own.

        Their weights stand below this name in weights files.
        """

    def freeze(self, model: RoutedModel) -> None:
        """Switch off the gradient of what is not trained."""

    def objectives(self, model: RoutedModel, objectives: "list[Objective]") -> "list[Objective]":
        """What a training minimises, from what it would minimise without the extension."""
        return objectives

    def augmentation(self, model: RoutedModel, split: "Split") -> "Augment | None":
        """What is done to every batch of a training's images.

        It may draw from the global generators of torch, numpy and Python, which are seeded before.
        """
        return None

    def judge(self, score: "Score") -> "Score":
        """A validation's score; its `objective`, if set, chooses the epoch instead of its loss."""
        return score


def extensions_of(variant: Variant) -> list[Extension]:
    """The extensions of the papers' keys that the variant sets, in the order of the keys."""
    extensions = []
    for place in variant.extension_places():
        module, _, name = place.partition(":")
        extensions.append(getattr(import_module(module), name)(variant))
    return extensions
