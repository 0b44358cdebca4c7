"""Over-smoothing."""

from papers.smoothing.section import Smoothing
from pipeline.config.paper import Paper

PAPER = Paper(
    name="smoothing",
    title="Over-smoothing",
    sections=(Smoothing,),
    rows="smoothing",
    check="papers.smoothing.checks:check",
    limit_images="papers.smoothing.checks:image_limits",
    build="papers.smoothing.checks:build",
    tables="papers.smoothing.tables",
    figures="papers.smoothing.figures",
    charts="papers.smoothing.charts",
    claims="papers.smoothing.claims",
    work="papers.smoothing.compute.plan:list_work",
)
