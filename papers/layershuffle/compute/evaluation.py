"""Accuracy with k layers kept in both orders, and under any sampler (section 4.2)."""

import math
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch

from lsvit.latin import Latin, latin
from lsvit.routed import RoutedModel
from lsvit.routes import (
    ENDED,
    OneRoute,
    Route,
    Routes,
    RouteTable,
    Sampler,
    evaluation_routes,
    generator,
    kendall_distance,
    kept_layers,
    layers_of,
    per_sample,
)
from papers.layershuffle.compute.cells import Cell, cells
from papers.layershuffle.section import ALL, COLUMNS, SAMPLER_ROWS, EvalConfig
from pipeline.config.samplers import (
    ORDERLESS,
    Spec,
    latin_ends,
    limit,
    make_sampler,
    sampler_name,
)
from pipeline.data.splits import Split
from pipeline.jobs.files import ROWS, write_rows
from pipeline.training.devices import Execution
from pipeline.training.scoring import InTurn, Score, open_model, open_split, score

SAMPLER_COLUMNS = ("sampler", "distance", "length", "images", "accuracy", "loss")


def mislead(model: RoutedModel) -> None:
    """Tell every layer a wrong position: the one half the depth away."""
    for table in model.position["encode"].embeddings:
        table.weight.data = table.weight.data.roll(model.num_layers // 2, dims=0)


def evaluate_cell(
    model: RoutedModel,
    whole: Split,
    part: Split,
    cell: Cell,
    config: EvalConfig,
    execution: Execution,
) -> list[tuple]:
    """Evaluate one cell: accuracy along single routes (a row each) and along many in one pass.

    If at most `orders` routes exist, each gets a row, on all images. Otherwise it depends on `per`:

    - sample: one pass over all images with a route of its own for each gives the mean; `orders`
      routes on the images of `part` give the spread over orders.
    - latin: the same with Latin routes for each batch, in arbitrary order.
    - pass: `orders` single routes give both.
    - batch (the published code's reading): one pass with a route a batch.

    All layers use all images throughout.
    """
    options = config.options
    keep, choose, order, pool, existing = cell
    routes: list[Route] = []
    if config.variant.route in ORDERLESS:
        routes.append(make_sampler(config.variant.route)(generator("evaluation"), keep))
    else:
        for places in evaluation_routes(len(pool), keep, order, options.orders, options.seed):
            routes.append(tuple(pool[place] for place in layers_of(places)))
    exhaustive = existing <= options.orders
    mixed = options.per in ("sample", "latin")
    split = whole if exhaustive or (choose == ALL and not mixed) else part

    def run(images: Split, routes: Routes | InTurn) -> Score:
        return score(model, images, routes, options.batch_size, execution)

    scores: list[tuple[str, int, Score]] = []  # name, number of routes, score
    if options.per == "batch" and not exhaustive:
        used = routes[: math.ceil(len(split) / options.batch_size)]
        name = f"{len(used)} routes, one a batch" if len(used) > 1 else _name(used[0])
        in_turn = InTurn([OneRoute(route) for route in used], options.batch_size)
        scores.append((name, len(used), run(split, in_turn)))
    else:
        for route in routes:
            scores.append((_name(route), 1, run(split, OneRoute(route))))
    # How much the images differ: the spread of their shares of correct answers over the routes.
    correct = torch.stack([one.correct for *_, one in scores]).double()
    std_images = correct.mean(0).std().item()
    rows = [_row(cell, name, count, split, one, std_images) for name, count, one in scores]
    if mixed and not exhaustive:
        ends = (0, 0) if order == "arbitrary" else None
        many, count = _draw_mixed(len(whole), kept_layers(keep, order), pool, ends, keep, config)
        one = run(whole, many)
        kind = "Latin" if options.per == "latin" and ends else "one a sample"
        std_images = one.correct.double().std().item()
        rows.append(_row(cell, f"{count} routes, {kind}", count, whole, one, std_images))
    return rows


def _draw_mixed(
    images: int,
    sampler: Sampler,
    pool: tuple[int, ...],
    ends: tuple[int, int] | None,
    keep: int | None,
    config: EvalConfig,
) -> tuple[RouteTable | InTurn, int]:
    """Draw routes for the images of a split, and count them.

    Every variant gets the same routes (differences are paired), every seed its own (the spread over
    seeds counts the routes').

    Args:
        images: how many there are.
        sampler: draws a route of places in the pool for each image.
        pool: the layers.
        ends: layers that the sampler leaves in place at either end. Under ``per: latin`` such a
            sampler gives way to Latin routes for each batch. None: it has no Latin form.
        keep: the length of Latin routes. None: all layers.
        config: of the evaluation.
    """
    options = config.options
    rng = generator("samples", options.seed, config.seed, len(pool))
    if options.per != "latin" or not ends:
        table = per_sample(sampler, rng, len(pool), images)
        layers = np.array([*pool, ENDED])  # at -1 stands what fills a row
        return RouteTable(layers[table]), images
    batches = []
    count = 0
    for start in range(0, images, options.batch_size):
        drawn = latin(rng, len(pool), *ends, keep).routes
        batches.append(Latin(tuple(tuple(pool[place] for place in route) for route in drawn)))
        count += min(len(drawn), images - start, options.batch_size)
    return InTurn(batches, options.batch_size), count


def _row(cell: Cell, name: str, count: int, split: Split, one: Score, std_images: float) -> tuple:
    numbers = (one.accuracy, one.loss, one.position_accuracy, std_images)
    rounded = [None if value is None else round(value, 6) for value in numbers]
    return (*cell[:3], name, count, len(split), *rounded)


def _name(route: Route) -> str:
    """A route in a word: "2-0-1", or "0+1+2" where layers run side by side."""
    return "-".join("+".join(map(str, layers_of((step,)))) for step in route)


def evaluate_sampler(
    model: RoutedModel, split: Split, spec: Spec, config: EvalConfig, execution: Execution
) -> tuple:
    """Evaluate a sampler in one pass in which every image, or its group, has a route of its own."""
    pool = tuple(range(model.num_layers))
    routes, _ = _draw_mixed(len(split), make_sampler(spec), pool, latin_ends(spec), None, config)
    layers = [route[route != ENDED].tolist() for route in routes.rows(len(split))]
    distance = np.mean(list(map(kendall_distance, layers))).item()
    length = np.mean(list(map(len, layers))).item()
    one = score(model, split, routes, config.options.batch_size, execution)
    numbers = (round(distance, 3), round(length, 3), len(split))
    return (sampler_name(spec), *numbers, round(one.accuracy, 6), round(one.loss, 6))


def evaluate(
    config: EvalConfig, data: Path, weights: Path, folder: Path, report: Callable[[dict], None]
) -> None:
    """Evaluate one trained model in every cell and under every sampler that fits its depth.

    Writes `rows.csv`, a row a route and cell, and `samplers.csv`, a row a sampler.
    """
    torch.set_num_threads(1)
    options = config.options
    model, execution = open_model(config, data, weights)
    if config.misled:
        mislead(model)
    report({"text": f"runs on {execution}"})
    whole = open_split(config, data, "validation", model)
    part = open_split(config, data, "validation", model, options.images)
    rows = []
    measured = cells(model.num_layers, config.variant, options, config.misled)
    for keep, same_keep in groupby(measured, attrgetter("keep")):
        for cell in same_keep:
            rows += evaluate_cell(model, whole, part, cell, config, execution)
        report({"cell": f"{keep} layers kept"})
    sampled = []
    for spec in options.samplers:
        if limit(spec, model.num_layers) is None:
            sampled.append(evaluate_sampler(model, whole, spec, config, execution))
    report({"cell": f"{len(sampled)} samplers"})
    write_rows(folder / ROWS, COLUMNS, rows)
    write_rows(folder / SAMPLER_ROWS, SAMPLER_COLUMNS, sampled)
