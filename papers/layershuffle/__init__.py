"""LayerShuffle."""

from papers.layershuffle.labels import CONTROLS, LABELS
from papers.layershuffle.section import Analysis, PruneEval
from pipeline.config.paper import Paper

PAPER = Paper(
    name="layershuffle",
    title="LayerShuffle",
    sections=(PruneEval, Analysis),
    rows="prune_eval",
    main=True,
    labels=LABELS,
    without_colour=(*CONTROLS, "refit*"),
    trained=("baseline", "finetune"),
    check="papers.layershuffle.checks:check",
    check_layers="papers.layershuffle.checks:check_layers",
    tables="papers.layershuffle.tables",
    figures="papers.layershuffle.figures",
    charts="papers.layershuffle.charts",
    claims="papers.layershuffle:claims.yaml",
    measures="papers.layershuffle.measures",
    work="papers.layershuffle.compute.plan:list_work",
)
