"""The papers that are reproduced here, in the order in which results show them."""

from typing import Any

from papers import exits, inversion, layershuffle, nodes, painters, questions, smoothing
from pipeline.config.variant import variant_class

PAPERS = (
    layershuffle.PAPER,
    exits.PAPER,
    smoothing.PAPER,
    inversion.PAPER,
    painters.PAPER,
    nodes.PAPER,
    questions.PAPER,
)

Variant: Any = variant_class(PAPERS)  # a variant of params.yaml with the keys of all papers
