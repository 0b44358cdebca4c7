"""The scheduler of a model that is spread over nodes: a pure, seeded policy, which a client and its
nodes obey.

A micro-batch goes from node to node. Whoever has run a layer chooses who runs the next one
(:meth:`Known.onward`) and tells the client, which goes on in its place where that fails
(:meth:`Client.journey`, a generator of what is to be done, which is sent the news). The simulation
(:mod:`papers.nodes.compute.simulation`) and real processes (benchmarks/nodes_cluster.py) both run
this scheduler. No torch, no clock and no network here.
"""

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from papers.nodes.section import Policy, Service

MEMORY = 0.5  # weight of the last answer in what is expected of a node
EQUAL = 1.25  # answers that are expected within so many times the shortest wait are as good
# The share of a journey's time that is spent at most on a node because it was silent before.
PROBE = 0.25


class Journey(NamedTuple):
    """What whoever holds a micro-batch has to know of it."""

    policy: Policy
    end: float  # the deadline, in seconds by the clock
    route: tuple[int, ...] = ()  # the layers that it has been through, in order
    left_out: tuple[int, ...] = ()  # those that it does without


class Send(NamedTuple):
    """Send a micro-batch to a node for one layer, to be done until then by the clock.

    A node that refuses sends this back.
    """

    node: int
    layer: int
    until: float


class Wait(NamedTuple):
    """Wait for news until then, by the clock."""

    until: float


class Step(NamedTuple):
    """What a client wants done.

    Send a micro-batch, unless a node has, and wait for news of it until then, by the clock.
    """

    journey: Journey
    send: Send | None
    until: float


class News(NamedTuple):
    """What a node that has run a layer tells the client."""

    node: int
    route: tuple[int, ...]  # of the micro-batch, as it is now
    onward: Send | None  # where it went; None: nowhere, that is left to the client


class Answer(NamedTuple):
    """How a journey ended."""

    route: tuple[int, ...]  # the layers that were executed, in order
    lost: bool  # nothing to answer with: the policy does not allow this route
    begun: float  # seconds, by the clock
    ended: float

    @property
    def seconds(self) -> float:
        """What it took."""
        return self.ended - self.begun


def place(nodes: int, replication: int, num_layers: int) -> list[list[int]]:
    """Spread the layers evenly: layer -> the nodes that hold it.

    With `replication` equal to `nodes` every node holds all layers.
    """
    return [
        sorted({(layer + copy * nodes // replication) % nodes for copy in range(replication)})
        for layer in range(num_layers)
    ]


@dataclass(eq=False)
class Known:
    """What is known of the nodes, and who is asked next. Nodes have it from the client's messages:
    there it is a little old.
    """

    holders: Sequence[Sequence[int]]  # layer -> the nodes that hold it
    options: Service
    now: Callable[[], float]  # seconds by the clock, which all have in common

    def __post_init__(self) -> None:
        self.at = -math.inf  # when all this was so
        known = sorted({node for nodes in self.holders for node in nodes})
        self.ring = {node: place for place, node in enumerate(known)}
        takes = self.options.service + self.options.hop
        self.takes = dict.fromkeys(known, takes)  # seconds for one micro-batch
        self.due = dict.fromkeys(known, 0.0)  # when it should have done all it has
        self.silent = dict.fromkeys(known, 0.0)  # times in a row
        self.until = dict.fromkeys(known, 0.0)  # when a node that was silent is asked again
        self.columns = (self.takes, self.due, self.silent, self.until)

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return len(self.holders)

    def table(self) -> list[list[float]]:
        """All that is known, to go with a message: (4, nodes)."""
        return [list(column.values()) for column in self.columns]

    def read(self, table: Sequence[Sequence[float]], at: float) -> None:
        """Replace all that is known by a table sent at `at`, unless something newer is known."""
        if at <= self.at:
            return
        self.at = at
        for column, values in zip(self.columns, table, strict=True):
            column.update(zip(column, values, strict=True))

    @property
    def limit(self) -> float:
        """Seconds that a journey has."""
        return self.options.deadline * self.num_layers * self.options.service

    def expected(self, node: int) -> float:
        """Seconds until a node would have answered."""
        return max(self.due[node] - self.now(), 0.0) + self.takes[node]

    def onward(self, journey: Journey, here: int) -> Send | None:
        """Where a node sends what has run its layer: None, home, where that is not clear.

        To ask a node that was silent, to leave a layer out, to wait and to end is the client's
        matter. Of a layer's nodes it asks the next one around, so that nodes that know little of
        each other's load do not crowd.

        Args:
            journey: of the micro-batch, as it is now.
            here: the node's number.
        """
        found = self._soonest(self._allowed(journey), journey, trusted=True)
        if not found or self.expected(found[0][0]) > journey.end - self.now():
            return None

        def steps_around(choice: tuple[int, int]) -> int:
            return (self.ring[choice[0]] - self.ring[here]) % len(self.ring)

        return self._send(*min(found, key=steps_around), journey)

    def _open(self, journey: Journey) -> list[int]:
        """The layers that a micro-batch has before it, in their original order."""
        return [
            layer
            for layer in range(self.num_layers)
            if layer not in journey.route and layer not in journey.left_out
        ]

    def _allowed(self, journey: Journey) -> list[int]:
        """List the layers that may be next.

        Under `partial` they are two, unless a layer has been overtaken already.
        """
        layers = self._open(journey)
        route = journey.route
        if journey.policy == "any":
            return layers
        overtaken = bool(route) and route[-1] > min(layers, default=0)
        width = 1 if journey.policy == "strict" or overtaken else 2
        return layers[:width]

    def _patience(self, node: int) -> float:
        """Seconds to wait for a node.

        They double each time that it was silent, up to a limit, or nobody would learn that it is
        slow.
        """
        least = self.options.patience * self.expected(node)
        return max(least, min(2 ** self.silent[node] * least, PROBE * self.limit))

    def _promise(self, node: int) -> float:
        """Seconds that a node is compared by.

        A node that was silent when last asked is likely to cost all patience.
        """
        patience = self._patience(node) if self.silent[node] else 0.0
        return patience if 0.0 < patience <= self.limit else self.expected(node)

    def _soonest(
        self, layers: Sequence[int], journey: Journey, trusted: bool = False
    ) -> list[tuple[int, int]]:
        """The nodes that are expected to answer first for one of the layers, with that layer. None
        where nobody is asked now.

        Of those as good, if they are within the time that is left, the next layer in a circle after
        the last one: where all is well that gives a Latin schedule. Any for the first layer in any
        order. Trusted: only nodes that were not silent.
        """
        now = self.now()
        choices = [
            (self._promise(node), node, layer)
            for layer in layers
            for node in self.holders[layer]
            if self.until[node] <= now and not (trusted and self.silent[node])
        ]
        least = min(choices, default=(0.0, 0, 0))[0]
        good = max(least, min(EQUAL * least, journey.end - now))
        equal = [(node, layer) for wait, node, layer in choices if wait <= good]
        if not equal or (journey.policy == "any" and not journey.route):
            return equal
        following = journey.route[-1] + 1 if journey.route else 0

        def steps_on(layer: int) -> int:
            return (layer - following) % self.num_layers

        first = min(steps_on(layer) for _, layer in equal)
        return [(node, layer) for node, layer in equal if steps_on(layer) == first]

    def _send(self, node: int, layer: int, journey: Journey) -> Send:
        return Send(node, layer, min(self.now() + self._patience(node), journey.end))


@dataclass(eq=False)
class Client(Known):
    """Who has micro-batches, and learns of the nodes from their news."""

    rng: np.random.Generator  # chooses among equals

    def __post_init__(self) -> None:
        super().__post_init__()
        self.waiting = dict.fromkeys(self.takes, 0)  # own micro-batches at the node
        self.last = dict.fromkeys(self.takes, 0.0)  # when it answered last

    def journey(self, policy: Policy) -> Generator[Step, News | Send | None, Answer]:
        """One micro-batch's way through the layers.

        strict: all layers in their original order; each from whichever of its nodes will answer
            first, and from another one where that fails (Petals: the best chain of servers).
            partial: the same, but neighbours may change places, and a layer that no node can be
            asked for, or not before the deadline, is left out, up to a share of all (SkipPipe).
            any: whichever layer will be answered first; all that nobody can be asked for are left
            out. It ends at the deadline wherever it is, or before where nothing can arrive until
            then; the first two then have no answer.

        Yields:
            What is to be done. It is sent the first thing heard that is accepted (:meth:`accepts`);
            None, if there is none in time.
        """
        begun = self.now()
        journey = Journey(policy, begun + self.limit)
        onward = None
        while True:
            step: Send | Wait | None = onward
            if step is None:
                journey, step = self._next(journey)
            if step is None:
                break
            if isinstance(step, Wait):
                heard = yield Step(journey, None, step.until)
            else:
                asked = self.now()
                self.due[step.node] = asked + self.expected(step.node)
                self.waiting[step.node] += 1
                until = min(step.until + self.options.hop, journey.end)
                heard = yield Step(journey, None if onward else step, until)
                self._learn(step, asked, heard, whole=asked < until < journey.end)
            onward = None
            if isinstance(heard, News):
                onward = heard.onward
                left_out = tuple(layer for layer in journey.left_out if layer not in heard.route)
                journey = journey._replace(route=heard.route, left_out=left_out)
        lost = not journey.route or (policy != "any" and bool(self._open(journey)))
        return Answer(journey.route, lost, begun, self.now())

    def accepts(self, step: Step, heard: News | Send) -> bool:
        """True if what is heard during a step counts.

        It counts if it is a longer route, whoever ran it, or the refusal of what is sent now.
        """
        if isinstance(heard, Send):
            return heard == step.send
        nodes = {heard.node, heard.onward.node if heard.onward else heard.node}
        return len(heard.route) > len(step.journey.route) and nodes <= self.takes.keys()

    def _next(self, journey: Journey) -> tuple[Journey, Send | Wait | None]:
        """Choose what the client does where no node goes on.

        Returns:
            The journey as the client sees it then, and the step. None ends the journey.
        """
        while layers := self._allowed(journey):
            left = journey.end - self.now()
            if left <= 0:
                break
            found = self._soonest(layers, journey)
            if not found or self._promise(found[0][0]) > left:
                if journey.policy == "any" and journey.route:
                    break
                most = int(self.options.leave_out * self.num_layers)
                if journey.policy == "partial" and len(journey.left_out) < most:
                    journey = journey._replace(left_out=(*journey.left_out, layers[0]))
                    continue
            if found and (journey.policy == "any" or self.expected(found[0][0]) <= left):
                return journey, self._send(*found[self.rng.integers(len(found))], journey)
            asked_again = {self.until[node] for layer in layers for node in self.holders[layer]}
            in_time = [
                until
                for until in asked_again
                if until > self.now() and until + self.options.service < journey.end
            ]
            return journey, Wait(min(in_time)) if in_time else None
        return journey, None

    def _learn(self, step: Send, asked: float, heard: News | Send | None, whole: bool) -> None:
        """Update what is known of a node that was asked.

        Args:
            step: what was asked of it.
            asked: when.
            heard: what was heard first, if anything.
            whole: the wait was as long as the node deserves, not cut off by the deadline.
        """
        node = step.node
        now = self.now()
        self.waiting[node] -= 1
        if not self.waiting[node]:
            self.due[node] = now
        if isinstance(heard, News):
            if heard.node == node:
                self.takes[node] += MEMORY * (now - max(asked, self.last[node]) - self.takes[node])
                self.last[node] = now
            alive = {heard.node}
            if step.layer in heard.route:  # the node's own news may be lost
                alive.add(node)
            for one in alive:
                self.silent[one] = 0.0
                self.until[one] = min(self.until[one], now)
        # Several that wait for the same node are one silence.
        elif (whole or heard) and now >= self.until[node]:
            rest = self.options.suspicion * self.options.service
            self.until[node] = now + 2 ** self.silent[node] * rest
            self.silent[node] = min(self.silent[node] + 1, 6)
