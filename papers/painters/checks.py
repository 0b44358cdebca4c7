"""Cross-checks of the section `painters`."""

from collections.abc import Iterator

from papers.painters.section import Painters
from pipeline.config.params import Params
from pipeline.config.sections import Limit, at_most
from pipeline.errors import collect_errors


def check(params: Params, file: str) -> Iterator[str]:
    """Of the variants: loops that outrun the positions of a position part, exits that layers side by side answer."""
    options = params.resolve(Painters)
    for name in options.variants:
        variant = params.all_variants[name]
        if variant.exits:
            yield f"{file}: painters.variants: found {name!r}, which has exits, accepted: variants without"
        if "loop" in options.kinds and (variant.position.encode or variant.position.predict):
            why = f"the smallest of painters.treated; {name!r} knows as many positions as layers"
            yield from collect_errors(
                at_most, [Limit("painters.loops", options.loops, min(options.treated), why)], file
            )


def layer_limits(params: Params, num_layers: int) -> list[Limit]:
    """What the numbers of layers allow: in every model a first and a last one stay as they are."""
    options, limits = params.resolve(Painters), []
    for name in options.variants:
        depth = params.all_variants[name].layers or num_layers
        why = f"{name!r} has {depth} layers, of which the first and the last stay as they are"
        limits.append(Limit("painters.treated", max(options.treated), depth - 2, why))
    return limits
