"""The papers that are reproduced here, in the order in which results show them."""

from papers import exits, inversion, layershuffle, nodes, painters, smoothing

PAPERS = (
    layershuffle.PAPER,
    exits.PAPER,
    smoothing.PAPER,
    inversion.PAPER,
    painters.PAPER,
    nodes.PAPER,
)
