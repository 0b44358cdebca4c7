"""Cross-checks of the sections `prune_eval` and `analysis`."""

from collections.abc import Iterator

from papers.layershuffle.section import MISLED, Analysis, PruneEval
from pipeline.config.params import Params
from pipeline.errors import at_most, mistake


def check(params: Params) -> Iterator[str]:
    """Check that images can have routes of their own under the samplers, and variants' names."""
    if "side_by_side" in params.resolve(PruneEval).samplers:
        yield mistake("prune_eval.samplers", "side_by_side", "samplers that run one layer a step")
    for name in params.all_variants:
        if name.endswith(MISLED):
            yield mistake(params.place_of(name), name, f"a name without {MISLED} at its end")


def check_layers(params: Params, num_layers: int) -> Iterator[str]:
    """Check that every analysed model has the layer that is analysed."""
    options = params.resolve(Analysis)
    depths = {f"model {params.model!r}": num_layers}
    for name in options.variants:
        if layers := params.all_variants[name].layers:
            depths[repr(name)] = layers
    for name, depth in depths.items():
        why = f"{name} has {depth} layers"
        yield from at_most("analysis.layer", options.layer, depth - 1, why)
