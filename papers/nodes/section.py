"""The section `nodes` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import Count, Fraction, NonNegative, Positive, Section, Seed, Share
from pipeline.jobs.configs import MeasureConfig

Policy = Literal["strict", "partial", "any"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Fault(Section):
    """What is wrong with the nodes; nothing by default."""

    gone: Share = 0.0  # of the nodes, from the start and for good
    slow: Positive = 1.0  # so many times longer takes one node
    away: Fraction = 0.0  # share of its time that every node is away, at random
    absence: Positive = 20.0  # mean length of it, in service times
    shape: Positive = 1.0  # of the Weibull distributions of absence and presence; 1: exponential
    lost: Fraction = 0.0  # share of messages that are lost


class Service(Section):
    """How long things take, and how a client bears it."""

    service: Positive  # seconds that a node takes for one layer of one micro-batch
    handling: NonNegative = 0.0  # seconds that it takes besides, to read a message and to send on
    hop: NonNegative  # seconds of the way there and back
    spread: NonNegative = (
        0.0  # sigma of a lognormal distribution of that, of which `hop` is the median
    )
    deadline: Positive  # of a journey, in passes through all layers
    patience: Positive  # how many times longer than expected an answer may take
    suspicion: Positive  # service times that a node which did not answer is left alone; twice as many each further time
    leave_out: Share  # of the layers, at most, under the policy `partial`


class Nodes(PaperSection):
    """A model whose layers live on nodes that fail: which routes a scheduler finds, how fast, and what the models answer."""

    name = "nodes"
    variants: Annotated[dict[str, list[Policy]], Field(min_length=1)]
    nodes: Annotated[list[Count], Field(min_length=1)]
    replication: Annotated[list[Count], Field(min_length=1)]
    faults: Annotated[dict[str, Fault], Field(min_length=1)]
    service: Service
    micro_batch: Count
    in_flight: Count
    images: Count | None
    batch_size: Count
    seed: Seed

    def without_effect(self) -> set[str]:
        """Each model is evaluated alone. Every image runs along its own route."""
        return {"variants", "batch_size"}


class NodesConfig(MeasureConfig):
    """One model under one policy, over all nodes and faults."""

    options: Nodes
    policy: Policy
    draw: int  # of faults and of ties
