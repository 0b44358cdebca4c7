"""What a model answers along the routes that the scheduler finds over nodes that fail; the nodes are simulated, the model is run."""

from collections.abc import Callable
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
    """One model under one policy over all placements and faults. Writes `rows.csv`, a row each.

    `accuracy` is over the images that were answered, empty if none were; `right` the share of all images that were answered rightly.
    """
    torch.set_num_threads(1)
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    options = config.options
    split = open_split(config, data, "validation", model, options.images)
    batches = -(-len(split) // options.micro_batch)
    rows = []
    for nodes in options.nodes:
        for replication in options.replication:
            for name, fault in options.faults.items():
                key = (
                    options.seed,
                    config.draw,
                    nodes,
                )  # the same nodes in trouble, whatever the policy and the copies
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
                table, answered = routes_of_images(
                    run, len(split), options.micro_batch, model.num_layers
                )
                right = answered  # of nobody
                if answered.any():
                    right = (
                        score(
                            model, split, RouteTable(table.numpy()), options.batch_size, execution
                        ).correct
                        & answered
                    )
                rows.append(
                    (
                        nodes,
                        replication,
                        name,
                        fault.gone,
                        *summary(run, options, right.numpy(), answered.numpy()),
                    )
                )
        report({"cell": f"{nodes} nodes"})
    write_rows(folder / ROWS, COLUMNS, rows)


def routes_of_images(
    run: Run, images: int, micro_batch: int, num_layers: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The routes of the images (n, L), ended by -1, and which images were answered (n,); those that were not have any route."""
    table = torch.full((len(run.answers), num_layers), ENDED, dtype=torch.int64)
    for row, answer in zip(table, run.answers, strict=True):
        route = (0,) if answer.lost else answer.route
        row[: len(route)] = torch.tensor(route)
    answered = torch.tensor([not answer.lost for answer in run.answers])
    return table.repeat_interleave(micro_batch, 0)[:images], answered.repeat_interleave(
        micro_batch
    )[:images]


def summary(
    run: Run, options: Nodes, right: np.ndarray, answered: np.ndarray
) -> tuple[float | None, ...]:
    """What a row says of a run. Times and images a second are those of its steady part (:meth:`Run.steady`), if any, all else of the whole.

    Args:
        run: how the journeys ended.
        options: how many images travel together, and how many micro-batches at a time.
        right: (n,) bool, which images were answered rightly.
        answered: (n,) bool, which were answered.
    """
    whole = [answer for answer in run.answers if not answer.lost]
    counted, seconds = run.steady(options.in_flight)
    times = [run.answers[number].seconds for number in counted if not run.answers[number].lost]
    p50, p99 = np.percentile(times, [50, 99]).tolist() if times else (None, None)
    starts = [number * options.micro_batch for number in counted]
    images_per_s = (
        sum(answered[start : start + options.micro_batch].sum() for start in starts) / seconds
        if counted
        else None
    )
    accuracy = right.sum() / answered.sum() if answered.any() else None
    layers = sum(len(answer.route) for answer in whole) / len(whole) if whole else None
    found = (accuracy, right.mean(), layers, images_per_s, p50, p99, run.busy)
    return (
        len(run.answers),
        len(run.answers) - len(whole),
        len(right),
        *(None if v is None else round(float(v), 6) for v in found),
    )
