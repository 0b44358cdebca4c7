"""Accuracy with k layers kept, sequential and arbitrary, over many routes, and under any sampler (LayerShuffle, section 4.2)."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from lsvit.latin import latin
from lsvit.routed import RoutedModel
from lsvit.routes import (
    ORDERS,
    OneRoute,
    Order,
    Route,
    RouteTable,
    Sampler,
    count_routes,
    evaluation_routes,
    generator,
    kendall_distance,
    kept_layers,
    per_sample,
)
from papers.layershuffle.section import SAMPLER_ROWS, EvalConfig
from pipeline.config.samplers import Spec, latin_ends, limit, make_sampler, sampler_name
from pipeline.data.splits import Split
from pipeline.jobs.files import ROWS, write_rows
from pipeline.training.devices import Execution
from pipeline.training.scoring import InTurn, Score, open_model, open_split, score

COLUMNS = (
    "keep",
    "order",
    "route",
    "routes",
    "images",
    "accuracy",
    "loss",
    "position_accuracy",
    "std_images",
)
SAMPLER_COLUMNS = ("sampler", "distance", "length", "images", "accuracy", "loss")


def cells(num_layers: int, config: EvalConfig) -> list[int]:
    """The numbers of layers to keep: those asked for and all; for a model trained on its first k layers, k alone."""
    return [num_layers] if config.variant.layers else sorted({*config.options.keep, num_layers})


def _generator(config: EvalConfig, model: RoutedModel) -> np.random.Generator:
    """Of a pass with a route a sample: the same for all variants (paired), another for every seed (its spread counts the routes')."""
    return generator("samples", config.options.seed, config.seed, model.num_layers)


def evaluate_cell(
    model: RoutedModel,
    whole: Split,
    part: Split,
    keep: int,
    order: Order,
    config: EvalConfig,
    execution: Execution,
) -> list[tuple]:
    """Rows of one cell: accuracy along single routes (one row each) and along many in one pass (one row).

    Where at most `orders` routes exist, a row for each, on all images. Else, under ``per: sample``, one pass over all images
    with a route of its own for each, which gives the mean, and `orders` routes on the images of `part`, which give the spread
    over orders; under ``per: latin`` the same with Latin routes for each batch, where arbitrary order is asked for. Under
    ``per: pass`` those routes give both; under ``per: batch`` (the published code's reading) there is one pass with a route a
    batch. All layers use all images throughout.
    """
    options = config.options
    routes = evaluation_routes(model.num_layers, keep, order, options.orders, options.seed)
    exhaustive = count_routes(model.num_layers, keep, order) <= options.orders
    mixed = options.per in ("sample", "latin")
    split = whole if exhaustive or (not mixed and keep == model.num_layers) else part
    passes: list[tuple[str, int, Split, Score]] = []
    if options.per == "batch" and not exhaustive:
        used = routes[: math.ceil(len(split) / options.batch_size)]
        name = f"{len(used)} routes, one a batch" if len(used) > 1 else _name(used[0])
        passes.append(
            (
                name,
                len(used),
                split,
                score(
                    model,
                    split,
                    InTurn([OneRoute(route) for route in used], options.batch_size),
                    options.batch_size,
                    execution,
                ),
            )
        )
    else:
        passes += [
            (
                _name(route),
                1,
                split,
                score(model, split, OneRoute(route), options.batch_size, execution),
            )
            for route in routes
        ]
    # How much the images differ: of each image's share of correct answers over the routes
    std_images = (
        torch.stack([result.correct for *_, result in passes]).double().mean(0).std().item()
    )
    rows = [
        (keep, order, name, count, len(images), *_numbers(result), std_images)
        for name, count, images, result in passes
    ]
    if mixed and not exhaustive:
        ends = (0, 0) if order == "arbitrary" else None
        drawn, count = _mixed_routes(
            model, len(whole), kept_layers(keep, order), ends, keep, config
        )
        result = score(model, whole, drawn, options.batch_size, execution)
        latin_drawn = options.per == "latin" and ends
        name = f"{count} routes, Latin" if latin_drawn else f"{count} routes, one a sample"
        rows.append(
            (
                keep,
                order,
                name,
                count,
                len(whole),
                *_numbers(result),
                result.correct.double().std().item(),
            )
        )
    return [tuple(round(v, 6) if isinstance(v, float) else v for v in row) for row in rows]


def _mixed_routes(
    model: RoutedModel,
    images: int,
    sampler: Sampler,
    ends: tuple[int, int] | None,
    keep: int | None,
    config: EvalConfig,
) -> tuple[RouteTable | InTurn, int]:
    """Routes for the images of a split, and how many: a route of its own for each or, under ``per: latin`` and for samplers that
    leave so many layers in place at either end, Latin routes for each batch."""
    rng, options = _generator(config, model), config.options
    if options.per == "latin" and ends:
        sizes = [
            min(options.batch_size, images - start)
            for start in range(0, images, options.batch_size)
        ]
        batches = [latin(rng, model.num_layers, *ends, keep) for _ in sizes]
        count = sum(min(len(each.routes), size) for each, size in zip(batches, sizes, strict=True))
        return InTurn(batches, options.batch_size), count
    return RouteTable(per_sample(sampler, rng, model.num_layers, images)), images


def _name(route: Route) -> str:
    return "-".join(map(str, route))


def _numbers(result: Score) -> tuple[float, float, float | None]:
    return result.accuracy, result.loss, result.position_accuracy


def evaluate_sampler(
    model: RoutedModel, split: Split, spec: Spec, config: EvalConfig, execution: Execution
) -> tuple:
    """One row: a pass in which every image runs along a route of its own, or that of its group."""
    routes, _ = _mixed_routes(model, len(split), make_sampler(spec), latin_ends(spec), None, config)
    table = routes.rows(len(split))
    layers = [tuple(route[route >= 0].tolist()) for route in table]
    result = score(model, split, routes, config.options.batch_size, execution)
    distance, length = (np.mean(list(map(f, layers))).item() for f in (kendall_distance, len))
    numbers = (round(value, 6) for value in (result.accuracy, result.loss))
    return (sampler_name(spec), round(distance, 3), round(length, 3), len(split), *numbers)


def evaluate(
    config: EvalConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Evaluate one trained model in every cell and under every sampler that fits its depth.

    Writes `rows.csv`, a row a route and cell, and `samplers.csv`, a row a sampler.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    report({"text": f"runs on {execution}"})
    whole = open_split(config, data, "validation", model)
    part = open_split(config, data, "validation", model, options.images)
    rows = []
    for keep in cells(model.num_layers, config):
        for order in ORDERS:
            rows += evaluate_cell(model, whole, part, keep, order, config, execution)
        report({"cell": f"{keep} layers kept"})
    fitting = [spec for spec in options.samplers if limit(spec, model.num_layers) is None]
    sampled = [evaluate_sampler(model, whole, spec, config, execution) for spec in fitting]
    report({"cell": f"{len(sampled)} samplers"})
    write_rows(folder / ROWS, COLUMNS, rows)
    write_rows(folder / SAMPLER_ROWS, SAMPLER_COLUMNS, sampled)
