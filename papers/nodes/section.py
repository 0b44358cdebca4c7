"""The section `nodes` of params.yaml, and what its jobs depend on. No torch here."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from pipeline.config.sections import PaperSection
from pipeline.config.types import (
    Count,
    Fraction,
    NoEffect,
    NonNegative,
    Positive,
    Section,
    Seed,
    Share,
)
from pipeline.jobs.configs import MeasureConfig

Policy = Literal["strict", "partial", "any"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Fault(Section):
    """What is wrong with the nodes: nothing by default."""

    gone: Share = 0.0
    """Share of the nodes that are gone, from the start and for good."""
    slow: Positive = 1.0
    """One node takes so many times longer."""
    away: Fraction = 0.0
    """Share of its time that every node is away, at random."""
    absence: Positive = 20.0
    """Mean length of an absence, in service times."""
    shape: Positive = 1.0
    """Of the Weibull distributions of absence and presence; 1: exponential."""
    lost: Fraction = 0.0
    """Share of messages that are lost."""


class Service(Section):
    """How long things take, and how a client bears it."""

    service: Positive
    """Seconds that a node takes for one layer of one micro-batch."""
    handling: NonNegative = 0.0
    """Seconds that it takes besides, to read a message and to send on."""
    hop: NonNegative
    """Seconds of the way there and back: the median."""
    spread: NonNegative = 0.0
    """Sigma of the lognormal distribution of that way."""
    deadline: Positive
    """Of a journey, in passes through all layers."""
    patience: Positive
    """So many times longer than expected may an answer take before a node is taken for silent."""
    suspicion: Positive
    """Service times that a silent node is left alone; twice as many each further time."""
    leave_out: Share
    """Share of the layers, at most, under the policy `partial`."""


class Nodes(PaperSection):
    """A model whose layers live on nodes that fail.

    Which routes a scheduler finds over simulated nodes, how fast, and what models answer along
    them.
    """

    name = "nodes"
    nodes: Annotated[list[Count], Field(min_length=1)]
    replication: Annotated[list[Count], Field(min_length=1)]
    """Nodes that hold each layer."""
    faults: Annotated[dict[str, Fault], Field(min_length=1)]
    service: Service
    micro_batch: Count
    """Images that travel together."""
    in_flight: Count
    """Micro-batches under way."""
    images: Count | None
    """Validation images; null: all."""
    batch_size: Annotated[Count, NoEffect()]
    seed: Seed
    """Of faults and ties."""
    variants: Annotated[dict[str, list[Policy]], Field(min_length=1), NoEffect()]
    """Policies of each. strict: original order, all layers, from whichever of its nodes. partial:
    neighbours may change places, some layers may be left out. any: whichever layer is free."""


class NodesConfig(MeasureConfig):
    """One model under one policy, over all nodes and faults."""

    options: Nodes
    policy: Policy
    draw: int  # of faults and of ties
