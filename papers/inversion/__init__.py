"""What layers represent."""

from papers.inversion.section import Inversion
from pipeline.config.paper import Paper

PAPER = Paper(
    name="inversion",
    title="What layers represent",
    sections=(Inversion,),
    rows="inversion",
    check="papers.inversion.checks:check",
    build="papers.inversion.checks:build",
    tables="papers.inversion.tables",
    figures="papers.inversion.figures",
    charts="papers.inversion.charts",
    claims="papers.inversion:claims.yaml",
    measures="papers.inversion.measures",
    work="papers.inversion.compute.plan:list_work",
)
