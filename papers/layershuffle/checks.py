"""Cross-checks of the sections `prune_eval` and `analysis`."""

from collections.abc import Iterator

from papers.layershuffle.section import Analysis, PruneEval
from pipeline.config.params import Params
from pipeline.config.sections import Limit, at_most
from pipeline.errors import collect_errors


def check(params: Params, file: str) -> Iterator[str]:
    """UMAP needs more images than neighbours."""
    options = params.resolve(Analysis)
    limit = Limit(
        "analysis.neighbors",
        options.neighbors,
        options.images - 1,
        f"{options.images} images are analysed",
    )
    yield from collect_errors(at_most, [limit], file)


def image_limits(params: Params, train: int, validation: int) -> list[Limit]:
    """What the number of images allows: that of the images analysed."""
    return [
        Limit(
            "analysis.images",
            params.resolve(Analysis).images,
            validation,
            f"{params.dataset!r} uses {validation} validation images",
        )
    ]


def layer_limits(params: Params, num_layers: int) -> list[Limit]:
    """What the number of layers allows: those kept, and the layer analysed, which every analysed model must have."""
    why, options = f"model {params.model!r} has {num_layers} layers", params.resolve(Analysis)
    depths = [
        num_layers,
        *(params.all_variants[name].layers or num_layers for name in options.variants),
    ]
    limits = [
        Limit("prune_eval.keep", keep, num_layers, why) for keep in params.resolve(PruneEval).keep
    ]
    return limits + [Limit("analysis.layer", options.layer, depth - 1, why) for depth in depths]
