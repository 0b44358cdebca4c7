"""params.yaml: the typed sections, their validation, and the resolution of presets.

Torch-free, so that a wrong parameter is reported in a fraction of a second and before any compute. A value resolves
section < model preset < data-set preset < variant, in :meth:`Params.resolve` and nowhere else.
"""

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lsvit.errors import UserError, accepted, one_line
from lsvit.routes import check_sampler, limit

BASELINE = "baseline"
SIZES = {"embedded": (10_000, 2_000), "fashion_mnist": (60_000, 10_000), "digits": (1_437, 360)}  # training, validation images of a source


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
    schedule: Literal["constant", "linear", "one_cycle"]
    batch_size: Count
    epochs: Count
    validation_batch_size: Count
    precision: Literal["fp32", "bf16"]
    threads: Count
    position_weight: Annotated[Float, Field(ge=0)] = 1.0


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
    finetune: dict[str, Any] = {}


class Preset(Section):
    """A named model or data set; both may override keys of the stages' sections."""

    pretrain: dict[str, Any] = {}
    finetune: dict[str, Any] = {}
    prune_eval: dict[str, Any] = {}
    analysis: dict[str, Any] = {}


class ModelPreset(Preset):
    """A timm model: architecture, arguments, and where its weights come from."""

    timm: Annotated[str, Field(min_length=1)]
    kwargs: dict[str, Any] = {}
    weights: Annotated[str, Field(pattern=r"^(scratch|hub|.+\.safetensors)$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    init_std: Positive | None = None

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
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

    source: Literal["embedded", "fashion_mnist", "digits"]
    folder: str | None = None
    train: Count | None = None
    validation: Count | None = None
    heldout: Count | None = None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Images to train on, to validate on, and held out."""
        train, validation = SIZES[self.source]
        return (self.train or train) - (self.heldout or 0), self.validation or validation, self.heldout or 0


class Value(NamedTuple):
    """An effective value and the place in params.yaml it comes from."""

    value: Any
    source: str


SectionT = TypeVar("SectionT", bound=Section)


class Params(Section):
    """The whole of params.yaml."""

    dataset: str
    model: str
    device: Literal["auto", "cpu", "cuda"]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    protocol: Literal["paper", "heldout"]
    baseline: Variant
    variants: dict[str, Variant]
    pretrain: Pretrain
    finetune: Finetune
    prune_eval: PruneEval
    analysis: Analysis
    paper_figures: PaperFigures
    models: dict[str, ModelPreset]
    datasets: dict[str, DatasetPreset]

    @property
    def model_preset(self) -> ModelPreset:
        """The chosen entry of `models`."""
        return self.models[self.model]

    @property
    def dataset_preset(self) -> DatasetPreset:
        """The chosen entry of `datasets`."""
        return self.datasets[self.dataset]

    @property
    def all_variants(self) -> dict[str, Variant]:
        """The baseline first, then the variants as declared."""
        return {BASELINE: self.baseline, **self.variants}

    def values(self, section: type[Section], variant: str | None = None) -> dict[str, Value]:
        """Every effective value of a section with its source; `variant` counts for the section `finetune` alone."""
        return self._values(section, self.model, self.dataset, variant)

    def _values(self, section: type[Section], model: str, dataset: str, variant: str | None) -> dict[str, Value]:
        name = section.name
        layers = [(name, getattr(self, name).model_dump())]
        layers.append((f"models.{model}.{name}", getattr(self.models[model], name, {})))
        layers.append((f"datasets.{dataset}.{name}", getattr(self.datasets[dataset], name, {})))
        values = {key: Value(value, where) for where, keys in layers for key, value in keys.items()}
        if variant == BASELINE and values["baseline_epochs"].value is not None:
            values["epochs"] = values["baseline_epochs"]
        if variant is not None:
            where = variant if variant == BASELINE else f"variants.{variant}"
            overrides = self.all_variants[variant].finetune
            values |= {key: Value(value, f"{where}.finetune") for key, value in overrides.items()}
        return values

    def resolve(self, section: type[SectionT], variant: str | None = None) -> SectionT:
        """The effective section for the chosen model, data set and variant."""
        return self._resolved(section, self.values(section, variant))

    @staticmethod
    def _resolved(section: type[SectionT], values: dict[str, Value]) -> SectionT:
        try:
            return section.model_validate({key: value.value for key, value in values.items()})
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            raise UserError(one_line(error, section, values[key].source)) from None

    def check(self, file: str = "params.yaml") -> None:
        """Cross-checks between sections and of every preset's overrides, used or not.

        Raises:
            UserError: one line naming the key, the value found and what is accepted.
        """
        for key, table in (("model", self.models), ("dataset", self.datasets)):
            name = getattr(self, key)
            if name not in table:
                raise UserError(f"{file}: {key}: found {name!r}, {accepted(name, table)}")
        for name in self.variants:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]*", name) or name in (BASELINE, "pretrained"):
                raise UserError(f"{file}: variants: found the name {name!r}, accepted: letters, digits and _, "
                                f"but neither {BASELINE!r} nor 'pretrained'")  # fmt: skip
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise UserError(f"{file}: seeds: found {seed} twice, accepted: each seed once")
        for section in (Pretrain, Finetune, PruneEval, Analysis):
            for model in self.models:
                self._resolved(section, self._values(section, model, self.dataset, None))
            for dataset in self.datasets:
                self._resolved(section, self._values(section, self.model, dataset, None))
        for name, variant in self.all_variants.items():
            self.resolve(Finetune, name)
            if "baseline_epochs" in variant.finetune:
                raise UserError(f"{file}: {name}: finetune.baseline_epochs belongs to the section; accepted here: epochs")
        analysis, data = self.resolve(Analysis), self.dataset_preset
        train, validation, heldout = data.sizes
        limits = [
            (f"datasets.{self.dataset}.heldout", heldout, train + heldout - 1, f"{train + heldout} training images are used"),
            ("analysis.neighbors", analysis.neighbors, analysis.images - 1, f"{analysis.images} images are analysed"),
            ("analysis.images", analysis.images, validation, f"{self.dataset!r} uses {validation} validation images"),
        ]
        for key, options in (("pretrain", self.resolve(Pretrain)), ("finetune", self.resolve(Finetune))):
            limits += [(f"{key}.batch_size", options.batch_size, train, f"{self.dataset!r} uses {train} training images")]
        for key, found, most, why in limits:
            if found > most:
                raise UserError(f"{file}: {key}: found {found}, accepted: at most {most} ({why})")
        if self.protocol == "heldout" and not data.heldout:
            raise UserError(f"{file}: protocol: found 'heldout', accepted: paper ({self.dataset!r} holds no images out; "
                            f"datasets.{self.dataset}.heldout says how many)")  # fmt: skip
        for name in self.resolve(Analysis).variants:
            if name not in self.all_variants:
                raise UserError(f"{file}: analysis.variants: found {name!r}, {accepted(name, self.all_variants)}")

    def check_layers(self, num_layers: int, file: str = "params.yaml") -> None:
        """Checks against the chosen model's number of layers. Raises UserError as :meth:`check` does."""
        limits = [(f"variants.{name}.layers", v.layers, num_layers) for name, v in self.all_variants.items() if v.layers]
        limits += [("prune_eval.keep", keep, num_layers) for keep in self.resolve(PruneEval).keep]
        limits += [("analysis.layer", self.resolve(Analysis).layer, num_layers - 1)]
        for name in self.resolve(Analysis).variants:
            limits += [("analysis.layer", self.resolve(Analysis).layer, (self.all_variants[name].layers or num_layers) - 1)]
        routes = [(f"variants.{name}.route", v.route, v.layers or num_layers) for name, v in self.all_variants.items()]
        limits += [(key, *beyond) for key, spec, layers in routes if (beyond := limit(spec, layers))]
        for key, found, most in limits:
            if found > most:
                raise UserError(f"{file}: {key}: found {found}, accepted: at most {most} (model {self.model!r} has {num_layers} layers)")


def load(path: str | Path = "params.yaml") -> Params:
    """Read, validate and cross-check a parameter file.

    Raises:
        UserError: one line naming the file, the key, the value found, what is accepted and the nearest known name.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: not found; run in the repository's root") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: found {type(content).__name__}, accepted: a mapping of sections")
    try:
        params = Params.model_validate(content)
    except ValidationError as error:
        raise UserError(one_line(error, Params, file=path.name)) from None
    params.check(path.name)
    return params
