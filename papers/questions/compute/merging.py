"""Models whose layers come from several trainings."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from lsvit.routes import OneRoute, Routes, RouteTable, arbitrary, generator, per_sample
from papers.questions.section import MergesConfig, Row, write_numbers
from pipeline.training.scoring import open_model, open_split, score

Tensors = dict[str, Tensor]
BLOCKS = "backbone.blocks."


def merge(members: Sequence[Tensors], chosen: Sequence[int], outside: str) -> Tensors:
    """Take each layer from one of several models.

    Args:
        members: their tensors, by name.
        chosen: by layer, the number of the member it comes from.
        outside: where all else comes from: "first", or the "mean" over the members.
    """
    merged = {}
    for name, tensor in members[0].items():
        if name.startswith(BLOCKS):
            layer = int(name.removeprefix(BLOCKS).split(".")[0])
            merged[name] = members[chosen[layer]][name]
        elif outside == "mean":
            every = torch.stack([tensors[name] for tensors in members])
            merged[name] = every.double().mean(0).to(tensor.dtype)  # of equal ones the same bits
        else:
            merged[name] = tensor
    return merged


def evaluate(
    config: MergesConfig,
    data: Path,
    weights: Path,
    folder: Path,
    report: Callable[[dict], None],
    **others: Path,
) -> None:
    """Evaluate merges of the first 2, 3, ... trainings, and the first training itself.

    Writes `rows.csv`, a row an order and number of trainings: the mean over the merges.
    """
    torch.set_num_threads(1)
    options = config.options
    members = []
    for file in (weights, *others.values()):
        model, execution = open_model(config, data, file)
        members.append(deepcopy(model.state_dict()))
    report({"text": f"runs on {execution}"})
    split = open_split(config, data, "validation", model, options.images)
    rng = generator("merged orders", options.seed)
    num_layers = model.num_layers
    routes: dict[str, Routes] = {
        "sequential": OneRoute(tuple(range(num_layers))),
        "arbitrary": RouteTable(per_sample(arbitrary, rng, num_layers, len(split))),
    }
    rows: list[Row] = []
    for count in [1, *options.members]:
        if count > len(members):
            continue
        merges = []
        for draw in range(options.draws if count > 1 else 1):
            chosen = generator("merge", options.seed, count, draw).integers(count, size=num_layers)
            merges.append(merge(members[:count], chosen.tolist(), options.outside))
        for order, route in routes.items():
            accuracies = []
            for tensors in merges:
                model.load_state_dict(tensors)
                one = score(model, split, route, options.batch_size, execution)
                accuracies.append(one.accuracy)
            rows.append((order, count, "accuracy", fmean(accuracies)))
        report({"cell": f"{count} trainings"})
    write_numbers(folder, rows, len(split))
