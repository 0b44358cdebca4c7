"""Layer servers as actors of Ray, and the client's side of them.

It sends micro-batches, hears of them, and steps in where a node fails.
"""

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nodes_servers import LayerServer, Message, Weights
from safetensors.torch import load

from lsvit.routes import generator
from papers.nodes.compute.scheduler import Answer, Client, Journey, News, Send, Step
from papers.nodes.section import Policy, Service
from pipeline.errors import UserError
from pipeline.jobs.address import check_cluster
from pipeline.jobs.ray import connect

# seconds in which a node must have opened a model: a dozen processes import torch at once
READY = 300.0


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

    def hold(
        self, weights: Weights, holders: Sequence[Sequence[int]], options: Service
    ) -> dict[int, int]:
        """Spread a model.

        Layer -> the nodes that hold it. Returns the processes of the nodes that live.
        """
        pids = self._all(
            [actor.hold.remote(weights, holders, options) for actor in self.alive.values()]
        )
        return dict(zip(self.alive, pids, strict=True))

    def pace(
        self,
        service: float,
        slow: int | None = None,
        times: float = 1.0,
        lost: float = 0.0,
        *key: int | str,
    ) -> float:
        """Take so many seconds for a layer from now on, one node so many times longer; returns
        those computed for since the last time.

        Of the messages of nodes that share is lost; the key is of the draws.
        """
        own = {node: service * (times if node == slow else 1) for node in self.alive}
        return sum(
            self._all(
                [self.alive[node].pace.remote(each, lost, *key) for node, each in own.items()]
            )
        )

    def _all(self, asked: Sequence[Any]) -> list[Any]:
        """What the nodes answer.

        Raises UserError: one of them does not, as on a cluster whose processors are taken, or
        cannot.
        """
        try:
            return self.ray.get(asked, timeout=READY)
        except self.ray.exceptions.GetTimeoutError:
            raise UserError(
                f"nodes: found nodes that did not answer within {READY:.0f} s, "
                "accepted: a free processor each"
            ) from None
        except (
            self.ray.exceptions.RayError
        ) as error:  # no such weights there, say, or a process that is no more
            raise UserError(
                f"nodes: found a node that fails: {str(error).strip().splitlines()[-1]}"
            ) from None

    async def serve(
        self,
        client: Client,
        policy: Policy,
        messages: Sequence[bytes],
        in_flight: int,
        lost: float = 0.0,
        *key: int | str,
    ) -> list[tuple[Answer, bytes]]:
        """All micro-batches, `in_flight` of them under way at a time: how each ended, and its state
        then.

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
                answers[position] = await self._travel(
                    client, policy, number, packed, inboxes[number], lambda: rng.random() < lost
                )
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
        self,
        client: Client,
        policy: Policy,
        number: int,
        packed: bytes,
        inbox: asyncio.Queue[Any],
        lost: Callable[[], bool],
    ) -> tuple[Answer, bytes]:
        """One micro-batch's journey."""
        steps, asked = client.journey(policy), set[asyncio.Task[None]]()
        shape = load(packed)["tokens"].shape
        try:
            step = next(steps)
            while True:
                if step.send and not lost():
                    asked.add(
                        asyncio.create_task(
                            self._ask(client, number, packed, step.journey, step.send, inbox)
                        )
                    )
                packed, heard = await self._heard(client, step, packed, shape, inbox)
                step = steps.send(heard)
        except StopIteration as end:
            return end.value, packed

    async def _ask(
        self,
        client: Client,
        number: int,
        packed: bytes,
        journey: Journey,
        send: Send,
        inbox: asyncio.Queue[Any],
    ) -> None:
        """Send to a node, and tell where it is no more or does not take it."""
        try:
            await self.actors[send.node].relay.remote(
                number, packed, journey, client.table(), client.now(), send
            )
        except self.ray.exceptions.RayError:
            inbox.put_nowait((b"", send))

    async def _heard(
        self,
        client: Client,
        step: Step,
        packed: bytes,
        shape: Sequence[int],
        inbox: asyncio.Queue[Any],
    ) -> tuple[bytes, News | Send | None]:
        """What the client hears first of what it accepts, if that comes in time, and the newest
        state.

        News without a state of these images that has been through that route is none.
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

    def follow(
        self, ticks: Sequence[Sequence[tuple[int, int]]], messages: Sequence[bytes]
    ) -> list[bytes]:
        """Send micro-batches along a schedule, node l holding layer l.

        Ray takes small states to the next node by way of this process.
        """
        states: list[Any] = list(messages)
        for tick in ticks:
            for batch, layer in tick:
                states[batch] = self.actors[layer].run.remote(states[batch], layer)
        return self.ray.get(states)


@contextmanager
def cluster(nodes: int, service: float) -> Iterator[Cluster]:
    """So many nodes, each an actor of its own process: on the cluster that RAY_ADDRESS names, else
    on this machine alone.

    Raises:
        UserError: Ray is not installed, does not start, cannot be reached, or has fewer processors
            than there shall be nodes.
    """
    check_cluster("nodes: found no cluster")
    # Ray is imported by `connect` and not before: the import reads where to listen.
    running = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    connect(num_cpus=nodes, object_store_memory=100 << 20)
    import ray

    actors = []
    try:
        processors = int(ray.cluster_resources().get("CPU", 0))
        if processors < nodes:
            raise UserError(
                f"nodes: found a cluster of {processors} processors, "
                f"accepted: at least {nodes}, one a node"
            )
        from ray.util.queue import Queue

        remote: Any = ray.remote(num_cpus=1)(LayerServer)
        actors = [remote.remote(number, service) for number in range(nodes)]
        yield Cluster(ray, actors, Queue(actor_options={"num_cpus": 0}))
    finally:
        if running:  # somebody else's: only what was started here ends
            for actor in actors:
                ray.kill(actor)
        else:
            ray.shutdown()
