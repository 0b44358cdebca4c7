"""Cross-checks of the section `exits`."""

from collections.abc import Iterator
from typing import Any

from lsvit.routes import generator
from papers.exits.section import Exits
from pipeline.config.params import Params
from pipeline.config.samplers import make_sampler, training_order
from pipeline.errors import at_most, mistake
from pipeline.jobs.machine import memory_limit


def check(params: Params) -> Iterator[str]:
    """Check batches against processes and canvases, and the orders that backbones know."""
    options = params.resolve(Exits)
    processes = params.distributed.world_size
    if options.batch_size < processes:
        wanted = f"at least {processes}, one image a process"
        yield mistake("exits.batch_size", options.batch_size, wanted)
    if options.counting_strategies:
        canvases = options.counting.train
        yield from at_most("exits.batch_size", options.batch_size, canvases, "counting.train")
    for name, variant in params.all_variants.items():
        if variant.exits and variant.exits.step is not None:
            wanted = "none (the strategy layer_wise sets it)"
            yield f"params.yaml: {name}: exits.step: found {variant.exits.step}, accepted: {wanted}"
    for name in options.variants:
        route = params.all_variants[name].route
        if training_order(route) == "trained":
            wanted = "variants trained in sequential or arbitrary order, or with LayerDrop"
            found = f"found {name!r} with route {route!r}"
            yield f"params.yaml: exits.variants: {found}, accepted: {wanted}"


def check_layers(params: Params, num_layers: int) -> Iterator[str]:
    """Check that variants' exits lie before the last layer, and before the end of their routes."""
    why = f"model {params.model!r} has {num_layers} layers"
    for name, variant in params.all_variants.items():
        if not variant.exits:
            continue
        layers = variant.layers or num_layers
        most = layers - 1
        if not (isinstance(variant.route, dict) and "drop" in variant.route):
            route = make_sampler(variant.route)(generator("train", 0), layers)
            most = min(most, len(route))
        key = f"{params.place_of(name)}.exits.depths"
        yield from at_most(key, variant.exits.depths[-1], most, why)


def build(params: Params, backbone: Any) -> list[str]:
    """Make every branch for the chosen model's tokens. Raises UserError if one does not fit."""
    from papers.exits.branches import make_branch
    from pipeline.models.tokens import token_shape

    options = params.resolve(Exits)
    shape = token_shape(backbone)
    if options.strategies or options.counting_strategies:
        for branch in options.every_branch:
            make_branch(branch, shape, 1, options)
    train, validation, heldout = params.sizes or (0, 0, 0)
    recorded = options.recorded(train, heldout or validation, validation)
    needed = 4 * recorded * shape.length * shape.width
    if "classifier_wise" in options.strategies and needed > memory_limit():
        wanted = f"fewer, the tokens of a model take {needed / 2**30:,.0f} GiB of memory"
        return [mistake("exits.images", options.images, wanted)]
    return []
