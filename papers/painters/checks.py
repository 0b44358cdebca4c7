"""Cross-checks of the section `painters`."""

from collections.abc import Iterator

from papers.painters.section import Painters
from pipeline.config.params import Params
from pipeline.errors import at_most, mistake


def check(params: Params) -> Iterator[str]:
    """Check that variants have no exits, and positions for every loop."""
    options = params.resolve(Painters)
    for name in options.variants:
        variant = params.all_variants[name]
        if variant.exits:
            yield mistake("painters.variants", name, "variants without exits")
        if "loop" in options.kinds and (variant.position.encode or variant.position.predict):
            why = f"the smallest of painters.treated; {name!r} knows as many positions as layers"
            yield from at_most("painters.loops", options.loops, min(options.treated), why)


def check_layers(params: Params, num_layers: int) -> Iterator[str]:
    """Check that a first and a last layer of every model stay as they are."""
    options = params.resolve(Painters)
    for name in options.variants:
        layers = params.all_variants[name].layers or num_layers
        why = f"{name!r} has {layers} layers, of which the first and the last stay as they are"
        yield from at_most("painters.treated", max(options.treated), layers - 2, why)
