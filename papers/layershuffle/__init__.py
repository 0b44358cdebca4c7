"""LayerShuffle."""

from papers.layershuffle.section import Analysis, PruneEval
from pipeline.config.paper import Paper

PAPER = Paper(
    name="layershuffle",
    title="LayerShuffle",
    sections=(PruneEval, Analysis),
    rows="prune_eval",
    trained=("baseline", "finetune"),
    check="papers.layershuffle.checks:check",
    limit_images="papers.layershuffle.checks:image_limits",
    limit_layers="papers.layershuffle.checks:layer_limits",
    tables="papers.layershuffle.tables",
    figures="papers.layershuffle.figures",
    charts="papers.layershuffle.charts",
    claims="papers.layershuffle.claims",
    work="papers.layershuffle.compute.plan:list_work",
)
