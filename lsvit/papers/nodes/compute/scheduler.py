"""The scheduler of a client whose model is spread over nodes: a pure, seeded policy that knows of the nodes what it has seen itself.

A journey is a generator of what the client wants done (:class:`Send`, :class:`Pause`) and is told how it went. Who runs it is another
matter: real processes (:mod:`lsvit.papers.nodes.compute.servers`) and the simulation (:mod:`lsvit.papers.nodes.compute.simulation`) run
this one. No torch, no clock and no network here.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np

from lsvit.papers.nodes.section import Policy, Service

MEMORY = 0.5  # weight of the last answer in what is expected of a node
EQUAL = 1.25  # answers that are expected within so many times the shortest wait are as good
PROBE = 0.25  # of the time that a journey has: the most that one spends on a node only because it was silent before


class Send(NamedTuple):
    """Send the micro-batch to a node for one layer, and wait so many seconds for the answer."""

    node: int
    layer: int
    patience: float


class Pause(NamedTuple):
    """Nobody can be asked now: wait so many seconds."""

    seconds: float


class Answer(NamedTuple):
    """How a journey ended."""

    route: tuple[int, ...]  # the layers that were executed, in order
    lost: bool  # nothing to answer with: the policy does not allow this route
    begun: float = 0.0  # seconds, by the client's clock
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """What it took."""
        return self.ended - self.begun


def place(nodes: int, replication: int, num_layers: int) -> list[list[int]]:
    """The nodes that hold each layer, evenly: layer -> its nodes. With `replication` equal to `nodes` every node holds all."""
    return [sorted({(layer + copy * nodes // replication) % nodes for copy in range(replication)}) for layer in range(num_layers)]


def latin_ticks(batches: int, num_layers: int) -> list[list[tuple[int, int]]]:
    """The Latin schedule of micro-batches over as many nodes as layers: for each tick, (batch, layer) pairs that run at once.

    Batch b is at layer (t - b) modulo the number of ticks, if there is such a layer: no layer twice in a tick, no batch twice, and as many
    ticks as the larger of the two numbers. With as many batches as layers, or more, every node is busy at every tick: no fill, no drain.
    """
    ticks = max(batches, num_layers)
    return [[(b, layer) for b in range(batches) if (layer := (t - b) % ticks) < num_layers] for t in range(ticks)]


def pipeline_ticks(batches: int, num_layers: int) -> list[list[tuple[int, int]]]:
    """The same of a pipeline in strict order (GPipe, section 2.3): batches + num_layers - 1 ticks."""
    ticks = batches + num_layers - 1
    return [[(b, t - b) for b in range(batches) if 0 <= t - b < num_layers] for t in range(ticks)]


class Client:
    """What a client knows of its nodes, from its own messages alone, and how it chooses.

    Args:
        holders: layer -> the nodes that hold it.
        options: times, patience, limits.
        now: seconds, from any start.
        rng: chooses among equals.
    """

    def __init__(self, holders: Sequence[Sequence[int]], options: Service, now: Callable[[], float], rng: np.random.Generator) -> None:
        self.holders, self.options, self.now, self.rng = holders, options, now, rng
        self.limit = options.deadline * len(holders) * options.service  # seconds that a journey has
        known = {node for nodes in holders for node in nodes}
        self.waiting = dict.fromkeys(known, 0)  # own micro-batches at the node
        self.takes = dict.fromkeys(known, options.service + options.hop)  # seconds for one
        self.last = dict.fromkeys(known, 0.0)  # when it answered last
        self.due = dict.fromkeys(known, 0.0)  # when it should have answered all it has
        self.silent = dict.fromkeys(known, 0)  # times in a row
        self.until = dict.fromkeys(known, 0.0)  # when a node that was silent is asked again

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return len(self.holders)

    def expected(self, node: int) -> float:
        """Seconds until a node would have answered."""
        return max(self.due[node] - self.now(), 0.0) + self.takes[node]

    def _patience(self, node: int) -> float:
        """Seconds to wait for a node: twice as long, up to a limit, each time that it was silent, or nobody would learn that it is slow."""
        least = self.options.patience * self.expected(node)
        return max(least, min(2 ** self.silent[node] * least, PROBE * self.limit))

    def _promise(self, node: int) -> float:
        """What is expected, for comparison: one that was silent when last asked is likely to cost all patience."""
        return self._patience(node) if self.silent[node] else self.expected(node)

    def journey(self, policy: Policy) -> Generator[Send | Pause, bool, Answer]:
        """One micro-batch's way through the layers.

        strict: all layers in their original order; each from whichever of its nodes will answer first, and from another one where that
        fails (Petals: the best chain of servers). partial: the same, but neighbours may change places, and a layer that no node can be
        asked for, or not before the deadline, is left out, up to a share of all (SkipPipe). any: whichever layer will be answered first;
        all that nobody can be asked for are left out. It ends at the deadline wherever it is, or before where nothing can arrive until
        then; the first two then have no answer.

        Yields:
            What is to be done; it is sent whether a node answered in time.
        """
        begun = self.now()
        end = begun + self.limit
        route: list[int] = []
        left_out: set[int] = set()
        while len(route) + len(left_out) < self.num_layers:
            if (left := end - self.now()) <= 0:
                break
            open_layers = [layer for layer in range(self.num_layers) if layer not in route and layer not in left_out]
            allowed = open_layers if policy == "any" else open_layers[: 1 if policy == "strict" else self._swappable(open_layers, route)]
            start = None if policy == "any" else 0
            found = self._soonest(allowed, route[-1] + 1 if route else start, left)
            if found is None or self._promise(found[0]) > left:
                if policy == "any" and route:
                    break
                if policy == "partial" and len(left_out) < int(self.options.leave_out * self.num_layers):
                    left_out.add(open_layers[0])
                    continue
            if found is not None:
                if policy != "any" and self.expected(found[0]) > left:
                    break
                node, layer = found
                arrived = yield from self._ask(node, layer, left)
                if arrived:
                    route.append(layer)
            else:
                asked = min(self.until[node] for layer in allowed for node in self.holders[layer])
                yield Pause(min(max(asked - self.now(), 0.01 * self.options.service), left))
        complete = len(route) + len(left_out) == self.num_layers
        lost = not route or (policy != "any" and not complete)
        return Answer(tuple(route), lost, begun, self.now())

    @staticmethod
    def _swappable(open_layers: Sequence[int], route: Sequence[int]) -> int:
        """How many of the next layers `partial` may choose among: two, unless one has been overtaken already."""
        return 1 if route and route[-1] > open_layers[0] else 2

    def _soonest(self, layers: Sequence[int], following: int | None, left: float) -> tuple[int, int] | None:
        """The node that is expected to answer first for one of the layers, and the layer. None: nobody is asked now.

        Of those as good, if they are within the seconds `left`, the layer `following`, or the next after it in a circle: where all is well
        that gives a Latin schedule. None: any layer. Of a layer's nodes, any.
        """
        now = self.now()
        choices = [(self._promise(n), n, layer) for layer in layers for n in self.holders[layer] if self.until[n] <= now]
        if not choices:
            return None
        least = min(choices)[0]
        good = max(least, min(EQUAL * least, left))
        equal = [(node, layer) for wait, node, layer in choices if wait <= good]
        if following is not None:
            first = min((layer - following) % self.num_layers for _, layer in equal)
            equal = [(node, layer) for node, layer in equal if (layer - following) % self.num_layers == first]
        return equal[self.rng.integers(len(equal))]

    def _ask(self, node: int, layer: int, left: float) -> Generator[Send | Pause, bool, bool]:
        """Send to a node, and learn from how it goes."""
        sent, patience = self.now(), self._patience(node)
        self.due[node] = sent + self.expected(node)
        self.waiting[node] += 1
        arrived = yield Send(node, layer, min(patience, left))
        self.waiting[node] -= 1
        now = self.now()
        if not self.waiting[node]:
            self.due[node] = now
        if arrived:
            self.silent[node] = 0
            self.takes[node] += MEMORY * (now - max(sent, self.last[node]) - self.takes[node])
            self.last[node] = now
        elif (patience <= left or now < sent + left) and now >= self.until[node]:
            # Not if the deadline cut the wait off; and several that wait for the same node are one silence.
            self.until[node] = now + 2 ** self.silent[node] * self.options.suspicion * self.options.service
            self.silent[node] = min(self.silent[node] + 1, 6)
        return arrived
