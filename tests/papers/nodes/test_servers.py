"""Layer servers: what they compute is one forward pass, bit for bit; what they refuse; real processes of which one dies."""

import asyncio
import importlib.util
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import save

from lsvit.routed import RoutedModel
from lsvit.routes import generator
from papers.nodes.compute.cluster import Cluster, cluster
from papers.nodes.compute.scheduler import Answer, Client, Journey, News, Send, latin_ticks, place
from papers.nodes.compute.servers import LayerServer, Message, Weights, exit_of, logits
from papers.nodes.section import Policy, Service
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import PLAIN, Variant
from pipeline.errors import UserError
from pipeline.models.weights import build, save_weights

KINDS: dict[str, dict[str, Any]] = {
    "baseline": {"route": "sequential"},
    "layerdrop": {"route": {"drop": 0.2}},
    "ls": {"route": "arbitrary"},
    "ls_pos": {"route": "arbitrary", "position": {"encode": {"dim": 8}}},
    "ls_pred": {"route": "arbitrary", "position": {"predict": {}}},
    "exits": {"route": "arbitrary", "exits": {"branch": "mlp", "depths": [2, 4]}},
}
IMAGES = torch.linspace(-1, 1, 3 * 28 * 28).view(3, 1, 28, 28)
SERVICE = Service(
    service=0.002, hop=0.002, deadline=2000, patience=1000, suspicion=100, leave_out=0.25
)  # of a machine with other work


@pytest.fixture
def six(pico: ModelPreset) -> ModelPreset:
    return pico.model_copy(update={"kwargs": pico.kwargs | {"depth": 6}})


def weights_of(six: ModelPreset, variant: Variant, folder: Path) -> Weights:
    torch.manual_seed(0)
    save_weights(build(six, 10, variant), folder / "w.safetensors")
    return Weights(six, 10, variant, folder / "w.safetensors")


def started(model: RoutedModel) -> bytes:
    with torch.inference_mode():
        return Message(model.embed(IMAGES), ()).pack()


@torch.inference_mode()
def again(model: RoutedModel, answer: Answer) -> torch.Tensor:
    return model(IMAGES, answer.route, exit=exit_of(model, answer.route))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", [(5, 0, 3, 1, 4, 2), (3, 1, 4, 0), (2, 5)])
def test_nodes_give_what_one_forward_pass_gives(
    kind: str, route: tuple[int, ...], six: ModelPreset, tmp_path: Path
) -> None:
    weights = weights_of(six, PLAIN.model_validate(KINDS[kind]), tmp_path)
    model = weights.open()
    nodes = [LayerServer(number, 0.0) for number in range(2)]
    for node in nodes:
        node.hold(weights, place(2, 1, 6), SERVICE)
    packed = started(model)
    for layer in route:
        packed = nodes[layer % 2].run(packed, layer)
    found = again(model, Answer(route, False))
    assert torch.equal(logits(model, packed), found)
    assert (exit_of(model, route) is None) == (kind != "exits" or len(route) == 6)


def small(header: bytes) -> bytes:
    """A safetensors file with two bytes of numbers."""
    return len(header).to_bytes(8, "little") + header + b"\0\0"


@pytest.mark.usefixtures("one_thread")
def test_what_is_no_message_is_refused(six: ModelPreset, tmp_path: Path) -> None:
    weights, node = weights_of(six, PLAIN, tmp_path), LayerServer(0, 0.0)
    node.hold(weights, [[0], [0], [1], [1], [1], [1]], SERVICE)
    tokens, width = node.tokens, node.width
    good, empty = torch.zeros(2, tokens, width), torch.zeros(0, dtype=torch.int64)
    for packed, said in (
        (b"\x80\x04K\x01.", "not in safetensors form"),  # a pickle
        (
            small(b'{"tokens": {"dtype": "F8_E8M0", "shape": [2], "data_offsets": [0, 2]}}'),
            "not in safetensors form",
        ),  # not torch's
        (save({"tokens": good}), "found tokens, accepted: tokens and done"),
        (save({"tokens": good, "done": empty, "more": empty}), "accepted: tokens and done"),
        (
            save({"tokens": good[:, 1:].contiguous(), "done": empty}),
            rf"tokens: found torch.float32 \(2, {tokens - 1}, {width}\)",
        ),
        (save({"tokens": good.double(), "done": empty}), "found torch.float64"),
        (save({"tokens": good[:0], "done": empty}), r"accepted: torch.float32 \(1 to 1024"),
        (save({"tokens": good, "done": torch.tensor([0, 6])}), "different layers from 0 to 5"),
        (save({"tokens": good, "done": torch.tensor([3, 3])}), "different layers"),
        (save({"tokens": good, "done": torch.tensor([0.0])}), "done: found"),
    ):
        with pytest.raises(ValueError, match=said):
            node.run(packed, 0)
    with pytest.raises(
        ValueError, match=r"done: found \(1,\), accepted: \(2,\), as its journey says"
    ):
        node.relay(
            0,
            Message(good, (1,)).pack(),
            Journey("any", math.inf, (2,)),
            [],
            0.0,
            Send(0, 0, math.inf),
        )
    for layer in (2, 1):
        with pytest.raises(ValueError, match=f"layer: found {layer}, accepted: 0, 1"):
            node.run(Message(good, (1,)).pack(), layer)


@pytest.mark.usefixtures("one_thread")
def test_what_nobody_waits_for_is_dropped(six: ModelPreset, tmp_path: Path) -> None:
    weights, node = weights_of(six, PLAIN, tmp_path), LayerServer(0, 0.0)
    node.hold(weights, [[0]] * 6, SERVICE)
    packed = started(weights.open())
    told: list[Any] = []
    node.meet([], SimpleNamespace(put=SimpleNamespace(remote=told.append)))
    for late in (1, -100):
        node.relay(0, packed, Journey("any", 0.0), [], 0.0, Send(0, 0, time.time() - late))
    assert told == [(0, node.run(packed, 0), News(0, (0,), None))]


def test_without_ray_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = (
        r"^nodes: found no cluster \(Ray is not installed; `uv sync --group cluster` installs it\)$"
    )
    with pytest.raises(UserError, match=said), cluster(2, 0.0):
        pass


def like_ray(init: Callable[..., None], **more: Any) -> SimpleNamespace:
    """A module that starts like this."""
    return SimpleNamespace(__spec__=True, is_initialized=lambda: False, init=init, **more)


def test_of_too_few_nodes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    small = like_ray(
        lambda *args, **kwargs: None,
        cluster_resources=lambda: {"CPU": 2.0},
        shutdown=lambda: ended.append(True),
    )
    monkeypatch.setitem(sys.modules, "ray", small)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(UserError, match="found a cluster of 2 processors, accepted: at least 3"),
        cluster(3, 0.0),
    ):
        pass
    assert ended


@pytest.mark.parametrize("end", [ConnectionError("nobody"), SystemExit(15)])
def test_where_no_cluster_answers_one_line(
    end: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody listens; or somebody does who is no cluster of Ray's, which then ends the process."""

    def init(*args: Any, **kwargs: Any) -> None:
        raise end

    monkeypatch.setitem(sys.modules, "ray", like_ray(init))
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with (
            pytest.raises(
                UserError,
                match=f"^RAY_ADDRESS: found '{address}', no cluster to join .*; accepted: host:port",
            ),
            cluster(3, 0.0),
        ):
            pass


def test_where_ray_does_not_start_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no room in shared memory")

    monkeypatch.setitem(sys.modules, "ray", like_ray(init))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        pytest.raises(
            UserError, match=r"^Ray does not start on this machine: no room in shared memory$"
        ),
        cluster(3, 0.0),
    ):
        pass


class Failed(Exception):
    """Ray's, of a node's own exception or of what is lost with it."""


class Late(Failed):
    """Ray's, of nodes that do not answer."""


NO_RAY = SimpleNamespace(exceptions=SimpleNamespace(RayError=Failed, GetTimeoutError=Late))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Late(), "found nodes that did not answer within 300 s, accepted: a free processor each"),
        (
            Failed("ray::hold()\n  Traceback\nFileNotFoundError: no weights"),
            "found a node that fails: FileNotFoundError: no weights",
        ),
    ],
)
def test_nodes_that_do_not_get_ready_are_one_line(error: Exception, said: str) -> None:
    def get(asked: list[Any], timeout: float) -> list[Any]:
        raise error

    busy = SimpleNamespace(meet=SimpleNamespace(remote=lambda *args: None))
    with pytest.raises(UserError, match=f"^nodes: {said}$"):
        Cluster(SimpleNamespace(**vars(NO_RAY), get=get), [busy], SimpleNamespace(actor=None))


class Here:
    """An actor of Ray's in this process: what is sent to it is done a little later."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, method: str) -> SimpleNamespace:
        async def later(*args: Any) -> Any:
            done = getattr(self.actor, method)(*args)
            return await done if asyncio.iscoroutine(done) else done

        return SimpleNamespace(remote=lambda *args: asyncio.ensure_future(later(*args)))


class Home(asyncio.Queue[Any]):
    """Ray's queue."""

    put_async, get_async = asyncio.Queue.put, asyncio.Queue.get

    @property
    def actor(self) -> Here:
        return Here(self)


class Wrong(LayerServer):
    """Of six nodes with a layer each one raises, one forgets that it ran, one returns fewer images, one sends a pickle."""

    def _run(self, message: Message, layer: int, begun: float) -> bytes:
        right = self._read(super()._run(message, layer, begun))
        if layer == 1:
            raise Failed
        wrong = {
            2: Message(right.tokens, right.done[:-1]).pack(),
            3: Message(right.tokens[:1], right.done).pack(),
            4: b"\x80\x04K\x01.",
        }
        return wrong.get(layer, right.pack())


def serve_here(
    servers: list[LayerServer],
    weights: Weights,
    policy: Policy,
    options: Service,
    lost: float = 0.0,
) -> list[tuple[Answer, bytes]]:
    """Three micro-batches over six nodes with a layer each, in this process."""
    model, holders = weights.open(), place(6, 1, 6)

    async def serve() -> list[tuple[Answer, bytes]]:
        home, actors = Home(), [Here(server) for server in servers]
        for server in servers:
            server.hold(weights, holders, options)
            server.meet(actors, home.actor)
        nodes = Cluster(
            SimpleNamespace(**vars(NO_RAY), get=lambda asked, timeout: [0.0] * 6), actors, home
        )
        nodes.pace(0.0, lost=lost)
        client = Client(holders, options, time.time, generator("test", 1))
        return await nodes.serve(client, policy, [started(model)] * 3, 2, lost)

    answers = asyncio.run(serve())
    for answer, packed in answers:
        assert torch.equal(logits(model, packed), again(model, answer))
    return answers


@pytest.mark.usefixtures("one_thread")
def test_a_node_that_fails_or_answers_wrongly_is_a_silent_one(
    six: ModelPreset, tmp_path: Path
) -> None:
    options = SERVICE.model_copy(update={"patience": 25, "suspicion": 10_000})
    for answer, _ in serve_here(
        [Wrong(number, 0.0) for number in range(6)],
        weights_of(six, PLAIN, tmp_path),
        "any",
        options,
    ):
        assert ({*answer.route}, answer.lost) == ({0, 5}, False)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("lost", "least"), [(0.0, 3), (1 / 3, 6)])
def test_the_client_sends_once_and_again_what_gets_lost(
    lost: float, least: int, six: ModelPreset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all messages, the nodes' and their news too."""
    sent, ask = list[Any](), Cluster._ask

    async def counted(*args: Any) -> None:
        sent.append(args)
        await ask(*args)

    monkeypatch.setattr(Cluster, "_ask", counted)
    options = SERVICE.model_copy(update={"patience": 10 if lost else 1000, "suspicion": 1})
    answers = serve_here(
        [LayerServer(number, 0.0) for number in range(6)],
        weights_of(six, PLAIN, tmp_path),
        "strict",
        options,
        lost,
    )
    assert all(answer.route == (*range(6),) and not answer.lost for answer, _ in answers)
    assert len(sent) >= least if lost else len(sent) == least


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999", "nobody"])
def test_an_address_is_tried_before_ray_tries_it_for_long(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(__spec__=True))
    monkeypatch.setenv("RAY_ADDRESS", address)
    with (
        pytest.raises(
            UserError,
            match=f"RAY_ADDRESS: found '{address}', which does not answer .*; accepted: host:port",
        ),
        cluster(3, 0.0),
    ):
        pass


# ---- real processes ---------------------------------------------------------------------------------------------------

needs_ray = pytest.mark.skipif(
    not importlib.util.find_spec("ray"), reason="Ray is not installed: `uv sync --group cluster`"
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        try:
            found = stack.enter_context(cluster(3, 0.0))
        except UserError as error:
            if "does not start on this machine" not in str(error):
                raise
            pytest.skip(str(error))
        yield found


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nobody_else_can_connect(nodes: Cluster) -> None:
    """Every process that Ray started here listens on loopback alone."""
    started = psutil.Process().children(recursive=True)
    found = [
        each
        for process in started
        for each in process.net_connections("inet")
        if each.status == psutil.CONN_LISTEN
    ]
    heard = {each.laddr.ip.removeprefix("::ffff:") for each in found}
    assert len(started) > 3
    assert heard
    assert all(ip_address(ip).is_loopback for ip in heard), heard


def serve(
    nodes: Cluster, weights: Weights, policy: Policy, service: Service
) -> tuple[RoutedModel, list[tuple[Answer, bytes]]]:
    model, holders = weights.open(), place(3, 1, 6)
    nodes.hold(weights, holders, service)
    client = Client(holders, service, time.time, generator("test"))
    return model, asyncio.run(nodes.serve(client, policy, [started(model)] * 6, 3))


@needs_ray
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_thread")
def test_real_processes_answer_as_one_forward_pass_and_go_on_without_one(
    nodes: Cluster, six: ModelPreset, tmp_path: Path
) -> None:
    """Whatever the order that came about; with a node dead, any order does without its layers, and strict order has no answer."""
    for kind in ("ls_pos", "exits"):
        weights = weights_of(six, PLAIN.model_validate(KINDS[kind]), tmp_path)
        model, answers = serve(nodes, weights, "any", SERVICE)
        for answer, packed in answers:
            assert sorted(answer.route) == [*range(6)]
            assert torch.equal(logits(model, packed), again(model, answer))
    states = nodes.follow(
        [[(batch, layer)] for tick in latin_ticks(1, 3) for batch, layer in tick], [started(model)]
    )
    assert torch.equal(logits(model, states[0]), again(model, Answer((0, 1, 2), False)))
    nodes.kill(1)
    model, answers = serve(nodes, weights, "any", SERVICE)
    for answer, packed in answers:
        assert ({*answer.route}, answer.lost) == (
            {0, 2, 3, 5},
            False,
        )  # an early exit answers for four layers
        assert torch.equal(logits(model, packed), again(model, answer))
    _, answers = serve(nodes, weights, "strict", SERVICE.model_copy(update={"deadline": 40}))
    assert all(answer.lost and answer.route in ((), (0,)) for answer, _ in answers)
