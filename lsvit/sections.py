"""The typed sections and presets of params.yaml, and their validation.

Torch-free, so that a wrong parameter is reported in a fraction of a second and before any compute.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lsvit.routes import check_sampler

SIZES = {  # training, validation images of a source
    "embedded": (10_000, 2_000), "fashion_mnist": (60_000, 10_000), "digits": (1_437, 360),
    "cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "imagenet": (1_281_167, 50_000),
}  # fmt: skip


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


class Optimisation(Section):
    """Hyper-parameters of one training (LayerShuffle, section 4)."""

    optimizer: Literal["adam", "adamw"]
    lr: Positive
    betas: tuple[Fraction, Fraction]
    eps: Positive
    weight_decay: Annotated[Float, Field(ge=0)]
    schedule: Literal["constant", "linear", "one_cycle", "plateau"]
    batch_size: Count
    epochs: Count
    validation_batch_size: Count
    precision: Literal["auto", "fp32", "tf32", "bf16"]
    compile: Literal["auto", "blocks", "none"]
    micro_batch_size: Count | None
    checkpointing: bool
    threads: Count
    position_weight: Annotated[Float, Field(ge=0)] = 1.0
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


class Variant(Section):
    """One column of the paper's tables."""

    route: Sampler
    per: Literal["batch", "sample"] = "batch"
    position: Position = Position()
    layers: Count | None = None
    exits: ExitHeads | None = None
    finetune: dict[str, Any] = {}

    @model_validator(mode="after")
    def _steps_are_plain(self) -> Self:
        if self.exits and self.exits.step is not None:
            if self.exits.step > len(self.exits.depths):
                raise ValueError(f"exits.step\n{self.exits.step}\nat most {len(self.exits.depths)}, the last exit")
            if self.route != "sequential" or self.per == "sample" or self.position != Position():
                raise ValueError(f"route\n{self.route!r}\nsequential, a route a batch and no position parts (exits.step is layer-wise)")
        return self


class Preset(Section):
    """A named model or data set; both may override keys of the stages' sections."""

    pretrain: dict[str, Any] = {}
    finetune: dict[str, Any] = {}
    prune_eval: dict[str, Any] = {}
    analysis: dict[str, Any] = {}
    exits: dict[str, Any] = {}


class ModelPreset(Preset):
    """A timm model: architecture, arguments, and where its weights come from.

    `num_classes`: outputs, None for as many as the data set has classes. `head`: how a distilled DeiT is read; timm averages two
    heads, on the class and on the distillation token, the published code has one, on the class token.
    """

    timm: Annotated[str, Field(min_length=1)]
    kwargs: dict[str, Any] = {}
    weights: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    num_classes: Count | None = None
    head: Literal["timm", "class_token"] = "timm"
    init_std: Positive | None = None

    def local_file(self, root: Path = Path()) -> Path | None:
        """The safetensors file that `weights` names, itself or in a folder of timm's layout; None for scratch and hub."""
        if self.weights in ("scratch", "hub"):
            return None
        path = root / self.weights
        return path / "model.safetensors" if path.is_dir() else path

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not (self.weights in ("scratch", "hub") or self.weights.endswith(".safetensors") or "/" in self.weights):
            raise ValueError(f"weights\n{self.weights!r}\nscratch, hub, a .safetensors file, or a folder with one (with a / in its path)")
        for key, own in (("num_classes", "num_classes"), ("pretrained", "weights")):
            if key in self.kwargs:
                raise ValueError(f"kwargs.{key}\n{self.kwargs[key]!r}\nthe preset's own key {own}")
        numbers = {k: v for k, v in self.kwargs.items() if isinstance(v, int)}
        for key in ("embed_dim", "num_heads", "depth", "patch_size", "img_size"):
            if key in self.kwargs and numbers.get(key, 0) < 1:
                raise ValueError(f"kwargs.{key}\n{self.kwargs[key]!r}\na whole number, at least 1")
        if self.kwargs.get("embed_dim", 0) % self.kwargs.get("num_heads", 1):
            raise ValueError(f"kwargs.num_heads\n{self.kwargs['num_heads']}\na divisor of embed_dim {self.kwargs['embed_dim']}")
        if self.kwargs.get("img_size", 0) % self.kwargs.get("patch_size", 1):
            raise ValueError(f"kwargs.patch_size\n{self.kwargs['patch_size']}\na divisor of img_size {self.kwargs['img_size']}")
        return self


class DatasetPreset(Preset):
    """Where images come from, how many of them are used, and how many of the training images are held out."""

    source: Literal["embedded", "fashion_mnist", "digits", "cifar10", "cifar100", "imagenet", "image_folder"]
    folder: str | None = None
    resize: Literal["published", "timm"] = "published"
    train: Count | None = None
    validation: Count | None = None
    heldout: Count | None = None

    @model_validator(mode="after")
    def _folder_is_given(self) -> Self:
        if self.folder is None and self.source in ("imagenet", "image_folder"):
            raise ValueError("folder\nnull\nthe folder with the images")
        return self

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Images to train on, to validate on, and held out; None where only the source knows."""
        train, validation = SIZES.get(self.source, (None, None))
        train, validation = self.train or train, self.validation or validation
        if train is None or validation is None:
            return None
        return train - (self.heldout or 0), validation, self.heldout or 0
