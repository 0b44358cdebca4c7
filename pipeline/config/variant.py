"""What is compared: a variant of params.yaml, made of orthogonal keys. No torch here."""

from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.config.types import (
    NUMBER,
    Count,
    Depths,
    Fraction,
    NonNegative,
    Per,
    Positive,
    Sampler,
    Section,
    Share,
)

BASELINE, PRETRAINED, UNTRAINED = (
    "baseline",
    "pretrained",
    "untrained",
)  # names of models in results/ that no variant may have


BranchName = Literal["mlp", "cnn_ignore", "cnn_add", "cnn_project", "vit", "mixer", "resmlp"]
BRANCHES: tuple[BranchName, ...] = get_args(BranchName)


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
    step: Annotated[int, Field(ge=0), NUMBER] | None = None


class Encode(Section):
    """LayerShuffle-position (section 3.2).

    `dim`: of the embedding; None: the paper's share of the width, 32 of 768. `std`: of the projections' initial weights; None: what
    torch's initialisation has at the paper's width, 0.0204, which at the width of a micro model would be several times larger.
    """

    dim: Count | None = None
    std: Positive | None = None
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

    weight: NonNegative = 1.0


class Contrastive(Loss):
    """The patch contrastive loss; `normalize`: of cosines, not of the source's dot products.

    See :func:`pipeline.training.losses.patch_contrastive`.
    """

    normalize: bool = True


class Mixing(Loss):
    """The patch mixing loss; `alpha`: of CutMix's Beta distribution."""

    alpha: Positive = 1.0


LossT = TypeVar("LossT", bound=Loss)


def _number_is_weight(value: Any) -> Any:
    return value if isinstance(value, dict | Loss | None) else {"weight": value}


def _absent_at_zero(loss: LossT | None) -> LossT | None:
    return loss if loss and loss.weight else None


def _weighed(kind: type[Loss]) -> BeforeValidator:
    return BeforeValidator(_number_is_weight, json_schema_input_type=kind | float | None)


PRESENT = AfterValidator(_absent_at_zero)


class Losses(Section):
    """What is added to the class loss against over-smoothing. A weight of 0 is the same as none."""

    cosine: Annotated[Loss | None, _weighed(Loss), PRESENT] = None
    contrastive: Annotated[Contrastive | None, _weighed(Contrastive), PRESENT] = None
    mixing: Annotated[Mixing | None, _weighed(Mixing), PRESENT] = None

    def __str__(self) -> str:
        names = [name for name in type(self).model_fields if getattr(self, name)]
        dot = self.contrastive and not self.contrastive.normalize
        return (
            "+".join(f"{name}_dot" if dot and name == "contrastive" else name for name in names)
            or "none"
        )


class Recipe(Section):
    """The parts of DeiT's training recipe that over-smoothing's Table 4 removes one at a time; by default all are off.

    `repeats`: repeated augmentation, how often an epoch shows an image; `erasing`: probability of random erasing; `mixup`: alpha of
    the Beta distribution, 0: none; `drop_path`: timm's stochastic depth, of single samples, growing linearly from 0 at the first
    layer to this rate at the last of all the model has (MLP-Mixers: the same in every layer); 0: what the preset's kwargs say.
    """

    repeats: Count = 1
    erasing: Share = 0.0
    mixup: NonNegative = 0.0
    drop_path: Fraction = 0.0

    def without(self, part: str) -> "Recipe":
        """The recipe with one part as it is by default."""
        return self.model_copy(update={part: type(self).model_fields[part].default})


class Variant(Section):
    """One column of the paper's tables."""

    route: Sampler
    per: Per | None = None
    position: Position = Position()
    layers: Count | None = None
    exits: ExitHeads | None = None
    losses: Losses = Losses()
    recipe: Recipe = Recipe()
    talking_heads: bool = False
    finetune: dict[str, Any] = Field(default_factory=dict)


PLAIN = Variant(route="sequential")
