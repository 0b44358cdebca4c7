"""Over-smoothing."""

from papers.smoothing.section import Losses, Recipe, Smoothing
from pipeline.config.paper import Paper, VariantKey

TRAINING = "papers.smoothing.training:SmoothingTraining"

PAPER = Paper(
    name="smoothing",
    title="Over-smoothing",
    sections=(Smoothing,),
    rows="smoothing",
    variant_keys=(
        VariantKey("losses", Losses, Losses(), TRAINING, part="patch_head"),
        VariantKey("recipe", Recipe, Recipe(), TRAINING),
        VariantKey("talking_heads", bool, False, TRAINING),
    ),
    check="papers.smoothing.checks:check",
    build="papers.smoothing.checks:build",
    tables="papers.smoothing.tables",
    figures="papers.smoothing.figures",
    charts="papers.smoothing.charts",
    claims="papers.smoothing:claims.yaml",
    measures="papers.smoothing.measures",
    work="papers.smoothing.compute.plan:list_work",
)
