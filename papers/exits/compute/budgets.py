"""Which exit to take under a budget for every image, or one that holds on average.

No torch here. E exits are in the order of what they cost, n images. Costs are FLOPs or ms, a budget
is in the same unit.
"""

from bisect import bisect_right

import numpy as np

NOISE = 2.0  # standard errors: a lead within them is none


def practical(cost: np.ndarray, score: np.ndarray, noise: float = NOISE) -> np.ndarray:
    """True for exits worth having (multi-exit ViT, section II-A): bool (E,).

    An exit is practical if it scores higher than every exit that costs less. Without a margin,
    chance alone makes the best of many exits look better than the others.

    Args:
        cost: (E,), in any order.
        score: (E, n), of each image; higher is better.
        noise: a lead counts if it is more than so many standard errors of the paired difference.
    """
    better = np.ones(len(cost), dtype=bool)
    for place, own in enumerate(score):
        leads = own - score[cost < cost[place]]  # (cheaper exits, n)
        margin = noise * leads.std(axis=1, ddof=1) / np.sqrt(leads.shape[1])
        better[place] = (leads.mean(axis=1) > margin).all()
    return better


def pick(cost: np.ndarray, score: np.ndarray, budget: float) -> int:
    """The exit of highest score (E,) whose cost (E,) is within the budget, which one must be.

    Of equals it is the cheapest.

    This is how multi-exit ViT (section IV-A) uses a budget that is known when inference starts.
    """
    return int(np.lexsort((cost, -score, cost > budget))[0])


def leave(confidence: np.ndarray, threshold: float) -> np.ndarray:
    """The exit at which each image leaves: int (n,).

    It is the first whose confidence (E, n) reaches the threshold, else the last.
    """
    reached = confidence >= threshold
    reached[-1] = True
    return reached.argmax(axis=0)


def threshold_within(confidence: np.ndarray, cost: np.ndarray, budget: float) -> float:
    """The highest confidence to leave at with which images cost at most the budget on average.

    With a budget below cost[0] it is 0: all leave at the first exit.

    Args:
        confidence: (E, n), not negative, of calibration images at every exit.
        cost: (E,), ascending, of an image that leaves at each exit altogether.
        budget: what an image may cost on average.
    """
    candidates = np.append(np.unique(confidence[:-1]), np.inf)

    def average(threshold: float) -> float:  # which does not fall as the threshold rises
        counts = np.bincount(leave(confidence, threshold), minlength=len(cost))
        return float(counts / counts.sum() @ cost)  # exact where all leave at one exit

    affordable = bisect_right(candidates, budget, key=average)
    return float(candidates[affordable - 1]) if affordable else 0.0
