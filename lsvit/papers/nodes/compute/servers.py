"""Layer servers: real processes (actors of Ray) that hold layers of a trained model, and a client whose micro-batches travel among them.

A state is a safetensors file in memory: the tokens, and which layers they have been through. The node that has run a layer sends it to the
next node, and a copy to the client, which can go on from there where a node fails.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lsvit.config.presets import ModelPreset
from lsvit.config.variant import Variant
from lsvit.errors import UserError
from lsvit.jobs.address import ADDRESS, reach
from lsvit.models.routed import RoutedModel
from lsvit.models.weights import build
from lsvit.papers.nodes.compute.scheduler import Answer, Client, Journey, Known, News, Send, Step
from lsvit.papers.nodes.section import Policy, Service
from lsvit.routes import generator

LARGEST = 1024  # images of a micro-batch
READY = 300.0  # seconds in which a node must have opened a model: a dozen processes import torch at once


class Weights(NamedTuple):
    """Of one trained model, and what it takes to open it. Every node reads the file itself."""

    preset: ModelPreset
    num_classes: int
    variant: Variant
    file: Path

    def open(self) -> RoutedModel:
        """The model, to be evaluated."""
        return build(self.preset, self.num_classes, self.variant, self.file).eval()


class Message(NamedTuple):
    """A micro-batch under way."""

    tokens: Tensor  # (B, N, D), float32
    done: tuple[int, ...]  # the layers it has been through, in order

    def pack(self) -> bytes:
        """As it travels."""
        return save({"tokens": self.tokens.contiguous(), "done": torch.tensor(self.done, dtype=torch.int64)})

    @classmethod
    def unpack(cls, packed: bytes, tokens: int, width: int, num_layers: int) -> "Message":
        """Read what came from elsewhere: nothing in it is executed.

        Args:
            packed: a safetensors file.
            tokens: N, which the model has.
            width: D, which it has.
            num_layers: L, which it has.

        Raises:
            ValueError: it is not what a node can work on; says what was found and what is accepted.
        """
        try:
            found = load(packed)
        except (SafetensorError, KeyError, TypeError) as error:  # no such file, of numbers that torch does not have, no bytes at all
            raise ValueError(f"message: not in safetensors form ({error})") from None
        if found.keys() != {"tokens", "done"}:
            raise ValueError(f"message: found {', '.join(sorted(found)) or 'nothing'}, accepted: tokens and done")
        state, done = found["tokens"], found["done"]
        if state.dtype != torch.float32 or state.ndim != 3 or state.shape[1:] != (tokens, width) or not 0 < len(state) <= LARGEST:
            wanted = f"torch.float32 (1 to {LARGEST}, {tokens}, {width})"
            raise ValueError(f"message: tokens: found {state.dtype} {tuple(state.shape)}, accepted: {wanted}")
        layers = done.tolist() if done.dtype == torch.int64 and done.ndim == 1 else None
        if layers is None or len({*layers}) != len(layers) or not {*layers} <= {*range(num_layers)}:
            raise ValueError(f"message: done: found {done.tolist()}, accepted: different layers from 0 to {num_layers - 1}")
        return cls(state, tuple(layers))


class LayerServer:
    """One node: it holds some layers, runs one of them on what it is sent, and sends that on.

    Args:
        number: of the node.
        service: seconds that a layer takes at least; the node waits for the rest. 0: as fast as it is.
    """

    def __init__(self, number: int, service: float) -> None:
        torch.set_num_threads(1)
        self.number, self.service, self.spent, self.lost = number, service, 0.0, 0.0

    def meet(self, peers: Sequence[Any], home: Any) -> None:
        """Learn of all nodes, in the order of their numbers, and of the client's mailbox."""
        self.peers, self.home = peers, home

    def hold(self, weights: Weights, holders: Sequence[Sequence[int]], options: Service) -> int:
        """Open a model, of which each layer is held by some nodes, and keep this node's. Returns the process's id."""
        self.model, self.layers = weights.open(), tuple(layer for layer, nodes in enumerate(holders) if self.number in nodes)
        self.known = Known(holders, options, time.time)
        self.known.at = time.time()  # what arrives late is of other models
        backbone = self.model.backbone
        for layer in {*range(self.model.num_layers)} - {*self.layers}:
            backbone.blocks[layer] = torch.nn.Identity()
        with torch.inference_mode():
            self.tokens, self.width = self.model.embed(torch.zeros(1, *_image_shape(backbone))).shape[1:]
        return os.getpid()

    def pace(self, service: float, lost: float = 0.0, *key: int | str) -> float:
        """Take so many seconds for a layer from now on. Returns those in which it has computed so far.

        Args:
            service: seconds.
            lost: share of messages that it does not send, to see what then happens.
            key: of which ones these are.
        """
        self.lost, self.rng = lost, generator("nodes lost", self.number, *key)
        spent, self.service, self.spent = self.spent, service, 0.0
        return spent

    def relay(self, number: int, packed: bytes, journey: Journey, table: Sequence[Sequence[float]], at: float, send: Send) -> None:
        """Run a layer, send what it gives to whichever node is next, and tell the client. Nothing, where it comes too late.

        Args:
            number: of the micro-batch.
            packed: its state.
            journey: what it is on.
            table: what the client knew of the nodes (:meth:`Known.table`).
            at: when that was.
            send: what this node is to do.

        Raises:
            ValueError: as :meth:`run`; or the state has been through other layers.
        """
        if (done := self._read(packed).done) != journey.route:
            raise ValueError(f"message: done: found {done}, accepted: {journey.route}, as its journey says")
        packed = self.run(packed, send.layer, send.until)
        if not packed or time.time() > send.until:
            return
        self.known.read(table, at)
        journey = journey._replace(route=(*journey.route, send.layer))
        onward = self.known.onward(journey, self.number)
        self._post(self.home.put, (number, packed, News(self.number, journey.route, onward)))
        if onward:
            self._post(self.peers[onward.node].relay, number, packed, journey, self.known.table(), self.known.at, onward)

    def _post(self, method: Any, *message: Any) -> None:
        """Send, and wait for nothing: the client notices what gets lost."""
        if not self.lost or self.rng.random() >= self.lost:
            method.remote(*message)

    @torch.inference_mode()
    def run(self, packed: bytes, layer: int, until: float = math.inf) -> bytes:
        """Run one layer, at the depth that the message says, and return the message as it is then.

        Nothing is run, and nothing returned, after `until` (seconds since the epoch): nobody waits for it any more.

        Raises:
            ValueError: the node does not hold the layer, or the message is none.
        """
        if time.time() > until:
            return b""
        begun = time.perf_counter()
        message = self._read(packed)
        if layer not in self.layers or layer in message.done:
            raise ValueError(f"layer: found {layer}, accepted: {', '.join(map(str, self.layers))}, each once on a way")
        # One step of the model's own loop: the state comes from elsewhere, and no state does after it.
        state = self.model._step(message.tokens, layer, len(message.done), (), slice(None))
        answer = Message(state, (*message.done, layer)).pack()
        spent = time.perf_counter() - begun
        self.spent += spent
        time.sleep(max(self.service - spent, 0.0))
        return answer

    def _read(self, packed: bytes) -> Message:
        return Message.unpack(packed, self.tokens, self.width, self.model.num_layers)


def _image_shape(backbone: Any) -> tuple[int, int, int]:
    embed = getattr(backbone, "stem", None) or backbone.patch_embed
    return (embed.proj.in_channels, *embed.img_size)


def exit_of(model: RoutedModel, route: Sequence[int]) -> int | None:
    """The early exit that answers for a route that ended there; None: the model's own head."""
    return len(route) if len(route) < model.num_layers and str(len(route)) in model.exits else None


@torch.inference_mode()
def logits(model: RoutedModel, packed: bytes) -> Tensor:
    """What a client answers with, wherever the journey has ended: (B, num_classes)."""
    state, done = load(packed)["tokens"], load(packed)["done"].tolist()
    return model.answer(state, exit_of(model, done))


class Cluster:
    """Nodes as actors of Ray, which :func:`cluster` starts.

    Args:
        ray: the module.
        actors: one a node.
        home: the client's mailbox, a queue of Ray.
    """

    def __init__(self, ray: Any, actors: list[Any], home: Any) -> None:
        self.ray, self.actors, self.home = ray, dict(enumerate(actors)), home
        self.alive = dict(self.actors)
        self.numbers = itertools.count()  # of micro-batches: what is late is of an older one
        self._all([actor.meet.remote(actors, home.actor) for actor in actors])

    def kill(self, node: int) -> None:
        """End a node's process for good; a client that sends to it is told so."""
        if self.alive.pop(node, None):
            self.ray.kill(self.actors[node])

    def hold(self, weights: Weights, holders: Sequence[Sequence[int]], options: Service) -> dict[int, int]:
        """Spread a model: layer -> the nodes that hold it. Returns the processes of the nodes that live."""
        pids = self._all([actor.hold.remote(weights, holders, options) for actor in self.alive.values()])
        return dict(zip(self.alive, pids, strict=True))

    def pace(self, service: float, slow: int | None = None, times: float = 1.0, lost: float = 0.0, *key: int | str) -> float:
        """Take so many seconds for a layer from now on, one node so many times longer; returns those computed for since the last time.

        Of the messages of nodes that share is lost; the key is of the draws.
        """
        own = {node: service * (times if node == slow else 1) for node in self.alive}
        return sum(self._all([self.alive[node].pace.remote(each, lost, *key) for node, each in own.items()]))

    def _all(self, asked: Sequence[Any]) -> list[Any]:
        """What the nodes answer. Raises UserError: one of them does not, as on a cluster whose processors are taken."""
        try:
            return self.ray.get(asked, timeout=READY)
        except self.ray.exceptions.GetTimeoutError:
            raise UserError(f"nodes: found nodes that did not answer within {READY:.0f} s, accepted: a free processor each") from None

    async def serve(
        self, client: Client, policy: Policy, messages: Sequence[bytes], in_flight: int, lost: float = 0.0, *key: int | str
    ) -> list[tuple[Answer, bytes]]:
        """All micro-batches, `in_flight` of them under way at a time: how each ended, and its state then.

        Args:
            client: who sends them.
            policy: in which order.
            messages: their states.
            in_flight: how many.
            lost: share of the client's own messages that are not sent.
            key: of which ones these are.
        """
        answers: dict[int, tuple[Answer, bytes]] = {}
        inboxes: dict[int, asyncio.Queue[Any]] = {}
        left, rng = iter(enumerate(messages)), generator("nodes lost", *key)

        async def stream() -> None:
            for position, packed in left:
                number = next(self.numbers)
                inboxes[number] = asyncio.Queue()
                answers[position] = await self._travel(client, policy, number, packed, inboxes[number], lambda: rng.random() < lost)
                del inboxes[number]

        async def listen() -> None:
            while letter := await self.home.get_async():
                number, *told = letter
                if number in inboxes:
                    inboxes[number].put_nowait(told)

        listening = asyncio.create_task(listen())
        try:
            await asyncio.gather(*(stream() for _ in range(in_flight)))
        finally:
            await self.home.put_async(None)
            await listening
        return [answers[position] for position in range(len(messages))]

    async def _travel(
        self, client: Client, policy: Policy, number: int, packed: bytes, inbox: asyncio.Queue[Any], lost: Callable[[], bool]
    ) -> tuple[Answer, bytes]:
        """One micro-batch's journey."""
        steps, asked = client.journey(policy), set[asyncio.Task[None]]()
        shape = load(packed)["tokens"].shape
        try:
            step = next(steps)
            while True:
                if step.send and not lost():
                    asked.add(asyncio.create_task(self._ask(client, number, packed, step.journey, step.send, inbox)))
                packed, heard = await self._heard(client, step, packed, shape, inbox)
                step = steps.send(heard)
        except StopIteration as end:
            return end.value, packed

    async def _ask(self, client: Client, number: int, packed: bytes, journey: Journey, send: Send, inbox: asyncio.Queue[Any]) -> None:
        """Send to a node, and tell where it is no more or does not take it."""
        try:
            await self.actors[send.node].relay.remote(number, packed, journey, client.table(), client.now(), send)
        except self.ray.exceptions.RayError:
            inbox.put_nowait((b"", send))

    async def _heard(
        self, client: Client, step: Step, packed: bytes, shape: Sequence[int], inbox: asyncio.Queue[Any]
    ) -> tuple[bytes, News | Send | None]:
        """What the client hears first of what it accepts, if that comes in time, and the newest state.

        News with anything but a state of these images, which has been through that route, are none.
        """
        images, tokens, width = shape
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(step.until - client.now()):
                while True:
                    state, heard = await inbox.get()
                    if not client.accepts(step, heard):
                        continue
                    if isinstance(heard, Send):
                        return packed, heard
                    with contextlib.suppress(ValueError):
                        found = Message.unpack(state, tokens, width, client.num_layers)
                        if len(found.tokens) == images and found.done == heard.route:
                            return state, heard
        return packed, None

    def follow(self, ticks: Sequence[Sequence[tuple[int, int]]], messages: Sequence[bytes]) -> list[bytes]:
        """Send micro-batches along a schedule, node l holding layer l: each state goes from node to node, no client between."""
        states: list[Any] = list(messages)
        for tick in ticks:
            for batch, layer in tick:
                states[batch] = self.actors[layer].run.remote(states[batch], layer)
        return self.ray.get(states)


@contextmanager
def cluster(nodes: int, service: float) -> Iterator[Cluster]:
    """So many nodes, each an actor of its own process: on the cluster that RAY_ADDRESS names, else on this machine alone.

    Raises:
        UserError: Ray is not installed, does not start, cannot be reached, or has fewer processors than there shall be nodes.
    """
    address = os.environ.get(ADDRESS, "local")
    # Workers are this interpreter's, not made anew by uv.
    os.environ |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    if address.startswith(("local", "127.")):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's way to stay on loopback, which is the default there alone
    try:
        import ray
    except ModuleNotFoundError:
        raise UserError("nodes: Ray is not installed; `uv sync --group cluster` installs it") from None
    options: dict[str, Any] = (
        {"num_cpus": nodes, "object_store_memory": 100 << 20, "include_dashboard": False} if address == "local" else {}
    )
    try:
        if address != "local":  # asked first: Ray itself tries for 90 s, and then ends the process
            reach(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, ValueError, RuntimeError, SystemExit) as error:
        if address == "local":
            raise UserError(f"nodes: Ray does not start on this machine: {error}") from None
        raise UserError(f"{ADDRESS}: found {address!r}, accepted: host:port of a cluster that runs and takes this user's token") from None
    try:
        there = int(ray.cluster_resources().get("CPU", 0))
        if there < nodes:
            raise UserError(f"nodes: found a cluster of {there} processors, accepted: at least {nodes}, one a node")
        from ray.util.queue import Queue

        remote: Any = ray.remote(num_cpus=1)(LayerServer)
        yield Cluster(ray, [remote.remote(number, service) for number in range(nodes)], Queue(actor_options={"num_cpus": 0}))
    finally:
        ray.shutdown()
