"""params.yaml as a whole: loading, cross-checks, and the resolution of presets.

A value resolves section < scale < model preset < data-set preset < variant, in :meth:`Params.values` and nowhere else. What a scale
says of a model preset comes right after that preset.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, PrivateAttr, ValidationError, create_model

from pipeline.config.datasets import DatasetPreset
from pipeline.config.paper import Paper
from pipeline.config.presets import ModelPreset
from pipeline.config.samplers import forms
from pipeline.config.sections import (
    Distributed,
    Finetune,
    Limit,
    Optimisation,
    PaperFigures,
    PaperSection,
    Pretrain,
)
from pipeline.config.types import Section, Seed
from pipeline.config.variant import BASELINE, Variant, variant_class
from pipeline.errors import UserError, line, one_line


class Value(NamedTuple):
    """An effective value and the place in params.yaml it comes from."""

    value: Any
    source: str


SectionT = TypeVar("SectionT", bound=Section)
Overrides = dict[str, Any]
Engine = Literal["local", "ray"]  # what runs jobs


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
    engine: Engine = "local"
    device: Literal["auto", "cpu", "cuda", "mps"]
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

    # None unless only the prepared data know them.
    _sizes: tuple[int, int, int] | None = PrivateAttr(default=None)
    _papers: tuple[Paper, ...] = PrivateAttr(default=())

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def papers(self) -> tuple[Paper, ...]:
        """The papers whose sections the file has."""
        return self._papers

    @property
    def paper_sections(self) -> list[type[PaperSection]]:
        """The sections of all papers."""
        return [section for paper in self._papers for section in paper.sections]

    @property
    def model_preset(self) -> ModelPreset:
        """The chosen entry of `models` as it is at the chosen scale, without its overrides of sections."""
        return self._at_scale(self.cell)

    @property
    def dataset_preset(self) -> DatasetPreset:
        """The chosen entry of `datasets`, without its overrides of sections."""
        return DatasetPreset.model_validate(
            self.datasets[self.dataset].model_dump(include=set(DatasetPreset.model_fields))
        )

    @property
    def starts(self) -> list[int]:
        """Seeds of the starting weights; where weights are given there is one set of them."""
        return self.seeds[
            : self.resolve(Pretrain).seeds if self.model_preset.weights == "scratch" else 1
        ]

    def start_of(self, seed: int) -> int:
        """The seed of the starting weights of the trainings with a seed: the same, or, where there are fewer, each in its turn."""
        return self.starts[self.seeds.index(seed) % len(self.starts)]

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
            sections: tuple[type[Section], ...] = (Pretrain, Finetune, *self.paper_sections)
            found = {section: params.values(section) for section in sections}
            named = {
                f"{section.name}.{key}": values[key]
                for section, values in found.items()
                for key in section.within
            }
            trained = [
                section for section in self.paper_sections if "training" in section.model_fields
            ]
            return named | {
                f"{section.name}.training.batch_size": params.scratch_values(section)["batch_size"]
                for section in trained
            }

        given = limited(self.with_sizes(sys.maxsize, sys.maxsize, 0))
        return [
            f"{key}: {given[key].value} (from {source}) lowered to {value}, the images there are"
            for key, (value, source) in limited(self).items()
            if value != given[key].value
        ]

    def overruled(self, before: "Params") -> list[str]:
        """Values of sections, scales and presets that differ from `before` and that something nearer sets, a line each."""
        found = []
        sections: tuple[type[Section], ...] = (Pretrain, Finetune, *self.paper_sections)
        for section in sections:
            every = [
                self.values(section, name)
                for name in (self.all_variants if section is Finetune else (None,))
            ]
            try:
                old = dict(before._places(section.name, self.cell))
            except KeyError:  # a preset that is new
                continue
            for where, keys in self._places(section.name, self.cell):
                for key in [
                    key
                    for key in keys
                    if key not in section.merged and keys[key] != old[where].get(key)
                ]:
                    nearer = sorted({values[key].source for values in every})
                    if where not in nearer:
                        found.append(
                            f"{where}.{key}: {keys[key]} has no effect with this scale, model and data set: "
                            f"{', '.join(nearer)} says {key}"
                        )
        return found

    def _places(self, name: str, cell: Cell) -> Iterator[tuple[str, Overrides]]:
        """All that sets a section's values, the nearest last: the place in params.yaml, and the keys there."""
        yield name, getattr(self, name).model_dump()
        yield from self._layers(name, cell)

    def _within_images(
        self, section: type[Section], values: dict[str, Value], cell: Cell
    ) -> dict[str, Value]:
        """What a section or scale says is lowered where there are fewer images; what a preset or variant says stays, to be refused."""
        if not self.sizes or cell.dataset != self.dataset:
            return values
        lowered: set[str] = set()
        for (
            key,
            bound,
        ) in (
            section.within.items()
        ):  # a split, or another key, than which it is less, where that has been lowered
            value, source = values[key]
            if bound in values and bound not in lowered:
                continue
            used = values["images"].value if key == "batch_size" and "images" in values else None
            images = (
                values[bound].value - 1 if bound in values else self.sizes[bound == "validation"]
            )
            most = max(min(images, used if isinstance(used, int) else sys.maxsize), 1)
            if (
                isinstance(value, int)
                and value > most
                and re.fullmatch(r"(scales\.\w+\.)?\w+(\.training)?", source)
            ):
                values[key] = Value(most, source)
                lowered.add(key)
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
            return ModelPreset.model_validate(
                own | {key: changed[key] for key in changed if key in own} | {"kwargs": kwargs}
            )
        except ValidationError as error:
            raise UserError(
                one_line(error, ModelPreset, f"scales.{cell.scale}.models.{cell.model}")
            ) from None

    @property
    def all_variants(self) -> dict[str, Any]:
        """The baseline first, then the variants as declared, then those of the scale."""
        variants = self.variants | self.scales[self.cell.scale].variants
        return {BASELINE: self.baseline} | {
            name: variant for name, variant in variants.items() if variant
        }

    def make_variant(self, **keys: Any) -> Any:
        """A variant that params.yaml does not have, of the class with the papers' keys."""
        return type(self.baseline)(**keys)

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
        scale, model, dataset = (
            self.scales[cell.scale],
            self.models[cell.model],
            self.datasets[cell.dataset],
        )
        yield f"scales.{cell.scale}.{name}", getattr(scale, name, {})
        yield f"models.{cell.model}.{name}", getattr(model, name, {})
        yield (
            f"scales.{cell.scale}.models.{cell.model}.{name}",
            scale.models.get(cell.model, {}).get(name, {}),
        )
        yield f"datasets.{cell.dataset}.{name}", getattr(dataset, name, {})

    def _values(self, section: type[Section], cell: Cell, variant: str | None) -> dict[str, Value]:
        name = section.name
        values: dict[str, Value] = {}
        for where, keys in self._places(name, cell):
            for key, value in keys.items():
                merges = key in section.merged and key in values and isinstance(value, dict)
                values[key] = Value(values[key].value | value if merges else value, where)
        if variant == BASELINE and values["baseline_epochs"].value is not None:
            values["epochs"] = values["baseline_epochs"]
        if variant is not None:
            where, own = self.place_of(variant), self.all_variants[variant]
            values |= {
                key: Value(value, f"{where}.finetune") for key, value in own.finetune.items()
            }
            if own.per:
                values["per"] = Value(own.per, where)
            elif values["per"].value not in forms(own.route):
                values["per"] = Value("batch", f"{where}.route")
        return self._within_images(section, values, cell)

    def resolve(self, section: type[SectionT], variant: str | None = None) -> SectionT:
        """The effective section for the chosen model, data set and variant."""
        return resolved(section, self.values(section, variant))

    def scratch_values(
        self, section: type[PaperSection], cell: Cell | None = None
    ) -> dict[str, Value]:
        """Every effective value of a stage's trainings from scratch: its key `training` wins over what `pretrain` has."""
        cell, name = cell or self.cell, section.name
        values = {
            key: value
            for key, value in self._values(Pretrain, cell, None).items()
            if key != "seeds"
        }
        layers = {name: getattr(self, name).training} | {
            where: keys.get("training", {}) for where, keys in self._layers(name, cell)
        }
        values |= {
            key: Value(value, f"{where}.training")
            for where, keys in layers.items()
            for key, value in keys.items()
        }
        return self._within_images(Optimisation, values, cell)

    def scratch_training(self, section: type[PaperSection]) -> Optimisation:
        """The effective options of a stage's trainings from scratch."""
        return resolved(Optimisation, self.scratch_values(section))

    def trainings(self) -> list[dict[str, Value]]:
        """The effective values of all trainings: of the variants, of starting weights from scratch, of papers' own."""
        found = [self.values(Finetune, name) for name in self.all_variants]
        found += [self.values(Pretrain)] if self.model_preset.weights == "scratch" else []
        return found + [
            self.scratch_values(section)
            for section in self.paper_sections
            if "training" in section.model_fields
        ]

    def scratch_limit(self, section: type[PaperSection], train: int) -> Limit:
        """What the number of images to train on allows a stage's trainings from scratch."""
        training = self.scratch_training(section)
        used = min(train, training.images or train)
        return Limit(
            f"{section.name}.training.batch_size",
            training.batch_size,
            used,
            f"{used} training images are used",
        )


def resolved(section: type[SectionT], values: dict[str, Value]) -> SectionT:
    """The section with these values. Raises UserError naming the places that wrong ones come from."""
    try:
        return section.model_validate({key: value.value for key, value in values.items()})
    except ValidationError as error:
        first = next(iter(values.values()))  # a check of several keys has no place of its own
        sources = (
            values.get(str(each["loc"][0]), first).source if each["loc"] else first.source
            for each in error.errors()
        )
        lines = (
            line(each, section, source)
            for each, source in zip(error.errors(), sources, strict=True)
        )
        raise UserError("\n".join(dict.fromkeys(lines))) from None


@cache
def whole(papers: tuple[Paper, ...]) -> type[Params]:
    """The whole of params.yaml: with the papers' sections, of which, as of the core's, presets may override keys."""
    sections: dict[str, Any] = {
        section.name: (section, ...) for paper in papers for section in paper.sections
    }
    overrides: dict[str, Any] = {
        name: (Overrides, Field(default_factory=dict))
        for name in ("pretrain", "finetune", *sections)
    }
    kinds: tuple[tuple[str, type[Section]], ...] = (
        ("scales", Scale),
        ("models", ModelPreset),
        ("datasets", DatasetPreset),
    )
    variant: Any = variant_class(papers)
    of_scales: dict[str, Any] = {
        "variants": (dict[str, variant | None], Field(default_factory=dict))
    }
    for name, kind in kinds:
        fields = overrides | (of_scales if kind is Scale else {})
        preset: Any = create_model(kind.__name__, __base__=kind, **fields)
        sections[name] = (dict[str, preset], ...)
    sections |= {"baseline": (variant, ...), "variants": (dict[str, variant], ...)}
    return create_model("Params", __base__=Params, **sections)
