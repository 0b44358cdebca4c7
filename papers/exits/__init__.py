"""Early exits."""

from papers.exits.section import ExitHeads, Exits
from pipeline.config.paper import Paper, VariantKey

PAPER = Paper(
    name="exits",
    title="Early exits",
    sections=(Exits,),
    rows="exits",
    variant_keys=(
        VariantKey("exits", ExitHeads | None, None, "papers.exits.training:ExitTraining"),
    ),
    check="papers.exits.checks:check",
    check_layers="papers.exits.checks:check_layers",
    build="papers.exits.checks:build",
    tables="papers.exits.tables",
    figures="papers.exits.figures",
    charts="papers.exits.charts",
    claims="papers.exits:claims.yaml",
    measures="papers.exits.measures",
    work="papers.exits.compute.plan:list_work",
)
