"""The sections of params.yaml that are no paper's own: trainings, processes, size of figures. No torch here."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from pipeline.config.types import NUMBER, Count, Fraction, NonNegative, Per, Positive, Section
from pipeline.errors import UserError


class Optimisation(Section):
    """Hyper-parameters of one training (LayerShuffle, section 4)."""

    optimizer: Literal["adam", "adamw"]
    lr: Positive
    betas: tuple[Fraction, Fraction]
    eps: Positive
    weight_decay: NonNegative
    schedule: Literal["constant", "linear", "one_cycle", "cosine", "plateau"]
    batch_size: Count
    epochs: Count
    validation_batch_size: Count
    validation_orders: Literal["all", "trained"] = (
        "all"  # trained: only that which is trained for, which saves time
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"]
    compile: Literal["auto", "blocks", "none"]
    micro_batch_size: Count | None
    checkpointing: bool = False
    threads: Count
    position_weight: NonNegative = 1.0
    warmup_epochs: Annotated[int, Field(ge=0), NUMBER] = (
        5  # of schedule cosine: the rate grows linearly (DeiT)
    )
    plateau_factor: Fraction = 0.6  # of schedule plateau (multi-exit ViT, section IV)
    plateau_patience: Count = 2  # epochs without gain that are borne; the next one lowers the rate
    images: Count | None = None  # train on so many random images, always the same; None: on all
    stop_patience: Count | None = (
        None  # epochs without gain before the training ends; None: it does not end early
    )
    within = {"batch_size": "train"}  # noqa: RUF012 (a ClassVar)

    def without_effect(self) -> set[str]:
        """Activations that are computed again are the same."""
        return {"checkpointing"}


class Pretrain(Optimisation):
    """Training from scratch, for model presets without published weights."""

    name = "pretrain"
    seeds: Count | None

    def without_effect(self) -> set[str]:
        """A training has one seed."""
        return super().without_effect() | {"seeds"}


class Finetune(Optimisation):
    """Refinement of the starting weights; `baseline_epochs` is for the baseline alone."""

    name = "finetune"
    baseline_epochs: Count | None
    per: Per = "batch"  # what a random route is drawn for

    def without_effect(self) -> set[str]:
        """The baseline's epochs are resolved in `epochs`, what routes are drawn for is the training's own."""
        return super().without_effect() | {"baseline_epochs", "per"}


class Distributed(Section):
    """One training spread over several processes by torchrun: DDP, NCCL on CUDA and gloo on CPU."""

    processes: Count
    nodes: Count
    endpoint: str | None
    routes: Literal["shared", "own"]

    @property
    def world_size(self) -> int:
        """Processes of one training, over all machines."""
        return self.processes * self.nodes

    @property
    def identity(self) -> dict[str, Any]:
        """What of it changes a training's result."""
        return {
            "world_size": self.world_size,
            "routes": self.routes if self.world_size > 1 else "shared",
        }


class PaperFigures(Section):
    """Size and formats of the figures."""

    name = "paper_figures"
    formats: Annotated[list[Literal["png", "pdf", "svg"]], Field(min_length=1)]
    column_width: Annotated[float, Field(gt=0, le=20), NUMBER]
    dpi: Annotated[int, Field(ge=1, le=1200), NUMBER]


class Limit(NamedTuple):
    """A number of params.yaml that must not be too large."""

    key: str
    found: int
    most: int
    why: str


class PaperSection(Section):
    """A paper's section of params.yaml. If it has a key `training`, its values win over those of `pretrain` where a stage trains."""

    taken: ClassVar[
        tuple[str, ...]
    ] = ()  # names of models in the paper's results that no variant may have


def at_most(limits: Sequence[Limit], file: str) -> None:
    """Raises UserError for the numbers that are greater than accepted, a line each."""
    exceeding = [each for each in limits if each.found > each.most]
    if exceeding:
        lines = (
            f"{file}: {key}: found {found}, accepted: at most {most} ({why})"
            for key, found, most, why in exceeding
        )
        raise UserError("\n".join(dict.fromkeys(lines)))
