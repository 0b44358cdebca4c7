"""Cross-checks of the section `exits`."""

from collections.abc import Iterator
from typing import Any

from lsvit.routes import generator
from papers.exits.section import Exits
from pipeline.config.params import Params
from pipeline.config.samplers import make_sampler, training_order
from pipeline.config.sections import Limit


def check(params: Params, file: str) -> Iterator[str]:
    """Exits are trained on frozen models in an order that the paper knows, and models with exits in batches for every process."""
    options, processes = params.resolve(Exits), params.distributed.world_size
    if options.batch_size < processes:
        yield f"{file}: exits.batch_size: found {options.batch_size}, accepted: at least {processes}, one image a process"
    for name, variant in params.all_variants.items():
        if variant.exits and variant.exits.step is not None:
            yield f"{file}: {name}: exits.step: found {variant.exits.step}, accepted: none (the strategy layer_wise sets it)"
    for name in options.variants:
        if training_order(spec := params.all_variants[name].route) == "trained":
            yield (
                f"{file}: exits.variants: found {name!r} with route {spec!r}, accepted: variants trained in sequential or "
                "arbitrary order, or with LayerDrop"
            )


def image_limits(params: Params, train: int, validation: int) -> list[Limit]:
    """What the numbers of images allow: the batch size."""
    options, limits = params.resolve(Exits), []
    used = min(train, options.images or train)
    if options.strategies:
        limits.append(
            Limit("exits.batch_size", options.batch_size, used, f"{used} training images are used")
        )
    if options.counting_strategies:
        limits.append(
            Limit(
                "exits.batch_size",
                options.batch_size,
                options.counting.train,
                "exits.counting.train canvases are made",
            )
        )
    return limits


def layer_limits(params: Params, num_layers: int) -> list[Limit]:
    """What the number of layers allows: the depths of exits and the layers kept."""
    options, why = params.resolve(Exits), f"model {params.model!r} has {num_layers} layers"
    depths = [("exits.depths", depth) for depth in options.depths or ()]
    depths += [
        ("exits.placements", depth) for placement in options.placements for depth in placement
    ]
    return [
        *(Limit(key, depth, num_layers - 1, why) for key, depth in depths),
        Limit("exits.keep", options.keep, num_layers, why),
        *_variant_limits(params, num_layers, why),
    ]


def _variant_limits(params: Params, num_layers: int, why: str) -> Iterator[Limit]:
    """Variants' exits lie before the last layer, and before the end of their routes."""
    for name, variant in params.all_variants.items():
        if not variant.exits:
            continue
        key = f"{params.place_of(name)}.exits.depths"
        last_exit = variant.exits.depths[-1]
        layers = variant.layers or num_layers
        yield Limit(key, last_exit, layers - 1, why)
        if not (isinstance(variant.route, dict) and "drop" in variant.route):
            route = make_sampler(variant.route)(generator("train", 0), layers)
            yield Limit(key, last_exit, len(route), why)


def build(params: Params, backbone: Any) -> None:
    """Make every branch for the chosen model's tokens. Raises UserError: one does not fit."""
    from papers.exits.branches import make_branch
    from pipeline.models.tokens import token_shape

    options = params.resolve(Exits)
    for kind in options.every_branch if options.strategies or options.counting_strategies else ():
        make_branch(kind, token_shape(backbone), 1, options)
