"""Cross-checks of the section `nodes`."""

from collections.abc import Iterator

from papers.nodes.section import Nodes
from pipeline.config.params import Params
from pipeline.errors import at_most


def check(params: Params) -> list[str]:
    """Check that there are nodes for every copy of a layer."""
    options = params.resolve(Nodes)
    copies = max(options.replication)
    return at_most("nodes.replication", copies, min(options.nodes), "the smallest of nodes.nodes")


def check_layers(params: Params, num_layers: int) -> Iterator[str]:
    """Check that every node holds a layer at least."""
    options = params.resolve(Nodes)
    copies = min(options.replication)
    for name in options.variants:
        layers = params.all_variants[name].layers or num_layers
        why = f"{copies} copies of each of {layers} layers"
        yield from at_most("nodes.nodes", max(options.nodes), layers * copies, why)
