"""What the claims of the text on representation are decided on.

A model is given by its family, weights and edit. A point is a place whose output was inverted.
"""

import numpy as np
import pandas as pd

from lsvit.routes import Order
from papers.inversion.compute.ratios import EMBEDDING, PIXELS, TOKENS, with_ratios
from papers.inversion.section import NO_EDIT, TRAINED
from papers.inversion.tables import FIRST, LAYER, PATCHES
from pipeline.config.variant import BASELINE, UNTRAINED
from pipeline.report.evidence import Counts, Evidence, NothingToTell, NotRun

SOURCE_STEPS = 1500  # of gradient descent
# Pixel correlation above which, and share of the yardstick below which, an input is found exactly
EXACT, FLOOR = 0.99, 0.01


def points(
    e: Evidence,
    family: str,
    weights: str,
    edit: str = NO_EDIT,
    order: Order = "sequential",
    optimiser: str = "adam",
) -> pd.DataFrame:
    """The rows of one model, with the ratios of :func:`with_ratios`. Raises NotRun without any."""
    where = {"family": family, "weights": weights, "edit": edit}
    rows = e.rows("inversion", "inversions are", **where, order=order, optimiser=optimiser)
    if rows.empty:
        names = [family, e.label(weights), edit, f"{order} order", optimiser]
        names = [name for name in names if name != NO_EDIT]
        raise NotRun(f"the inversion of {', '.join(names)} is not among the results")
    if order == "arbitrary":
        e.orders.append(int(rows["image"].nunique()))
    return with_ratios(rows)


def at(rows: pd.DataFrame, point: str | int, column: str) -> np.ndarray:
    """Mean over the images of a column, a value a seed.

    `point` is a name, or 0 for the first layer and -1 for all layers.
    """
    if isinstance(point, int):
        point = f"{FIRST}{rows['num_layers'].iloc[0] if point else 1}"
    rows = rows[rows["point"] == point]
    if rows.empty or rows[column].isna().any():
        raise NotRun(f"{point} is not among the inverted points, or has no {column}")
    return rows.groupby("seed", sort=False)[column].mean().to_numpy()


def alone(rows: pd.DataFrame, column: str) -> np.ndarray:
    """Mean over images and layers, each layer alone: a value a seed."""
    rows = rows[rows["point"].str.startswith(LAYER)]
    if rows.empty:
        raise NotRun("layers alone are not among the inverted points")
    return rows.groupby("seed", sort=False)[column].mean().to_numpy()


def clearness(
    e: Evidence, point: int, weights: str, family: str = "vit", edit: str = NO_EDIT
) -> np.ndarray:
    """Pixel correlation of original and found input."""
    return at(points(e, family, weights, edit), point, PIXELS)


def edit_gain(
    e: Evidence, edit: str, weights: str, of: str = NO_EDIT, point: int = 0
) -> np.ndarray:
    """What an edit of a ViT adds to the clearness with another edit, or with none.

    Raises:
        NothingToTell: both inputs are found exactly.
    """
    after = clearness(e, point, weights, edit=edit)
    before = clearness(e, point, weights, edit=of)
    if min(after.min(), before.min()) > EXACT:
        raise NothingToTell(
            f"both inputs are found, with a pixel correlation above {EXACT}: "
            "there is nothing to tell apart"
        )
    return after - before


def without_parts(e: Evidence, weights: str) -> list[np.ndarray]:
    """Clearness after all layers of a ViT without attention, without norms and without MLPs."""
    parts = ("attention", "norms", "mlp")
    return [clearness(e, -1, weights, edit=f"without {part}") for part in parts]


def attention_hides_most(e: Evidence, weights: str) -> np.ndarray:
    """How much more removing attention helps than removing norms or MLPs."""
    attention, norms, mlp = without_parts(e, weights)
    return attention - np.maximum(norms, mlp)


def mlps_hide_least(e: Evidence, weights: str) -> np.ndarray:
    """How much more removing attention or norms, whichever helps less, helps than removing MLPs."""
    attention, norms, mlp = without_parts(e, weights)
    return np.minimum(attention, norms) - mlp


def embedding_clearness(
    e: Evidence, weights: str, overcomplete: bool, family: str | None = None
) -> np.ndarray:
    """Clearness behind the patch embedding alone, by default of the cell's model.

    Raises:
        NothingToTell: it is not of the width that the claim is about.
    """
    family = family or e.cell["model"]
    rows = points(e, family, weights)
    if bool(rows["overcomplete"].iloc[0]) != overcomplete:
        raise NothingToTell(
            f"{family}'s patch embedding is {'not ' if overcomplete else ''}"
            "as wide as its patches have values"
        )
    return at(rows, PATCHES, PIXELS)


def embedding_distance(e: Evidence, family: str, weights: str, edit: str = NO_EDIT) -> np.ndarray:
    """The embedding distance that Adam reaches after all layers."""
    return at(points(e, family, weights, edit), -1, EMBEDDING)


def adam_nearness(e: Evidence) -> np.ndarray:
    """1 less the embedding distance of a trained ViT."""
    return 1 - embedding_distance(e, "vit", TRAINED)


def token_distance(e: Evidence, weights: str, order: Order = "sequential") -> np.ndarray:
    """Distance of the found input's tokens after all layers, of a variant of the cell's model."""
    return at(points(e, e.cell["model"], weights, order=order), -1, TOKENS)


def reordered(e: Evidence) -> np.ndarray:
    """log10 of LS's token distance, arbitrary relative to original order."""
    return np.log10(token_distance(e, "ls", "arbitrary") / token_distance(e, "ls"))


def descent_distance(e: Evidence, weights: str) -> np.ndarray:
    """The embedding distance that gradient descent reaches for a ViT, less 1, after all layers.

    Raises:
        NotRun: fewer steps than the source's, after which any model's output is still far away.
    """
    distance = at(points(e, "vit", weights, optimiser="gd"), -1, EMBEDDING) - 1
    steps = e.read("inversion")["optimisers"]["gd"]["steps"]
    if steps < SOURCE_STEPS:
        raise NotRun(f"{steps} steps of gradient descent, the source takes {SOURCE_STEPS}")
    return distance


def non_unique(e: Evidence) -> Counts:
    """The share in % of images that attention alone maps to the output of another, less 50."""
    rows = points(e, "vit", UNTRAINED, "without residuals+mlp")
    if at(rows, 0, EMBEDDING).min() > 1:
        raise NothingToTell(
            "the descent does not come as near to the output as the shifted image: "
            "that another input meets it is not known"
        )
    met = at(rows.assign(met=rows["verdict"] == "non-unique"), 0, "met")
    return Counts(100 * met - 50, step=100 / e.table("inversion")["image"].nunique())


def ls_keeps_more_alone(e: Evidence) -> np.ndarray:
    """The baseline's token distance minus LS's, mean over layers alone.

    Raises:
        NothingToTell: the tokens of both are found exactly.
    """
    rows = [points(e, e.cell["model"], name) for name in (BASELINE, "ls")]
    baseline, ls = (alone(of_model, TOKENS) for of_model in rows)
    if max(baseline.max(), ls.max()) < FLOOR:
        raise NothingToTell(
            f"the tokens are found exactly for both, nearer than {FLOOR} of the yardstick: "
            "there is nothing to tell apart"
        )
    return baseline - ls


def recognised(e: Evidence) -> Counts:
    """The share in % of class images whose class another training of the ViT sees, less chance."""
    rows = e.table("class_images")
    if len(rows):
        rows = rows[(rows["family"] == "vit") & (rows["weights"] == TRAINED)]
    if rows.empty or rows["judge_sees"].isna().any():
        raise NotRun("class images of two trainings of a ViT are not among the results")
    right = (rows["judge_sees"] == rows["class"]).groupby(rows["seed"], sort=False).mean()
    step = 100 / e.table("class_images")["class"].nunique()
    return Counts(100 * right.to_numpy() - e.chance, step)


MEASURES = {
    measure.__name__: measure
    for measure in (
        clearness,
        edit_gain,
        attention_hides_most,
        mlps_hide_least,
        embedding_clearness,
        embedding_distance,
        adam_nearness,
        descent_distance,
        non_unique,
        token_distance,
        ls_keeps_more_alone,
        reordered,
        recognised,
    )
}
