"""Layer servers: real processes (actors of Ray) that hold layers of a trained model, and a client that sends micro-batches through them.

A message is a safetensors file in memory: the tokens, and which layers they have been through. So a node needs to know nothing else, and
the client, which gets every state back, can send it to another one where a node fails (as Petals' clients do).
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
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
from lsvit.papers.nodes.compute.scheduler import Answer, Client, Pause
from lsvit.papers.nodes.section import Policy
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
    """One node: it holds some layers, and runs one of them on what it is sent.

    Args:
        service: seconds that a layer takes at least; the node waits for the rest. 0: as fast as it is.
    """

    def __init__(self, service: float) -> None:
        torch.set_num_threads(1)
        self.service, self.spent = service, 0.0

    def hold(self, weights: Weights, layers: Sequence[int]) -> int:
        """Open a model and keep these of its layers. Returns the process's id."""
        self.model, self.layers = weights.open(), tuple(layers)
        backbone = self.model.backbone
        for layer in {*range(self.model.num_layers)} - {*layers}:
            backbone.blocks[layer] = torch.nn.Identity()
        with torch.inference_mode():
            self.tokens, self.width = self.model.embed(torch.zeros(1, *_image_shape(backbone))).shape[1:]
        return os.getpid()

    def pace(self, service: float) -> float:
        """Take so many seconds for a layer from now on. Returns those in which it has computed so far."""
        spent, self.service, self.spent = self.spent, service, 0.0
        return spent

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
        message = Message.unpack(packed, self.tokens, self.width, self.model.num_layers)
        if layer not in self.layers or layer in message.done:
            raise ValueError(f"layer: found {layer}, accepted: {', '.join(map(str, self.layers))}, each once on a way")
        # One step of the model's own loop: the state comes from elsewhere, and no state does after it.
        state = self.model._step(message.tokens, layer, len(message.done), (), slice(None))
        answer = Message(state, (*message.done, layer)).pack()
        spent = time.perf_counter() - begun
        self.spent += spent
        time.sleep(max(self.service - spent, 0.0))
        return answer


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
    """

    def __init__(self, ray: Any, actors: list[Any]) -> None:
        self.ray, self.actors = ray, dict(enumerate(actors))
        self.alive = dict(self.actors)

    def kill(self, node: int) -> None:
        """End a node's process for good; who sends to it is told so."""
        if self.alive.pop(node, None):
            self.ray.kill(self.actors[node])

    def hold(self, weights: Weights, holders: Sequence[Sequence[int]]) -> dict[int, int]:
        """Spread a model: layer -> the nodes that hold it. Returns the processes of the nodes that live."""
        own = {node: [layer for layer, nodes in enumerate(holders) if node in nodes] for node in self.alive}
        return dict(zip(own, self._all([self.alive[node].hold.remote(weights, layers) for node, layers in own.items()]), strict=True))

    def pace(self, service: float, slow: int | None = None, times: float = 1.0) -> float:
        """Take so many seconds for a layer from now on, one node so many times longer; returns those computed for since the last time."""
        paces = [actor.pace.remote(service * (times if node == slow else 1)) for node, actor in self.alive.items()]
        return sum(self._all(paces))

    def _all(self, asked: Sequence[Any]) -> list[Any]:
        """What the nodes answer. Raises UserError: one of them does not, as on a cluster whose processors are taken."""
        try:
            return self.ray.get(asked, timeout=READY)
        except self.ray.exceptions.GetTimeoutError:
            raise UserError(f"nodes: found nodes that did not answer within {READY:.0f} s, accepted: a free processor each") from None

    async def travel(self, client: Client, policy: Policy, packed: bytes, lost: float = 0.0, *key: int | str) -> tuple[Answer, bytes]:
        """One micro-batch's journey. A node that raises, or answers with anything but what was sent one layer on, counts as silent.

        Args:
            client: who sends it.
            policy: in which order.
            packed: the message.
            lost: share of messages that are not sent, to see what then happens.
            key: of which ones these are.

        Returns:
            How it ended, and the message as it was then.
        """
        journey, rng = client.journey(policy), generator("nodes lost", *key)
        (images, tokens, width), done = load(packed)["tokens"].shape, tuple[int, ...]()
        try:
            step = next(journey)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = journey.send(False)
                    continue
                try:
                    async with asyncio.timeout(step.patience):
                        if lost and rng.random() < lost:
                            await asyncio.sleep(2 * step.patience)
                        reply = await self.actors[step.node].run.remote(packed, step.layer, time.time() + step.patience)
                    found = Message.unpack(reply, tokens, width, client.num_layers)
                    arrived = len(found.tokens) == images and found.done == (*done, step.layer)
                except (TimeoutError, ValueError, self.ray.exceptions.RayError):
                    arrived = False
                if arrived:
                    packed, done = reply, found.done
                step = journey.send(arrived)
        except StopIteration as end:
            return end.value, packed

    async def serve(
        self, client: Client, policy: Policy, messages: Sequence[bytes], in_flight: int, lost: float = 0.0, *key: int | str
    ) -> list[tuple[Answer, bytes]]:
        """All micro-batches, `in_flight` of them under way at a time; the key is of the draws of lost messages."""
        answers: dict[int, tuple[Answer, bytes]] = {}
        left = iter(enumerate(messages))

        async def stream() -> None:
            for number, packed in left:
                answers[number] = await self.travel(client, policy, packed, lost, *key, number)

        await asyncio.gather(*(stream() for _ in range(in_flight)))
        return [answers[number] for number in range(len(messages))]

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
        remote: Any = ray.remote(num_cpus=1)(LayerServer)
        yield Cluster(ray, [remote.remote(service) for _ in range(nodes)])
    finally:
        ray.shutdown()
