"""Layers as painters."""

from papers.painters.section import Painters
from pipeline.config.paper import Paper

PAPER = Paper(
    name="painters",
    title="Layers as painters",
    sections=(Painters,),
    rows="painters",
    check="papers.painters.checks:check",
    check_layers="papers.painters.checks:check_layers",
    figures="papers.painters.figures",
    charts="papers.painters.charts",
    claims="papers.painters:claims.yaml",
    measures="papers.painters.measures",
    work="papers.painters.compute.plan:list_work",
)
