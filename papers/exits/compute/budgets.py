"""Which exit to take under a budget for every image, or one that holds on average.

No torch here. E exits are in the order of what they cost, n images. Costs are FLOPs or seconds,
a budget is in the same unit.
"""

import numpy as np

STEEPEST = 50.0  # |log q|: one exit gets all images, to within e**-50
HALVINGS = 60  # brings log q to the precision of a float


def practical(cost: np.ndarray, score: np.ndarray) -> np.ndarray:
    """True for exits worth having (multi-exit ViT, section II-A): bool (E,).

    An exit is practical if its score is above that of every exit that costs less, and not below
    that of one that costs the same.

    Args:
        cost: (E,).
        score: (E,), higher is better.
    """
    cheaper = cost[None] < cost[:, None]  # [i, j]: exit j costs less than exit i
    equal = cost[None] == cost[:, None]
    ahead = score[None] - score[:, None]
    return ~((cheaper & (ahead >= 0)) | (equal & (ahead > 0))).any(axis=1)


def pick(cost: np.ndarray, score: np.ndarray, budget: float) -> int | None:
    """The exit of highest score (E,) whose cost (E,) is within the budget; None if there is none.

    Of equals it is the cheapest.

    This is how multi-exit ViT (section IV-A) uses a budget that is known when inference starts.
    """
    affordable = np.flatnonzero(cost <= budget)
    if not affordable.size:
        return None
    return int(affordable[np.lexsort((cost[affordable], -score[affordable]))[0]])


def cumulative_cost(flops: np.ndarray, branch: np.ndarray) -> np.ndarray:
    """What an image that leaves at each exit has cost (E,) if every earlier branch was tried.

    Args:
        flops: (E,), of the backbone up to the exit and the exit's own branch.
        branch: (E,), of the exit's branch alone.
    """
    return flops + np.cumsum(branch) - branch


def leave(confidence: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The exit at which each image leaves: int (n,).

    It is the first whose confidence (E, n) reaches its threshold (E,), else the last.
    """
    reached = confidence >= thresholds[:, None]
    reached[-1] = True
    return reached.argmax(axis=0)


def _thresholds(confidence: np.ndarray, log_q: float) -> np.ndarray:
    """The thresholds (E,) that let a share proportional to q^k of the images leave at exit k.

    The most confident of those that are left leave.
    """
    exits, images = confidence.shape
    powers = log_q * np.arange(exits)
    share = np.exp(powers - powers.max())  # the largest is 1: no overflow
    # Sums are rounded, not their terms: so fewer leave early as q grows.
    gone = np.round(images * np.cumsum(share) / share.sum())
    thresholds = np.zeros(exits)
    staying = np.ones(images, dtype=bool)
    for k in range(exits - 1):
        left = np.sort(confidence[k, staying])
        wanted = int(gone[k]) - (images - len(left))
        if wanted < len(left):  # else all that are left leave, at the threshold 0
            thresholds[k] = left[-wanted] if wanted > 0 else np.inf
        staying &= confidence[k] < thresholds[k]
    return thresholds


def exit_thresholds(confidence: np.ndarray, cost: np.ndarray, budget: float) -> np.ndarray:
    """Confidences (E,) at which images leave so that they cost at most the budget on average.

    The last is 0: all leave there. This is budgeted batch classification of MSDNet (Huang et al.,
    2018): a share proportional to q^k leaves at exit k, the most confident of those that have not
    left before. Bisection finds the q > 0 that spends most of the budget. With a budget below
    cost[0] everyone leaves at the first exit, from cost[-1] on everyone at the last. If tied
    confidences let more images leave at an exit than wanted, a larger q may spend more; the budget
    still holds.

    Args:
        confidence: (E, n), not negative, of calibration images at every exit.
        cost: (E,), ascending, of an image that leaves at exit k altogether.
        budget: what an image may cost on average.
    """
    low, high = -STEEPEST, STEEPEST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        exits = leave(confidence, _thresholds(confidence, middle))
        shares = np.bincount(exits, minlength=len(cost)) / len(exits)
        if shares @ cost <= budget:  # exact where all leave at one exit
            low = middle
        else:
            high = middle
    return _thresholds(confidence, low)


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017, section 2), in [0, 1].

    It is the mean of |accuracy - mean confidence| over bins, weighted by their images.

    Args:
        confidence: (n,), of the predicted class, in [0, 1].
        correct: bool (n,), whether it is the label.
        bins: of equal width; each contains its upper end.
    """
    place = np.maximum(np.ceil(confidence * bins).astype(int) - 1, 0)
    return float(np.abs(np.bincount(place, weights=correct - confidence)).sum() / len(confidence))
