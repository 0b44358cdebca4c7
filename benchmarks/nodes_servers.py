"""Layer servers: processes (actors of Ray, see nodes_cluster.py) that hold layers of a trained
model.

A state is a safetensors file in memory: the tokens, and which layers they have been through. The
node that has run a layer sends it to the next node, and a copy to the client, which can go on from
there where a node fails.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lsvit.routed import RoutedModel
from lsvit.routes import generator
from papers.nodes.compute.scheduler import Journey, Known, News, Send
from papers.nodes.section import Service
from pipeline.config.presets import ModelPreset
from pipeline.config.variant import Variant
from pipeline.models.weights import build

LARGEST = 1024  # images of a micro-batch


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
        return save(
            {"tokens": self.tokens.contiguous(), "done": torch.tensor(self.done, dtype=torch.int64)}
        )

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
        except (
            SafetensorError,
            KeyError,
            TypeError,
        ) as error:  # no such file, of numbers that torch does not have, no bytes at all
            raise ValueError(f"message: not in safetensors form ({error})") from None
        if found.keys() != {"tokens", "done"}:
            raise ValueError(
                f"message: found {', '.join(sorted(found)) or 'nothing'}, accepted: tokens and done"
            )
        state, done = found["tokens"], found["done"]
        if (
            state.dtype != torch.float32
            or state.ndim != 3
            or state.shape[1:] != (tokens, width)
            or not 0 < len(state) <= LARGEST
        ):
            wanted = f"torch.float32 (1 to {LARGEST}, {tokens}, {width})"
            raise ValueError(
                f"message: tokens: found {state.dtype} {tuple(state.shape)}, accepted: {wanted}"
            )
        layers = done.tolist() if done.dtype == torch.int64 and done.ndim == 1 else None
        if layers is None or len({*layers}) != len(layers) or not {*layers} <= {*range(num_layers)}:
            raise ValueError(
                f"message: done: found {done.tolist()}, "
                f"accepted: different layers from 0 to {num_layers - 1}"
            )
        return cls(state, tuple(layers))


class LayerServer:
    """One node: it holds some layers, runs one of them on what it is sent, and sends that on.

    Args:
        number: of the node.
        service: seconds that a layer takes at least; the node waits for the rest. 0: as fast as it
            is.
    """

    def __init__(self, number: int, service: float) -> None:
        torch.set_num_threads(1)
        self.number, self.service, self.spent, self.lost = number, service, 0.0, 0.0

    def meet(self, peers: Sequence[Any], home: Any) -> None:
        """Learn of all nodes, in the order of their numbers, and of the client's mailbox."""
        self.peers, self.home = peers, home

    def hold(self, weights: Weights, holders: Sequence[Sequence[int]], options: Service) -> int:
        """Open a model, of which each layer is held by some nodes, and keep this node's.

        Returns the process's id.
        """
        self.model, self.layers = (
            weights.open(),
            tuple(layer for layer, nodes in enumerate(holders) if self.number in nodes),
        )
        self.known = Known(holders, options, time.time)
        self.known.at = time.time()  # what arrives late is of other models
        backbone = self.model.backbone
        for layer in {*range(self.model.num_layers)} - {*self.layers}:
            backbone.blocks[layer] = torch.nn.Identity()
        with torch.inference_mode():
            self.tokens, self.width = self.model.embed(
                torch.zeros(1, *_image_shape(backbone))
            ).shape[1:]
        return os.getpid()

    def pace(self, service: float, lost: float = 0.0, *key: int | str) -> float:
        """Take so many seconds for a layer from now on. Returns those in which it has computed so
        far.

        Args:
            service: seconds.
            lost: share of messages that it does not send, to see what then happens.
            key: of which ones these are.
        """
        self.lost, self.rng = lost, generator("nodes lost", self.number, *key)
        spent, self.service, self.spent = self.spent, service, 0.0
        return spent

    def relay(
        self,
        number: int,
        packed: bytes,
        journey: Journey,
        table: Sequence[Sequence[float]],
        at: float,
        send: Send,
    ) -> None:
        """Run a layer, send what it gives to whichever node is next, and tell the client. Nothing,
        where it comes too late.

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
        if time.time() > send.until:
            return
        begun, message = time.perf_counter(), self._read(packed)
        if message.done != journey.route:
            raise ValueError(
                f"message: done: found {message.done}, "
                f"accepted: {journey.route}, as its journey says"
            )
        packed = self._run(message, send.layer, begun)
        if time.time() > send.until:
            return
        self.known.read(table, at)
        journey = journey._replace(route=(*journey.route, send.layer))
        onward = self.known.onward(journey, self.number)
        self._post(self.home.put, (number, packed, News(self.number, journey.route, onward)))
        if onward:
            self._post(
                self.peers[onward.node].relay,
                number,
                packed,
                journey,
                self.known.table(),
                self.known.at,
                onward,
            )

    def _post(self, method: Any, *message: Any) -> None:
        """Send, and wait for nothing: the client notices what gets lost."""
        if not self.lost or self.rng.random() >= self.lost:
            method.remote(*message)

    def run(self, packed: bytes, layer: int) -> bytes:
        """Run one layer, at the depth that the message says, and return the message as it is then.

        Raises:
            ValueError: the node does not hold the layer, or the message is none.
        """
        return self._run(self._read(packed), layer, time.perf_counter())

    @torch.inference_mode()
    def _run(self, message: Message, layer: int, begun: float) -> bytes:
        if layer not in self.layers or layer in message.done:
            raise ValueError(
                f"layer: found {layer}, "
                f"accepted: {', '.join(map(str, self.layers))}, each once on a way"
            )
        # One step of the model's own loop: the state comes from elsewhere, and no state does after
        # it.
        state = self.model.run_step(message.tokens, layer, len(message.done))
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
