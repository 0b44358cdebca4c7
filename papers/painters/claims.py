"""What Painters claims of large language models, and the rules that decide whether it holds here.

As in the paper, accuracy counts from chance (0 %) to that of the model as it is (100 %).
"""

import numpy as np

from papers.painters.section import UNTOUCHED, Kind
from pipeline.config.variant import BASELINE
from pipeline.report.evaluations import label
from pipeline.report.ledger import ABOVE_ZERO, INF, Claim, Evidence

SCALE = "few narrow layers, each of which does more of the work than one of a large language model"
GRACEFUL, CATASTROPHIC = 50, 25  # % of the accuracy above chance: more is kept, or less


def kept(e: Evidence, kind: Kind, most: float = 1) -> np.ndarray:
    """What the baseline keeps of its accuracy above chance under a strategy, in %: a value a seed.

    Args:
        e: the results.
        kind: of the strategy.
        most: the mean is over the numbers of treated layers up to this share of all layers.

    Raises:
        NotRun: it is not among the results.
    """
    rows = e.rows("painters", "painters is", variant=BASELINE)
    own = rows[(rows["kind"] == kind) & (rows["treated"] <= most * e.num_layers)]
    up_to = f", at most {most * e.num_layers:g} layers" if most < 1 else ""
    accuracy = e.by_seed(own, "accuracy", f"{label(BASELINE)} under {kind}{up_to}")
    whole = e.by_seed(rows[rows["kind"] == UNTOUCHED], "accuracy", f"{label(BASELINE)} as it is")
    e.orders += own["orders"].unique().tolist()
    return e.excess(100 * accuracy, 100 * whole)


def _lead(e: Evidence, kind: Kind, other: Kind) -> np.ndarray:
    return kept(e, kind) - kept(e, other)


def _least_harm(e: Evidence) -> np.ndarray:
    least: tuple[Kind, ...] = ("shuffle", "loop")
    others: tuple[Kind, ...] = ("skip", "repeat", "reverse", "parallel")
    return np.min([kept(e, kind) for kind in least], axis=0) - np.max(
        [kept(e, kind) for kind in others], axis=0
    )


MEASURE = "accuracy above chance in % of the untouched baseline's"
MEAN = f"{MEASURE}, mean over the numbers of layers treated"
CLAIMS = [
    Claim(
        "painters.skip",
        "Painters, Are all the layers necessary?",
        "At least a few middle layers can be left out without catastrophic failure",
        "yes",
        f"{MEASURE}, a few middle layers (up to a quarter of all) left out",
        lambda e: kept(e, "skip", 0.25),
        (GRACEFUL, INF),
        (CATASTROPHIC, INF),
        "%",
        scale=SCALE,
    ),
    Claim(
        "painters.repeat",
        "Painters, Are middle layers all doing the same thing?",
        "Middle layers that share their weights do much worse than none at all",
        "catastrophic",
        f"middle layers left out minus each replaced by the one in the centre: {MEAN}",
        lambda e: _lead(e, "skip", "repeat"),
        (10, INF),
        ABOVE_ZERO,
    ),
    Claim(
        "painters.order",
        "Painters, Does the layer order matter?",
        "Middle layers in random and in reversed order degrade gracefully",
        "graceful",
        f"{MEASURE}, the lower of random and reversed order, mean over the numbers of layers treated up to half of all",
        lambda e: np.minimum(kept(e, "shuffle", 0.5), kept(e, "reverse", 0.5)),
        (GRACEFUL, INF),
        (CATASTROPHIC, INF),
        "%",
        scale=SCALE,
    ),
    Claim(
        "painters.parallel",
        "Painters, Can we run the layers in parallel?",
        "Middle layers side by side do better than none at all",
        "yes",
        f"middle layers in parallel minus left out: {MEAN}",
        lambda e: _lead(e, "parallel", "skip"),
        ABOVE_ZERO,
    ),
    Claim(
        "painters.loop",
        "Painters, Does looping help parallelized layers?",
        "Running the parallel step several times helps",
        "yes",
        f"looped parallel minus parallel: {MEAN}",
        lambda e: _lead(e, "loop", "parallel"),
        ABOVE_ZERO,
    ),
    Claim(
        "painters.least-harm",
        "Painters, Which variants harm performance the least?",
        "Random order and looped parallel do the least damage",
        "yes",
        f"the lower of random order and looped parallel minus the best of the others: {MEAN}",
        _least_harm,
        ABOVE_ZERO,
    ),
]
TITLE = "Layers as painters"  # of the paper in the report
HEADLINE = ("painters.order",)  # claims whose value `dvc metrics` shows
