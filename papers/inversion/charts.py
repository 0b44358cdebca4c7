"""What the report shows of what layers represent."""

from papers.inversion.section import NO_EDIT
from pipeline.report.charts import SPREAD, Chart, Charts, Picture, lines, spread
from pipeline.report.results import Results

# By the beginnings of names
DRAWN_FROM: dict[str, tuple[str, ...]] = {
    "inversion_": ("inversion.csv",),
    "class_images": ("class_images.csv",),
    "patch_filters": (),
}
PICTURES = [
    Picture("Found inputs, layer by layer", "inversion_depth", "Inversion, depth"),
    Picture("Without parts of the blocks", "inversion_ablation", "Inversion, ablation"),
    Picture("Class images", "class_images", "Class images"),
]


def charts(results: Results) -> Charts:
    """How well inputs are found again, layer after layer; the found inputs, as they are drawn."""
    rows = results.table("inversion")
    optimiser = next(iter(results.read("inversion")["optimisers"]))
    rows = rows[(rows["edit"] == NO_EDIT) & (rows["order"] == "sequential")]
    rows = rows[(rows["optimiser"] == optimiser) & rows["point"].str.startswith("first")]
    rows = rows.assign(model=rows["family"] + ", " + rows["weights"])
    means = spread(rows, ["model", "depth"], "pixel_correlation", 1)
    title = "Pixel correlation of original and found input"
    caption = f"{SPREAD} A few images each. The first optimiser found the inputs."
    spec = lines(means, "depth", "model", "layers run", "pixel correlation")
    return Charts(charts=[Chart(title, caption, "inversion.csv", spec)], pictures=PICTURES)
