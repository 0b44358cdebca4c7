"""Layers on nodes."""

from papers.nodes.section import Nodes
from pipeline.config.paper import Paper

PAPER = Paper(
    name="nodes",
    title="Layers on nodes",
    sections=(Nodes,),
    rows="nodes",
    check="papers.nodes.checks:check",
    check_layers="papers.nodes.checks:check_layers",
    figures="papers.nodes.figures",
    charts="papers.nodes.charts",
    claims="papers.nodes:claims.yaml",
    measures="papers.nodes.measures",
    work="papers.nodes.compute.plan:list_work",
)
