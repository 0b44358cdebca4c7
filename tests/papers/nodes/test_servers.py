"""benchmarks/nodes_*.py: layer servers compute one forward pass and refuse what is no message.

Real processes go on when one dies. Schedules, a swarm.
"""

import asyncio
import importlib.util
import itertools
import math
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save

from lsvit.routed import RoutedModel
from lsvit.routes import generator
from lsvit.weights import save_weights
from papers import Variant
from papers.nodes.compute.scheduler import Answer, Client, Journey, News, Send, place
from papers.nodes.section import Fault, Policy, Service
from pipeline.config.presets import ModelPreset
from pipeline.errors import UserError
from pipeline.models.weights import build
from tests.conftest import ROOT, cases_of

sys.path.append(str(ROOT / "benchmarks"))
if TYPE_CHECKING:
    from benchmarks import nodes_cluster, nodes_schedules, nodes_servers
else:
    import nodes_cluster
    import nodes_schedules
    import nodes_servers

CASES = cases_of(__file__)
IMAGES = torch.linspace(-1, 1, 3 * 28 * 28).view(3, 1, 28, 28)
SERVICE = Service.model_validate(CASES["service"])


@pytest.fixture(params=CASES["variants"])
def weights(
    request: pytest.FixtureRequest, six: ModelPreset, tmp_path: Path
) -> "nodes_servers.Weights":
    """A saved model of six layers."""
    variant = Variant.model_validate(CASES["variants"][request.param])
    torch.manual_seed(0)
    save_weights(build(six, 10, variant), tmp_path / "w.safetensors")
    return nodes_servers.Weights(six, 10, variant, tmp_path / "w.safetensors")


def started(model: RoutedModel) -> bytes:
    with torch.inference_mode():
        packed: bytes = nodes_servers.Message(model.embed(IMAGES), ()).pack()
    return packed


@torch.inference_mode()
def same_as_one_pass(model: RoutedModel, packed: bytes, route: tuple[int, ...]) -> bool:
    expected = model(IMAGES, route, exit=nodes_servers.exit_of(model, route))
    return torch.equal(nodes_servers.logits(model, packed), expected)


@pytest.mark.usefixtures("one_thread")
def test_nodes_give_what_one_forward_pass_gives(weights: "nodes_servers.Weights") -> None:
    model = weights.open()
    nodes = [nodes_servers.LayerServer(number, 0.0) for number in range(2)]
    for node in nodes:
        node.hold(weights, place(2, 1, 6), SERVICE)
    for route in ((5, 0, 3, 1, 4, 2), (3, 1, 4, 0), (2, 5)):
        packed = started(model)
        for layer in route:
            packed = nodes[layer % 2].run(packed, layer)
        assert same_as_one_pass(model, packed, route)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("weights", ["ls_pos"], indirect=True)
def test_a_node_refuses_what_is_no_message_and_drops_what_is_late(
    weights: "nodes_servers.Weights",
) -> None:
    node = nodes_servers.LayerServer(0, 0.0)
    node.hold(weights, [[0], [0], [1], [1], [1], [1]], SERVICE)
    tokens = torch.zeros(2, node.tokens, node.width)
    nothing = torch.zeros(0, dtype=torch.int64)
    for tensors, text in (
        ({"tokens": tokens}, "found tokens"),
        ({"tokens": tokens[:, 1:].contiguous(), "done": nothing}, "tokens: found"),
        ({"tokens": tokens.double(), "done": nothing}, "found torch.float64"),
        ({"tokens": tokens, "done": torch.tensor([3, 3])}, "different layers"),
        ({"tokens": tokens, "done": torch.tensor([0])}, "layer: found 0"),
    ):
        with pytest.raises(ValueError, match=text):
            node.run(save(tensors), 0)
    with pytest.raises(ValueError, match="not in safetensors form"):
        node.run(b"\x80\x04K\x01.", 0)  # a pickle
    told: list[Any] = []
    node.meet([], SimpleNamespace(put=SimpleNamespace(remote=told.append)))
    packed = started(weights.open())
    for seconds in (-1, 100):
        send = Send(0, 0, time.time() + seconds)
        node.relay(0, packed, Journey("any", 0.0), [], 0.0, send)
    assert told == [(0, node.run(packed, 0), News(0, (0,), None))]
    with pytest.raises(ValueError, match="as its journey says"):
        node.relay(0, packed, Journey("any", 0.0, (2,)), [], 0.0, Send(0, 0, math.inf))


def test_a_ray_that_runs_already_is_left_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be shut down here: there is no such function."""
    ray = SimpleNamespace(
        __spec__=True,
        is_initialized=lambda: True,
        cluster_resources=lambda: {"CPU": 2.0},
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    text = "found a cluster of 2 processors, accepted: at least 3"
    with pytest.raises(UserError, match=text), nodes_cluster.cluster(3, 0.0):
        pass


@pytest.mark.parametrize(("batches", "layers"), [(5, 12), (64, 12), (3, 1)])
def test_the_latin_schedule_has_neither_fill_nor_drain(batches: int, layers: int) -> None:
    latin = nodes_schedules.latin_ticks(batches, layers)
    pipeline = nodes_schedules.pipeline_ticks(batches, layers)
    assert len(latin) == max(batches, layers)
    assert len(pipeline) == batches + layers - 1
    for schedule in (latin, pipeline):
        pairs = list(itertools.product(range(batches), range(layers)))
        assert sorted(itertools.chain(*schedule)) == pairs
        for tick in schedule:
            for busy in zip(*tick, strict=True):
                assert len(set(busy)) == len(tick)
    for batch in range(batches):
        order = [layer for tick in pipeline for b, layer in tick if b == batch]
        assert order == [*range(layers)]


def test_a_swarm_has_as_many_journeys_as_its_clients_ask_for() -> None:
    service = Service(service=1.0, hop=0.0, deadline=4, patience=3, suspicion=5, leave_out=0.25)
    fault = Fault(away=0.2, absence=50, shape=0.6)
    run = nodes_schedules.swarm(24, 2, 8, 6, 3, 10.0, "any", service, fault, 0)
    assert len(run.answers) == 18
    assert not any(answer.lost for answer in run.answers)
    assert min(answer.begun for answer in run.answers) > 3 * 8  # as many journeys come before
    assert 0 < run.busy < 1


@pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="`uv sync --extra cluster`")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("weights", ["exits"], indirect=True)
def test_real_processes_go_on_without_one(
    weights: "nodes_servers.Weights", monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a node dead, any order does without its layers, and strict order has no answer.

    Every answer equals one forward pass.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "benchmarks"))  # of Ray's workers
    model = weights.open()
    holders = place(2, 1, 6)

    def serve(policy: Policy, **times: float) -> list[Answer]:
        """Six micro-batches, three at a time."""
        options = SERVICE.model_copy(update=times)
        nodes.hold(weights, holders, options)
        client = Client(holders, options, time.time, generator("test"))
        served = asyncio.run(nodes.serve(client, policy, [started(model)] * 6, 3))
        for answer, packed in served:
            assert answer.lost or same_as_one_pass(model, packed, answer.route)
        return [answer for answer, _ in served]

    with nodes_cluster.cluster(2, 0.0) as nodes:
        # A machine under load stops a process for seconds: here nobody loses patience for minutes.
        for answer in serve("any", deadline=100_000, patience=100_000):
            assert sorted(answer.route) == [*range(6)]
        ticks = [[pair] for tick in nodes_schedules.latin_ticks(1, 2) for pair in tick]
        (state,) = nodes.follow(ticks, [started(model)])
        assert same_as_one_pass(model, state, (0, 1))
        nodes.kill(1)
        routes = set()
        for answer in serve("any", deadline=2000):
            assert not answer.lost
            routes.add(frozenset(answer.route))
        assert {0, 2, 4} in routes  # a node that is only slow may have been left out too
        assert all(route <= {0, 2, 4} for route in routes)
        for answer in serve("strict", deadline=40):
            assert answer.lost
            assert answer.route in ((), (0,))
