"""The route: which layers a forward pass executes, in order. No torch here.

A route is an explicit argument of the model's forward, drawn outside the model from a generator keyed by (seed, ...,
step): the same key gives the same route, whatever ran before.
"""

import difflib
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

Step = (
    int | tuple[int, ...]
)  # a layer, 0-based, or several that run side by side on the same state, whose outputs are averaged
Route = tuple[Step, ...]  # in order of execution
Order = Literal["sequential", "arbitrary"]
ORDERS: tuple[Order, Order] = ("sequential", "arbitrary")
Sampler = Callable[[np.random.Generator, int], Route]  # (generator, num_layers) -> route
Spec = str | dict[str, Any]  # a `route:` value of params.yaml
ENDED = -1  # fills a per-sample route after its last layer


def generator(stream: str, *key: int | str) -> np.random.Generator:
    """A generator that depends on its key alone, whose names count by their letters. `stream` keeps uses with equal keys apart."""
    words = [
        zlib.crc32(word.encode()) if isinstance(word, str) else word for word in (stream, *key)
    ]
    return np.random.default_rng([len(key), *words])  # numpy takes (1,) and (1, 0) for the same


# ---- samplers ---------------------------------------------------------------------------------------------------------


def sequential(rng: np.random.Generator, num_layers: int) -> Route:
    """The layers in their original order."""
    return tuple(range(num_layers))


def arbitrary(rng: np.random.Generator, num_layers: int) -> Route:
    """A uniformly random permutation of all layers (LayerShuffle, section 3.1)."""
    return tuple(rng.permutation(num_layers).tolist())


def reverse(rng: np.random.Generator, num_layers: int) -> Route:
    """The layers from last to first."""
    return tuple(reversed(range(num_layers)))


def drop(p: float, schedule: str = "constant") -> Sampler:
    """Each layer is kept with probability 1 - p, in the original order (LayerDrop; LayerShuffle, section 4.2).

    `schedule: linear` raises the probability with depth, from p / num_layers at the first layer to p at the last (the linear
    decay rule of stochastic depth). A draw that would drop every layer is drawn again.
    """

    def draw(rng: np.random.Generator, num_layers: int) -> Route:
        rates = p * np.arange(1, num_layers + 1) / num_layers if schedule == "linear" else p
        kept = np.flatnonzero(rng.random(num_layers) >= rates)
        return tuple(kept.tolist()) or draw(rng, num_layers)

    return draw


@cache
def _orders_at(num_layers: int, distance: int) -> int:
    """How many permutations of `num_layers` have `distance` inversions (Mahonian numbers)."""
    if num_layers <= 1 or distance < 0:
        return int(distance == 0)
    return sum(
        _orders_at(num_layers - 1, distance - i) for i in range(min(num_layers - 1, distance) + 1)
    )


@cache
def _jumps(num_layers: int, distance: int) -> np.ndarray:
    """Cumulative probability that the first of the layers in an order at `distance` has 0, 1, ... lower ones after it."""
    return np.cumsum(
        [_orders_at(num_layers - 1, distance - jump) for jump in range(num_layers)]
    ) / _orders_at(num_layers, distance)


def swap(k: int) -> Sampler:
    """An order that takes exactly k swaps of neighbours to reach: uniformly random among those at Kendall tau distance k."""

    def draw(rng: np.random.Generator, num_layers: int) -> Route:
        left, layers, route = k, list(range(num_layers)), []
        while layers:
            jump = int(np.searchsorted(_jumps(len(layers), left), rng.random(), side="right"))
            route.append(layers.pop(jump))
            left -= jump
        return tuple(route)

    return draw


def fixed(order: Sequence[int]) -> Sampler:
    """The given layers, in the given order; layers may repeat or be absent."""
    return lambda rng, num_layers: tuple(order)


def skip(layers: Sequence[int]) -> Sampler:
    """The original order without the given layers."""
    return lambda rng, num_layers: tuple(
        layer for layer in range(num_layers) if layer not in layers
    )


def fix_first(k: int) -> Sampler:
    """The first k layers stay in place, the others run in a random order."""
    return lambda rng, num_layers: (*range(k), *(k + rng.permutation(num_layers - k)).tolist())


def fix_last(k: int) -> Sampler:
    """The last k layers stay in place, the others run in a random order."""
    return lambda rng, num_layers: (
        *rng.permutation(num_layers - k).tolist(),
        *range(num_layers - k, num_layers),
    )


def kept_layers(keep: int, order: Order) -> Sampler:
    """A random choice of `keep` layers, in their original or in a random order (section 4.2)."""

    def draw(rng: np.random.Generator, num_layers: int) -> Route:
        route = rng.permutation(num_layers)[:keep]
        return tuple((np.sort(route) if order == "sequential" else route).tolist())

    return draw


# ---- their names in params.yaml ---------------------------------------------------------------------------------------


def _rate(value: Any) -> float:
    number = math.nan if isinstance(value, bool) else float(value)  # PyYAML reads 1e-1 as text
    if not 0 <= number < 1:
        raise ValueError
    return number


def _whole(value: Any) -> int:
    number = math.nan if isinstance(value, bool) else float(value)
    if not (number.is_integer() and number >= 0):
        raise ValueError
    return int(number)


def _layers(value: Any) -> list[int]:
    if not isinstance(value, list) or not value:
        raise ValueError
    return [_whole(layer) for layer in value]


def _pairs(num_layers: int) -> int:
    return math.comb(num_layers, 2)


class Kind(NamedTuple):
    """A sampler with a parameter, `{name: value}`."""

    make: Callable[..., Sampler]
    read: Callable[
        [Any], Any
    ]  # the value as given -> as needed; ValueError or TypeError if it is none
    accepted: str
    most: Callable[[int], int] | None = (
        None  # num_layers -> the largest value, or the largest of a list
    )


PLAIN: dict[str, Sampler] = {"sequential": sequential, "arbitrary": arbitrary, "reversed": reverse}
KINDS = {
    "drop": Kind(drop, _rate, "{drop: p} with 0 <= p < 1 (also schedule: constant or linear)"),
    "swap": Kind(swap, _whole, "{swap: k}", _pairs),
    "order": Kind(fixed, _layers, "{order: [layers]}", lambda num_layers: num_layers - 1),
    "skip": Kind(skip, _layers, "{skip: [layers]}", lambda num_layers: num_layers - 1),
    "fix_first": Kind(fix_first, _whole, "{fix_first: k}", lambda num_layers: num_layers),
    "fix_last": Kind(fix_last, _whole, "{fix_last: k}", lambda num_layers: num_layers),
}
SCHEDULES = ("constant", "linear")


def check_sampler(spec: Any) -> Spec:
    """Validate a sampler's name as written in params.yaml. Raises ValueError saying what is accepted."""
    if isinstance(spec, str) and spec in PLAIN:
        return spec
    keys = [str(key) for key in spec] if isinstance(spec, dict) else [str(spec)]
    name = next((key for key in keys if key in KINDS), None)
    if name is None or not isinstance(spec, dict):
        near = difflib.get_close_matches(keys[0] if keys else "", [*PLAIN, *KINDS], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{', '.join([*PLAIN, *(kind.accepted for kind in KINDS.values())])}{hint}"
        )
    rest = {key: value for key, value in spec.items() if key != name}
    try:
        if (
            name == "drop"
            and rest.keys() <= {"schedule"}
            and rest.get("schedule", "constant") in SCHEDULES
        ) or not rest:
            return {name: KINDS[name].read(spec[name]), **rest}
    except (TypeError, ValueError):
        pass
    raise ValueError(KINDS[name].accepted)


def limit(spec: Spec, num_layers: int) -> tuple[int, int] | None:
    """(found, most accepted) where a checked sampler's number, layer or count of layers is too large for `num_layers`, else None."""
    for name, value in spec.items() if isinstance(spec, dict) else ():
        kind = KINDS.get(name)
        if kind and kind.most:
            found, most = (max(value) if isinstance(value, list) else value), kind.most(num_layers)
            if found > most:
                return found, most
            longest = num_layers - 1 if name == "skip" else num_layers
            if isinstance(value, list) and len(set(value) if name == "skip" else value) > longest:
                return len(value), longest
    return None


def make_sampler(spec: Spec) -> Sampler:
    """The sampler that a checked `route:` value names."""
    if isinstance(spec, str):
        return PLAIN[spec]
    name = next(key for key in spec if key in KINDS)
    return KINDS[name].make(
        spec[name], **{key: value for key, value in spec.items() if key != name}
    )


def sampler_name(spec: Spec) -> str:
    """A checked sampler in one word and its parameters, as in tables: "arbitrary", "swap 4", "order 2-0-1"."""
    if isinstance(spec, str):
        return spec
    return " ".join(
        f"{key} {'-'.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in spec.items()
    )


# ---- drawing ----------------------------------------------------------------------------------------------------------


def per_sample(
    sampler: Sampler, rng: np.random.Generator, num_layers: int, samples: int
) -> np.ndarray:
    """A route for each of `samples` samples: integers (samples, length of the longest), shorter ones end in -1."""
    routes = [sampler(rng, num_layers) for _ in range(samples)]
    table = np.full((samples, max(map(len, routes))), ENDED, dtype=np.int64)
    for row, route in zip(table, routes, strict=True):
        row[: len(route)] = route
    return table


def kendall_distance(route: Sequence[int]) -> int:
    """Swaps of neighbours that bring the layers of a route into their original order (Kendall tau distance)."""
    return sum(a > b for a, b in itertools.combinations(route, 2))


def training_order(spec: Spec) -> str:
    """The order a variant is trained for, under which its validation loss chooses the epoch.

    LayerDrop is meant to be run with all layers; samplers beyond the paper are validated under themselves, "trained".
    """
    if spec == "sequential" or (isinstance(spec, dict) and "drop" in spec):
        return "sequential"
    return "arbitrary" if spec == "arbitrary" else "trained"


def own_order(spec: Spec) -> Order:
    """The order in which early exits on a frozen model are trained: the one it was trained for. Not for samplers beyond the paper."""
    return "arbitrary" if training_order(spec) == "arbitrary" else "sequential"


def layers_of(route: Route) -> list[int]:
    """Every layer that a route executes, in order, those that run side by side one after another."""
    return [layer for step in route for layer in (step if isinstance(step, tuple) else (step,))]


def count_routes(num_layers: int, keep: int, order: Order) -> int:
    """How many different routes of `keep` layers there are."""
    return math.comb(num_layers, keep) if order == "sequential" else math.perm(num_layers, keep)


def evaluation_routes(
    num_layers: int, keep: int, order: Order, orders: int, seed: int
) -> list[Route]:
    """Distinct routes of `keep` layers out of `num_layers`: all that exist if there are at most `orders`, else random ones.

    Sequential: random subsets in their original order; arbitrary: random subsets in random order (section 4.2).
    The result depends on the arguments alone, so every variant and seed is evaluated on the same routes.
    """
    if count_routes(num_layers, keep, order) <= orders:
        choose = itertools.combinations if order == "sequential" else itertools.permutations
        return list(choose(range(num_layers), keep))
    rng = generator("evaluation", seed, num_layers, keep, order)
    draw = kept_layers(keep, order)
    routes: dict[Route, None] = {}  # a dict keeps the order of drawing
    while len(routes) < orders:
        routes[draw(rng, num_layers)] = None
    return list(routes)
