"""Cross-checks of params.yaml: between sections, of every preset, and against images and layers. They raise UserError, a line a mistake."""

import re
from collections.abc import Iterator

from pipeline.config.params import Cell, Params, resolved
from pipeline.config.presets import ModelPreset
from pipeline.config.samplers import forms, limit, sampler_name
from pipeline.config.sections import Finetune, Limit, Optimisation, Pretrain, at_most
from pipeline.config.variant import BASELINE, PRETRAINED, UNTRAINED
from pipeline.errors import accepted, collect_errors, raise_all


def check(params: Params, file: str = "params.yaml") -> None:
    """Cross-checks between sections and of every preset's overrides, used or not.

    Raises:
        UserError: a line a mistake, naming the key, the value found and what is accepted; of mistaken names before all else, which
            cannot be looked at without them.
    """
    check_names(params, file)
    raise_all(_values(params, file))


def check_names(params: Params, file: str = "params.yaml") -> None:
    """What needs no resolution: names of presets and variants, seeds, machines. Raises UserError as :func:`check` does."""
    raise_all(_names(params, file))


def _names(params: Params, file: str) -> Iterator[str]:
    named = [("model", params.model, params.models), ("dataset", params.dataset, params.datasets)]
    named += [] if params.scale is None else [("scale", params.scale, params.scales)]
    named += [
        (f"models.{name}.scale", preset.scale, params.scales)
        for name, preset in params.models.items()
    ]
    named += [
        (f"scales.{scale}.models", name, params.models)
        for scale, preset in params.scales.items()
        for name in preset.models
    ]
    for key, name, table in named:
        if name not in table:
            yield f"{file}: {key}: found {name!r}, {accepted(name, table)}"
    for key, table in (
        ("models", params.models),
        ("datasets", params.datasets),
        ("scales", params.scales),
    ):
        for name in table:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
                yield f"{file}: {key}: found the name {name!r}, accepted: letters, digits, _, ., -"
    taken = (
        BASELINE,
        PRETRAINED,
        UNTRAINED,
        *(name for section in params.paper_sections for name in section.taken),
    )
    declared = {"variants": params.variants} | {
        f"scales.{name}.variants": scale.variants for name, scale in params.scales.items()
    }
    for where, name, variant in (
        (where, *item) for where, variants in declared.items() for item in variants.items()
    ):
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]*", name) or name in taken:
            yield f"{file}: {where}: found the name {name!r}, accepted: letters, digits, _, but not {', '.join(taken)}"
        if variant is None and name not in params.variants:
            yield f"{file}: {where}: found no such variant as {name!r} to leave out, {accepted(name, params.variants)}"
    for seed in params.seeds:
        if params.seeds.count(seed) > 1:
            yield f"{file}: seeds: found {seed} twice, accepted: each seed once"
    spread = params.distributed
    if spread.nodes > 1 and not re.fullmatch(r"[^:\s]+:\d+", spread.endpoint or ""):
        yield (
            f"{file}: distributed.endpoint: found {spread.endpoint!r}, accepted: host:port of the first machine, "
            f"for {spread.nodes} machines"
        )


def _values(params: Params, file: str) -> Iterator[str]:
    """What presets, scales and variants come to, and what sections say of each other."""
    own = params.cell
    cells = [own._replace(model=model, scale=params.scale_of(model)) for model in params.models]
    cells += [own._replace(dataset=dataset) for dataset in params.datasets]
    cells += [own._replace(scale=scale) for scale in params.scales]
    cells += [
        own._replace(model=model, scale=scale)
        for scale, preset in params.scales.items()
        for model in preset.models
    ]
    broken = [line for cell in dict.fromkeys(cells) for line in _check_cell(params, cell, file)]
    yield from broken
    if params.protocol == "heldout" and not params.dataset_preset.heldout:
        yield (
            f"{file}: protocol: found 'heldout', accepted: paper ({params.dataset!r} holds no images out; "
            f"datasets.{params.dataset}.heldout says how many)"
        )
    if broken:  # nothing can be resolved from them
        return
    for scale in params.scales:
        yield from collect_errors(
            raise_all, _check_variants(params.model_copy(update={"scale": scale}), file)
        )
    if any(collect_errors(params.resolve, Finetune, name) for name in params.all_variants):
        return
    yield from collect_errors(
        params.dataset_preset.check_channels, params.model_preset, f"models.{params.model}", file
    )
    if params.sizes:
        yield from collect_errors(check_sizes, params, *params.sizes, file)
    processes = params.distributed.world_size
    for batch, source in (values["batch_size"] for values in params.trainings()):
        if int(batch) < processes:
            yield f"{file}: {source}.batch_size: found {batch}, accepted: at least {processes}, one image a process"
    unknown = [
        f"{file}: {section.name}.variants: found {name!r}, {accepted(name, params.all_variants)}"
        for section in params.paper_sections
        for name in getattr(params.resolve(section), "variants", ())
        if name not in params.all_variants
    ]
    yield from unknown
    if unknown:
        return
    for paper in params.papers:
        if check_paper := paper.import_function("check"):
            yield from collect_errors(raise_all, check_paper(params, file))


def _check_variants(params: Params, file: str) -> Iterator[str]:
    """What is wrong with the variants of the scale."""
    for name, variant in params.all_variants.items():
        yield from collect_errors(params.resolve, Finetune, name)
        orders, source = params.values(Finetune, name)["validation_orders"]
        if orders != "all":
            yield f"{file}: {source}.validation_orders: found {orders!r}, accepted: all (Table 1 has both orders)"
        if variant.per and variant.per not in (possible := forms(variant.route)):
            key, route = params.place_of(name), sampler_name(variant.route)
            yield (
                f"{file}: {key}.per: found {variant.per!r}, accepted with route {route}: "
                f"{', '.join(possible) or 'none, all images run the same layers'}"
            )
        if "per" in variant.finetune:
            yield f"{file}: {name}: finetune.per belongs to the section; accepted here: the variant's own key per"
        if "baseline_epochs" in variant.finetune:
            yield f"{file}: {name}: finetune.baseline_epochs belongs to the section; accepted here: epochs"


def _check_cell(params: Params, cell: Cell, file: str) -> Iterator[str]:
    """What is wrong with what presets override."""
    names = {
        "pretrain",
        "finetune",
        *(section.name for section in params.paper_sections),
        *ModelPreset.model_fields,
    } - {"scale"}
    where, whole = f"scales.{cell.scale}.models.{cell.model}", True
    for key, value in params.scales[cell.scale].models.get(cell.model, {}).items():
        if key not in names:
            yield f"{file}: {where}: found {key!r}, {accepted(key, names)}"
        elif (key == "kwargs" or key not in ModelPreset.model_fields) and not isinstance(
            value, dict
        ):
            whole = False
            yield f"{file}: {where}.{key}: found {value!r}, accepted: a mapping"
    if not whole:
        return
    yield from collect_errors(params._at_scale, cell)
    yield from collect_errors(resolved, Finetune, params._values(Finetune, cell, None))
    yield from (base := collect_errors(resolved, Pretrain, params._values(Pretrain, cell, None)))
    for section in params.paper_sections:
        yield from (wrong := collect_errors(resolved, section, params._values(section, cell, None)))
        if not base and not wrong and "training" in section.model_fields:
            yield from collect_errors(resolved, Optimisation, params.scratch_values(section, cell))


def check_sizes(
    params: Params, train: int, validation: int, heldout: int, file: str = "params.yaml"
) -> None:
    """Checks against the numbers of images to train on, to validate on and held out. Raises UserError as :meth:`check` does."""
    own = params.with_sizes(train, validation, heldout)
    limits = [
        Limit(
            f"datasets.{params.dataset}.heldout",
            heldout,
            train + heldout - 1,
            f"{train + heldout} training images are used",
        )
    ]
    trainings = [own.values(Finetune, name) for name in own.all_variants]
    trainings += [own.values(Pretrain)] if params.model_preset.weights == "scratch" else []
    for batch, source in (values["batch_size"] for values in trainings):
        limits.append(
            Limit(
                f"{source}.batch_size",
                int(batch),
                train,
                f"{params.dataset!r} uses {train} training images",
            )
        )
    for paper in params.papers:
        if limit_images := paper.import_function("limit_images"):
            limits += limit_images(own, train, validation)
    at_most(limits, file)


def check_layers(params: Params, num_layers: int) -> None:
    """Checks against the chosen model's number of layers. Raises UserError as :meth:`check` does."""
    limits = [
        (f"{params.place_of(name)}.layers", v.layers, num_layers)
        for name, v in params.all_variants.items()
        if v.layers
    ]
    for name, v in params.all_variants.items():
        layers = v.layers or num_layers
        if beyond := limit(v.route, layers):
            limits.append((f"{params.place_of(name)}.route", *beyond))
    why = f"model {params.model!r} has {num_layers} layers"
    more: list[Limit] = []
    for paper in params.papers:
        if limit_layers := paper.import_function("limit_layers"):
            more += limit_layers(params, num_layers)
    at_most([*(Limit(*found, why) for found in limits), *more], "params.yaml")
