"""The section `exits` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from lsvit.routes import Order
from pipeline.config.samplers import Spec, training_order
from pipeline.config.sections import Optimisation, PaperSection
from pipeline.config.types import (
    NUMBER,
    AtMost,
    Count,
    Depths,
    Fraction,
    Natural,
    Positive,
    Section,
    Seed,
)
from pipeline.jobs.configs import MeasureConfig

COUNTING = "counting"  # the task, and the name of its data in results/
EXIT_WEIGHTS = "exits.safetensors"
EXIT_COSTS = "costs.json"  # FLOPs up to every exit of a model trained with them
EXITS_IN_USE = "exits.json"  # beside a backbone's exit weights: those worth using, with their costs
LAST_EXIT = "final"  # the model's own head, beside the names of the branches

BranchName = Literal["mlp", "cnn_ignore", "cnn_add", "cnn_project", "vit", "mixer", "resmlp"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)
Strategy = Literal["classifier_wise", "end_to_end", "layer_wise"]
# The pre-trained weights that layers after the first exit of the layer-wise strategy start from
LATER_LAYERS = ("none", "original", "end_to_end")
Rates = Annotated[list[Positive], Field(min_length=1)]
Branches = Annotated[list[BranchName], Field(min_length=1)]


class BranchSizes(Section):
    """Sizes of an exit's branch, which the paper does not give."""

    channels: Count = 16
    """Of the convolution; the paper's Table I counts the operations of 16."""
    hidden: Count = 256
    """Of the MLP that ends every branch."""
    dropout: Fraction = 0.1


class ExitHeads(BranchSizes):
    """Early exits of a model that is trained with them: one branch at each depth (section II-A)."""

    branch: BranchName
    depths: Depths
    weight: Positive = 1.0
    """Of the sum of the early exits' losses."""
    final_weight: Positive = 2.0
    """Of the last exit's loss."""
    step: Natural | None = None
    """For the layer-wise strategy: the layers up to the step-th depth that come after the depth
    before it, and its exit, are trained alone."""

    @property
    def trained_exit(self) -> int | None:
        """The depth of the exit that a layer-wise step trains; None: the last one, or all."""
        if self.step is None or self.step == len(self.depths):
            return None
        return self.depths[self.step]


class Counting(Section):
    """The data set of :mod:`papers.exits.compute.counting`: canvases with objects to count."""

    canvas: Annotated[int, Field(ge=16), NUMBER]
    """Pixels of a side."""
    most: Count
    """Objects of a canvas."""
    train: Count
    validation: Count
    heldout: Count
    epochs: Count
    """Of the backbone, at most."""
    lrs: Rates | None = None
    """Of the backbone; null: `backbone_lrs`."""
    seed: Seed


class BranchTraining(BranchSizes):
    """Branches on a frozen backbone: which, where, how they are trained, in which orders."""

    branches: Branches
    depths: Annotated[Depths | None, AtMost("layers", less=1)]
    """Of classifier_wise: an exit after so many layers; null: after every layer but the last."""
    lrs: Rates
    """Of a branch on a frozen backbone; the best is kept, by the loss on held-out images."""
    images: Count | None
    """Train on so many random images, always the same; null: on all."""
    keep: Annotated[Count, AtMost("layers")]
    """Layers kept of a pruned backbone."""
    seed: Seed

    def exits_of(self, num_layers: int) -> list[int]:
        """The depths of the exits on a frozen model of so many layers."""
        return [depth for depth in self.depths or range(1, num_layers) if depth < num_layers]


class Exits(BranchTraining, PaperSection):
    """Early exits: seven branches, three strategies, and a counting task (multi-exit ViT)."""

    name = "exits"
    taken = (COUNTING,)
    variants: Annotated[dict[str, Branches | None], Field(min_length=1)]
    """Frozen backbones of classifier_wise, each with its branches; null: all of `branches`."""
    seeds: Count | None
    """Use only the first n of `seeds`; null: all."""
    strategies: list[Strategy]
    placements: Annotated[list[Depths], AtMost("layers", less=1)]
    """Of the exits of end_to_end and layer_wise."""
    layer_wise_branches: list[BranchName]
    """The paper reports no more than that it is difficult."""
    weight: Positive
    """Of each early exit's loss in end_to_end."""
    final_weight: Positive
    """Of the last exit's loss in end_to_end."""
    backbone_lrs: Rates
    """Learning rates where the backbone is trained."""
    plateau_factor: Fraction
    """By it the learning rate is multiplied."""
    plateau_patience: Count
    """Epochs without gain after which the next one lowers the learning rate."""
    stop_patience: Count
    """Epochs without gain before a training ends."""
    batch_size: Annotated[Count, AtMost("train")]
    epochs: Count
    """At most, of a branch on a frozen backbone."""
    backbone_epochs: Count
    """At most, where the backbone is trained."""
    counting_strategies: list[Strategy]
    """[] leaves the counting task out."""
    counting: Counting

    @property
    def every_branch(self) -> list[BranchName]:
        """The branches that any strategy uses."""
        used = {*self.branches, *self.layer_wise_branches}
        for branches in self.variants.values():
            used |= {*(branches or ())}
        return [branch for branch in BRANCHES if branch in used]

    def recorded(self, train: int, judge: int, validation: int) -> int:
        """How many images' tokens one depth has; those that report run in three orders."""
        return min(train, self.images or train) + judge + 3 * validation


def own_order(route: Spec) -> Order:
    """The order in which exits on a frozen model are trained: the one it was trained for."""
    return "arbitrary" if training_order(route) == "arbitrary" else "sequential"


class ExitConfig(MeasureConfig):
    """Early exits on one frozen backbone.

    `seed` is that of the backbone's training and of the branches'.
    """

    options: BranchTraining
    tuning: Optimisation
    seed: int
