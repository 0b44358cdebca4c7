"""Routes depend on their key alone; samplers draw what they promise."""

import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest

from lsvit.latin import Latin
from lsvit.routes import (
    OneRoute,
    RouteTable,
    arbitrary,
    drop,
    evaluation_routes,
    fix_first,
    fix_last,
    generator,
    kendall_distance,
    per_sample,
    sequential,
    swap,
)
from pipeline.config.samplers import (
    check_sampler,
    draw_routes,
    limit,
    make_sampler,
    sampler_name,
    training_order,
)


def test_a_route_depends_on_its_key_alone() -> None:
    first = arbitrary(generator("train", 3, 7), 12)
    np.random.default_rng(0).random(100)
    assert arbitrary(generator("train", 3, 7), 12) == first
    others = {
        arbitrary(generator("train", seed, step), 12)
        for seed, step in itertools.product(range(5), range(20))
    }
    assert len(others) == 100
    assert arbitrary(generator("validation", 3, 7), 12) != first


def test_arbitrary_is_uniform() -> None:
    """Every layer is at every place equally often: 3,000 draws, standard deviation of a share
    0.005.
    """
    routes = np.array([arbitrary(generator("train", 0, step), 12) for step in range(3000)])
    assert (np.sort(routes, axis=1) == np.arange(12)).all()
    shares = np.array([(routes == layer).mean(axis=0) for layer in range(12)])
    assert np.abs(shares - 1 / 12).max() < 5 * 0.0051


def test_drop_rate_and_order() -> None:
    """12,000 layers kept with probability 0.8, standard deviation of the share 0.0037."""
    draw = drop(0.2)
    routes = [draw(generator("train", 0, step), 12) for step in range(1000)]
    assert all(list(route) == sorted(set(route)) for route in routes)
    assert abs(sum(map(len, routes)) / 12_000 - 0.8) < 5 * 0.0037


def test_drop_keeps_a_layer() -> None:
    assert all(drop(0.95)(generator("train", 0, step), 2) for step in range(200))


def test_sampler_names() -> None:
    rng = generator("train", 0)
    assert make_sampler("sequential")(rng, 4) == sequential(rng, 4) == (0, 1, 2, 3)
    assert make_sampler({"drop": 0.0})(rng, 4) == (0, 1, 2, 3)
    assert [training_order(spec) for spec in ("sequential", "arbitrary", {"drop": 0.2})] == [
        "sequential",
        "arbitrary",
        "sequential",
    ]
    assert make_sampler("reversed")(rng, 4) == (3, 2, 1, 0)
    assert make_sampler({"order": [2, 2, 0]})(rng, 4) == (2, 2, 0)
    assert make_sampler({"skip": [0, 2]})(rng, 4) == (1, 3)
    assert training_order("reversed") == training_order({"swap": 3}) == "trained"
    assert [sampler_name(spec) for spec in ("reversed", {"swap": 3}, {"skip": [0, 2]})] == [
        "reversed",
        "swap 3",
        "skip 0-2",
    ]


def test_wrong_samplers_say_what_is_accepted() -> None:
    for wrong, said in (
        ("random", "arbitrary, reversed"),
        (None, "arbitrary"),
        (3, "arbitrary"),
        ({}, "arbitrary"),
        ("arbitary", "did you mean 'arbitrary'?"),
        ({"fixfirst": 1}, "did you mean 'fix_first'?"),
        ({"drop": 1}, "0 <= p < 1"),
        ({"drop": True}, "0 <= p"),
        ({"swap": -1}, "{swap: k}"),
        ({"drop": 0.1, "x": 1}, "schedule"),
        ({"drop": 0.1, "schedule": "cubic"}, "constant or linear"),
        ({"swap": 1.5}, "{swap: k}"),
        ({"order": []}, "{order: [layers]}"),
        ({"skip": "12"}, "{skip: [layers]}"),
        ({"fix_first": 1, "fix_last": 1}, "{fix_first: k}"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            check_sampler(wrong)
    assert check_sampler({"drop": "1e-1"}) == {"drop": 0.1}  # PyYAML reads 1e-1 as text


def test_samplers_know_the_models_they_fit() -> None:
    assert limit({"swap": 6}, 4) is None
    assert limit({"swap": 7}, 4) == (7, 6)
    assert limit({"order": [0, 4]}, 4) == (4, 3)
    assert limit({"order": [0, 1, 2, 3]}, 4) is limit({"skip": [0, 0, 1, 1, 2]}, 4) is None
    assert limit({"order": [0, 1, 2, 3, 0]}, 4) == (5, 4)
    assert limit({"skip": [0, 1, 2, 3]}, 4) == (4, 3)
    assert limit({"skip": [4]}, 4) == (4, 3)
    assert limit({"fix_first": 4}, 4) is None
    assert limit("arbitrary", 1) is limit({"drop": 0.2}, 1) is None


def test_swaps_are_uniform_at_their_distance() -> None:
    """All 6 orders of 4 layers with 3 inversions, equally often: 6,000 draws, standard deviation of
    a count 29.
    """
    counts = Counter(swap(3)(generator("samples", step), 4) for step in range(6000))
    assert set(counts) == {
        route for route in itertools.permutations(range(4)) if kendall_distance(route) == 3
    }
    assert all(abs(count - 1000) < 5 * 29 for count in counts.values())
    assert swap(0)(generator("samples", 0), 12) == tuple(range(12))
    assert kendall_distance((0, 0, 1, 1)) == 0  # a layer that runs twice
    assert swap(66)(generator("samples", 0), 12) == tuple(reversed(range(12)))
    assert {kendall_distance(swap(d)(generator("samples", d), 12)) - d for d in range(67)} == {0}  # type: ignore[arg-type]


def test_fixed_ends() -> None:
    """The layers at one end stay; the others are shuffled over all their places."""
    for sampler, kept, free in (
        (fix_first(3), slice(0, 3), slice(3, 8)),
        (fix_last(3), slice(5, 8), slice(0, 5)),
    ):
        routes = np.array([sampler(generator("samples", step), 8) for step in range(500)])
        assert (routes[:, kept] == np.arange(8)[kept]).all()
        assert (np.sort(routes, axis=1) == np.arange(8)).all()
        assert all(len(set(column)) == 5 for column in routes[:, free].T)
    assert (
        fix_first(8)(generator("samples", 0), 8)
        == fix_last(8)(generator("samples", 0), 8)
        == tuple(range(8))
    )


def test_layer_drop_with_a_linear_schedule() -> None:
    """The first of 4 layers is dropped with p / 4, the last with p: 4,000 draws, standard deviation
    of a share below 0.0079.
    """
    routes = [drop(0.6, "linear")(generator("samples", step), 4) for step in range(4000)]
    rates = (0.15, 0.3, 0.45, 0.6)
    nothing_left = math.prod(rates)  # drawn again
    for layer, rate in enumerate(rates):
        share = sum(layer not in route for route in routes) / len(routes)
        assert abs(share - (rate - nothing_left) / (1 - nothing_left)) < 5 * 0.0079


def test_per_sample_routes() -> None:
    table = per_sample(drop(0.5), generator("samples", 0), 6, 50)
    assert table.shape[0] == 50
    for row in table:
        route = row[row >= 0]
        assert list(route) == sorted(set(route.tolist()))
        assert (row[len(route) :] == -1).all()
    assert (
        per_sample(arbitrary, generator("samples", 0), 6, 50)
        == per_sample(arbitrary, generator("samples", 0), 6, 50)
    ).all()
    assert len({tuple(row) for row in per_sample(arbitrary, generator("samples", 0), 12, 50)}) == 50


@pytest.mark.parametrize(("num_layers", "keep"), [(3, 3), (12, 3), (12, 6), (12, 12), (6, 1)])
def test_evaluation_routes(num_layers: int, keep: int) -> None:
    sequential_routes = evaluation_routes(num_layers, keep, "sequential", 20, 0)
    arbitrary_routes = evaluation_routes(num_layers, keep, "arbitrary", 20, 0)
    assert len(sequential_routes) == min(20, math.comb(num_layers, keep))
    assert len(arbitrary_routes) == min(20, math.perm(num_layers, keep))
    for routes in (sequential_routes, arbitrary_routes):
        assert len(set(routes)) == len(routes)
        assert all(
            len(set(route)) == keep and set(route) <= set(range(num_layers)) for route in routes
        )
        assert all(isinstance(layer, int) for route in routes for layer in route)
    assert all(list(route) == sorted(route) for route in sequential_routes)
    assert evaluation_routes(num_layers, keep, "arbitrary", 20, 0) == arbitrary_routes


def test_few_orders_are_all_taken() -> None:
    """The paper's 3-layer artefact: of 6 orders, all are evaluated, the trained one counts once."""
    assert sorted(evaluation_routes(3, 3, "arbitrary", 20, 0)) == sorted(
        itertools.permutations(range(3))
    )


def test_what_a_training_step_runs_along() -> None:
    """One route for all of its samples, one for each, or Latin ones."""
    one, each, square = (
        draw_routes("arbitrary", per, generator("train", 0), 4, 6)
        for per in ("batch", "sample", "latin")
    )
    assert isinstance(one, OneRoute)
    assert isinstance(each, RouteTable)
    assert isinstance(square, Latin)
    assert one.rows(6).shape == each.rows(6).shape == square.rows(6).shape == (6, 4)


def test_a_schedule_of_dropping_is_accepted() -> None:
    for schedule in ("linear", "constant"):
        assert check_sampler({"drop": 0.2, "schedule": schedule}) == {
            "drop": 0.2,
            "schedule": schedule,
        }
