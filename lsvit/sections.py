"""The typed sections and variants of params.yaml, and their validation.

Torch-free, so that a wrong parameter is reported in a fraction of a second and before any compute.
"""

from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from lsvit.routes import check_sampler


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number")
    return value


# PyYAML reads 1e-4 as text where DVC reads a number: text that spells a number is converted, true and false are not.
Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Float, Field(gt=0)]
Fraction = Annotated[Float, Field(ge=0, lt=1)]
Int = Annotated[int, BeforeValidator(_number)]
Count = Annotated[Int, Field(ge=1)]
Seed = Annotated[Int, Field(ge=0)]
Sampler = Annotated[str | dict[str, Any], BeforeValidator(check_sampler)]


class Section(BaseModel):
    """A part of params.yaml: immutable, unknown keys rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: ClassVar[str] = ""
    merged: ClassVar[tuple[str, ...]] = ()  # mappings of which a preset changes single keys; it replaces others


class Optimisation(Section):
    """Hyper-parameters of one training (LayerShuffle, section 4)."""

    optimizer: Literal["adam", "adamw"]
    lr: Positive
    betas: tuple[Fraction, Fraction]
    eps: Positive
    weight_decay: Annotated[Float, Field(ge=0)]
    schedule: Literal["constant", "linear", "one_cycle", "cosine", "plateau"]
    batch_size: Count
    epochs: Count
    validation_batch_size: Count
    validation_orders: Literal["all", "trained"] = "all"  # trained: only that which is trained for, which saves time
    precision: Literal["auto", "fp32", "tf32", "bf16"]
    compile: Literal["auto", "blocks", "none"]
    micro_batch_size: Count | None
    checkpointing: bool
    threads: Count
    position_weight: Annotated[Float, Field(ge=0)] = 1.0
    warmup_epochs: Annotated[Int, Field(ge=0)] = 5  # of schedule cosine: the rate grows linearly (DeiT)
    plateau_factor: Fraction = 0.6  # of schedule plateau (multi-exit ViT, section IV)
    plateau_patience: Count = 2  # epochs without gain that are borne; the next one lowers the rate
    images: Count | None = None  # train on so many random images, always the same; None: on all
    stop_patience: Count | None = None  # epochs without gain before the training ends; None: it does not end early


class Pretrain(Optimisation):
    """Training from scratch, for model presets without published weights."""

    name = "pretrain"
    seed: Seed


class Finetune(Optimisation):
    """Refinement of the starting weights; `baseline_epochs` is for the baseline alone."""

    name = "finetune"
    baseline_epochs: Count | None


class PruneEval(Section):
    """Accuracy with k layers kept, sequential and arbitrary (section 4.2)."""

    name = "prune_eval"
    keep: Annotated[list[Count], Field(min_length=1)]
    orders: Count
    per: Literal["pass", "batch", "sample"]
    samplers: list[Sampler]
    images: Count | None
    batch_size: Count
    seed: Seed


class Analysis(Section):
    """UMAP of a layer's output and class-token contributions (section 4.3)."""

    name = "analysis"
    variants: Annotated[list[str], Field(min_length=1)]
    layer: Annotated[Int, Field(ge=0)]
    images: Annotated[Int, Field(ge=20)]
    neighbors: Annotated[Int, Field(ge=2)]
    min_dist: Annotated[Float, Field(ge=0, le=1)]
    seed: Seed


class Counting(Section):
    """The data set of :mod:`lsvit.counting`: canvases with objects to count."""

    canvas: Annotated[Int, Field(ge=16)]
    most: Count
    train: Count
    validation: Count
    heldout: Count
    epochs: Count  # at most, of the backbone
    lrs: Annotated[list[Positive], Field(min_length=1)] | None = None  # of the backbone; None: those of `backbone_lrs`
    seed: Seed


BranchName = Literal["mlp", "cnn_ignore", "cnn_add", "cnn_project", "vit", "mixer", "resmlp"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)
Strategy = Literal["classifier_wise", "end_to_end", "layer_wise"]


def _increasing(depths: list[int]) -> list[int]:
    if sorted(set(depths)) != depths:
        raise ValueError("depths in increasing order, each once")
    return depths


Depths = Annotated[list[Count], Field(min_length=1), AfterValidator(_increasing)]


class BranchSizes(Section):
    """Sizes of an exit's branch. The paper gives none; its Table I counts as many operations as 16 channels take."""

    channels: Count = 16
    hidden: Count = 256
    dropout: Fraction = 0.1


class ExitHeads(BranchSizes):
    """Early exits of a model that is trained with them (multi-exit ViT, section II-A): one branch at each depth.

    The loss is final_weight x the last exit's + weight x the sum of the others'. `step` is for the layer-wise strategy: the
    layers up to the step-th depth that come after the depth before it, and its exit, are trained alone.
    """

    branch: BranchName
    depths: Depths
    weight: Positive = 1.0
    final_weight: Positive = 2.0
    step: Annotated[Int, Field(ge=0)] | None = None


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


class Exits(BranchTraining):
    """Early exits: seven branches, three strategies, and a counting task (multi-exit ViT)."""

    name = "exits"
    variants: Annotated[dict[str, Annotated[list[BranchName], Field(min_length=1)] | None], Field(min_length=1)]
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
        return BranchTraining.model_validate(self.model_dump(include=set(BranchTraining.model_fields)))


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
        return {"world_size": self.world_size, "routes": self.routes if self.world_size > 1 else "shared"}


class PaperFigures(Section):
    """Size of the figures."""

    name = "paper_figures"
    column_width: Annotated[Positive, Field(le=20)]
    dpi: Annotated[Count, Field(le=1200)]


class Encode(Section):
    """LayerShuffle-position (section 3.2)."""

    dim: Count = 32
    shared: bool = False
    init: Literal["normal", "zeros"] = "normal"
    dropout: Fraction = 0.0


class Predict(Section):
    """LayerShuffle-predict (section 3.3); the paper does not say which token is read, the published code takes the mean."""

    token: Literal["mean", "class_token"] = "mean"


class Position(Section):
    """Parts attached to the model that know or tell a layer's position."""

    encode: Encode | None = None
    predict: Predict | None = None


class Loss(Section):
    """One of the losses against over-smoothing; in params.yaml a number is its weight."""

    weight: Annotated[Float, Field(ge=0)] = 1.0


class Contrastive(Loss):
    """The patch contrastive loss; `normalize`: of cosines, not of the source's dot products, see :func:`lsvit.losses.patch_contrastive`."""

    normalize: bool = True


class Mixing(Loss):
    """The patch mixing loss; `alpha`: of CutMix's Beta distribution."""

    alpha: Positive = 1.0


LossT = TypeVar("LossT", bound=Loss)


def _number_is_weight(value: Any) -> Any:
    return value if isinstance(value, dict | Loss | None) else {"weight": value}


def _absent_at_zero(loss: LossT | None) -> LossT | None:
    return loss if loss and loss.weight else None


WEIGHT, PRESENT = BeforeValidator(_number_is_weight), AfterValidator(_absent_at_zero)


class Losses(Section):
    """What is added to the class loss against over-smoothing. A weight of 0 is the same as none."""

    cosine: Annotated[Loss | None, WEIGHT, PRESENT] = None
    contrastive: Annotated[Contrastive | None, WEIGHT, PRESENT] = None
    mixing: Annotated[Mixing | None, WEIGHT, PRESENT] = None

    def __str__(self) -> str:
        names = [name for name in type(self).model_fields if getattr(self, name)]
        dot = self.contrastive and not self.contrastive.normalize
        return "+".join(f"{name}_dot" if dot and name == "contrastive" else name for name in names) or "none"


class Recipe(Section):
    """The parts of DeiT's training recipe that over-smoothing's Table 4 removes one at a time; by default all are off.

    `repeats`: repeated augmentation, how often an epoch shows an image; `erasing`: probability of random erasing; `mixup`: alpha of
    the Beta distribution, 0: none; `drop_path`: timm's stochastic depth, of single samples, growing linearly from 0 at the first
    layer to this rate at the last of all the model has (MLP-Mixers: the same in every layer); 0: what the preset's kwargs say.
    """

    repeats: Count = 1
    erasing: Annotated[Float, Field(ge=0, le=1)] = 0.0
    mixup: Annotated[Float, Field(ge=0)] = 0.0
    drop_path: Fraction = 0.0

    def without(self, part: str) -> "Recipe":
        """The recipe with one part as it is by default."""
        return self.model_copy(update={part: type(self).model_fields[part].default})


class Variant(Section):
    """One column of the paper's tables."""

    route: Sampler
    per: Literal["batch", "sample"] = "batch"
    position: Position = Position()
    layers: Count | None = None
    exits: ExitHeads | None = None
    losses: Losses = Losses()
    recipe: Recipe = Recipe()
    talking_heads: bool = False
    finetune: dict[str, Any] = {}


class SmoothingProfiles(Section):
    """Which images the measures of a model are taken over."""

    images: Count
    batch_size: Count
    seed: Seed


class Smoothing(SmoothingProfiles):
    """Over-smoothing: models trained from scratch with and without the losses against it, and profiles of them and of variants."""

    name = "smoothing"
    merged = ("recipe", "kwargs", "training")
    seeds: Count | None
    depths: list[Count]
    losses: list[Losses]
    best: Losses
    removed: list[Literal["repeats", "erasing", "mixup", "drop_path"]]
    talking_heads: list[Count]
    variants: list[str]
    kwargs: dict[str, Any]
    recipe: Recipe
    training: dict[str, Any]
