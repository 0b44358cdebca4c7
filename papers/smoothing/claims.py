"""What the over-smoothing paper claims, and the rules that decide whether it holds."""

from collections.abc import Callable

import numpy as np

from lsvit.routes import ORDERS, Order
from papers.smoothing.section import SCRATCH
from papers.smoothing.tables import TABLE1, TABLE4
from pipeline.config.variant import BASELINE, UNTRAINED
from pipeline.report.evaluations import label
from pipeline.report.ledger import ABOVE_ZERO, INF, Claim, Evidence, NotRun
from pipeline.report.quotes import quoted
from pipeline.report.tables import NONE

FIGURE2, BEYOND = "Over-smoothing, figure 2", "beyond the paper"
BEST = "contrastive+mixing"
COSINE, ATTENTION = "patch_cosine", "attention_std"
# What claims about these losses are judged on: the source's takes dot products. Its sums with others are trained with ours, of cosines.
TRAINED = {"contrastive": "contrastive_dot", "contrastive-cosines": "contrastive"}
ROWS = {losses: top1 for losses, top1 in TABLE1.items() if losses != NONE}
PARTS = {
    "repeats": "repeated augmentation",
    "erasing": "random erasing",
    "mixup": "mixup",
    "drop_path": "drop path",
}
SHORT = "one short training of a narrow model"


def depths(e: Evidence) -> tuple[int, int]:
    """The smaller and the larger number of layers of the trainings from scratch."""
    found = sorted(
        e.rows("smoothing", "over-smoothing is", training=SCRATCH)["num_layers"].unique()
    )
    if len(found) < 2:
        raise NotRun("trainings from scratch at two depths are not among the results")
    return int(found[0]), int(found[-1])


def profile(
    e: Evidence,
    column: str,
    losses: str = NONE,
    depth: int | None = None,
    training: str = SCRATCH,
    order: Order = "sequential",
    removed: str = NONE,
    talking_heads: bool = False,
) -> np.ndarray:
    """A measure layer by layer: (seeds, layers), from the embedding on, of the attention from the first layer on.

    Raises:
        NotRun: it is not among the results.
    """
    where = {
        "training": training,
        "order": order,
        "removed": removed,
        "talking_heads": talking_heads,
    }
    rows = e.rows("smoothing", "over-smoothing is", **where)
    if depth is not None:
        rows = rows[rows["num_layers"] == depth]
    if training == SCRATCH:
        rows = rows[rows["losses"] == losses]
    if column == ATTENTION:
        rows = rows[rows["layer"] > 0]
    name = f"{label(training)}, {order}"
    if training == SCRATCH:
        less = (
            f", without {PARTS[removed]}"
            if removed != NONE
            else ", talking heads"
            if talking_heads
            else ""
        )
        name = f"losses {losses}, {depth} layers{less}"
    if rows.empty or rows[column].isna().any():
        raise NotRun(f"the {column.replace('_', ' ')} of {name} is not among the results")
    return rows.pivot_table(index="seed", columns="layer", values=column, sort=False).to_numpy()


def last(e: Evidence, **which: object) -> np.ndarray:
    """Patch cosine similarity after the last layer: a value a seed."""
    return profile(e, COSINE, **which)[:, -1]  # type: ignore[arg-type]


def accuracy(
    e: Evidence, losses: str, deep: bool = False, removed: str = NONE, talking_heads: bool = False
) -> np.ndarray:
    """Accuracy in % of a training from scratch at the smaller or the larger depth: a value a seed."""
    return (
        100
        * profile(
            e, "accuracy", losses, depths(e)[deep], removed=removed, talking_heads=talking_heads
        )[:, -1]
    )


def _ours(losses: str) -> str:
    """What is measured where the source's claim is about these losses."""
    return (
        f"{losses} (contrastive: of cosines)"
        if "contrastive+" in losses or "+contrastive" in losses
        else losses
    )


def _rise(e: Evidence) -> np.ndarray:
    found = profile(e, COSINE, depth=depths(e)[1])
    return found[:, -1] - found[:, 1]


def _thirds(e: Evidence) -> np.ndarray:
    found = profile(e, ATTENTION, depth=depths(e)[1])
    third = found.shape[1] // 3
    return found[:, -third:].mean(1) - found[:, :third].mean(1)


def _lowers(losses: str) -> Callable[[Evidence], np.ndarray]:
    return lambda e: (
        last(e, depth=depths(e)[1])
        - last(e, losses=TRAINED.get(losses, losses), depth=depths(e)[1])
    )


def _wider_attention(e: Evidence) -> np.ndarray:
    deep = depths(e)[1]
    return profile(e, ATTENTION, BEST, deep).mean(1) - profile(e, ATTENTION, depth=deep).mean(1)


def _gain(losses: str, deep: bool = False) -> Callable[[Evidence], np.ndarray]:
    return lambda e: accuracy(e, TRAINED.get(losses, losses), deep) - accuracy(e, NONE, deep)


def _best_lead(e: Evidence) -> np.ndarray:
    others = (NONE, *(TRAINED.get(losses, losses) for losses in ROWS if losses != BEST))
    return accuracy(e, BEST) - np.max([accuracy(e, losses) for losses in others], axis=0)


def _spared(part: str) -> Callable[[Evidence], np.ndarray]:
    def measure(e: Evidence) -> np.ndarray:
        plain, best = (
            accuracy(e, losses) - accuracy(e, losses, removed=part) for losses in (NONE, BEST)
        )
        return plain - best

    return measure


def _reordered(e: Evidence, variant: str) -> np.ndarray:
    sequential, arbitrary = (last(e, training=variant, order=order) for order in ORDERS)
    return arbitrary - sequential


CLAIMS = quoted(
    [
        Claim(
            "smoothing.rises",
            FIGURE2,
            "Patches become more alike with depth",
            "by eye",
            "patch cosine similarity after the last layer minus that after the first, larger depth, no losses",
            _rise,
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "smoothing.deeper",
            FIGURE2,
            "Patches grow alike especially where there are many layers",
            "stated",
            "patch cosine similarity after the last layer, larger minus smaller depth, no losses",
            lambda e: last(e, depth=depths(e)[1]) - last(e, depth=depths(e)[0]),
            ABOVE_ZERO,
            unit="",
            scale=SHORT,
        ),
        Claim(
            "smoothing.attention",
            FIGURE2,
            "Deep layers attend to all patches with similar weights",
            "by eye",
            "standard deviation of the attention scores, last minus first third of the layers, larger depth, no losses",
            _thirds,
            (-INF, 0),
            unit="",
            scale=SHORT,
        ),
        Claim(
            "smoothing.trained",
            FIGURE2,
            "Training makes patches more alike than a random initialisation does",
            "by eye",
            "patch cosine similarity after the last layer, trained without losses minus untrained, larger depth, paired by seed",
            lambda e: last(e, depth=depths(e)[1]) - last(e, training=UNTRAINED, depth=depths(e)[1]),
            ABOVE_ZERO,
            unit="",
            scale=SHORT,
        ),
        *(
            Claim(
                f"smoothing.lowers.{losses}",
                FIGURE2 if losses == BEST else "Over-smoothing, Suppressing Over-smoothing",
                f"Trained with {losses}, patches are less alike",
                "by eye" if losses == BEST else "its purpose",
                f"patch cosine similarity after the last layer, larger depth, no losses minus {_ours(losses)}",
                _lowers(losses),
                ABOVE_ZERO,
                unit="",
                scale="a head on every patch asks patches of one image for one and the same class"
                if "mixing" in losses
                else "",
            )
            for losses in ("cosine", *TRAINED, "mixing", BEST)
        ),
        Claim(
            "smoothing.attention-ours",
            FIGURE2,
            "Trained with contrastive+mixing, attention is less even",
            "by eye",
            "standard deviation of the attention scores, mean over the layers, larger depth, "
            + _ours(BEST)
            + " minus no losses",
            _wider_attention,
            ABOVE_ZERO,
            unit="",
            scale=SHORT,
        ),
        *(
            Claim(
                f"smoothing.table1.{losses}",
                "Over-smoothing, table 1",
                f"{losses} raises the accuracy",
                f"{published - TABLE1[NONE]:+.1f} points",
                f"accuracy with {_ours(losses)} minus that without losses, smaller depth",
                _gain(losses),
                ABOVE_ZERO,
                scale=SHORT,
            )
            for losses, published in ROWS.items()
        ),
        Claim(
            "smoothing.table1.contrastive-cosines",
            BEYOND,
            "So does the contrastive loss of cosines",
            "not studied",
            "accuracy with contrastive-cosines minus that without losses, smaller depth",
            _gain("contrastive-cosines"),
            ABOVE_ZERO,
            scale=SHORT,
        ),
        *(
            Claim(
                f"smoothing.deep.{losses}",
                BEYOND,
                f"{losses} raises the accuracy of the deeper model too",
                "not studied",
                f"accuracy with {losses} minus that without losses, larger depth",
                _gain(losses, deep=True),
                ABOVE_ZERO,
                scale=SHORT,
            )
            for losses in TRAINED
        ),
        Claim(
            "smoothing.table1.best-sum",
            "Over-smoothing, table 1",
            "Contrastive and mixing together are the best row",
            f"{ROWS[BEST] - max(v for k, v in ROWS.items() if k != BEST):+.1f} points",
            f"accuracy with {_ours(BEST)} minus that of the best other row, smaller depth",
            _best_lead,
            ABOVE_ZERO,
            scale=SHORT,
        ),
        Claim(
            "smoothing.depth-plain",
            "Over-smoothing, table 2",
            "Without the losses twice the layers do not help",
            "-0.4 points (table 4: -4.4)",
            "accuracy at the larger minus that at the smaller depth, no losses",
            lambda e: accuracy(e, NONE, True) - accuracy(e, NONE),
            (-INF, 0),
        ),
        Claim(
            "smoothing.depth-ours",
            "Over-smoothing, table 2",
            "With contrastive+mixing twice the layers help",
            "+0.4 points (with talking heads)",
            f"accuracy at the larger minus that at the smaller depth, {_ours(BEST)}",
            lambda e: accuracy(e, BEST, True) - accuracy(e, BEST),
            ABOVE_ZERO,
            scale="deeper models need more steps than these have",
        ),
        *(
            Claim(
                f"smoothing.table4.{part}",
                "Over-smoothing, table 4",
                f"With the losses training needs {name} less",
                f"{TABLE4[NONE][1] - TABLE4[part][1]:.1f} points lost without the losses, {TABLE4[NONE][2] - TABLE4[part][2]:.1f} with them",
                f"what removing {name} costs without the losses minus what it costs with {_ours(BEST)}",
                _spared(part),
                ABOVE_ZERO,
                scale="in one epoch there is nothing to regularise",
                run="-S scale=published",
            )
            for part, name in PARTS.items()
        ),
        Claim(
            "smoothing.talking-heads",
            "Over-smoothing, table 3",
            "Talking heads add a little to contrastive+mixing",
            "+0.1 points",
            f"accuracy with talking heads minus that without, {_ours(BEST)}, smaller depth",
            lambda e: accuracy(e, BEST, talking_heads=True) - accuracy(e, BEST),
            ABOVE_ZERO,
            (-1, INF),
        ),
        Claim(
            "smoothing.ls-order",
            BEYOND,
            "In an LS model patches get about as alike in arbitrary as in original order",
            "not studied",
            "patch cosine similarity after the last layer, arbitrary minus original order",
            lambda e: _reordered(e, "ls"),
            (-0.1, 0.1),
            (-0.3, 0.3),
            unit="",
        ),
        Claim(
            "smoothing.baseline-order",
            BEYOND,
            "An arbitrary order changes that of the baseline more",
            "not studied",
            "the absolute change from original to arbitrary order, baseline minus LS",
            lambda e: np.abs(_reordered(e, BASELINE)) - np.abs(_reordered(e, "ls")),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "smoothing.ls-contrastive",
            BEYOND,
            "The contrastive loss keeps patches apart in arbitrary orders too",
            "not studied",
            "patch cosine similarity after the last layer in arbitrary order, LS minus LS with the loss",
            lambda e: (
                last(e, training="ls", order="arbitrary")
                - last(e, training="ls_contrastive", order="arbitrary")
            ),
            ABOVE_ZERO,
            unit="",
        ),
        Claim(
            "smoothing.ls-accuracy",
            BEYOND,
            "The contrastive loss raises LayerShuffle's accuracy under arbitrary orders",
            "not studied",
            "LS with the loss minus LS",
            lambda e: e.accuracy("ls_contrastive", "arbitrary") - e.accuracy("ls", "arbitrary"),
            ABOVE_ZERO,
        ),
    ],
    __file__,
)
TITLE = "Over-smoothing"  # of the paper in the report
HEADLINE = ("smoothing.rises",)  # claims whose value `dvc metrics` shows
