"""Accuracy with k layers kept, sequential and arbitrary, over many routes (LayerShuffle, section 4.2)."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import torch

from lsvit.jobs import EVALUATION_ROWS, EvalConfig
from lsvit.routes import ORDERS, evaluation_routes
from lsvit.runs import open_model, open_split, score

COLUMNS = ("keep", "order", "route", "routes", "images", "accuracy", "loss", "position_accuracy")


def cells(num_layers: int, config: EvalConfig) -> list[int]:
    """The numbers of layers to keep: those asked for and all; for a model trained on its first k layers, k alone."""
    return [num_layers] if config.variant.layers else sorted({*config.options.keep, num_layers})


def evaluate(config: EvalConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]) -> None:
    """Evaluate one trained model in every cell and write one row a route to `rows.csv`.

    Under ``per: batch`` (the published code's reading) a cell is one pass, an order per batch, and gives one row.
    """
    torch.set_num_threads(1)
    options = config.options
    model = open_model(config, data, weights)
    rows = []
    for keep in cells(model.num_layers, config):
        limit = options.images if keep < model.num_layers else None
        split = open_split(config, data, "validation", model, limit)
        for order in ORDERS:
            routes = evaluation_routes(model.num_layers, keep, order, options.orders, options.seed)
            groups = [routes] if options.per == "batch" else [[route] for route in routes]
            for group in groups:
                result = score(model, split, group, options.batch_size, config.precision)
                used = group[: math.ceil(len(split) / options.batch_size)]
                name = "-".join(map(str, used[0])) if len(used) == 1 else f"{len(used)} routes, one a batch"
                numbers = (None if value is None else round(value, 6) for value in (result.accuracy, result.loss, result.position_accuracy))
                rows.append((keep, order, name, len(used), len(split), *numbers))
        report({"cell": f"{keep} layers kept"})
    with open(folder / EVALUATION_ROWS, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
