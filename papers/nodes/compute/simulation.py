"""Nodes that fail, simulated: discrete events (SimPy) around the scheduler that real processes obey
too. No torch here.

A node takes micro-batches one at a time, in the order in which they were sent. It keeps those it
has while it is away, answers late, and drops without work those that nobody waits for any more when
their turn comes.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import gamma
from typing import Any, NamedTuple

import numpy as np
import simpy

from lsvit.routes import generator
from papers.nodes.compute.scheduler import Answer, Client, Journey, Known, News, Send, Step, place
from papers.nodes.section import Fault, Policy, Service

FOREVER = float("inf")


class Absence(NamedTuple):
    """A node is away from `start` to `end`, in seconds."""

    start: float
    end: float


PAST = Absence(0.0, 0.0)


def absences(fault: Fault, service: float, rng: np.random.Generator) -> Iterator[Absence]:
    """When one node is away.

    Presence and absence take turns, each Weibull, in equilibrium from the start.
    """
    if not fault.away:
        return
    # Of the Weibull distribution with that mean.
    scale = fault.absence * service / gamma(1 + 1 / fault.shape)
    longer = (1 - fault.away) / fault.away  # presence than absence

    def rest(factor: float) -> float:
        # What is left of a period that has begun before: a uniform part of one drawn in proportion
        # to its length.
        long = scale * rng.gamma(1 + 1 / fault.shape) ** (1 / fault.shape)
        return factor * long * rng.random()

    if rng.random() < fault.away:
        start = 0.0
        end = rest(1.0)
    else:
        start = rest(longer)
        end = start + scale * rng.weibull(fault.shape)
    while True:
        yield Absence(start, end)
        start = end + longer * scale * rng.weibull(fault.shape)
        end = start + scale * rng.weibull(fault.shape)


class Troubles(NamedTuple):
    """What is wrong with which node: drawn once, for real processes and simulated ones."""

    gone: frozenset[int]
    slow: int | None
    away: list[Iterator[Absence]]

    @classmethod
    def draw(cls, fault: Fault, nodes: int, service: float, *key: int | str) -> "Troubles":
        """Those of so many nodes. The key alone decides; of more nodes gone, the fewer are part."""
        order = generator("nodes gone", *key).permutation(nodes).tolist()
        gone = frozenset(order[: round(fault.gone * nodes)])
        slow = order[-1] if fault.slow > 1 else None
        away = []
        for node in range(nodes):
            away.append(absences(fault, service, generator("nodes away", *key, node)))
        return cls(gone, slow, away)


@dataclass
class Node:
    """A simulated node."""

    service: float  # seconds for one layer of one micro-batch, all in all
    away: Iterator[Absence]
    absence: Absence = PAST  # the last one, or the next
    free: float = 0.0  # when it has done all that it has
    busy: float = 0.0  # seconds in which it worked
    known: dict[Client, Known] = field(default_factory=dict)  # what it has from each

    def present(self, time: float) -> float:
        """When it is first present, from a time on that never goes back."""
        while self.absence.end <= time:
            self.absence = next(self.away, Absence(FOREVER, FOREVER))
        return self.absence.end if self.absence.start <= time else time

    def done(self, arrival: float, until: float = FOREVER) -> float:
        """Take a micro-batch that arrives, and say when it is done: never, if its turn comes when
        nobody waits for it any more.

        Being first come, first served, a node needs no process of its own.
        """
        self.free = begun = self.present(max(arrival, self.free))
        if begun > until:
            return FOREVER
        self.free = self.present(begun + self.service)
        self.busy += self.service
        return self.free


class World:
    """Nodes, the way to them, and what goes wrong there.

    Args:
        nodes: how many.
        options: times.
        fault: what is wrong.
        key: of all draws.
    """

    def __init__(self, nodes: int, options: Service, fault: Fault, *key: int | str) -> None:
        self.env = simpy.Environment()
        self.options = options
        self.fault = fault
        self.troubles = Troubles.draw(fault, nodes, options.service, *key)
        self.rng = generator("nodes network", *key)
        self.nodes = []
        for node, away in enumerate(self.troubles.away):
            times = fault.slow if node == self.troubles.slow else 1
            self.nodes.append(Node(options.service * times + options.handling, away))

    def client(self, holders: Sequence[Sequence[int]], *key: int | str) -> Client:
        """One that knows these nodes."""
        return Client(holders, self.options, lambda: self.env.now, generator("nodes client", *key))

    def travel(self, client: Client, policy: Policy) -> Generator[simpy.Event, Any, Answer]:
        """A SimPy process: one journey, to its answer."""
        steps = client.journey(policy)
        inbox = simpy.Store(self.env)
        try:
            step = next(steps)
            while True:
                if step.send:
                    self.env.process(self._relay(client, step.journey, step.send, inbox))
                step = steps.send((yield from self._heard(client, step, inbox)))
        except StopIteration as end:
            return end.value

    def _relay(
        self, client: Client, journey: Journey, send: Send, inbox: simpy.Store
    ) -> Generator[simpy.Event, Any, None]:
        """A micro-batch goes from node to node, as far as it comes."""
        table, at = client.table(), self.env.now
        if send.node in self.troubles.gone:  # a process that is no more: its machine says so
            yield self.env.timeout(self._way() + self._way())
            inbox.put(send)
            return
        while True:
            yield self.env.timeout(self._way())
            node = self.nodes[send.node]
            done = node.done(self.env.now, send.until)
            if done > send.until or send.node in self.troubles.gone:
                return
            yield self.env.timeout(done - self.env.now)
            if client not in node.known:
                node.known[client] = Known(client.holders, self.options, client.now)
            known = node.known[client]
            known.read(table, at)
            table, at = known.table(), known.at
            journey = journey._replace(route=(*journey.route, send.layer))
            onward = known.onward(journey, send.node)
            self.env.process(self._tell(News(send.node, journey.route, onward), inbox))
            if onward is None:
                return
            send = onward

    def _tell(self, news: News, inbox: simpy.Store) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(self._way())
        inbox.put(news)

    def _heard(
        self, client: Client, step: Step, inbox: simpy.Store
    ) -> Generator[simpy.Event, Any, News | Send | None]:
        """What the client hears first of what it accepts, if that comes in time."""
        late = self.env.timeout(max(step.until - self.env.now, 0.0))
        while True:
            heard = inbox.get()
            yield heard | late
            if not heard.triggered:
                heard.cancel()
                return None
            told: Any = heard.value
            if client.accepts(step, told):
                return told

    def _way(self) -> float:
        """Seconds that a message takes: never, if it is lost."""
        if self.fault.lost and self.rng.random() < self.fault.lost:
            return FOREVER
        way = self.options.hop / 2
        return way * self.rng.lognormal(0.0, self.options.spread) if self.options.spread else way


class Run(NamedTuple):
    """What a simulation, or a measurement, found."""

    answers: list[Answer]  # of each micro-batch; of a swarm as they ended
    busy: float  # share of the whole time that the nodes which are not gone for good worked

    def steady(self, in_flight: int) -> tuple[list[int], float]:
        """The journeys that ended while the load was steady, and how many seconds that was. None,
        where there are too few.

        All `in_flight` begin at once, and in the end fewer are under way: so counted are those that
        ended after the first `in_flight` had, and before there was no other one to begin; as many
        as a multiple of `in_flight`, since in any order so many may end together.
        """
        ended = sorted(range(len(self.answers)), key=lambda number: self.answers[number].ended)
        counted = ended[in_flight : (len(ended) // in_flight - 1) * in_flight]
        if not counted:
            return [], 0.0
        first = self.answers[ended[in_flight - 1]].ended
        return counted, self.answers[counted[-1]].ended - first


def simulate(
    nodes: int,
    replication: int,
    num_layers: int,
    batches: int,
    in_flight: int,
    policy: Policy,
    options: Service,
    fault: Fault,
    *key: int | str,
) -> Run:
    """One client with so many micro-batches, `in_flight` of them under way at a time, over
    `nodes` nodes that hold all layers.
    """
    world = World(nodes, options, fault, *key)
    client = world.client(place(nodes, replication, num_layers), *key)
    answers: dict[int, Answer] = {}
    left = iter(range(batches))

    def stream() -> Generator[simpy.Event, Any, None]:
        for batch in left:
            answers[batch] = yield world.env.process(world.travel(client, policy))

    streams = [world.env.process(stream()) for _ in range(in_flight)]
    world.env.run(world.env.all_of(streams))
    present = [node.busy for i, node in enumerate(world.nodes) if i not in world.troubles.gone]
    return Run(
        [answers[batch] for batch in range(batches)],
        sum(present) / max(world.env.now * len(present), 1e-9),
    )
