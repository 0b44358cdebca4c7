"""What only the measurements of layers on nodes need: schedules without failures, and a swarm."""

import itertools
from collections.abc import Generator
from typing import Any

import numpy as np
import simpy

from lsvit.routes import generator
from papers.nodes.compute.scheduler import Answer
from papers.nodes.compute.simulation import Run, World
from papers.nodes.section import Fault, Policy, Service

Tick = list[tuple[int, int]]  # (batch, layer) pairs that run at once


def latin_ticks(batches: int, num_layers: int) -> list[Tick]:
    """Schedule micro-batches over as many nodes as layers so that no node fills or drains.

    Batch b is at layer (t - b) modulo the number of ticks, if there is such a layer. No layer and
    no batch stands twice in a tick. There are as many ticks as the larger of the two numbers. With
    as many batches as layers, or more, every node is busy at every tick.
    """
    count = max(batches, num_layers)
    ticks = []
    for t in range(count):
        pairs = [(batch, (t - batch) % count) for batch in range(batches)]
        ticks.append([(batch, layer) for batch, layer in pairs if layer < num_layers])
    return ticks


def pipeline_ticks(batches: int, num_layers: int) -> list[Tick]:
    """Schedule micro-batches in strict order (GPipe, section 2.3).

    Batches + num_layers - 1 ticks.
    """
    ticks = []
    for t in range(batches + num_layers - 1):
        pairs = [(batch, t - batch) for batch in range(batches)]
        ticks.append([(batch, layer) for batch, layer in pairs if 0 <= layer < num_layers])
    return ticks


def swarm(
    nodes: int,
    replication: int,
    num_layers: int,
    clients: int,
    journeys: int,
    rest: float,
    policy: Policy,
    options: Service,
    fault: Fault,
    *key: int | str,
) -> Run:
    """Many clients at once, each with journeys one after another over nodes of its own choice.

    Node n holds layer n modulo the number of layers; a client knows `replication` of each layer's
    nodes, drawn at random. It makes as many journeys before those that count, to know its nodes,
    and goes on after them until everybody has made those that count.

    Args:
        nodes: how many.
        replication: nodes that a client knows for each layer.
        num_layers: L.
        clients: how many.
        journeys: of each, that count.
        rest: seconds from one to the next in the mean (exponential); 0: at once, after one without
            an answer the time of a service later.
        policy: of all.
        options: times.
        fault: what is wrong.
        key: of all draws.
    """
    world = World(nodes, options, fault, *key)
    answers: list[Answer] = []

    def stream(number: int) -> Generator[simpy.Event, Any, None]:
        rng = generator("nodes known", *key, number)
        known = [
            rng.choice(np.arange(layer, nodes, num_layers), replication, replace=False).tolist()
            for layer in range(num_layers)
        ]
        client = world.client(known, *key, number)
        yield world.env.timeout(
            rng.random() * max(rest, num_layers * options.service)
        )  # not all at once
        for count in itertools.count():
            answer = yield world.env.process(world.travel(client, policy))
            if journeys <= count < 2 * journeys:
                answers.append(answer)
            if count == 2 * journeys - 1:
                counted[number].succeed()
            yield world.env.timeout(
                max(rng.exponential(rest), options.service if answer.lost else 0.0)
            )

    counted = [world.env.event() for _ in range(clients)]
    for number in range(clients):
        world.env.process(stream(number))
    world.env.run(world.env.all_of(counted))
    return Run(answers, sum(node.busy for node in world.nodes) / (world.env.now * nodes))
