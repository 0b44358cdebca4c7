"""The route: which layers a forward pass executes, in order. No torch here.

A route is an explicit argument of the model's forward pass. It is drawn outside the model from a
generator keyed by (stream, seed, ..., step): the same key gives the same route.
"""

import itertools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Any, ClassVar, Literal

import numpy as np

from lsvit.latin import Latin

# A layer (0-based), or several that run side by side on the same state, whose outputs are averaged.
Step = int | tuple[int, ...]
Route = tuple[Step, ...]  # in order of execution
Order = Literal["sequential", "arbitrary"]
ORDERS: tuple[Order, Order] = ("sequential", "arbitrary")
Sampler = Callable[[np.random.Generator, int], Route]  # (generator, num_layers) -> route
ENDED = -1  # fills a row of a table after its last layer


def generator(stream: str, *key: int | str) -> np.random.Generator:
    """A generator that depends on its key alone. `stream` keeps uses with equal keys apart."""
    words = [
        zlib.crc32(word.encode()) if isinstance(word, str) else word for word in (stream, *key)
    ]
    return np.random.default_rng([len(key), *words])  # numpy takes (1,) and (1, 0) for the same


# ---- the routes of a batch ---------------------------------------------------------------------


@dataclass(frozen=True)
class OneRoute:
    """One route for all samples of a batch (LayerShuffle, Algorithm 1).

    Raises:
        ValueError: `steps` is no sequence of integers and tuples of integers.
    """

    steps: Route
    shared: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", as_route(self.steps))

    def part(self, start: int, count: int) -> "OneRoute":
        """The same route."""
        return self

    def rows(self, samples: int) -> np.ndarray:
        """The route, repeated; (samples, length). It has no layers side by side."""
        return np.tile(np.asarray(self.steps, dtype=np.int64), (samples, 1))

    def to_depth(self, depth: int) -> "OneRoute":
        """The first `depth` steps."""
        return OneRoute(self.steps[:depth])

    def layer_range(self) -> tuple[int, int]:
        """The lowest and the highest layer. Raises IndexError if a step has no layer."""
        if () in self.steps:
            raise IndexError(f"route {self.steps}: a step has no layer")
        layers = layers_of(self.steps)
        return min(layers, default=0), max(layers, default=0)

    def lengths(self) -> tuple[int, int]:
        """The number of steps, twice."""
        return len(self.steps), len(self.steps)


@dataclass(frozen=True, eq=False)
class RouteTable:
    """One route for each sample: integers (samples, length), a shorter route ends in -1s.

    Raises:
        ValueError: the table has another type or shape, a route is empty, or goes on after a -1.
    """

    table: np.ndarray
    shared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", np.asarray(self.table))
        if self.table.ndim != 2 or not np.issubdtype(self.table.dtype, np.integer):
            raise ValueError(
                f"per-sample routes: found {self.table.dtype} {self.table.shape}, "
                "accepted: integers (samples, length)"
            )
        ended = self.table == ENDED
        goes_on = ended[:, :-1] & ~ended[:, 1:]
        if goes_on.any() or ended[:, :1].any():
            raise ValueError(
                "per-sample routes: found -1 before a layer or an empty route, "
                "accepted: -1 after a route's last layer alone"
            )

    def part(self, start: int, count: int) -> "RouteTable":
        """The rows of `count` samples, from the sample `start` on."""
        return RouteTable(self.table[start : start + count])

    def rows(self, samples: int) -> np.ndarray:
        """The table. Raises ValueError if it has another number of rows."""
        if len(self.table) != samples:
            raise ValueError(
                f"per-sample routes: found {len(self.table)} rows, "
                f"accepted: {samples}, one a sample"
            )
        return self.table

    def to_depth(self, depth: int) -> "RouteTable":
        """The first `depth` columns."""
        return RouteTable(self.table[:, :depth])

    def layer_range(self) -> tuple[int, int]:
        """The lowest and the highest layer of all rows."""
        layers = self.table[self.table != ENDED]
        return int(layers.min(initial=0)), int(layers.max(initial=0))

    def lengths(self) -> tuple[int, int]:
        """The number of layers of the shortest row, and the number of columns."""
        lengths = (self.table != ENDED).sum(axis=1)
        return int(lengths.min()), self.table.shape[1]


# The routes of a batch's samples: one for all, one for each, or Latin. `shared` is True if all run
# the same layers.
Routes = OneRoute | RouteTable | Latin


def per_sample(
    sampler: Sampler, rng: np.random.Generator, num_layers: int, samples: int
) -> np.ndarray:
    """Draw a route for each of `samples` samples: a table as :class:`RouteTable` takes it."""
    routes = [sampler(rng, num_layers) for _ in range(samples)]
    table = np.full((samples, max(map(len, routes))), ENDED, dtype=np.int64)
    for row, route in zip(table, routes, strict=True):
        row[: len(route)] = route
    return table


def as_route(steps: Any) -> Route:
    """A route of any sequence of integers, or of tuples of them. Raises ValueError at others."""
    route: list[Step] = []
    try:
        if isinstance(steps, Set | Mapping) or str(getattr(steps, "dtype", "")) == "torch.bool":
            raise TypeError("neither has an order of layers")
        for step in steps:
            route.append(tuple(map(_layer, step)) if isinstance(step, tuple) else _layer(step))
    except TypeError:
        raise ValueError(
            f"route: found {' '.join(repr(steps).split()):.80}, "
            "accepted: a sequence of layers, or of tuples of layers"
        ) from None
    return tuple(route)


def _layer(value: Any) -> int:
    """A layer. Raises TypeError if it is none, as True and False of a mask."""
    if isinstance(value, bool):
        raise TypeError("a mask is no route")
    return index(value)


def layers_of(route: Route) -> list[int]:
    """Every layer that a route executes, in order; those side by side one after another."""
    layers: list[int] = []
    for step in route:
        layers += step if isinstance(step, tuple) else (step,)
    return layers


# ---- samplers ----------------------------------------------------------------------------------


def sequential(rng: np.random.Generator, num_layers: int) -> Route:
    """The layers in their original order."""
    return tuple(range(num_layers))


def arbitrary(rng: np.random.Generator, num_layers: int) -> Route:
    """A uniformly random permutation of all layers (LayerShuffle, section 3.1)."""
    return tuple(rng.permutation(num_layers).tolist())


def reverse(rng: np.random.Generator, num_layers: int) -> Route:
    """The layers from last to first."""
    return tuple(reversed(range(num_layers)))


def repeat_first(rng: np.random.Generator, num_layers: int) -> Route:
    """The first layer as often as there are layers: one set of weights at every depth."""
    return (0,) * num_layers


def side_by_side(rng: np.random.Generator, num_layers: int) -> Route:
    """All layers in one step, on the same state."""
    return (tuple(range(num_layers)),)


def _check_rate(rate: float) -> None:
    if not 0 <= rate < 1:
        raise ValueError(f"drop: found {rate}, accepted: at least 0, less than 1")


def _check_count(name: str, found: int, most: int) -> None:
    if not 0 <= found <= most:
        raise ValueError(f"{name}: found {found}, accepted: at least 0, at most {most}")


@dataclass(frozen=True)
class drop:
    """Keep each layer with probability 1 - p, in the original order (LayerDrop; section 4.2).

    A linear schedule raises the rate with depth, from p / num_layers at the first layer to p at the
    last (stochastic depth). A draw that would drop every layer is drawn again.

    Raises:
        ValueError: p is not at least 0 and less than 1, or there is no such schedule.
    """

    p: float
    schedule: Literal["constant", "linear"] = "constant"

    def __post_init__(self) -> None:
        _check_rate(self.p)
        if self.schedule not in ("constant", "linear"):
            raise ValueError(f"schedule: found {self.schedule!r}, accepted: constant, linear")

    def __call__(self, rng: np.random.Generator, num_layers: int) -> Route:
        """Draw a route."""
        rates = np.full(num_layers, self.p)
        if self.schedule == "linear":
            rates = self.p * np.arange(1, num_layers + 1) / num_layers
        route: Route = ()
        while not route:
            route = tuple(np.flatnonzero(rng.random(num_layers) >= rates).tolist())
        return route


@cache
def _orders_at(num_layers: int, distance: int) -> int:
    """How many permutations of `num_layers` have `distance` inversions (Mahonian numbers)."""
    if num_layers <= 1 or distance < 0:
        return int(distance == 0)
    most = min(num_layers - 1, distance)
    return sum(_orders_at(num_layers - 1, distance - jump) for jump in range(most + 1))


@cache
def _jumps(num_layers: int, distance: int) -> np.ndarray:
    """Cumulative probability that 0, 1, ... lower layers come after the first one.

    Of the uniformly random orders of `num_layers` layers at a Kendall tau distance.
    """
    counts = [_orders_at(num_layers - 1, distance - jump) for jump in range(num_layers)]
    return np.cumsum(counts) / _orders_at(num_layers, distance)


@dataclass(frozen=True)
class swap:
    """A uniformly random order among those that take exactly k swaps of neighbours to reach.

    A number between 0 and 1 is a share of all swaps, rounded: random orders have 0.5 on average.

    Raises:
        ValueError: when it draws, if no order of the layers takes k swaps.
    """

    k: float

    def __call__(self, rng: np.random.Generator, num_layers: int) -> Route:
        """Draw a route."""
        most = math.comb(num_layers, 2)
        swaps = round(self.k * most) if 0 < self.k < 1 else self.k
        if swaps not in range(most + 1):
            raise ValueError(
                f"swap: found {self.k}, accepted: at least 0, at most {most}, whole from 1 on"
            )
        swaps_left = int(swaps)
        layers = list(range(num_layers))
        route = []
        while layers:
            jumps = _jumps(len(layers), swaps_left)
            jump = int(np.searchsorted(jumps, rng.random(), side="right"))
            route.append(layers.pop(jump))
            swaps_left -= jump
        return tuple(route)


@dataclass(frozen=True)
class fixed:
    """The given layers, in the given order; layers may repeat or be absent.

    Raises:
        ValueError: `order` is no sequence of layers.
    """

    order: Sequence[Step]

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", as_route(self.order))

    def __call__(self, rng: np.random.Generator, num_layers: int) -> Route:
        """The order. Nothing is drawn."""
        return tuple(self.order)


@dataclass(frozen=True)
class skip:
    """The original order without the given layers.

    Raises:
        ValueError: `layers` is no sequence of layers; when it draws, if one does not exist.
    """

    layers: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(layers_of(as_route(self.layers))))

    def __call__(self, rng: np.random.Generator, num_layers: int) -> Route:
        """The other layers. Nothing is drawn."""
        for layer in self.layers:
            _check_count("skip", layer, num_layers - 1)
        return tuple(layer for layer in range(num_layers) if layer not in self.layers)


@dataclass(frozen=True)
class between:
    """A random order of the layers between the first and the last ones, each left out at `drop`.

    The first and the last ones stay in place. A draw that would leave out every layer is drawn
    again.

    Raises:
        ValueError: `drop` is not at least 0 and less than 1; when it draws, if `first` or `last` is
            negative or there are fewer layers than they say together.
    """

    first: int = 0
    last: int = 0
    drop: float = 0.0

    def __post_init__(self) -> None:
        _check_rate(self.drop)

    def __call__(self, rng: np.random.Generator, num_layers: int) -> Route:
        """Draw a route."""
        free = num_layers - self.first - self.last
        if min(self.first, self.last, free) < 0:
            raise ValueError(
                f"first, last: found {self.first}, {self.last}, accepted: at least 0, together at "
                f"most {num_layers}, the layers of the model"
            )
        tail = range(num_layers - self.last, num_layers)
        route: Route = ()
        while not route:
            shuffled = self.first + rng.permutation(free)
            if self.drop:
                shuffled = shuffled[rng.random(free) >= self.drop]
            route = (*range(self.first), *shuffled.tolist(), *tail)
        return route


def fix_first(k: int) -> Sampler:
    """The first k layers stay in place, the others run in a random order."""
    return between(first=k)


def fix_last(k: int) -> Sampler:
    """The last k layers stay in place, the others run in a random order."""
    return between(last=k)


@dataclass(frozen=True)
class kept_layers:
    """A random choice of `keep` layers, in their original or in a random order (section 4.2).

    Raises:
        ValueError: there is no such order; when it draws, if there are fewer than `keep` layers.
    """

    keep: int
    order: Order

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order: found {self.order!r}, accepted: {', '.join(ORDERS)}")

    def __call__(self, rng: np.random.Generator, num_layers: int) -> Route:
        """Draw a route."""
        _check_count("keep", self.keep, num_layers)
        chosen = rng.permutation(num_layers)[: self.keep]
        if self.order == "sequential":
            chosen = np.sort(chosen)
        return tuple(chosen.tolist())


# ---- routes to evaluate ------------------------------------------------------------------------


def kendall_distance(route: Sequence[int]) -> int:
    """Swaps of neighbours that bring a route's layers into their original order (Kendall tau)."""
    return sum(a > b for a, b in itertools.combinations(route, 2))


def count_routes(num_layers: int, keep: int, order: Order) -> int:
    """How many different routes of `keep` layers there are."""
    return math.comb(num_layers, keep) if order == "sequential" else math.perm(num_layers, keep)


def evaluation_routes(
    num_layers: int, keep: int, order: Order, orders: int, seed: int
) -> list[Route]:
    """At most `orders` distinct routes of `keep` layers: all there are, or random ones.

    Sequential routes are random subsets in their original order, arbitrary ones random subsets in a
    random order (section 4.2). The result depends on the arguments alone, so every variant and seed
    is evaluated on the same routes.
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
