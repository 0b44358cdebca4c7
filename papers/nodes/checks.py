"""Cross-checks of the section `nodes`."""

from collections.abc import Iterator

from papers.nodes.section import Nodes
from pipeline.config.params import Params
from pipeline.config.sections import Limit


def check(params: Params, file: str) -> Iterator[str]:
    """Of the placements: more copies of a layer than nodes."""
    options = params.resolve(Nodes)
    least = min(options.nodes)
    if max(options.replication) > least:
        found = max(options.replication)
        yield f"{file}: nodes.replication: found {found}, accepted: at most {least}, the smallest of nodes.nodes"


def layer_limits(params: Params, num_layers: int) -> list[Limit]:
    """What the number of layers allows: a node holds at least one."""
    options, limits = params.resolve(Nodes), []
    for name in options.variants:
        depth = params.all_variants[name].layers or num_layers
        for replication in options.replication:
            limits.append(
                Limit(
                    "nodes.nodes",
                    max(options.nodes),
                    depth * replication,
                    f"{replication} copies of each of {depth} layers",
                )
            )
    return limits
