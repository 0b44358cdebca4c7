"""What an evaluation keeps of a model's layers, and in which order. No torch here."""

from collections.abc import Iterator
from typing import NamedTuple

from lsvit.routes import ORDERS, Order, count_routes
from papers.layershuffle.section import ALL, PruneEval
from pipeline.config.samplers import ORDERLESS
from pipeline.config.variant import Variant


class Cell(NamedTuple):
    """What is evaluated: routes of `keep` layers, drawn from a pool."""

    keep: int
    choose: str  # how the pool was chosen; ALL: all layers are kept
    order: Order
    pool: tuple[int, ...]  # layers that may be kept
    routes: int  # how many different ones there are


def choose_layers(num_layers: int, keep: int, choose: str) -> tuple[int, ...]:
    """The layers from which `keep` are kept: all of them if they are chosen at random."""
    if choose in (ALL, "random"):
        return tuple(range(num_layers))
    if choose == "first" or keep == 1:
        return tuple(range(keep))
    return tuple(round(i * (num_layers - 1) / (keep - 1)) for i in range(keep))


def cells(
    num_layers: int, variant: Variant, options: PruneEval, misled: bool = False
) -> Iterator[Cell]:
    """The cells of a model, fewest layers first.

    Models that were trained on their first k layers, whose route has no order, or that are told
    wrong positions have cells with all their layers alone.
    """
    has_order = variant.route not in ORDERLESS
    keeps = {num_layers}
    if has_order and not variant.layers and not misled:
        keeps.update(options.keep)
    for keep in sorted(keeps):
        for choose in options.choose if keep < num_layers else [ALL]:
            pool = choose_layers(num_layers, keep, choose)
            for order in ORDERS:
                routes = count_routes(len(pool), keep, order) if has_order else 1
                yield Cell(keep, choose, order, pool, routes)
