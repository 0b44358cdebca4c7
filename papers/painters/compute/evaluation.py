"""Accuracy of a trained model whose middle layers run in other ways (Painters, section 3)."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch

from lsvit.routes import OneRoute
from papers.painters.compute.strategies import cells
from papers.painters.section import PaintersConfig
from pipeline.jobs.files import ROWS, write_rows
from pipeline.training.scoring import open_model, open_split, score

COLUMNS = ("kind", "treated", "orders", "images", "accuracy", "loss")


def evaluate(
    config: PaintersConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Evaluate one model as it is and under every strategy, the mean over the strategy's routes.

    Writes `rows.csv`, a row a strategy and number of layers treated.

    Raises:
        IndexError: a route is longer than the positions that the model's position parts know.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    split = open_split(config, data, "validation", model, options.images)
    rows = []
    for treated, strategies in cells(model.num_layers, options).items():
        for kind, routes in strategies.items():
            scores = [
                score(model, split, OneRoute(route), options.batch_size, execution)
                for route in routes
            ]
            accuracy = round(fmean(one.accuracy for one in scores), 6)
            loss = round(fmean(one.loss for one in scores), 6)
            rows.append((kind, treated, len(routes), len(split), accuracy, loss))
        report({"cell": f"{treated} layers treated"})
    write_rows(folder / ROWS, COLUMNS, rows)
