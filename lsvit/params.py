"""params.yaml as a whole: loading, cross-checks, and the resolution of presets.

A value resolves section < model preset < data-set preset < variant, in :meth:`Params.resolve` and nowhere else.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import yaml
from pydantic import Field, ValidationError

from lsvit.errors import UserError, accepted, one_line
from lsvit.routes import generator, limit, make_sampler, training_order
from lsvit.sections import (
    Analysis,
    DatasetPreset,
    Distributed,
    Exits,
    Finetune,
    ModelPreset,
    PaperFigures,
    Pretrain,
    PruneEval,
    Section,
    Seed,
    Variant,
)

BASELINE, COUNTING = "baseline", "counting"
TAKEN = (BASELINE, "pretrained", COUNTING)  # names of models in results/ that are no variants


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
    deterministic: bool
    distributed: Distributed
    seeds: Annotated[list[Seed], Field(min_length=1)]
    protocol: Literal["paper", "heldout"]
    baseline: Variant
    variants: dict[str, Variant]
    pretrain: Pretrain
    finetune: Finetune
    prune_eval: PruneEval
    analysis: Analysis
    exits: Exits
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
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]*", name) or name in TAKEN:
                raise UserError(f"{file}: variants: found the name {name!r}, accepted: letters, digits, _, but not {', '.join(TAKEN)}")
        for seed in self.seeds:
            if self.seeds.count(seed) > 1:
                raise UserError(f"{file}: seeds: found {seed} twice, accepted: each seed once")
        for section in (Pretrain, Finetune, PruneEval, Analysis, Exits):
            for model in self.models:
                self._resolved(section, self._values(section, model, self.dataset, None))
            for dataset in self.datasets:
                self._resolved(section, self._values(section, self.model, dataset, None))
        for name, variant in self.all_variants.items():
            self.resolve(Finetune, name)
            if "baseline_epochs" in variant.finetune:
                raise UserError(f"{file}: {name}: finetune.baseline_epochs belongs to the section; accepted here: epochs")
        analysis, data = self.resolve(Analysis), self.dataset_preset
        neighbors = ("analysis.neighbors", analysis.neighbors, analysis.images - 1, f"{analysis.images} images are analysed")
        _at_most([neighbors], file)
        if data.sizes:
            self.check_sizes(*data.sizes, file)
        spread = self.distributed
        if spread.nodes > 1 and not re.fullmatch(r"[^:\s]+:\d+", spread.endpoint or ""):
            raise UserError(f"{file}: distributed.endpoint: found {spread.endpoint!r}, accepted: host:port of the first machine, "
                            f"for {spread.nodes} machines")  # fmt: skip
        trainings = [self.values(Finetune, name) for name in self.all_variants]
        trainings += [self.values(Pretrain)] if self.model_preset.weights == "scratch" else []
        for batch, source in (values["batch_size"] for values in trainings):
            if int(batch) < spread.world_size:
                raise UserError(f"{file}: {source}.batch_size: found {batch}, accepted: at least {spread.world_size}, one image a process")
        if self.protocol == "heldout" and not data.heldout:
            raise UserError(f"{file}: protocol: found 'heldout', accepted: paper ({self.dataset!r} holds no images out; "
                            f"datasets.{self.dataset}.heldout says how many)")  # fmt: skip
        for found in (self.analysis, self.exits, self.resolve(Analysis), self.resolve(Exits)):
            for name in found.variants:
                if name not in self.all_variants:
                    raise UserError(f"{file}: {found.name}.variants: found {name!r}, {accepted(name, self.all_variants)}")
        for name, variant in self.all_variants.items():
            if variant.exits and variant.exits.step is not None:
                raise UserError(f"{file}: {name}: exits.step: found {variant.exits.step}, accepted: none (the strategy layer_wise sets it)")

    def check_sizes(self, train: int, validation: int, heldout: int, file: str = "params.yaml") -> None:
        """Checks against the numbers of images to train on, to validate on and held out. Raises UserError as :meth:`check` does."""
        limits = [
            (f"datasets.{self.dataset}.heldout", heldout, train + heldout - 1, f"{train + heldout} training images are used"),
            ("analysis.images", self.resolve(Analysis).images, validation, f"{self.dataset!r} uses {validation} validation images"),
        ]
        scratch = [("pretrain", self.resolve(Pretrain))] if self.model_preset.weights == "scratch" else []
        for key, options in (*scratch, ("finetune", self.resolve(Finetune))):
            limits += [(f"{key}.batch_size", options.batch_size, train, f"{self.dataset!r} uses {train} training images")]
        exits = self.resolve(Exits)
        if exits.strategies:
            used = min(train, exits.images or train)
            limits += [("exits.batch_size", exits.batch_size, used, f"{used} training images are used")]
        if exits.counting_strategies:
            limits += [("exits.batch_size", exits.batch_size, exits.counting.train, "exits.counting.train canvases are made")]
        _at_most(limits, file)

    def check_layers(self, num_layers: int, file: str = "params.yaml") -> None:
        """Checks against the chosen model's number of layers. Raises UserError as :meth:`check` does."""
        limits = [(f"variants.{name}.layers", v.layers, num_layers) for name, v in self.all_variants.items() if v.layers]
        limits += [("prune_eval.keep", keep, num_layers) for keep in self.resolve(PruneEval).keep]
        limits += [("analysis.layer", self.resolve(Analysis).layer, num_layers - 1)]
        for name in self.resolve(Analysis).variants:
            limits += [("analysis.layer", self.resolve(Analysis).layer, (self.all_variants[name].layers or num_layers) - 1)]
        exits = self.resolve(Exits)
        depths = [("exits.depths", depth) for depth in exits.depths or ()]
        depths += [("exits.placements", depth) for placement in exits.placements for depth in placement]
        limits += [(key, depth, num_layers - 1) for key, depth in depths] + [("exits.keep", exits.keep, num_layers)]
        trained = [(name, v.exits, v.layers or num_layers) for name, v in self.all_variants.items() if v.exits]
        limits += [(f"variants.{name}.exits.depths", heads.depths[-1], layers - 1) for name, heads, layers in trained]
        for name, v in self.all_variants.items():
            if v.exits and not (isinstance(v.route, dict) and "drop" in v.route):
                length = len(make_sampler(v.route)(generator("train", 0), v.layers or num_layers))
                limits += [(f"variants.{name}.exits.depths", v.exits.depths[-1], length)]
        routes = [(f"variants.{name}.route", v.route, v.layers or num_layers) for name, v in self.all_variants.items()]
        limits += [(key, *beyond) for key, spec, layers in routes if (beyond := limit(spec, layers))]
        _at_most([(*found, f"model {self.model!r} has {num_layers} layers") for found in limits], file)
        for name in self.resolve(Exits).variants:
            if training_order(spec := self.all_variants[name].route) == "trained":
                raise UserError(f"{file}: exits.variants: found {name!r} with route {spec!r}, accepted: variants trained in sequential or "
                                "arbitrary order, or with LayerDrop")  # fmt: skip


def _at_most(limits: list[tuple[str, int, int, str]], file: str) -> None:
    """Raises UserError for the first (key, value, greatest accepted, why) whose value is greater."""
    for key, found, most, why in limits:
        if found > most:
            raise UserError(f"{file}: {key}: found {found}, accepted: at most {most} ({why})")


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
