"""Logistic regression on pixels: the floor under the accuracy of a transformer. No torch here."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_limits

from papers.layershuffle.section import ALL, COLUMNS, LogisticConfig
from pipeline.data.shards import Maps
from pipeline.jobs.files import HELDOUT, ROWS, read_meta, write_rows
from pipeline.jobs.processes import root

Data = tuple[np.ndarray, np.ndarray]  # pixels in [0, 1] (n, pixels), labels (n,)


def read_pixels(data: Path, split: str) -> Data:
    """Read all images of a prepared split."""
    shards = read_meta(data).get("shards")
    files = [data / f"{split}.arrow"]
    if shards:
        files = [root() / shard["file"] for shard in shards[split]]
    maps = Maps(files)
    images, labels = maps[np.arange(len(maps))]
    return images.reshape(len(images), -1) / 255, labels


def choose_regression(train: Data, judges: Data | None, values: list[float]) -> LogisticRegression:
    """Fit a regression for each C and choose by accuracy on held-out images, the first if equal.

    The solver is L-BFGS with at most 100 steps, as scikit-learn has by default. It may end before
    it has converged, which regularises as well.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        if judges is None:
            return LogisticRegression(C=values[0]).fit(*train)
        regressions = [LogisticRegression(C=value).fit(*train) for value in values]
    return max(regressions, key=lambda regression: regression.score(*judges))


def evaluate(
    config: LogisticConfig, data: Path, weights: None, folder: Path, report: Callable[[dict], None]
) -> None:
    """Fit on the training images and score the validation images. Writes `rows.csv`, one row.

    It has no layers (`keep` is 0) and thus no order: the row is that of the original one.
    """
    meta = read_meta(data)
    judges = read_pixels(data, HELDOUT) if HELDOUT in meta["counts"] else None
    with threadpool_limits(1):
        regression = choose_regression(read_pixels(data, "train"), judges, config.values)
        images, labels = read_pixels(data, "validation")
        answers = np.zeros((len(labels), len(meta["classes"])))
        answers[:, regression.classes_] = regression.predict_proba(images)
    correct = answers.argmax(axis=1) == labels
    loss = log_loss(labels, answers, labels=range(answers.shape[1]))
    numbers = [correct.mean(), loss, np.nan, correct.std(ddof=1)]  # it names no positions
    rounded = [round(float(number), 6) for number in numbers]
    name = f"C = {regression.C:g}"
    write_rows(folder / ROWS, COLUMNS, [(0, ALL, "sequential", name, 1, len(labels), *rounded)])
    report({"cell": name})
