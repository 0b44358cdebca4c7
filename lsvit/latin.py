"""Latin routes: an order of its own for every L-th of a batch, whose layers share all work. No torch here.

The expected gradient is that of one random order a batch (LayerShuffle, Algorithm 1), since each order alone is uniformly random; it
varies less, since every step sees L orders, which depend on each other: a departure from the paper.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lsvit.routes import Route, Spec, make_sampler, per_sample


@dataclass(frozen=True)
class Latin:
    """A route for each of G groups of a batch, such that groups share all work: sample i of the batch runs `routes[i % G]`.

    In the middle of the routes G layers form a Latin square, or its first columns: at each depth each of them is run by one
    group. Before and after it (:attr:`first`, :attr:`last`) all groups run the same layers.

    Raises:
        ValueError: the routes are not of this form.
    """

    routes: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        columns = list(zip(*self.routes, strict=False))
        if not columns or len({len(route) for route in self.routes}) > 1:
            lengths = sorted({len(route) for route in self.routes})
            raise ValueError(
                f"Latin routes: found lengths {lengths}, accepted: routes of one length, at least 1"
            )
        middle = columns[self.first : len(columns) - self.last]
        for column in middle:
            if len(set(column)) < len(column) or set(column) != set(middle[0]):
                raise ValueError(
                    f"Latin routes: found the layers {column} at one depth, accepted: each of {sorted(set(middle[0]))} once"
                )

    @cached_property
    def first(self) -> int:
        """At how many depths, from the first on, all groups run the same layer."""
        return next(
            (
                depth
                for depth, column in enumerate(zip(*self.routes, strict=True))
                if len(set(column)) > 1
            ),
            len(self.routes[0]),
        )

    @cached_property
    def last(self) -> int:
        """At how many depths, up to the last, all groups run the same layer; none where they do everywhere."""
        back = [route[self.first :][::-1] for route in self.routes]
        return next(
            (depth for depth, column in enumerate(zip(*back, strict=True)) if len(set(column)) > 1),
            0,
        )

    def rows(self, samples: int) -> np.ndarray:
        """The routes of a batch's samples, (samples, length)."""
        return np.asarray(self.routes)[np.arange(samples) % len(self.routes)]

    def after(self, samples: int) -> "Latin":
        """The same for a batch's part without its first `samples` samples."""
        shift = samples % len(self.routes)
        return Latin(self.routes[shift:] + self.routes[:shift]) if shift else self

    def to_depth(self, depth: int) -> "Latin":
        """Without the layers after a depth."""
        return Latin(tuple(route[:depth] for route in self.routes))


def latin(
    rng: np.random.Generator,
    num_layers: int,
    first: int = 0,
    last: int = 0,
    keep: int | None = None,
) -> Latin:
    """Latin routes: group i runs layer p[(i + s[j]) mod L] at depth j, for two random permutations p and s of the L layers.

    Each route alone is a uniformly random permutation; the routes of one draw depend on each other.

    Args:
        rng: where the permutations are drawn from.
        num_layers: of the model.
        first, last: so many layers stay in place, at either end, as under :func:`fix_first` and :func:`fix_last`.
        keep: layers kept, as under :func:`kept_layers`: the square's first columns.
    """
    free = num_layers - first - last
    layers, shifts = first + rng.permutation(free), rng.permutation(free)[:keep]
    square = layers[(np.arange(free)[:, None] + shifts) % free]
    ends = range(first), range(num_layers - last, num_layers)
    return Latin(
        tuple((*ends[0], *row, *ends[1]) for row in square.tolist()) or (tuple(range(num_layers)),)
    )


def latin_ends(spec: Spec) -> tuple[int, int] | None:
    """How many layers a checked sampler leaves in place at either end, if it shuffles the others; None: it has no Latin routes."""
    if isinstance(spec, dict) and spec.keys() & {"fix_first", "fix_last"}:
        return spec.get("fix_first", 0), spec.get("fix_last", 0)
    return (0, 0) if spec == "arbitrary" else None


def forms(spec: Spec) -> tuple[str, ...]:
    """What a checked sampler's routes can be drawn for: a batch, a sample, a Latin table; none where all are the same."""
    if spec in ("sequential", "reversed") or (
        isinstance(spec, dict) and spec.keys() & {"order", "skip"}
    ):
        return ()
    return ("batch", "sample", "latin") if latin_ends(spec) else ("batch", "sample")


def draw_routes(
    spec: Spec, per: str, rng: np.random.Generator, num_layers: int, samples: int
) -> Route | np.ndarray | Latin:
    """What a training step runs along: a route; under `per: sample` a table (samples, length); under `per: latin` Latin routes.

    Raises:
        ValueError: the sampler has no Latin routes.
    """
    if per == "latin":
        if (ends := latin_ends(spec)) is None:
            raise ValueError(
                f"per: found 'latin' with route {spec}, accepted: arbitrary, fix_first, fix_last"
            )
        return latin(rng, num_layers, *ends)
    return (
        per_sample(make_sampler(spec), rng, num_layers, samples)
        if per == "sample"
        else make_sampler(spec)(rng, num_layers)
    )
