"""Routes depend on their key alone; samplers draw what they promise."""

import itertools
import math

import numpy as np
import pytest

from lsvit.routes import arbitrary, check_sampler, evaluation_routes, generator, drop, make_sampler, sequential, training_order


def test_a_route_depends_on_its_key_alone() -> None:
    first = arbitrary(generator("train", 3, 7), 12)
    np.random.default_rng(0).random(100)
    assert arbitrary(generator("train", 3, 7), 12) == first
    others = {arbitrary(generator("train", seed, step), 12) for seed, step in itertools.product(range(5), range(20))}
    assert len(others) == 100
    assert arbitrary(generator("validation", 3, 7), 12) != first


def test_arbitrary_is_uniform() -> None:
    """Every layer is at every place equally often: 3,000 draws, standard deviation of a share 0.005."""
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
    assert [training_order(spec) for spec in ("sequential", "arbitrary", {"drop": 0.2})] == ["sequential", "arbitrary", "sequential"]
    for wrong in ("random", {"drop": 1}, {"drop": True}, {"drop": 0.1, "x": 1}, None, 3):
        with pytest.raises(ValueError, match="arbitrary"):
            check_sampler(wrong)


@pytest.mark.parametrize(("num_layers", "keep"), [(3, 3), (12, 3), (12, 6), (12, 12), (6, 1)])
def test_evaluation_routes(num_layers: int, keep: int) -> None:
    sequential_routes = evaluation_routes(num_layers, keep, "sequential", 20, 0)
    arbitrary_routes = evaluation_routes(num_layers, keep, "arbitrary", 20, 0)
    assert len(sequential_routes) == min(20, math.comb(num_layers, keep))
    assert len(arbitrary_routes) == min(20, math.perm(num_layers, keep))
    for routes in (sequential_routes, arbitrary_routes):
        assert len(set(routes)) == len(routes)
        assert all(len(set(route)) == keep and set(route) <= set(range(num_layers)) for route in routes)
        assert all(isinstance(layer, int) for route in routes for layer in route)
    assert all(list(route) == sorted(route) for route in sequential_routes)
    assert evaluation_routes(num_layers, keep, "arbitrary", 20, 0) == arbitrary_routes


def test_few_orders_are_all_taken() -> None:
    """The paper's 3-layer artefact: of 6 orders, all are evaluated, the trained one counts once."""
    assert sorted(evaluation_routes(3, 3, "arbitrary", 20, 0)) == sorted(itertools.permutations(range(3)))
