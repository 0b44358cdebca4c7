"""Latin routes: L orders at once, such that the groups of a batch share all work. No torch here.

Each order alone is a uniformly random permutation, so the expected gradient is that of one random
order a batch (LayerShuffle, Algorithm 1). It varies less, since every step sees L orders. These
orders depend on each other: a departure from the paper.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Latin:
    """A route for each of G groups of a batch: sample i runs `routes[i % G]`.

    At :attr:`first` depths before and :attr:`last` depths after the middle all groups run the same
    layers. In the middle G layers form a Latin square, or its first columns: at each depth each of
    them is run by one group.

    Raises:
        ValueError: the routes are not of this form.
    """

    routes: tuple[tuple[int, ...], ...]
    shared: ClassVar[bool] = False

    def __post_init__(self) -> None:
        lengths = sorted({len(route) for route in self.routes})
        if len(lengths) != 1 or lengths == [0]:
            raise ValueError(
                f"Latin routes: found lengths {lengths}, accepted: routes of one length, at least 1"
            )
        columns = list(zip(*self.routes, strict=True))
        middle = columns[self.first : len(columns) - self.last]
        for column in middle:
            if len(set(column)) < len(column) or set(column) != set(middle[0]):
                raise ValueError(
                    f"Latin routes: found the layers {column} at one depth, "
                    f"accepted: each of {sorted(set(middle[0]))} once"
                )

    @cached_property
    def first(self) -> int:
        """At how many depths, from the first on, all groups run the same layer."""
        return [*self._is_shared(), False].index(False)

    @cached_property
    def last(self) -> int:
        """At how many depths, up to the last, all groups run the same layer; 0 if everywhere."""
        is_shared = self._is_shared()
        return 0 if all(is_shared) else is_shared[::-1].index(False)

    def _is_shared(self) -> list[bool]:
        """By depth: True if all groups run the same layer."""
        return [len(set(column)) == 1 for column in zip(*self.routes, strict=True)]

    def part(self, start: int, count: int) -> "Latin":
        """The routes of the samples from `start` on."""
        shift = start % len(self.routes)
        return Latin(self.routes[shift:] + self.routes[:shift])

    def rows(self, samples: int) -> np.ndarray:
        """The routes of a batch's samples, (samples, length)."""
        return np.asarray(self.routes)[np.arange(samples) % len(self.routes)]

    def to_depth(self, depth: int) -> "Latin":
        """The routes without the layers after the first `depth`."""
        return Latin(tuple(route[:depth] for route in self.routes))

    def layer_range(self) -> tuple[int, int]:
        """The lowest and the highest layer of all routes."""
        table = np.asarray(self.routes)
        return int(table.min()), int(table.max())

    def lengths(self) -> tuple[int, int]:
        """The number of layers of a route, twice."""
        return len(self.routes[0]), len(self.routes[0])


def latin(
    rng: np.random.Generator,
    num_layers: int,
    first: int = 0,
    last: int = 0,
    keep: int | None = None,
) -> Latin:
    """Draw Latin routes: group i runs layer p[(i + s[j]) mod L] at depth j.

    p and s are two random permutations of the L layers. Each route alone is a uniformly random
    permutation; the routes of one draw depend on each other.

    Args:
        rng: where the permutations are drawn from.
        num_layers: of the model.
        first, last: how many layers stay in place at either end.
        keep: how many of the other layers are kept: the square's first columns. None: all.
    """
    free = num_layers - first - last
    layers = first + rng.permutation(free)
    shifts = rng.permutation(free)[:keep]
    square = layers[(np.arange(free)[:, None] + shifts) % free]  # (groups, depths)
    if free == 0:
        return Latin((tuple(range(num_layers)),))
    head = range(first)
    tail = range(num_layers - last, num_layers)
    return Latin(tuple((*head, *row, *tail) for row in square.tolist()))
