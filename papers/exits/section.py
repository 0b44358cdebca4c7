"""The section `exits` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from lsvit.routes import Order
from pipeline.config.samplers import Spec, training_order
from pipeline.config.sections import Optimisation, PaperSection
from pipeline.config.types import NUMBER, Count, Depths, Fraction, Positive, Section, Seed
from pipeline.jobs.configs import MeasureConfig

COUNTING = "counting"  # the task, and the name of its data in results/
BranchName = Literal["mlp", "cnn_ignore", "cnn_add", "cnn_project", "vit", "mixer", "resmlp"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)


class BranchSizes(Section):
    """Sizes of an exit's branch. The paper gives none; 16 channels take as many FLOPs as its Table I."""

    channels: Count = 16
    hidden: Count = 256
    dropout: Fraction = 0.1


class ExitHeads(BranchSizes):
    """Early exits of a model that is trained with them: one branch at each depth (section II-A).

    The loss is final_weight x the last exit's + weight x the sum of the others'. `step` is for the
    layer-wise strategy: the layers up to the step-th depth that come after the depth before it, and
    its exit, are trained alone.
    """

    branch: BranchName
    depths: Depths
    weight: Positive = 1.0
    final_weight: Positive = 2.0
    step: Annotated[int, Field(ge=0), NUMBER] | None = None

    @property
    def trained_exit(self) -> int | None:
        """The depth of the exit that a layer-wise step trains; None: the last one, or all."""
        if self.step is None or self.step == len(self.depths):
            return None
        return self.depths[self.step]


class Counting(Section):
    """The data set of :mod:`papers.exits.compute.counting`: canvases with objects to count."""

    canvas: Annotated[int, Field(ge=16), NUMBER]
    most: Count
    train: Count
    validation: Count
    heldout: Count
    epochs: Count  # at most, of the backbone
    lrs: Annotated[list[Positive], Field(min_length=1)] | None = (
        None  # of the backbone; None: those of `backbone_lrs`
    )
    seed: Seed


Strategy = Literal["classifier_wise", "end_to_end", "layer_wise"]


class BranchTraining(BranchSizes):
    """Branches on a frozen backbone: which, where, how they are trained and in which orders they are evaluated."""

    branches: Annotated[list[BranchName], Field(min_length=1)]
    depths: Depths | None
    lrs: Annotated[list[Positive], Field(min_length=1)]
    images: Count | None
    keep: Count
    seed: Seed

    def exits_of(self, num_layers: int) -> list[int]:
        """The depths of the exits on a frozen model of so many layers."""
        return [depth for depth in self.depths or range(1, num_layers) if depth < num_layers]


class Exits(BranchTraining, PaperSection):
    """Early exits: seven branches, three strategies, and a counting task (multi-exit ViT)."""

    name = "exits"
    within = {"batch_size": "train"}  # noqa: RUF012 (a ClassVar)
    taken = (COUNTING,)
    variants: Annotated[
        dict[str, Annotated[list[BranchName], Field(min_length=1)] | None], Field(min_length=1)
    ]
    seeds: Count | None
    strategies: list[Strategy]
    placements: list[Depths]
    layer_wise_branches: list[BranchName]
    weight: Positive
    final_weight: Positive
    backbone_lrs: Annotated[list[Positive], Field(min_length=1)]
    plateau_factor: Fraction
    plateau_patience: Count
    stop_patience: Count
    batch_size: Count
    epochs: Count
    backbone_epochs: Count
    counting_strategies: list[Strategy]
    counting: Counting

    @property
    def every_branch(self) -> list[BranchName]:
        """Those that any strategy uses."""
        own = (kind for kinds in self.variants.values() for kind in kinds or ())
        asked = {*self.branches, *self.layer_wise_branches, *own}
        return [kind for kind in BRANCHES if kind in asked]

    @property
    def branch_training(self) -> BranchTraining:
        """The part that a job on a frozen backbone depends on."""
        return BranchTraining.model_validate(
            self.model_dump(include=set(BranchTraining.model_fields))
        )


def own_order(route: Spec) -> Order:
    """The order in which exits on a frozen model are trained: the one it was trained for."""
    return "arbitrary" if training_order(route) == "arbitrary" else "sequential"


EXIT_WEIGHTS, EXIT_COSTS = "exits.safetensors", "costs.json"
EXITS_IN_USE = (
    "exits.json"  # beside the weights of a backbone's exits: those worth using, with their costs
)
LAST_EXIT = "final"  # the model's own head, beside the names of the branches


class ExitConfig(MeasureConfig):
    """Early exits on one frozen backbone; `seed` is the backbone's training's, and of the branches'."""

    options: BranchTraining
    tuning: Optimisation
    seed: int
