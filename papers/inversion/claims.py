"""What the text on representation claims, and the rules that decide whether it holds."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from lsvit.routes import Order
from papers.inversion.compute.ratios import EMBEDDING, PIXELS, TOKENS, with_ratios
from papers.inversion.section import NO_EDIT, TRAINED
from papers.inversion.tables import FIRST, LAYER, PATCHES
from pipeline.config.variant import BASELINE, UNTRAINED
from pipeline.report.evaluations import label
from pipeline.report.ledger import ABOVE_ZERO, HOURS, INF, CannotTell, Claim, Evidence, NotRun
from pipeline.report.quotes import quoted

SOURCE = "Representation"
DEPTH, CONVOLUTION, NORMS, ABLATION, MIXERS, BEYOND = (
    f"{SOURCE}, decreased accuracy with depth",
    f"{SOURCE}, input processing convolutions",
    f"{SOURCE}, layer normalization",
    f"{SOURCE}, ablation survey",
    f"{SOURCE}, attentionless models",
    "beyond the source",
)
ADAM, GD, EYE = "adam", "gd", "by eye"
SOURCE_STEPS = 1500  # of gradient descent
EXACT, FLOOR = (
    0.99,
    0.01,
)  # pixel correlation, share of the yardstick: beyond them a descent tells no two inputs apart
NARROW = "a narrow model, shortly trained, on images of 784 pixels"


def points(
    e: Evidence,
    family: str,
    weights: str,
    edit: str = NO_EDIT,
    order: Order = "sequential",
    optimiser: str = ADAM,
) -> pd.DataFrame:
    """The rows of one model, with the ratios of :func:`with_ratios`. Raises NotRun if there are none."""
    wanted = {
        "family": family,
        "weights": weights,
        "edit": edit,
        "order": order,
        "optimiser": optimiser,
    }
    found = e.rows("inversion", "inversions are", **wanted)
    if found.empty:
        parts = [
            family,
            label(weights),
            *([edit] if edit != NO_EDIT else []),
            f"{order} order",
            optimiser,
        ]
        raise NotRun(f"the inversion of {', '.join(parts)} is not among the results")
    if order == "arbitrary":
        e.orders.append(int(found["image"].nunique()))
    return with_ratios(found)


def at(rows: pd.DataFrame, point: str | int, column: str) -> np.ndarray:
    """Mean over the images of a column: a value a seed. `point`: its name, or 0 and -1 for the first layer and all layers."""
    if isinstance(point, int):
        point = f"{FIRST}{rows['num_layers'].iloc[0] if point else 1}"
    found = rows[rows["point"] == point]
    if found.empty or found[column].isna().any():
        raise NotRun(f"{point} is not among the inverted points, or has no {column}")
    return found.groupby("seed", sort=False)[column].mean().to_numpy()


def alone(rows: pd.DataFrame, column: str) -> np.ndarray:
    """Mean over images and layers, each alone: a value a seed."""
    found = rows[rows["point"].str.startswith(LAYER)]
    if found.empty:
        raise NotRun("layers alone are not among the inverted points")
    return found.groupby("seed", sort=False)[column].mean().to_numpy()


def _falls(family: str, weights: str) -> Callable[[Evidence], np.ndarray]:
    return lambda e: (
        at(points(e, family, weights), 0, PIXELS) - at(points(e, family, weights), -1, PIXELS)
    )


def _gain(
    edit: str,
    point: int,
    weights: str,
    family: str = "vit",
    of: str = NO_EDIT,
    column: str = PIXELS,
) -> Callable:
    """What an edit changes against another or none. Raises NotRun where there is nothing to gain: both inputs are found exactly."""

    def measure(e: Evidence) -> np.ndarray:
        after, before = (at(points(e, family, weights, each), point, column) for each in (edit, of))
        if column == PIXELS and min(after.min(), before.min()) > EXACT:
            raise CannotTell(
                f"both inputs are found, with a pixel correlation above {EXACT}: there is nothing to tell apart"
            )
        return after - before

    return measure


def _removed(e: Evidence, weights: str) -> list[np.ndarray]:
    """Pixel correlation after all layers without attention, norms, MLPs."""
    return [
        at(points(e, "vit", weights, f"without {part}"), -1, PIXELS)
        for part in ("attention", "norms", "mlp")
    ]


def _worst(weights: str) -> Callable[[Evidence], np.ndarray]:
    """How much more removing attention helps than removing norms or MLPs."""

    def measure(e: Evidence) -> np.ndarray:
        attention, norms, mlp = _removed(e, weights)
        return attention - np.maximum(norms, mlp)

    return measure


def _least(weights: str) -> Callable[[Evidence], np.ndarray]:
    """How much more removing attention or norms, whichever helps less, helps than removing MLPs."""

    def measure(e: Evidence) -> np.ndarray:
        attention, norms, mlp = _removed(e, weights)
        return np.minimum(attention, norms) - mlp

    return measure


def _embedding(e: Evidence, family: str, weights: str, overcomplete: bool) -> np.ndarray:
    """Pixel correlation behind the patch embedding alone. Raises NotRun if it is not of the kind that the claim is about."""
    rows = points(e, family, weights)
    if bool(rows["overcomplete"].iloc[0]) != overcomplete:
        raise CannotTell(
            f"{family}'s patch embedding is {'not ' if overcomplete else ''}as wide as its patches have values"
        )
    return at(rows, PATCHES, PIXELS)


def _descent(weights: str) -> Callable[[Evidence], np.ndarray]:
    """Too short a descent ends far from any output, whatever the model: the source takes 1,500 steps."""

    def measure(e: Evidence) -> np.ndarray:
        found = at(points(e, "vit", weights, optimiser=GD), -1, EMBEDDING) - 1
        if (steps := e.read("inversion")["optimisers"][GD]["steps"]) < SOURCE_STEPS:
            raise NotRun(f"{steps} steps of gradient descent, the source takes {SOURCE_STEPS}")
        return found

    return measure


def _non_unique(e: Evidence) -> np.ndarray:
    rows = points(e, "vit", UNTRAINED, "without residuals+mlp")
    if at(rows, 0, EMBEDDING).min() > 1:
        raise CannotTell(
            "the descent does not come as near to the output as the shifted image: that another input meets it is not known"
        )
    return 100 * at(rows.assign(met=rows["verdict"] == "non-unique"), 0, "met")


def _against_ls(point: int | None, order: Order = "sequential") -> Callable[[Evidence], np.ndarray]:
    """How much farther from the tokens that went in the inputs found for the baseline lie than those found for LS."""

    def measure(e: Evidence) -> np.ndarray:
        baseline, ls = (points(e, e.cell["model"], name, order=order) for name in (BASELINE, "ls"))
        if point is not None:
            return at(baseline, point, TOKENS) - at(ls, point, TOKENS)
        found = alone(baseline, TOKENS), alone(ls, TOKENS)
        if np.max(found) < FLOOR:
            raise CannotTell(
                f"the tokens are found exactly for both, nearer than {FLOOR} of the yardstick: there is nothing to tell apart"
            )
        return found[0] - found[1]

    return measure


def _reordered(e: Evidence) -> np.ndarray:
    arbitrary, sequential = (
        at(points(e, e.cell["model"], "ls", order=order), -1, TOKENS)
        for order in ("arbitrary", "sequential")
    )
    return np.log10(arbitrary / sequential)


def _recognised(e: Evidence) -> np.ndarray:
    rows = e.table("class_images")
    found = rows[(rows["family"] == "vit") & (rows["weights"] == TRAINED)] if len(rows) else rows
    if found.empty or found["judge_sees"].isna().any():
        raise NotRun("class images of two trainings of a ViT are not among the results")
    return (
        100
        * found.assign(right=found["judge_sees"] == found["class"])
        .groupby("seed", sort=False)["right"]
        .mean()
        .to_numpy()
        - e.chance
    )


CLEAR = "pixel correlation of original and found input"
CLAIMS = quoted(
    [
        Claim(
            "inversion.deeper",
            DEPTH,
            "The deeper the layer of a ViT, the worse its input can be read off",
            EYE,
            f"{CLEAR}, after the first minus after the last layer, trained ViT",
            _falls("vit", TRAINED),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "inversion.deeper-mixer",
            MIXERS,
            "So it is in an untrained MLP-Mixer",
            EYE,
            f"{CLEAR}, after the first minus after the last layer, untrained MLP-Mixer",
            _falls("mixer", UNTRAINED),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "inversion.untrained-depth",
            f"{SOURCE}, hidden layer representation",
            "In an untrained ViT the last layer is about as clear as the first",
            EYE,
            f"{CLEAR}, after the first minus after the last layer, untrained ViT",
            _falls("vit", UNTRAINED),
            (-0.05, 0.05),
            (-0.15, 0.15),
            unit="",
        ),
        Claim(
            "inversion.patch-embed",
            CONVOLUTION,
            "Training makes a patch embedding clearer that is narrower than its patches",
            EYE,
            f"{CLEAR}, patch embedding alone, trained baseline minus untrained",
            lambda e: (
                _embedding(e, e.cell["model"], BASELINE, False)
                - _embedding(e, e.cell["model"], UNTRAINED, False)
            ),
            ABOVE_ZERO,
            unit="",
            scale=NARROW,
        ),
        Claim(
            "inversion.overcomplete",
            CONVOLUTION,
            "One that is as wide as its patches is clear without training",
            EYE,
            f"{CLEAR}, patch embedding alone, untrained ViT",
            lambda e: _embedding(e, "vit", UNTRAINED, True),
            (0.95, INF),
            unit="",
            possible=(-1, 1),
        ),
        *(
            Claim(
                f"inversion.gd.{weights}",
                f"{SOURCE}, hidden layer representation",
                "Gradient descent hardly comes nearer to the output of a layer than a slightly shifted image is",
                EYE,
                f"embedding distance after the last layer relative to that of the shifted image, less 1, gradient descent, {weights} ViT",
                _descent(weights),
                ABOVE_ZERO,
                unit="",
                run=HOURS,
            )
            for weights in (TRAINED, UNTRAINED)
        ),
        Claim(
            "inversion.adam",
            BEYOND,
            "Adam does",
            "not studied",
            "1 less the embedding distance after the last layer relative to that of the shifted image, Adam, trained ViT",
            lambda e: 1 - at(points(e, "vit", TRAINED), -1, EMBEDDING),
            ABOVE_ZERO,
            unit="",
        ),
        *(
            Claim(
                f"inversion.attention-worst.{weights}",
                ABLATION,
                "Attention is what hides the input most from a deep layer",
                EYE,
                f"{CLEAR}, last layer: what removing attention adds minus the most that removing norms or MLPs adds, {weights} ViT",
                _worst(weights),
                ABOVE_ZERO,
                unit="",
                scale=NARROW,
            )
            for weights in (UNTRAINED, TRAINED)
        ),
        *(
            Claim(
                f"inversion.mlp-least.{weights}",
                ABLATION,
                "MLPs hide it least",
                EYE,
                f"{CLEAR}, last layer: the least that removing attention or norms adds minus what removing MLPs adds, {weights} ViT",
                _least(weights),
                ABOVE_ZERO,
                unit="",
                scale=NARROW,
            )
            for weights in (UNTRAINED, TRAINED)
        ),
        *(
            Claim(
                f"inversion.norms.{weights}",
                ABLATION,
                "Without LayerNorms early layers are clearer",
                EYE,
                f"{CLEAR}, first layer, without norms minus as it is, {weights} ViT",
                _gain("without norms", 0, weights),
                ABOVE_ZERO,
                unit="",
            )
            for weights in (UNTRAINED, TRAINED)
        ),
        Claim(
            "inversion.residuals",
            f"{SOURCE}, attention does not transmit most input information",
            "Without residual connections little of the input is left",
            EYE,
            f"{CLEAR}, first layer without residuals, trained ViT",
            lambda e: at(points(e, "vit", TRAINED, "without residuals"), 0, PIXELS),
            (-INF, 0.3),
            (-INF, 0.6),
            unit="",
        ),
        Claim(
            "inversion.attention-non-unique",
            f"{SOURCE}, attention does not transmit most input information",
            "LayerNorm and attention alone are met by inputs that are not the original",
            EYE,
            "share of images judged non-unique, first layer without residuals and MLP, untrained ViT, less 50 %",
            lambda e: _non_unique(e) - 50,
            ABOVE_ZERO,
            possible=(-50, 50),
            step=lambda e: 100 / e.table("inversion")["image"].nunique(),
        ),
        Claim(
            "inversion.attention-trained",
            f"{SOURCE}, attention does not transmit most input information",
            "Training makes attention alone more informative",
            EYE,
            f"{CLEAR}, first layer without residuals and MLP, trained minus untrained ViT",
            lambda e: (
                at(points(e, "vit", TRAINED, "without residuals+mlp"), 0, PIXELS)
                - at(points(e, "vit", UNTRAINED, "without residuals+mlp"), 0, PIXELS)
            ),
            ABOVE_ZERO,
            unit="",
            scale=NARROW,
        ),
        Claim(
            "inversion.transplant-position",
            NORMS,
            "A trained position embedding makes no difference",
            EYE,
            f"{CLEAR}, first layer, untrained ViT with trained patch and position embedding minus with trained patch embedding",
            _gain("with patch_embed+pos_embed", 0, UNTRAINED, of="with patch_embed"),
            (-0.02, 0.02),
            (-0.1, 0.1),
            unit="",
        ),
        Claim(
            "inversion.transplant-norm",
            NORMS,
            "A trained first LayerNorm helps substantially",
            EYE,
            f"{CLEAR}, first layer, untrained ViT with trained patch embedding and first norm minus with trained patch embedding",
            _gain("with patch_embed+norm1", 0, UNTRAINED, of="with patch_embed"),
            (0.05, INF),
            ABOVE_ZERO,
            unit="",
            scale=NARROW,
        ),
        Claim(
            "inversion.mixer-norms",
            MIXERS,
            "Without LayerNorms the output of an MLP-Mixer is met more nearly",
            EYE,
            "embedding distance relative to the yardstick, last layer, as it is minus without norms, untrained MLP-Mixer",
            _gain(NO_EDIT, -1, UNTRAINED, "mixer", "without norms", EMBEDDING),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "inversion.mixer-trained",
            MIXERS,
            "A trained MLP-Mixer's deep layers are about as clear as a ViT's, or clearer",
            EYE,
            f"{CLEAR}, last layer, trained MLP-Mixer minus trained ViT",
            lambda e: (
                at(points(e, "mixer", TRAINED), -1, PIXELS)
                - at(points(e, "vit", TRAINED), -1, PIXELS)
            ),
            (0, INF),
            (-0.1, INF),
            unit="",
        ),
        Claim(
            "inversion.class-images",
            f"{SOURCE}, input generation",
            "Class-maximising inputs of a ViT mean something: another training of it sees their class in them",
            "recognisable by eye",
            "share of the classes that another training of the same ViT sees in them, less chance",
            _recognised,
            (25, INF),
            (10, INF),
            scale=NARROW,
            possible=(-100, 100),
            step=lambda e: 100 / e.table("class_images")["class"].nunique(),
        ),
        Claim(
            "inversion.ls-alone",
            BEYOND,
            "A layer that works anywhere keeps more of its input",
            "not studied",
            "distance of the found input's tokens relative to the yardstick, mean over layers alone, baseline minus LS",
            _against_ls(None),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "inversion.ls-sequential",
            BEYOND,
            "All layers of LS keep more input than the baseline's, in original order",
            "not studied",
            "distance of the tokens of the input that Adam finds relative to the yardstick, after all layers, baseline minus LS",
            _against_ls(-1),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "inversion.ls-arbitrary",
            BEYOND,
            "All layers of LS keep more input than the baseline's, in arbitrary orders",
            "not studied",
            "distance of the tokens of the input that Adam finds relative to the yardstick, after all layers in arbitrary order, baseline "
            "minus LS",
            _against_ls(-1, "arbitrary"),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "inversion.ls-orders",
            BEYOND,
            "LS keeps as much in arbitrary as in original order",
            "not studied",
            "log10 of the distance of the found input's tokens after all layers, arbitrary relative to original order",
            _reordered,
            (-0.1, 0.1),
            (-0.3, 0.3),
            unit="",
        ),
    ],
    __file__,
)
TITLE = "What layers represent"  # of the paper in the report
HEADLINE = ("inversion.deeper",)  # claims whose value `dvc metrics` shows
