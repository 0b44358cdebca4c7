"""What a model answers along the routes that the scheduler finds over nodes that fail.

The nodes are simulated, the model is run.
"""

from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from lsvit.routes import ENDED, RouteTable
from papers.nodes.compute.simulation import Run, simulate
from papers.nodes.section import Nodes, NodesConfig
from pipeline.jobs.files import ROWS, write_rows
from pipeline.training.scoring import open_model, open_split, score

COLUMNS = (
    "nodes",
    "replication",
    "fault",
    "gone",
    "micro_batches",
    "lost",
    "images",
    "accuracy",
    "right",
    "layers",
    "images_per_s",
    "p50_s",
    "p99_s",
    "busy",
)


def evaluate(
    config: NodesConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Evaluate one model under one policy over all placements and faults.

    Writes `rows.csv`, a row each. `accuracy` is over the images that were answered, empty if none
    were. `right` is the share of all images that were answered rightly.
    """
    torch.set_num_threads(1)
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    options = config.options
    split = open_split(config, data, "validation", model, options.images)
    batches = -(-len(split) // options.micro_batch)
    rows = []
    for nodes in options.nodes:
        # The same nodes fail whatever the policy and the number of copies.
        key = (options.seed, config.draw, nodes)
        for replication in options.replication:
            for name, fault in options.faults.items():
                run = simulate(
                    nodes,
                    replication,
                    model.num_layers,
                    batches,
                    options.in_flight,
                    config.policy,
                    options.service,
                    fault,
                    *key,
                )
                routes, answered = routes_of_images(run, len(split), options.micro_batch)
                correct = score(model, split, routes, options.batch_size, execution).correct
                row = summary(run, options, correct.numpy() & answered, answered)
                rows.append((nodes, replication, name, fault.gone, *row))
        report({"cell": f"{nodes} nodes"})
    write_rows(folder / ROWS, COLUMNS, rows)


def routes_of_images(run: Run, images: int, micro_batch: int) -> tuple[RouteTable, np.ndarray]:
    """List the route of every image.

    Returns:
        Routes, and which images were answered (n,) bool. An image without an answer has any route.
    """
    answered = np.array([not answer.lost for answer in run.answers])
    routes = [(0,) if answer.lost else answer.route for answer in run.answers]
    table = np.array([*zip_longest(*routes, fillvalue=ENDED)]).T  # (micro-batches, longest)
    table = table.repeat(micro_batch, axis=0)[:images]
    return RouteTable(table), answered.repeat(micro_batch)[:images]


def summary(
    run: Run, options: Nodes, right: np.ndarray, answered: np.ndarray
) -> tuple[float | None, ...]:
    """Summarise a run for a row, from `micro_batches` on.

    Times and images a second are those of the run's steady part (:meth:`Run.steady`), None if it
    has none. All other numbers are those of the whole run.

    Args:
        run: how the journeys ended.
        options: images of a micro-batch, and micro-batches under way at a time.
        right: (n,) bool, which images were answered rightly.
        answered: (n,) bool, which were answered.
    """
    size = options.micro_batch
    whole = [answer for answer in run.answers if not answer.lost]
    accuracy = None
    layers = None
    if whole:
        accuracy = right.sum() / answered.sum()
        layers = sum(len(answer.route) for answer in whole) / len(whole)
    steady, seconds = run.steady(options.in_flight)
    images_per_s = None
    if steady:
        count = sum(answered[number * size : (number + 1) * size].sum() for number in steady)
        images_per_s = count / seconds
    times = [run.answers[number].seconds for number in steady if not run.answers[number].lost]
    p50, p99 = np.percentile(times, [50, 99]).tolist() if times else (None, None)
    numbers = (accuracy, right.mean(), layers, images_per_s, p50, p99, run.busy)
    rounded = [None if value is None else round(float(value), 6) for value in numbers]
    return (len(run.answers), len(run.answers) - len(whole), len(right), *rounded)
