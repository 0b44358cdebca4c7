"""What the claims of the text on representation are decided on.

A model is given by its family, weights and edit. A point is a place whose output was inverted.
"""

from typing import Any

import numpy as np
import pandas as pd

from lsvit.routes import Order
from papers.inversion.compute.ratios import EMBEDDING, PIXELS, TOKENS, with_ratios
from papers.inversion.section import NO_EDIT, TRAINED
from papers.inversion.tables import FIRST, LAYER, PATCHES, PLAIN
from pipeline.config.variant import BASELINE, UNTRAINED
from pipeline.report.claims import MARGINS
from pipeline.report.evidence import (
    Counts,
    Evidence,
    NotComparable,
    NothingToTell,
    NotRun,
    refuse_ceiling,
)

SOURCE_STEPS = 1500  # of gradient descent
CEILING = 1 - MARGINS[""]  # pixel correlation above which an effect has no room
FLOOR = 0.01  # share of the yardstick below which tokens are found exactly
ASTRAY = 0.5  # share of the yardstick above which a descent into an edited model tells nothing


def points(
    e: Evidence,
    family: str,
    weights: str,
    edit: str = NO_EDIT,
    order: Order = "sequential",
    optimiser: str = "adam",
) -> pd.DataFrame:
    """The rows of one model, with the ratios of :func:`with_ratios`. Raises NotRun without any."""
    where = {"family": family, "weights": weights, "edit": edit, "order": order}
    rows = e.rows("inversion", "inversions are", **where, optimiser=optimiser)
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
    if rows.empty or column not in rows or rows[column].isna().any():
        raise NotRun(f"{point} is not among the inverted points, or has no {column}")
    return rows.groupby("seed", sort=False)[column].mean().to_numpy()


def clearness(
    e: Evidence,
    point: str | int,
    weights: str,
    family: str = "vit",
    edit: str = NO_EDIT,
    optimiser: str = "adam",
) -> np.ndarray:
    """Pixel correlation of original and found input.

    Raises:
        NothingToTell: the model was edited, and the descent ends more than half as far from the
            output as the shifted image is. That tells of the descent, not of the edit.
    """
    rows = points(e, family, weights, edit, optimiser=optimiser)
    if edit != NO_EDIT and at(rows, point, EMBEDDING).mean() > ASTRAY:
        raise NothingToTell(f"the descent into the model {edit} does not come near its output")
    return at(rows, point, PIXELS)


def lead(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How much clearer one input is than the other.

    Raises:
        NotComparable: both are so clear that neither can be clearer.
    """
    refuse_ceiling(one, other, above=CEILING)
    return one - other


def clearer(e: Evidence, than: dict[str, Any], **model: Any) -> np.ndarray:
    """The lead in clearness of a point of a model over one that differs in the keys of `than`."""
    return lead(clearness(e, **model), clearness(e, **model | than))


def without_parts(e: Evidence, weights: str) -> list[np.ndarray]:
    """Clearness after all layers of a ViT without attention, without norms and without MLPs."""
    parts = ("attention", "norms", "mlp")
    return [clearness(e, -1, weights, edit=f"without {part}") for part in parts]


def attention_hides_most(e: Evidence, weights: str) -> np.ndarray:
    """How much more removing attention helps than removing norms or MLPs."""
    attention, norms, mlp = without_parts(e, weights)
    return lead(attention, np.maximum(norms, mlp))


def mlps_hide_least(e: Evidence, weights: str) -> np.ndarray:
    """How much more removing attention or norms, whichever helps less, helps than removing MLPs."""
    attention, norms, mlp = without_parts(e, weights)
    return lead(np.minimum(attention, norms), mlp)


def embedding_gain(e: Evidence) -> np.ndarray:
    """What training adds to the clearness behind the patch embedding of the cell's model.

    Raises:
        NotComparable: the embedding is as wide as a patch has values, or both inputs are found.
    """
    model = {"family": e.cell["model"], "weights": BASELINE}
    if points(e, **model)["overcomplete"].any():
        raise NotComparable("the patch embedding is as wide as a patch has values")
    return clearer(e, {"weights": UNTRAINED}, point=PATCHES, **model)


def patterned_filters(e: Evidence) -> np.ndarray:
    """The share in % of a trained ViT's filters that are no noise."""
    return 100 * at(points(e, "vit", TRAINED), PATCHES, "patterned")


def plain_training(e: Evidence, family: str) -> np.ndarray:
    """Accuracy above chance, trained without residual connections, in % of that with them."""
    accuracies = []
    for name in (family + PLAIN, family):
        rows = e.rows("inversion_trainings", "trainings are", family=name)
        accuracies.append(100 * e.by_seed(rows, "accuracy", f"the training of {name}"))
    return e.excess(*accuracies)


def norms_hinder_mixer(e: Evidence) -> np.ndarray:
    """How much nearer the output of an untrained mixer is met without its norms.

    Raises:
        NotComparable: the inputs are found with norms and without.
    """
    whole, bare = (points(e, "mixer", UNTRAINED, edit) for edit in (NO_EDIT, "without norms"))
    lead(at(whole, -1, PIXELS), at(bare, -1, PIXELS))
    return at(whole, -1, EMBEDDING) - at(bare, -1, EMBEDDING)


def adam_nearness(e: Evidence) -> np.ndarray:
    """1 less the embedding distance that Adam reaches after all layers of a trained ViT."""
    return 1 - at(points(e, "vit", TRAINED), -1, EMBEDDING)


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
    """Of the images whose output a descent meets, those in % that another input meets, less 50.

    The model is attention alone.

    Raises:
        NothingToTell: no output of some seed is met.
    """
    rows = points(e, "vit", UNTRAINED, "without residuals+mlp")
    met = rows[rows[EMBEDDING] < e.read("inversion")["met"]]
    images = met[met["point"] == f"{FIRST}1"].groupby("seed").size()
    if len(images) < rows["seed"].nunique():
        raise NothingToTell("the descent meets no output: whether another input does is open")
    another = at(met.assign(another=met["verdict"] == "non-unique"), 0, "another")
    return Counts(100 * another - 50, step=100 / images.min())


def ls_keeps_more(e: Evidence, order: Order = "sequential", alone: bool = False) -> np.ndarray:
    """How much farther off the baseline's found tokens are than LS's.

    They are those found after all layers, or, `alone`, the mean over single layers.

    Raises:
        NotComparable: the tokens of both are found exactly.
    """
    distances = []
    for name in (BASELINE, "ls"):
        rows = points(e, e.cell["model"], name, order=order)
        if alone:
            rows = rows[rows["point"].str.startswith(LAYER)]
            distances.append(e.by_seed(rows, TOKENS, "the inversion of single layers"))
        else:
            distances.append(at(rows, -1, TOKENS))
    baseline, ls = distances
    refuse_ceiling(baseline, ls, below=FLOOR)
    return baseline - ls


def reordered(e: Evidence) -> np.ndarray:
    """log10 of LS's token distance after all layers, arbitrary relative to original order."""
    model = e.cell["model"]
    arbitrary = at(points(e, model, "ls", order="arbitrary"), -1, TOKENS)
    return np.log10(arbitrary / at(points(e, model, "ls"), -1, TOKENS))


def recognised(e: Evidence) -> Counts:
    """The share in % of class images whose class another training of the ViT sees, less chance."""
    what = "class images of two trainings of a ViT are"
    rows = e.rows("class_images", what, family="vit", weights=TRAINED)
    if rows.empty or rows["judge_sees"].isna().any():
        raise NotRun(f"{what} not among the results")
    right = (rows["judge_sees"] == rows["class"]).groupby(rows["seed"], sort=False).mean()
    return Counts(100 * right.to_numpy() - e.chance, step=100 / rows["class"].nunique())


MEASURES = {
    measure.__name__: measure
    for measure in (
        clearness,
        clearer,
        attention_hides_most,
        mlps_hide_least,
        embedding_gain,
        patterned_filters,
        plain_training,
        norms_hinder_mixer,
        adam_nearness,
        descent_distance,
        non_unique,
        ls_keeps_more,
        reordered,
        recognised,
    )
}
