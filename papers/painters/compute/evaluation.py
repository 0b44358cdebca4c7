"""Accuracy of a trained model whose middle layers are executed in other ways than they were trained (Painters, section 3)."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch

from papers.painters.compute.strategies import cells
from papers.painters.section import PaintersConfig
from pipeline.jobs.files import ROWS, write_rows
from pipeline.training.scoring import open_model, open_split, score

COLUMNS = ("kind", "treated", "orders", "images", "accuracy", "loss")


def evaluate(
    config: PaintersConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Evaluate one model as it is and under every strategy, the mean over its routes. Writes `rows.csv`, a row a strategy.

    Raises:
        IndexError: a route outruns the positions that the model's position parts know.
    """
    torch.set_num_threads(1)
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    split = open_split(config, data, "validation", model, config.options.images)
    rows = []
    for treated, strategies in cells(model.num_layers, config.options).items():
        for kind, routes in strategies.items():
            scores = [
                score(model, split, [route], config.options.batch_size, execution)
                for route in routes
            ]
            accuracy, loss = (
                fmean(values)
                for values in zip(*((each.accuracy, each.loss) for each in scores), strict=True)
            )
            rows.append(
                (kind, treated, len(routes), len(split), round(accuracy, 6), round(loss, 6))
            )
        report({"cell": f"{treated} layers treated"})
    write_rows(folder / ROWS, COLUMNS, rows)
