"""The route: which layers a forward pass executes, in order. No torch here.

A route is an explicit argument of the model's forward, drawn outside the model from a generator keyed by (seed, ...,
step): the same key gives the same route, whatever ran before.
"""

import difflib
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

Route = tuple[int, ...]  # layer indices, 0-based, in order of execution
Order = Literal["sequential", "arbitrary"]
ORDERS: tuple[Order, Order] = ("sequential", "arbitrary")
Sampler = Callable[[np.random.Generator, int], Route]  # (generator, num_layers) -> route

STREAMS = ("train", "validation", "evaluation", "analysis", "batches", "subset")


def generator(stream: str, *key: int) -> np.random.Generator:
    """A generator that depends on its key alone. `stream` (one of STREAMS) keeps uses with equal numbers apart."""
    return np.random.default_rng([STREAMS.index(stream), len(key), *key])  # numpy takes (1,) and (1, 0) for the same


def sequential(rng: np.random.Generator, num_layers: int) -> Route:
    """The layers in their original order."""
    return tuple(range(num_layers))


def arbitrary(rng: np.random.Generator, num_layers: int) -> Route:
    """A uniformly random permutation of all layers (LayerShuffle, section 3.1)."""
    return tuple(rng.permutation(num_layers).tolist())


def layer_drop(p: float) -> Sampler:
    """Each layer is kept with probability 1 - p, in the original order (LayerDrop; LayerShuffle, section 4.2).

    A draw that would drop every layer is drawn again.
    """

    def draw(rng: np.random.Generator, num_layers: int) -> Route:
        kept = np.flatnonzero(rng.random(num_layers) >= p)
        return tuple(kept.tolist()) or draw(rng, num_layers)

    return draw


SAMPLERS: dict[str, Sampler] = {"sequential": sequential, "arbitrary": arbitrary}


def check_sampler(spec: Any) -> Any:
    """Validate a `route:` value of params.yaml. Raises ValueError saying what is accepted."""
    accepted = f"{', '.join(SAMPLERS)}, or {{drop: p}} with 0 <= p < 1"
    if isinstance(spec, str) and spec in SAMPLERS:
        return spec
    if isinstance(spec, dict) and set(spec) == {"drop"}:
        try:  # PyYAML reads 1e-1 as text
            p = float("nan") if isinstance(spec["drop"], bool) else float(spec["drop"])
        except (TypeError, ValueError):
            p = float("nan")
        if 0 <= p < 1:
            return {"drop": p}
    near = difflib.get_close_matches(str(spec), SAMPLERS, n=1)
    raise ValueError(f"{accepted}{f'; did you mean {near[0]!r}?' if near else ''}")


def make_sampler(spec: str | dict[str, float]) -> Sampler:
    """The sampler that a checked `route:` value names."""
    return SAMPLERS[spec] if isinstance(spec, str) else layer_drop(spec["drop"])


def training_order(spec: str | dict[str, float]) -> Order:
    """The order a variant is trained for: its validation loss chooses the epoch."""
    return "arbitrary" if spec == "arbitrary" else "sequential"


def evaluation_routes(num_layers: int, keep: int, order: Order, orders: int, seed: int) -> list[Route]:
    """Distinct routes of `keep` layers out of `num_layers`: all that exist if there are at most `orders`, else random ones.

    Sequential: random subsets in their original order; arbitrary: random subsets in random order (section 4.2).
    The result depends on the arguments alone, so every variant and seed is evaluated on the same routes.
    """
    count = math.comb(num_layers, keep) if order == "sequential" else math.perm(num_layers, keep)
    if count <= orders:
        choose = itertools.combinations if order == "sequential" else itertools.permutations
        return list(choose(range(num_layers), keep))
    rng = generator("evaluation", seed, num_layers, keep, ORDERS.index(order))
    routes: dict[Route, None] = {}  # a dict keeps the order of drawing
    while len(routes) < orders:
        route = rng.permutation(num_layers)[:keep]
        routes[tuple((np.sort(route) if order == "sequential" else route).tolist())] = None
    return list(routes)
