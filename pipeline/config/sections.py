"""The sections of params.yaml that are no paper's own. No torch here."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from pipeline.config.types import (
    NUMBER,
    Added,
    AtMost,
    Count,
    Fraction,
    Natural,
    NoEffect,
    NonNegative,
    Per,
    Positive,
    Section,
)


class Optimisation(Section):
    """Hyper-parameters of one training (LayerShuffle, section 4)."""

    optimizer: Literal["adam", "adamw"]
    lr: Positive
    betas: tuple[Fraction, Fraction]
    eps: Positive
    weight_decay: NonNegative
    schedule: Literal["constant", "linear", "one_cycle", "cosine", "plateau"]
    """linear: to 0. cosine: after `warmup_epochs`. plateau: see `plateau_factor`."""
    batch_size: Annotated[Count, AtMost("train")]
    """The paper tries 640 and 128."""
    epochs: Count
    validation_batch_size: Count
    """Under `arbitrary` each validation batch has an order of its own."""
    validation_orders: Literal["all", "trained"] = "all"
    """trained: only the order that is trained for, which saves time."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"]
    """auto: the fastest for width and processor. tf32: on CUDA. bf16, fp16: autocast; fp16 with a
    scaled loss, as the published code."""
    compile: Literal["auto", "blocks", "none"]
    """auto: wide models on CUDA. blocks: every block is compiled, the code is shared."""
    micro_batch_size: Count | None
    """Gradients accumulate over parts of a batch of at most so many images; null: no parts."""
    checkpointing: Annotated[bool, NoEffect()] = False
    """true: the backward pass computes activations again, block by block: less memory, more
    time."""
    threads: Count
    """CPU threads of one training; trainings run side by side."""
    position_weight: NonNegative = 1.0
    """Weight of the sum over layers of the position losses; published code: 1 / layers."""
    teacher_weight: Annotated[NonNegative, Added(1.0)] = 1.0
    """Of the loss by which a variant with a `teacher` learns its answers; 0: of the labels
    alone."""
    clip: Annotated[Positive | None, Added(None)] = None
    """Largest norm of a step's gradients, longer ones are shortened; null: any. Published code:
    1.0."""
    warmup_epochs: Natural = 5
    """Of schedule cosine: epochs in which the rate grows linearly (DeiT)."""
    plateau_factor: Fraction = 0.6
    """Of schedule plateau: by it the rate is multiplied (multi-exit ViT, section IV)."""
    plateau_patience: Count = 2
    """Of schedule plateau: epochs without gain after which the next one lowers the rate."""
    images: Count | None = None
    """Train on so many random images, always the same; null: on all."""
    stop_patience: Count | None = None
    """Epochs without gain after which the training ends; null: it runs all epochs."""


class Pretrain(Optimisation):
    """Training from scratch, for models with `weights: scratch`. Others have published weights."""

    name = "pretrain"
    seeds: Annotated[Count | None, NoEffect()]
    """Sets of starting weights, of the first n of `seeds`, taken in turn; null: one for each."""


class Finetune(Optimisation):
    """Refinement of the starting weights: the paper's values (section 4).

    The published code has adamw, eps 1e-8 and schedule linear.
    """

    name = "finetune"
    baseline_epochs: Annotated[Count | None, NoEffect()]
    """Epochs of the baseline alone; null: as `epochs`."""
    per: Annotated[Per, NoEffect()] = "batch"
    """batch: one route a batch, the paper's. sample: a route of its own for every sample. latin: L
    routes a batch that together run every layer once at each depth. Of variants whose route has
    it."""


class Distributed(Section):
    """One training spread over several processes by torchrun: DDP, NCCL on CUDA and gloo on CPU.

    1 x 1: trainings run side by side instead.
    """

    processes: Count
    """On each machine, a GPU each where there are some. Left-out layers cost a wait each step."""
    nodes: Count
    """Machines."""
    endpoint: str | None
    """host:port of the first machine, for more than one."""
    routes: Literal["shared", "own"]
    """shared: the same route in every process."""

    @property
    def world_size(self) -> int:
        """Processes of one training, over all machines."""
        return self.processes * self.nodes

    @property
    def identity(self) -> dict[str, Any]:
        """The values that change a training's result."""
        routes = self.routes if self.world_size > 1 else "shared"
        return {"world_size": self.world_size, "routes": routes}


class PaperFigures(Section):
    """Size and formats of the figures."""

    name = "paper_figures"
    formats: Annotated[list[Literal["png", "pdf", "svg"]], Field(min_length=1)]
    column_width: Annotated[float, Field(gt=0, le=20), NUMBER]
    """Inches."""
    dpi: Annotated[int, Field(ge=1, le=1200), NUMBER]


class PaperSection(Section):
    """A paper's section of params.yaml.

    If it has a key `training`, that overrides values of `pretrain` where its stage trains.
    `taken` are names of models in the paper's results, which no variant may have. A stage that
    `takes_orderless` runs variants whose route is no order of their layers along that route.
    """

    taken: ClassVar[tuple[str, ...]] = ()
    takes_orderless: ClassVar[bool] = False
