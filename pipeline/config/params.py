"""params.yaml as a whole, and the values of its sections for the chosen data set, model and
scale."""

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    StrictBool,
    ValidationError,
    create_model,
)

from pipeline.config.datasets import DatasetPreset
from pipeline.config.paper import Paper
from pipeline.config.presets import OWN_WEIGHTS, ModelPreset
from pipeline.config.resolve import Overrides, SectionT, Sizes, Value, lower, merge, resolved
from pipeline.config.samplers import forms
from pipeline.config.sections import (
    Distributed,
    Finetune,
    Optimisation,
    PaperFigures,
    PaperSection,
    Pretrain,
)
from pipeline.config.types import Count, Section, Seed
from pipeline.config.variant import BASELINE, Variant, variant_class
from pipeline.errors import UserError, describe_errors

Engine = Literal["local", "ray"]  # what runs jobs
AUTO: Literal["auto"] = "auto"


def _check_papers(value: Any) -> Any:
    if isinstance(value, str):
        return value if value == AUTO else [value]
    is_names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if not is_names or not value or len(set(value)) < len(value):
        raise ValueError("auto, or a list of names of papers, each once")
    return value


class Cell(NamedTuple):
    """What values are resolved for."""

    dataset: str
    model: str
    scale: str


class Scale(Section):
    """How much is computed: sections beside these keys override values at the scale."""

    variants: dict[str, Variant | None] = Field(default_factory=dict)
    """On top of `variants`."""
    finetune_of: dict[str, Overrides] = Field(default_factory=dict)
    """Keys of `finetune` for single variants, the baseline too."""
    models: dict[str, Overrides] = Field(default_factory=dict)
    """What differs in model presets at this scale."""


class Params(Section):
    """The whole of params.yaml but for the papers' sections, which :func:`whole` adds."""

    dataset: str
    """A key of `datasets`."""
    model: str
    """A key of `models`."""
    scale: str | None
    """How much is computed, a key of `scales`; null: the model's own."""
    papers: Annotated[Literal["auto"] | list[str], BeforeValidator(_check_papers)] = AUTO
    """Which papers run, as [layershuffle, exits]; the stages of others end at once. auto: all for
    models from scratch, LayerShuffle alone for given weights."""
    engine: Engine = "local"
    """local: worker processes of this machine. ray: the cluster at the environment's
    RAY_ADDRESS."""
    workers: Count | None = None
    """Jobs side by side on this machine; null: one a GPU, or one per `threads` cores that this
    process may use (affinity, CPU quota of the container). At most one a GPU."""
    device: Literal["auto", "cpu", "cuda", "mps"]
    """auto: CUDA where there is one. mps is untested."""
    deterministic: bool
    """true: CUDA runs repeat bit for bit, more slowly; on a CPU they do anyway."""
    portable: StrictBool = True
    """true: on a CPU the same bytes on every x86-64 processor of one maker (AMD, Intel) with AVX2;
    of all makers with MKL_CBWR=COMPATIBLE in the environment. false: whatever instructions the
    processor has, which wide models in bf16 gain by."""
    distributed: Distributed
    seeds: Annotated[list[Seed], Field(min_length=1)]
    """Every variant is trained once per seed; the paper uses 5."""
    protocol: Literal["paper", "heldout"]
    """Which images choose the epoch. paper: the reported validation images, as published. heldout:
    images held out of the training set, see `datasets`; the validation images only report."""
    baseline: Variant
    variants: dict[str, Variant | None]
    """null leaves one out."""
    pretrain: Pretrain
    finetune: Finetune
    paper_figures: PaperFigures
    scales: dict[str, Any]
    models: dict[str, Any]
    datasets: dict[str, Any]

    all_papers: ClassVar[tuple[Paper, ...]] = ()  # whose sections the file has

    # None unless only the prepared data know them.
    _sizes: Sizes | None = PrivateAttr(default=None)
    # The chosen model with what the folder of its weights says of it.
    _model: ModelPreset | None = PrivateAttr(default=None)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    # ---- papers ----

    @property
    def running(self) -> list[Paper]:
        """The papers that run. Raises UserError as :meth:`declared_preset`."""
        if self.papers != AUTO:
            return [paper for paper in self.all_papers if paper.name in self.papers]
        from_scratch = self.model_preset.weights in OWN_WEIGHTS
        return [paper for paper in self.all_papers if paper.main or from_scratch]

    @property
    def paper_sections(self) -> list[type[PaperSection]]:
        """The sections of all papers."""
        return [section for paper in self.all_papers for section in paper.sections]

    @property
    def running_sections(self) -> list[type[PaperSection]]:
        """The sections of the papers that run."""
        return [section for paper in self.running for section in paper.sections]

    @property
    def scratch_sections(self) -> list[type[PaperSection]]:
        """Those of them whose stages train models from scratch."""
        return [section for section in self.running_sections if "training" in section.model_fields]

    # ---- presets ----

    def scale_of(self, model: str) -> str:
        """The chosen scale, or else a model's own."""
        return str(self.models[model].scale) if self.scale is None else self.scale

    @property
    def cell(self) -> Cell:
        """The chosen data set, model and scale."""
        return Cell(self.dataset, self.model, self.scale_of(self.model))

    @property
    def at_scale(self) -> Any:
        """The chosen entry of `scales`."""
        return self.scales[self.cell.scale]

    def at(self, **names: str) -> Self:
        """The same parameters with another `dataset`, `model` or `scale` chosen."""
        params = self.model_copy(update=names)
        params._model = None
        if params.dataset != self.dataset:
            params._sizes = None
        return params

    @property
    def model_preset(self) -> ModelPreset:
        """The chosen model as it is at the chosen scale, without its overrides of sections."""
        return self._model or self.declared_preset()

    def with_model(self, preset: ModelPreset) -> Self:
        """The same parameters with what is known of the chosen model."""
        params = self.model_copy()
        params._model = preset
        return params

    def declared_preset(self) -> ModelPreset:
        """The chosen model as params.yaml has it at the chosen scale.

        Raises:
            UserError: a value of the scale does not fit.
        """
        preset = self.models[self.model].narrow(ModelPreset)
        changes = self.at_scale.models.get(self.model, {})
        values = preset.model_dump()
        values |= {key: changes[key] for key in changes if key in values}
        values["kwargs"] = preset.kwargs | changes.get("kwargs", {})
        try:
            return ModelPreset.model_validate(values)
        except ValidationError as error:
            place = f"scales.{self.cell.scale}.models.{self.model}"
            raise UserError(describe_errors(error, ModelPreset, place)) from None

    @property
    def dataset_preset(self) -> DatasetPreset:
        """The chosen entry of `datasets`, without its overrides of sections."""
        return self.datasets[self.dataset].narrow(DatasetPreset)

    @property
    def sizes(self) -> Sizes | None:
        """Images to train on, to validate on, and held out; None: not known yet."""
        return self._sizes or self.dataset_preset.sizes

    def with_sizes(self, train: int, validation: int, heldout: int) -> Self:
        """The same parameters for so many images."""
        params = self.model_copy()
        params._sizes = (train, validation, heldout)
        return params

    # ---- seeds and variants ----

    @property
    def starts(self) -> list[int]:
        """Seeds of the starting weights; of given weights there is one set."""
        has_own = self.model_preset.weights in OWN_WEIGHTS
        count = self.resolve(Pretrain).seeds if has_own else 1
        return self.seeds[:count]

    def start_of(self, seed: int) -> int:
        """The seed of the starting weights of the trainings with a seed.

        If there are fewer sets of starting weights than seeds, they are taken in turn.
        """
        return self.starts[self.seeds.index(seed) % len(self.starts)]

    @property
    def all_variants(self) -> dict[str, Any]:
        """The baseline first, then the variants as declared, then those of the scale."""
        variants = self.variants | self.at_scale.variants
        used = {name: variant for name, variant in variants.items() if variant}
        return {BASELINE: self.baseline} | used

    def make_variant(self, **keys: Any) -> Any:
        """A variant that params.yaml does not have, of the class with the papers' keys."""
        return type(self.baseline)(**keys)

    def place_of(self, variant: str) -> str:
        """The key of params.yaml that a variant stands at."""
        if variant == BASELINE:
            return variant
        if variant in self.at_scale.variants:
            return f"scales.{self.cell.scale}.variants.{variant}"
        return f"variants.{variant}"

    # ---- values ----

    def layers(self, name: str) -> dict[str, Overrides]:
        """All places that set values of a section, and those values; the nearest last."""
        dataset, model, scale = self.cell
        changes = self.at_scale.models.get(model, {})
        return {
            name: getattr(self, name).model_dump(),
            f"scales.{scale}.{name}": getattr(self.at_scale, name, {}),
            f"models.{model}.{name}": getattr(self.models[model], name, {}),
            f"scales.{scale}.models.{model}.{name}": changes.get(name, {}),
            f"datasets.{dataset}.{name}": getattr(self.datasets[dataset], name, {}),
        }

    def values(self, section: type[Section], variant: str | None = None) -> dict[str, Value]:
        """Every effective value of a section with its source.

        Section < scale < model preset < the scale's values for that model < data-set preset <
        variant. `variant` counts for the section `finetune` alone. Values that exceed the images
        there are come lowered, see :func:`pipeline.config.resolve.lower`.
        """
        values = merge(section, self.layers(section.name))
        if variant is not None:
            self._set_variant(values, variant)
        return lower(section, values, self.sizes, self.cell.scale, [section.name])

    def _set_variant(self, values: dict[str, Value], name: str) -> None:
        """Set what a variant says of its refinement."""
        if name == BASELINE and values["baseline_epochs"].value is not None:
            values["epochs"] = values["baseline_epochs"]
        place = self.place_of(name)
        variant = self.all_variants[name]
        for key, value in self.at_scale.finetune_of.get(name, {}).items():
            values[key] = Value(value, f"scales.{self.cell.scale}.finetune_of.{name}")
        for key, value in variant.finetune.items():
            values[key] = Value(value, f"{place}.finetune")
        if variant.per:
            values["per"] = Value(variant.per, place)
        elif values["per"].value not in forms(variant.route):
            values["per"] = Value("batch", f"{place}.route")

    def scratch_values(self, section: type[PaperSection]) -> dict[str, Value]:
        """Every effective value of the trainings from scratch of a paper's stage.

        Its key `training` overrides `pretrain`.
        """
        values = merge(Pretrain, self.layers(Pretrain.name))
        del values["seeds"]
        training = {
            f"{place}.training": keys.get("training", {})
            for place, keys in self.layers(section.name).items()
        }
        values |= merge(Optimisation, training)
        names = [Pretrain.name, f"{section.name}.training"]
        return lower(Optimisation, values, self.sizes, self.cell.scale, names)

    def resolve(self, section: type[SectionT], variant: str | None = None) -> SectionT:
        """The effective section for the chosen cell and variant. Raises UserError."""
        return resolved(section, self.values(section, variant))

    def scratch_training(self, section: type[PaperSection]) -> Optimisation:
        """The effective options of a stage's trainings from scratch. Raises UserError."""
        return resolved(Optimisation, self.scratch_values(section))

    def trainings(self) -> list[dict[str, Value]]:
        """The effective values of all trainings: refinements, starting weights, papers' own."""
        trainings = [self.values(Finetune, name) for name in self.all_variants]
        if self.model_preset.weights == "scratch":
            trainings.append(self.values(Pretrain))
        return trainings + [self.scratch_values(section) for section in self.scratch_sections]


@cache
def whole(papers: tuple[Paper, ...]) -> type[Params]:
    """The type of the whole params.yaml, with the papers' sections.

    Scales and presets may override keys of every section, `paper_figures` apart.
    """
    fields: dict[str, Any] = {
        section.name: (section, ...) for paper in papers for section in paper.sections
    }
    overrides: dict[str, Any] = {
        name: (Overrides, Field(default_factory=dict))
        for name in (Pretrain.name, Finetune.name, *fields)
    }
    variant: Any = variant_class(papers)
    variants: Any = (dict[str, variant | None], Field(default_factory=dict))
    scale: Any = create_model("Scale", __base__=Scale, variants=variants, **overrides)
    model: Any = create_model("ModelPreset", __base__=ModelPreset, **overrides)
    dataset: Any = create_model("DatasetPreset", __base__=DatasetPreset, **overrides)
    fields |= {
        "baseline": (variant, ...),
        "variants": (dict[str, variant | None], ...),
        "scales": (dict[str, scale], ...),
        "models": (dict[str, model], ...),
        "datasets": (dict[str, dataset], ...),
    }
    made = create_model("Params", __base__=Params, **fields)
    made.all_papers = papers
    return made
