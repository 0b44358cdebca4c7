"""Cross-checks of params.yaml: between sections, of every preset, against images and layers."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.params import AUTO, Params
from pipeline.config.presets import ModelPreset
from pipeline.config.resolve import Value, find_most
from pipeline.config.samplers import ORDERLESS, forms, limit, sampler_name
from pipeline.config.sections import Finetune, Optimisation, Pretrain
from pipeline.config.types import AtMost, Section
from pipeline.config.variant import BASELINE, PRETRAINED, UNTRAINED, Variant
from pipeline.errors import at_most, collect_errors, mistake, raise_all, unknown_name

PRESET_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
VARIANT_NAME = r"[A-Za-z0-9][A-Za-z0-9_]*"
ENDPOINT = r"[^:\s]+:\d+"


def check(params: Params) -> None:
    """Check sections against each other, and every preset, used or not.

    Raises:
        UserError: a line a mistake. Mistaken names come alone: nothing else can be looked at.
    """
    check_names(params)
    raise_all(_check_values(params))


def check_names(params: Params) -> None:
    """Check names of presets and variants, seeds, machines. Raises UserError."""
    lines = [*_check_presets(params), *_check_variant_names(params)]
    for seed in params.seeds:
        if params.seeds.count(seed) > 1:
            lines.append(f"params.yaml: seeds: found {seed} twice, accepted: each seed once")
    spread = params.distributed
    if spread.nodes > 1 and not re.fullmatch(ENDPOINT, spread.endpoint or ""):
        wanted = f"host:port of the first machine, for {spread.nodes} machines"
        lines.append(mistake("distributed.endpoint", spread.endpoint, wanted))
    raise_all(lines)


def _check_presets(params: Params) -> Iterator[str]:
    chosen: list[tuple[str, str, Mapping[str, Any]]] = [
        ("model", params.model, params.models),
        ("dataset", params.dataset, params.datasets),
    ]
    papers = {paper.name: paper for paper in params.all_papers}
    names = list(papers) if params.papers == AUTO else params.papers
    chosen += [("papers", name, papers) for name in names]
    for name, paper in papers.items():
        if paper.main and name not in names and papers.keys() >= {*names}:
            wanted = f"a list with {name!r}, whose models the others look into"
            yield mistake("papers", names, wanted)
    if params.scale is not None:
        chosen.append(("scale", params.scale, params.scales))
    for name, model in params.models.items():
        chosen.append((f"models.{name}.scale", model.scale, params.scales))
    for name, scale in params.scales.items():
        chosen += [(f"scales.{name}.models", model, params.models) for model in scale.models]
    for key, name, presets in chosen:
        if name not in presets:
            yield unknown_name(key, name, presets)
    for key in ("models", "datasets", "scales"):
        for name in getattr(params, key):
            if not re.fullmatch(PRESET_NAME, name):
                wanted = "letters, digits, _, ., -"
                yield f"params.yaml: {key}: found the name {name!r}, accepted: {wanted}"


def _check_variant_names(params: Params) -> Iterator[str]:
    taken = [BASELINE, PRETRAINED, UNTRAINED]
    for section in params.paper_sections:
        taken += section.taken
    declared: dict[str, Mapping[str, Variant | None]] = {"variants": params.variants}
    for name, scale in params.scales.items():
        declared[f"scales.{name}.variants"] = scale.variants
    for place, variants in declared.items():
        for name, variant in variants.items():
            if not re.fullmatch(VARIANT_NAME, name) or name in taken:
                wanted = f"letters, digits, _, but not {', '.join(taken)}"
                yield f"params.yaml: {place}: found the name {name!r}, accepted: {wanted}"
            if variant is None and name not in params.variants:
                yield unknown_name(place, name, params.variants)
    for scale_name, scale in params.scales.items():
        known = {BASELINE} | params.variants.keys() | scale.variants.keys()
        for name in scale.finetune_of:
            if name not in known:
                yield unknown_name(f"scales.{scale_name}.finetune_of", name, sorted(known))


def _check_values(params: Params) -> list[str]:
    """Check what presets, scales and variants come to, and sections against each other."""
    lines = []
    if params.protocol == "heldout" and not params.dataset_preset.heldout:
        wanted = f"paper (datasets.{params.dataset}.heldout says how many images are held out)"
        lines.append(mistake("protocol", "heldout", wanted))
    unresolved = [line for names in _cells(params) for line in _check_cell(params.at(**names))]
    if unresolved:
        return unresolved + lines
    for scale in params.scales:
        lines += _check_variants(params.at(scale=scale))
    if any(collect_errors(params.resolve, Finetune, name) for name in params.all_variants):
        return lines
    model = f"models.{params.model}"
    lines += params.dataset_preset.check_channels(params.model_preset.kwargs, model)
    lines += _check_bounds(params)
    processes = params.distributed.world_size
    for values in params.trainings():
        batch = values["batch_size"]
        if int(batch.value) < processes:
            wanted = f"at least {processes}, one image a process"
            lines.append(mistake(f"{batch.source}.batch_size", batch.value, wanted))
    unknown = []
    for section in params.running_sections:
        for name in getattr(params.resolve(section), "variants", ()):
            key = f"{section.name}.variants"
            if name not in params.all_variants:
                unknown.append(unknown_name(key, name, params.all_variants))
            elif params.all_variants[name].route in ORDERLESS and not section.takes_orderless:
                lines.append(mistake(key, name, "variants that run each of their layers once"))
    if not unknown:
        for paper in params.running:
            lines += paper.run("check", params)
    return lines + unknown


def _cells(params: Params) -> list[dict[str, str]]:
    """What else is chosen where every preset is used, at least once."""
    cells = [{"model": model} for model in params.models]
    cells += [{"dataset": dataset} for dataset in params.datasets]
    for name, scale in params.scales.items():
        cells += [{"scale": name, "model": model} for model in (params.model, *scale.models)]
    return cells


def _check_cell(params: Params) -> list[str]:
    """Check the values that presets override."""
    lines = list(_check_overrides(params))
    if lines:
        return lines
    lines += collect_errors(params.declared_preset)
    lines += collect_errors(params.resolve, Finetune)
    pretrain = collect_errors(params.resolve, Pretrain)
    lines += pretrain
    for section in params.paper_sections:
        own = collect_errors(params.resolve, section)
        lines += own
        if not pretrain and not own and "training" in section.model_fields:
            lines += collect_errors(params.scratch_training, section)
    return lines


def _check_overrides(params: Params) -> Iterator[str]:
    """Check the keys of what a scale says of a model preset, and that mappings are mappings."""
    sections = {Pretrain.name, Finetune.name, *(paper.name for paper in params.paper_sections)}
    known = sections | ModelPreset.model_fields.keys() - {"scale"}
    _, model, scale = params.cell
    place = f"scales.{scale}.models.{model}"
    for key, value in params.at_scale.models.get(model, {}).items():
        if key not in known:
            yield unknown_name(place, key, sorted(known))
        elif key in sections | {"kwargs"} and not isinstance(value, dict):
            yield mistake(f"{place}.{key}", value, "a mapping")


def _check_variants(params: Params) -> Iterator[str]:
    """Check the variants of the chosen scale."""
    for name, variant in params.all_variants.items():
        place = params.place_of(name)
        yield from collect_errors(params.resolve, Finetune, name)
        orders = params.values(Finetune, name)["validation_orders"]
        if orders.value != "all":
            wanted = "all (Table 1 has both orders)"
            yield mistake(f"{orders.source}.validation_orders", orders.value, wanted)
        if variant.teacher and (name == BASELINE or variant.route == "sequential"):
            wanted = "null, as the model runs in its original order"
            yield mistake(f"{place}.teacher", variant.teacher, wanted)
        possible = forms(variant.route)
        if variant.per and variant.per not in possible:
            names = ", ".join(possible) or "none, all images run the same layers"
            yield (
                f"params.yaml: {place}.per: found {variant.per!r}, "
                f"accepted with route {sampler_name(variant.route)}: {names}"
            )
        for key, own_key in (("per", "the variant's own key per"), ("baseline_epochs", "epochs")):
            if key in variant.finetune or key in params.at_scale.finetune_of.get(name, {}):
                yield (
                    f"params.yaml: {name}: finetune.{key} belongs to the section; "
                    f"accepted here: {own_key}"
                )


def _check_bounds(params: Params) -> Iterator[str]:
    """Check numbers against the images there are, as far as they are known, and other keys."""
    if params.sizes:
        train, _, heldout = params.sizes
        used = train + heldout
        key = f"datasets.{params.dataset}.heldout"
        yield from at_most(key, heldout, used - 1, f"{used} training images are used")
    bounded: list[tuple[type[Section], dict[str, Value]]] = []
    bounded += [(Optimisation, values) for values in params.trainings()]
    bounded += [(section, params.values(section)) for section in params.running_sections]
    for section, values in bounded:
        for key, bound in section.marks(AtMost).items():
            most = find_most(bound, values, params.sizes)
            if most is not None:
                why = _explain(bound, params.dataset)
                yield from at_most(f"{values[key].source}.{key}", values[key].value, most, why)


def _explain(bound: AtMost, dataset: str) -> str:
    splits = {"train": "training", "validation": "validation"}
    if bound.of in splits:
        return f"so many {splits[bound.of]} images of {dataset!r} are used"
    return f"less than `{bound.of}`"


def check_layers(params: Params, num_layers: int) -> None:
    """Check against the chosen model's number of layers. Raises UserError."""
    why = f"model {params.model!r} has {num_layers} layers"
    lines: list[str] = []
    for name, variant in params.all_variants.items():
        place = params.place_of(name)
        layers = variant.layers or num_layers
        lines += at_most(f"{place}.layers", layers, num_layers, why)
        if beyond := limit(variant.route, layers):
            lines += at_most(f"{place}.route", *beyond, why)
    for section in params.running_sections:
        options = params.resolve(section)
        for key, bound in section.marks(AtMost).items():
            if bound.of == "layers":
                largest = max(_numbers(getattr(options, key)), default=0)
                most = num_layers - bound.less
                lines += at_most(f"{section.name}.{key}", largest, most, why)
    for paper in params.running:
        lines += paper.run("check_layers", params, num_layers)
    raise_all(lines)


def _numbers(value: Any) -> list[int]:
    """The numbers of a key: one, or those of its lists."""
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [] if value is None else [value]
