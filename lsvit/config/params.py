"""params.yaml as a whole: loading, cross-checks, and the resolution of presets.

A value resolves section < scale < model preset < data-set preset < variant, in :meth:`Params.values` and nowhere else. What a scale
says of a model preset comes right after that preset.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar

import yaml
from pydantic import Field, PrivateAttr, ValidationError, create_model

from lsvit.config.datasets import DatasetPreset
from lsvit.config.papers import rooms
from lsvit.config.presets import ModelPreset
from lsvit.config.sections import Distributed, Finetune, Limit, Optimisation, PaperFigures, PaperSection, Pretrain, at_most
from lsvit.config.types import Section, Seed
from lsvit.config.variant import BASELINE, PRETRAINED, UNTRAINED, Variant
from lsvit.errors import UserError, accepted, one_line
from lsvit.latin import forms
from lsvit.routes import generator, limit, make_sampler, sampler_name


class Value(NamedTuple):
    """An effective value and the place in params.yaml it comes from."""

    value: Any
    source: str


SectionT = TypeVar("SectionT", bound=Section)
Overrides = dict[str, Any]


@cache
def paper_sections() -> tuple[type[PaperSection], ...]:
    """The sections of all papers."""
    return tuple(section for module in rooms("section") for section in module.SECTIONS)


class Cell(NamedTuple):
    """What values are resolved for."""

    dataset: str
    model: str
    scale: str


class Scale(Section):
    """How much is computed: values of sections, further variants (null leaves one out), and what differs in model presets."""

    variants: dict[str, Variant | None] = Field(default_factory=dict)
    models: dict[str, Overrides] = Field(default_factory=dict)


class Params(Section):
    """The whole of params.yaml but for the papers' sections, which :func:`whole` adds."""

    dataset: str
    model: str
    scale: str | None  # None: the model's own
    device: Literal["auto", "cpu", "cuda"]
    deterministic: bool
    distributed: Distributed
    seeds: Annotated[list[Seed], Field(min_length=1)]
    protocol: Literal["paper", "heldout"]
    baseline: Variant
    variants: dict[str, Variant]
    pretrain: Pretrain
    finetune: Finetune
    paper_figures: PaperFigures
    scales: dict[str, Any]
    models: dict[str, Any]
    datasets: dict[str, Any]

    _sizes: tuple[int, int, int] | None = PrivateAttr(default=None)  # where only the prepared data know

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def model_preset(self) -> ModelPreset:
        """The chosen entry of `models` as it is at the chosen scale, without its overrides of sections."""
        return self._at_scale(self.cell)

    @property
    def dataset_preset(self) -> DatasetPreset:
        """The chosen entry of `datasets`, without its overrides of sections."""
        return DatasetPreset.model_validate(self.datasets[self.dataset].model_dump(include=set(DatasetPreset.model_fields)))

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Images to train on, to validate on, and held out; None: not known yet."""
        return self._sizes or self.dataset_preset.sizes

    def with_sizes(self, train: int, validation: int, heldout: int) -> Self:
        """The same for so many images: values of sections and scales that exceed them are lowered."""
        found = self.model_copy()
        found._sizes = (train, validation, heldout)
        return found

    def lowered(self) -> list[str]:
        """The values that the number of images lowers, a line each."""

        def limited(params: Params) -> dict[str, Value]:
            sections: tuple[type[Section], ...] = (Pretrain, Finetune, *paper_sections())
            found = {section: params.values(section) for section in sections}
            named = {f"{section.name}.{key}": values[key] for section, values in found.items() for key in section.within}
            trained = [section for section in paper_sections() if "training" in section.model_fields]
            return named | {f"{section.name}.training.batch_size": params.scratch_values(section)["batch_size"] for section in trained}

        given = limited(self.with_sizes(sys.maxsize, sys.maxsize, 0))
        return [f"{key}: {given[key].value} (from {source}) lowered to {value}, the images there are"
                for key, (value, source) in limited(self).items() if value != given[key].value]  # fmt: skip

    def _within_images(self, section: type[Section], values: dict[str, Value], cell: Cell) -> dict[str, Value]:
        """What a section or scale says is lowered where there are fewer images; what a preset or variant says stays, to be refused."""
        if not self.sizes or cell.dataset != self.dataset:
            return values
        for key, split in section.within.items():
            value, source = values[key]
            used = values["images"].value if key == "batch_size" and "images" in values else None
            most = max(min(self.sizes[split == "validation"], used or sys.maxsize), 1)
            if isinstance(value, int) and value > most and source.partition(".")[0] not in ("models", "datasets", "variants"):
                values[key] = Value(most, source)
        return values

    def scale_of(self, model: str) -> str:
        """The chosen scale, or else a model's own."""
        return str(self.models[model].scale) if self.scale is None else self.scale

    @property
    def cell(self) -> Cell:
        """The chosen one."""
        return Cell(self.dataset, self.model, self.scale_of(self.model))

    def _at_scale(self, cell: Cell) -> ModelPreset:
        own = self.models[cell.model].model_dump(include=set(ModelPreset.model_fields))
        changed = self.scales[cell.scale].models.get(cell.model, {})
        kwargs = own["kwargs"] | changed.get("kwargs", {})
        try:
            return ModelPreset.model_validate(own | {key: changed[key] for key in changed if key in own} | {"kwargs": kwargs})
        except ValidationError as error:
            raise UserError(one_line(error, ModelPreset, f"scales.{cell.scale}.models.{cell.model}")) from None

    @property
    def all_variants(self) -> dict[str, Variant]:
        """The baseline first, then the variants as declared, then those of the scale."""
        variants = self.variants | self.scales[self.cell.scale].variants
        return {BASELINE: self.baseline} | {name: variant for name, variant in variants.items() if variant}

    def place_of(self, variant: str) -> str:
        """The key of params.yaml that a variant stands at."""
        if variant in self.scales[self.cell.scale].variants:
            return f"scales.{self.cell.scale}.variants.{variant}"
        return variant if variant == BASELINE else f"variants.{variant}"

    def values(self, section: type[Section], variant: str | None = None) -> dict[str, Value]:
        """Every effective value of a section with its source; `variant` counts for the section `finetune` alone."""
        return self._values(section, self.cell, variant)

    def _layers(self, name: str, cell: Cell) -> Iterator[tuple[str, Overrides]]:
        """What overrides a section, in this order: the place in params.yaml, and the keys there."""
        scale, model, dataset = self.scales[cell.scale], self.models[cell.model], self.datasets[cell.dataset]
        yield f"scales.{cell.scale}.{name}", getattr(scale, name, {})
        yield f"models.{cell.model}.{name}", getattr(model, name, {})
        yield f"scales.{cell.scale}.models.{cell.model}.{name}", scale.models.get(cell.model, {}).get(name, {})
        yield f"datasets.{cell.dataset}.{name}", getattr(dataset, name, {})

    def _values(self, section: type[Section], cell: Cell, variant: str | None) -> dict[str, Value]:
        name = section.name
        layers = [(name, getattr(self, name).model_dump()), *self._layers(name, cell)]
        values: dict[str, Value] = {}
        for where, keys in layers:
            for key, value in keys.items():
                merges = key in section.merged and key in values and isinstance(value, dict)
                values[key] = Value(values[key].value | value if merges else value, where)
        if variant == BASELINE and values["baseline_epochs"].value is not None:
            values["epochs"] = values["baseline_epochs"]
        if variant is not None:
            where, own = self.place_of(variant), self.all_variants[variant]
            values |= {key: Value(value, f"{where}.finetune") for key, value in own.finetune.items()}
            if own.per:
                values["per"] = Value(own.per, where)
            elif values["per"].value not in forms(own.route):
                values["per"] = Value("batch", f"{where}.route")
        return self._within_images(section, values, cell)

    def resolve(self, section: type[SectionT], variant: str | None = None) -> SectionT:
        """The effective section for the chosen model, data set and variant."""
        return resolved(section, self.values(section, variant))

    def scratch_values(self, section: type[PaperSection], cell: Cell | None = None) -> dict[str, Value]:
        """Every effective value of a stage's trainings from scratch: its key `training` wins over what `pretrain` has."""
        cell, name = cell or self.cell, section.name
        values = {key: value for key, value in self._values(Pretrain, cell, None).items() if key != "seed"}
        layers = {name: getattr(self, name).training} | {where: keys.get("training", {}) for where, keys in self._layers(name, cell)}
        values |= {key: Value(value, f"{where}.training") for where, keys in layers.items() for key, value in keys.items()}
        return self._within_images(Optimisation, values, cell)

    def scratch_training(self, section: type[PaperSection]) -> Optimisation:
        """The effective options of a stage's trainings from scratch."""
        return resolved(Optimisation, self.scratch_values(section))

    def scratch_limit(self, section: type[PaperSection], train: int) -> Limit:
        """What the number of images to train on allows a stage's trainings from scratch."""
        training = self.scratch_training(section)
        used = min(train, training.images or train)
        return Limit(f"{section.name}.training.batch_size", training.batch_size, used, f"{used} training images are used")

    def check(self, file: str = "params.yaml") -> None:
        """Cross-checks between sections and of every preset's overrides, used or not.

        Raises:
            UserError: one line naming the key, the value found and what is accepted.
        """
        named = [("model", self.model, self.models), ("dataset", self.dataset, self.datasets)]
        named += [] if self.scale is None else [("scale", self.scale, self.scales)]
        named += [(f"models.{name}.scale", preset.scale, self.scales) for name, preset in self.models.items()]
        named += [(f"scales.{scale}.models", name, self.models) for scale, preset in self.scales.items() for name in preset.models]
        for key, name, table in named:
            if name not in table:
                raise UserError(f"{file}: {key}: found {name!r}, {accepted(name, table)}")
        taken = (BASELINE, PRETRAINED, UNTRAINED, *(name for section in paper_sections() for name in section.taken))
        declared = {"variants": self.variants} | {f"scales.{name}.variants": scale.variants for name, scale in self.scales.items()}
        for where, name, variant in ((where, *item) for where, variants in declared.items() for item in variants.items()):
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]*", name) or name in taken:
                raise UserError(f"{file}: {where}: found the name {name!r}, accepted: letters, digits, _, but not {', '.join(taken)}")
            if variant is None and name not in self.variants:
                raise UserError(f"{file}: {where}: found no such variant as {name!r} to leave out, {accepted(name, self.variants)}")
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise UserError(f"{file}: seeds: found {seed} twice, accepted: each seed once")
        own = self.cell
        cells = [own._replace(model=model, scale=self.scale_of(model)) for model in self.models]
        cells += [own._replace(dataset=dataset) for dataset in self.datasets]
        cells += [own._replace(scale=scale) for scale in self.scales]
        cells += [own._replace(model=model, scale=scale) for scale, preset in self.scales.items() for model in preset.models]
        for cell in dict.fromkeys(cells):
            self._check_cell(cell, file)
        for scale in self.scales:
            self.model_copy(update={"scale": scale})._check_variants(file)
        self.dataset_preset.check_channels(self.model_preset, f"models.{self.model}", file)
        if self.sizes:
            self.check_sizes(*self.sizes, file)
        spread = self.distributed
        if spread.nodes > 1 and not re.fullmatch(r"[^:\s]+:\d+", spread.endpoint or ""):
            raise UserError(f"{file}: distributed.endpoint: found {spread.endpoint!r}, accepted: host:port of the first machine, "
                            f"for {spread.nodes} machines")  # fmt: skip
        trainings = [self.values(Finetune, name) for name in self.all_variants]
        trainings += [self.values(Pretrain)] if self.model_preset.weights == "scratch" else []
        trainings += [self.scratch_values(section) for section in paper_sections() if "training" in section.model_fields]
        for batch, source in (values["batch_size"] for values in trainings):
            if int(batch) < spread.world_size:
                raise UserError(f"{file}: {source}.batch_size: found {batch}, accepted: at least {spread.world_size}, one image a process")
        if self.protocol == "heldout" and not self.dataset_preset.heldout:
            raise UserError(f"{file}: protocol: found 'heldout', accepted: paper ({self.dataset!r} holds no images out; "
                            f"datasets.{self.dataset}.heldout says how many)")  # fmt: skip
        for section in paper_sections():
            for name in getattr(self.resolve(section), "variants", ()):
                if name not in self.all_variants:
                    raise UserError(f"{file}: {section.name}.variants: found {name!r}, {accepted(name, self.all_variants)}")
        for checks in rooms("checks"):
            checks.check(self, file)

    def _check_variants(self, file: str) -> None:
        """Whether the variants of the scale are valid. Raises UserError."""
        for name, variant in self.all_variants.items():
            if self.resolve(Finetune, name).validation_orders != "all":
                raise UserError(f"{file}: {name}: finetune.validation_orders: found 'trained', accepted: all (Table 1 has both orders)")
            if variant.per and variant.per not in (possible := forms(variant.route)):
                key, route = self.place_of(name), sampler_name(variant.route)
                raise UserError(f"{file}: {key}.per: found {variant.per!r}, accepted with route {route}: "
                                f"{', '.join(possible) or 'none, all images run the same layers'}")  # fmt: skip
            if "per" in variant.finetune:
                raise UserError(f"{file}: {name}: finetune.per belongs to the section; accepted here: the variant's own key per")
            if "baseline_epochs" in variant.finetune:
                raise UserError(f"{file}: {name}: finetune.baseline_epochs belongs to the section; accepted here: epochs")
            if variant.exits and variant.exits.step is not None:
                raise UserError(f"{file}: {name}: exits.step: found {variant.exits.step}, accepted: none (the strategy layer_wise sets it)")

    def _check_cell(self, cell: Cell, file: str) -> None:
        """Whether what presets override is valid. Raises UserError."""
        names = {"pretrain", "finetune", *(section.name for section in paper_sections()), *ModelPreset.model_fields} - {"scale"}
        for key, value in self.scales[cell.scale].models.get(cell.model, {}).items():
            where = f"scales.{cell.scale}.models.{cell.model}"
            if key not in names:
                raise UserError(f"{file}: {where}: found {key!r}, {accepted(key, names)}")
            if (key == "kwargs" or key not in ModelPreset.model_fields) and not isinstance(value, dict):
                raise UserError(f"{file}: {where}.{key}: found {value!r}, accepted: a mapping")
        self._at_scale(cell)
        resolved(Pretrain, self._values(Pretrain, cell, None))
        resolved(Finetune, self._values(Finetune, cell, None))
        for section in paper_sections():
            resolved(section, self._values(section, cell, None))
            if "training" in section.model_fields:
                resolved(Optimisation, self.scratch_values(section, cell))

    def check_sizes(self, train: int, validation: int, heldout: int, file: str = "params.yaml") -> None:
        """Checks against the numbers of images to train on, to validate on and held out. Raises UserError as :meth:`check` does."""
        own = self.with_sizes(train, validation, heldout)
        limits = [Limit(f"datasets.{self.dataset}.heldout", heldout, train + heldout - 1, f"{train + heldout} training images are used")]
        scratch = [("pretrain", own.resolve(Pretrain))] if self.model_preset.weights == "scratch" else []
        for key, options in (*scratch, ("finetune", own.resolve(Finetune))):
            limits.append(Limit(f"{key}.batch_size", options.batch_size, train, f"{self.dataset!r} uses {train} training images"))
        for checks in rooms("checks"):
            limits += checks.image_limits(own, train, validation)
        at_most(limits, file)

    def check_layers(self, num_layers: int, file: str = "params.yaml") -> None:
        """Checks against the chosen model's number of layers. Raises UserError as :meth:`check` does."""
        limits = [(f"{self.place_of(name)}.layers", v.layers, num_layers) for name, v in self.all_variants.items() if v.layers]
        for name, v in self.all_variants.items():
            layers = v.layers or num_layers
            if v.exits:
                limits.append((f"{self.place_of(name)}.exits.depths", v.exits.depths[-1], layers - 1))
                if not (isinstance(v.route, dict) and "drop" in v.route):
                    length = len(make_sampler(v.route)(generator("train", 0), layers))
                    limits.append((f"{self.place_of(name)}.exits.depths", v.exits.depths[-1], length))
            if beyond := limit(v.route, layers):
                limits.append((f"{self.place_of(name)}.route", *beyond))
        why = f"model {self.model!r} has {num_layers} layers"
        at_most([Limit(*found, why) for found in limits], file)
        at_most([found for checks in rooms("checks") for found in checks.layer_limits(self, num_layers)], file)


def resolved(section: type[SectionT], values: dict[str, Value]) -> SectionT:
    """The section with these values. Raises UserError naming the place that a wrong one comes from."""
    try:
        return section.model_validate({key: value.value for key, value in values.items()})
    except ValidationError as error:
        where = error.errors()[0]["loc"] or tuple(values)  # a check of several keys has no place of its own
        key = str(where[0])
        raise UserError(one_line(error, section, values[key].source)) from None


@cache
def whole() -> type[Params]:
    """The whole of params.yaml: with the papers' sections, of which, as of the core's, presets may override keys."""
    sections: dict[str, Any] = {section.name: (section, ...) for section in paper_sections()}
    overrides: dict[str, Any] = {name: (Overrides, Field(default_factory=dict)) for name in ("pretrain", "finetune", *sections)}
    kinds: tuple[tuple[str, type[Section]], ...] = (("scales", Scale), ("models", ModelPreset), ("datasets", DatasetPreset))
    for name, kind in kinds:
        preset: Any = create_model(kind.__name__, __base__=kind, **overrides)
        sections[name] = (dict[str, preset], ...)
    return create_model("Params", __base__=Params, **sections)


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
        params = whole().model_validate(content)
    except ValidationError as error:
        raise UserError(one_line(error, whole(), file=path.name)) from None
    params.check(path.name)
    return params
