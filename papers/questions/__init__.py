"""Questions that the papers leave open."""

from papers.questions.section import Questions
from pipeline.config.paper import Paper

PAPER = Paper(
    name="questions",
    title="Questions of ours",
    sections=(Questions,),
    rows="questions",
    check="papers.questions.checks:check",
    figures="papers.questions.figures",
    charts="papers.questions.charts",
    claims="papers.questions:claims.yaml",
    measures="papers.questions.measures",
    work="papers.questions.compute.plan:list_work",
)
