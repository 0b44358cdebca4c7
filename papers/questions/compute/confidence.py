"""What confident answers are worth. No torch here."""

import numpy as np
from sklearn.metrics import roc_auc_score

BINS = 15


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error over 15 bins of equal width (Guo et al., 2017).

    Args:
        confidence: (n,) the largest probability of each answer.
        right: (n,) bool.
    """
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=confidence - right)  # sums over the images of a bin
    return np.abs(gaps).sum() / len(right)


def area_under_rejection(confidence: np.ndarray, right: np.ndarray) -> float:
    """Area under the accuracy-rejection curve (Nadeem et al., 2009).

    That is the mean accuracy of the 1, 2, ..., n most confident answers.
    """
    ranked = right[np.argsort(-confidence, kind="stable")]
    return (np.cumsum(ranked) / np.arange(1, len(ranked) + 1)).mean()


def judge(inside: np.ndarray, outside: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Judge probabilities (n, C) of labelled images, and those (m, C) of images of another kind."""
    right = inside.argmax(1) == labels
    confidence = inside.max(1)
    is_inside = np.repeat([True, False], [len(inside), len(outside)])
    both = np.concatenate([confidence, outside.max(1)])
    return {
        "accuracy": right.mean(),
        "ece": calibration_error(confidence, right),
        "auarc": area_under_rejection(confidence, right),
        "auroc": roc_auc_score(is_inside, both),
    }


def share_by_chance(answered: np.ndarray, labels: np.ndarray, allowed: np.ndarray) -> float:
    """How often some of several answers would fit a label of another image.

    Args:
        answered: (n, C) bool, the classes that some route answers.
        labels: (n,), among which the others are drawn: the expectation over all permutations.
        allowed: (n, C) bool, the labels that an image may get, its own among them.
    """
    weights = allowed * np.bincount(labels, minlength=allowed.shape[1])
    return ((answered * weights).sum(1) / weights.sum(1)).mean()
