"""Routes depend on their key alone; samplers draw what they promise."""

import itertools
import math
import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

from lsvit import routes as lsvit_routes
from lsvit.latin import Latin
from lsvit.routes import (
    OneRoute,
    RouteTable,
    Sampler,
    arbitrary,
    drop,
    evaluation_routes,
    generator,
    kendall_distance,
    per_sample,
    swap,
)
from pipeline.config.samplers import (
    draw_routes,
    latin_ends,
    limit,
    make_sampler,
    sampler_name,
    training_order,
)
from pipeline.config.types import check_sampler
from tests.conftest import cases_of, refused

CASES = cases_of(__file__)


def drawn(sampler: Sampler, num_layers: int, count: int) -> list[tuple[Any, ...]]:
    """As many routes, each of a generator of its own."""
    return [sampler(generator("train", 0, step), num_layers) for step in range(count)]


def test_a_route_depends_on_its_key_alone() -> None:
    first = arbitrary(generator("train", 3, 7), 12)
    assert arbitrary(generator("train", 3, 7), 12) == first
    others = {
        arbitrary(generator("train", seed, step), 12)
        for seed, step in itertools.product(range(5), range(20))
    }
    assert len(others) == 100
    assert arbitrary(generator("validation", 3, 7), 12) != first


@pytest.mark.parametrize(
    ("schedule", "rates"), [("constant", (0.6,) * 4), ("linear", (0.15, 0.3, 0.45, 0.6))]
)
def test_rates_of_dropping(schedule: Any, rates: tuple[float, ...]) -> None:
    """Of 4 layers, in their order: 4,000 draws, standard deviation of a share below 0.0079."""
    routes = drawn(drop(0.6, schedule), 4, 4000)
    assert all(route and list(route) == sorted(set(route)) for route in routes)
    nothing_left = math.prod(rates)  # drawn again
    for layer, rate in enumerate(rates):
        share = sum(layer not in route for route in routes) / len(routes)
        assert abs(share - (rate - nothing_left) / (1 - nothing_left)) < 5 * 0.0079


@pytest.mark.parametrize(("spec", "route", "order", "name"), CASES["named"])
def test_samplers_by_name(spec: Any, route: list[Any] | None, order: str, name: str) -> None:
    if route:
        steps = [tuple(step) if isinstance(step, list) else step for step in route]
        assert make_sampler(spec)(generator("train", 0), 4) == tuple(steps)
    assert training_order(spec) == order
    assert sampler_name(spec) == name


@pytest.mark.parametrize(("spec", "said"), CASES["wrong"])
def test_wrong_samplers_say_what_is_accepted(spec: Any, said: str) -> None:
    with refused(re.escape(said), ValueError):
        check_sampler(spec)


def test_right_samplers_are_taken() -> None:
    assert check_sampler({"drop": "1e-1"}) == {"drop": 0.1}  # PyYAML reads 1e-1 as text
    for schedule in ("linear", "constant"):
        spec = {"drop": 0.2, "schedule": schedule}
        assert check_sampler(spec) == spec


@pytest.mark.parametrize(("spec", "found", "ends"), CASES["fits"])
def test_samplers_know_what_they_fit(
    spec: Any, found: list[int] | None, ends: list[int] | None
) -> None:
    assert limit(spec, 4) == (tuple(found) if found else None)
    assert latin_ends(spec) == (tuple(ends) if ends else None)


def test_swaps_are_uniform_at_their_distance() -> None:
    """All 6 orders of 4 layers with 3 inversions, equally often: 6,000 draws, standard deviation of
    a count 29.
    """
    counts = Counter(drawn(swap(3), 4, 6000))
    orders = itertools.permutations(range(4))
    assert set(counts) == {route for route in orders if kendall_distance(route) == 3}
    assert all(abs(count - 1000) < 5 * 29 for count in counts.values())
    assert kendall_distance((0, 0, 1, 1)) == 0  # a layer that runs twice
    for distance in range(67):
        route: Any = swap(distance)(generator("samples", distance), 12)
        assert kendall_distance(route) == distance


def test_per_sample_routes() -> None:
    table, again = (per_sample(drop(0.5), generator("samples", 0), 30, 50) for _ in range(2))
    assert np.array_equal(table, again)
    assert len({tuple(row) for row in table}) == 50
    for row in table:
        route = row[row >= 0]
        assert list(route) == sorted(set(route.tolist()))
        assert (row[len(route) :] == -1).all()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[0.0, 1.0]], r"found float64 \(1, 2\), accepted: integers \(samples, length\)"),
        ([0, 1], r"found int64 \(2,\), accepted: integers \(samples, length\)"),
        ([[0, 1], [-1, -1]], "-1 before a layer or an empty route"),
        ([[0, -1, 1]], "-1 before a layer or an empty route"),
    ],
)
def test_a_table_that_holds_no_routes_is_refused(table: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"per-sample routes: .*{message}"):
        RouteTable(np.array(table))


def test_what_routes_say_of_themselves() -> None:
    table = RouteTable(np.array([[3, 0, 2], [2, -1, -1], [1, 3, -1]]))
    assert (table.lengths(), table.layer_range(), table.shared) == ((1, 3), (0, 3), False)
    assert table.part(1, 1).table.tolist() == [[2, -1, -1]]
    assert table.to_depth(2).table.tolist() == [[3, 0], [2, -1], [1, 3]]
    assert RouteTable(np.empty((2, 0), int)).layer_range() == (0, 0)
    steps: Any = [np.int64(3), (1, 2)]
    one = OneRoute(steps)
    assert one.steps == (3, (1, 2))
    assert (one.lengths(), one.layer_range(), one.shared) == ((2, 2), (1, 3), True)
    assert one.to_depth(1).rows(2).tolist() == [[3], [3]]
    assert OneRoute(()).layer_range() == (0, 0)
    assert OneRoute(()).rows(2).dtype == np.int64
    with refused("a step has no layer", IndexError):
        OneRoute(((),)).layer_range()
    with refused("found 3 rows, accepted: 2, one a sample", ValueError):
        table.rows(2)


@pytest.mark.parametrize(("num_layers", "keep"), [(3, 3), (12, 3), (12, 12), (6, 1)])
@pytest.mark.parametrize("order", ["sequential", "arbitrary"])
def test_evaluation_routes(num_layers: int, keep: int, order: Any) -> None:
    """Distinct ones, and all where there are few: of 3 layers the trained order counts once."""
    routes: list[Any] = evaluation_routes(num_layers, keep, order, 20, 0)
    count = math.comb if order == "sequential" else math.perm
    assert len(routes) == min(20, count(num_layers, keep))
    assert len(set(routes)) == len(routes)
    for route in routes:
        assert len(set(route)) == keep
        assert set(route) <= set(range(num_layers))
        assert all(isinstance(layer, int) for layer in route)
        assert order == "arbitrary" or list(route) == sorted(route)
    assert evaluation_routes(num_layers, keep, order, 20, 0) == routes
    if len(routes) < 20:
        assert evaluation_routes(num_layers, keep, order, len(routes), 0) == routes


@pytest.mark.parametrize(
    ("per", "kind"), [("batch", OneRoute), ("sample", RouteTable), ("latin", Latin)]
)
def test_what_a_training_step_runs_along(per: Any, kind: type) -> None:
    """One route for all of its samples, one for each, or Latin ones."""
    routes = draw_routes("arbitrary", per, generator("train", 0), 4, 6)
    assert isinstance(routes, kind)
    assert routes.rows(6).shape == (6, 4)


# ---- samplers as values ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "values", "route"), CASES["drawn"])
def test_a_sampler_can_be_pickled_and_draws_what_it_always_drew(
    name: str, values: list[Any], route: list[int]
) -> None:
    sampler = getattr(lsvit_routes, name)(*values)
    copied = pickle.loads(pickle.dumps(sampler))
    assert copied == sampler
    found = copied(generator("fixed", 0), 8)
    assert list(found) == route
    assert {type(layer) for layer in found} == {int}


@pytest.mark.parametrize(("name", "values", "message"), CASES["refused"])
def test_samplers_say_what_they_accept(name: str, values: list[Any], message: str) -> None:
    with refused(message, ValueError):
        getattr(lsvit_routes, name)(*values)(generator("fixed", 0), 4)
