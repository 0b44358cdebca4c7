"""What the report shows of what layers represent."""

from papers.inversion.section import NO_EDIT
from pipeline.report.charts import SPREAD, Chart, Charts, Picture, lines, spread
from pipeline.report.results import Results

DRAWN_FROM = {
    "inversion_": ("inversion.csv",),
    "class_images": ("class_images.csv",),
    "patch_filters": (),
}  # by the beginnings of names


def charts(results: Results) -> Charts:
    """How well inputs are found again, layer after layer; the found inputs, as they are drawn."""
    rows = results.table("inversion")
    optimiser = next(iter(results.read("inversion")["optimisers"]))
    plain = (
        (rows["edit"] == NO_EDIT)
        & (rows["order"] == "sequential")
        & (rows["optimiser"] == optimiser)
    )
    own = rows[plain & rows["point"].str.startswith("first")]
    own = own.assign(model=own["family"] + ", " + own["weights"])
    found = spread(own, ["model", "depth"], "pixel_correlation", 1)
    caption = f"{SPREAD} A few images each; inputs found by the first optimiser."
    drawn = lines(found, "depth", "model", "layers run", "pixel correlation")
    return Charts(
        charts=[
            Chart("Pixel correlation of original and found input", caption, "inversion.csv", drawn)
        ],
        pictures=[
            Picture("Found inputs, layer by layer", "inversion_depth", "Inversion, depth"),
            Picture("Without parts of the blocks", "inversion_ablation", "Inversion, ablation"),
            Picture("Class images", "class_images", "Class images"),
        ],
    )
