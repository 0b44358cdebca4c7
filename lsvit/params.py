"""params.yaml as a whole: loading, cross-checks, and the resolution of presets.

A value resolves section < model preset < data-set preset < variant, in :meth:`Params.resolve` and nowhere else.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import yaml
from pydantic import Field, ValidationError

from lsvit.errors import UserError, accepted, one_line
from lsvit.inversion_sections import Family, Inversion
from lsvit.presets import DatasetPreset, ModelPreset
from lsvit.routes import generator, limit, make_sampler, training_order
from lsvit.sections import (
    Analysis,
    Distributed,
    Exits,
    Finetune,
    Optimisation,
    PaperFigures,
    Pretrain,
    PruneEval,
    Section,
    Seed,
    Smoothing,
    Variant,
)

BASELINE, COUNTING, SCRATCH, TRAINED, UNTRAINED = "baseline", "counting", "scratch", "trained", "untrained"
TAKEN = (BASELINE, "pretrained", COUNTING, SCRATCH, TRAINED, UNTRAINED)  # names of models in results/ that are no variants


MIXERS = ("mixer_", "gmixer_", "resmlp_", "gmlp_")  # how timm's names of models without a position embedding begin


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
    smoothing: Smoothing
    inversion: Inversion
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
        values: dict[str, Value] = {}
        for where, keys in layers:
            for key, value in keys.items():
                merges = key in section.merged and key in values and isinstance(value, dict)
                values[key] = Value(values[key].value | value if merges else value, where)
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

    def scratch_values(
        self, section: type[Smoothing | Inversion], model: str | None = None, dataset: str | None = None
    ) -> dict[str, Value]:
        """Every effective value of a stage's trainings from scratch: its key `training` wins over what `pretrain` has."""
        cell = model or self.model, dataset or self.dataset
        values = {key: value for key, value in self._values(Pretrain, *cell, None).items() if key != "seed"}
        name, presets = section.name, {f"models.{cell[0]}": self.models[cell[0]], f"datasets.{cell[1]}": self.datasets[cell[1]]}
        layers = {name: getattr(self, name).training}
        layers |= {f"{where}.{name}": getattr(preset, name).get("training", {}) for where, preset in presets.items()}
        return values | {key: Value(value, f"{where}.training") for where, keys in layers.items() for key, value in keys.items()}

    def scratch_training(self, section: type[Smoothing | Inversion]) -> Optimisation:
        """The effective options of a stage's trainings from scratch."""
        return self._resolved(Optimisation, self.scratch_values(section))

    def smoothing_preset(self, num_layers: int) -> ModelPreset:
        """The chosen model with so many layers and without weights, as stage smoothing trains it."""
        kwargs, source = self.values(Smoothing)["kwargs"]
        own = self.model_preset.model_dump() | {"weights": "scratch", "sha256": None}
        own["kwargs"] = own["kwargs"] | kwargs | {"depth": num_layers}
        return self._resolved(ModelPreset, {key: Value(value, source) for key, value in own.items()})

    def family_preset(self, name: str) -> ModelPreset:
        """A model of stage inversion: the chosen one, or one that the stage trains from scratch."""
        source = self.values(Inversion)["families"].source
        own = self.resolve(Inversion).families[name].model_dump() | {"weights": "scratch"}
        if own["timm"] is None:
            return self.model_preset
        own["kwargs"] = {key: self.model_preset.kwargs[key] for key in ("img_size", "in_chans") if key in self.model_preset.kwargs} | own[
            "kwargs"
        ]
        return self._resolved(ModelPreset, {key: Value(value, f"{source}.families.{name}") for key, value in own.items()})

    @staticmethod
    def _resolved(section: type[SectionT], values: dict[str, Value]) -> SectionT:
        try:
            return section.model_validate({key: value.value for key, value in values.items()})
        except ValidationError as error:
            where = error.errors()[0]["loc"] or tuple(values)  # a check of several keys has no place of its own
            key = str(where[0])
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
        cells = [*((model, self.dataset) for model in self.models), *((self.model, dataset) for dataset in self.datasets)]
        for cell in cells:
            for section in (Pretrain, Finetune, PruneEval, Analysis, Exits, Smoothing, Inversion):
                self._resolved(section, self._values(section, *cell, None))
            for trained in (Smoothing, Inversion):
                self._resolved(Optimisation, self.scratch_values(trained, *cell))
        for name, variant in self.all_variants.items():
            if self.resolve(Finetune, name).validation_orders != "all":
                raise UserError(f"{file}: {name}: finetune.validation_orders: found 'trained', accepted: all (Table 1 has both orders)")
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
        smoothing = self.resolve(Smoothing)
        self._check_smoothing(smoothing, file)
        inversion = self.resolve(Inversion)
        self._check_inversion(inversion, file)
        sections = self.analysis, self.exits, self.smoothing, self.inversion
        for found in (*sections, self.resolve(Analysis), self.resolve(Exits), smoothing, inversion):
            for name in found.variants:
                if name not in self.all_variants:
                    raise UserError(f"{file}: {found.name}.variants: found {name!r}, {accepted(name, self.all_variants)}")
        for name, variant in self.all_variants.items():
            if variant.exits and variant.exits.step is not None:
                raise UserError(f"{file}: {name}: exits.step: found {variant.exits.step}, accepted: none (the strategy layer_wise sets it)")

    def _check_smoothing(self, smoothing: Smoothing, file: str) -> None:
        """Checks of the trainings of stage smoothing. Raises UserError as :meth:`check` does."""
        if "depth" in smoothing.kwargs:
            raise UserError(f"{file}: smoothing.kwargs.depth: found {smoothing.kwargs['depth']}, accepted: smoothing.depths")
        for depth in smoothing.talking_heads:
            if depth not in smoothing.depths:
                raise UserError(
                    f"{file}: smoothing.talking_heads: found {depth}, {accepted(depth, smoothing.depths)} (of smoothing.depths)"
                )
        for depth in smoothing.depths:
            _check_pairs(self.smoothing_preset(depth), "smoothing", file)
        if smoothing.variants:
            _check_pairs(self.model_preset, "smoothing.variants", file)
        for part in smoothing.removed:
            if smoothing.recipe.without(part) == smoothing.recipe:
                parts = [name for name in type(smoothing.recipe).model_fields if smoothing.recipe.without(name) != smoothing.recipe]
                raise UserError(
                    f"{file}: smoothing.removed: found {part!r}, accepted: what smoothing.recipe has ({', '.join(parts) or 'nothing'})"
                )
        for losses in smoothing.losses:
            same = [other for other in smoothing.losses if str(other) == str(losses)]
            if len(same) > 1 or (str(smoothing.best) == str(losses) and smoothing.best != losses):
                why = "the tables have one row for each sum of losses"
                raise UserError(f"{file}: smoothing.losses: found {losses} twice, or with other values in `best`; accepted: once ({why})")

    def _check_inversion(self, inversion: Inversion, file: str) -> None:
        """Checks of the models of stage inversion. Raises UserError as :meth:`check` does."""
        presets = {name: self.family_preset(name) for name in inversion.families}
        if inversion.families.get(self.model, Family()).timm:
            raise UserError(
                f"{file}: inversion.families: found {self.model!r}, accepted: another name for a model that is not the chosen one"
            )
        for key in ("ablations", "transplants"):
            for name in getattr(inversion, key):
                if name not in inversion.families:
                    raise UserError(f"{file}: inversion.{key}: found {name!r}, {accepted(name, inversion.families)}")
        for name, kinds in inversion.transplants.items():
            if presets[name].timm.startswith(MIXERS) and any("pos_embed" in parts for parts in kinds):
                raise UserError(f"{file}: inversion.transplants.{name}: found 'pos_embed', accepted: patch_embed, norm1 "
                                f"({presets[name].timm} has no position embedding)")  # fmt: skip

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
        if self.resolve(Smoothing).depths:
            training = self.scratch_training(Smoothing)
            used = min(train, training.images or train)
            limits += [("smoothing.training.batch_size", training.batch_size, used, f"{used} training images are used")]
        inversion = self.resolve(Inversion)
        limits += [("inversion.images", inversion.images, validation, f"{self.dataset!r} uses {validation} validation images")]
        if any(family.timm for family in inversion.families.values()):
            training = self.scratch_training(Inversion)
            used = min(train, training.images or train)
            limits += [("inversion.training.batch_size", training.batch_size, used, f"{used} training images are used")]
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


def _check_pairs(preset: ModelPreset, key: str, file: str) -> None:
    """Raises UserError if params.yaml tells that images have one patch: the similarity of patches is one of pairs."""
    size, patch = (preset.kwargs.get(name) for name in ("img_size", "patch_size"))
    if size is not None and size == patch:
        raise UserError(
            f"{file}: {key}: found a model whose patch_size {patch} is its img_size, accepted: 2 patches or more, for pairs of them"
        )


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
