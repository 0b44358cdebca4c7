"""Accuracy with k layers kept in both orders, and under any sampler (section 4.2)."""

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
    Routes,
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
    """The numbers of layers to keep: those asked for and all.

    A model that was trained on its first k layers is evaluated with k alone. One whose route has no
    order is evaluated along that route.
    """
    if config.variant.layers or config.variant.route in ORDERLESS:
        return [num_layers]
    return sorted({*config.options.keep, num_layers})


def evaluate_cell(
    model: RoutedModel,
    whole: Split,
    part: Split,
    keep: int,
    order: Order,
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
    num_layers = model.num_layers
    if config.variant.route in ORDERLESS:
        routes = [make_sampler(config.variant.route)(generator("evaluation"), num_layers)]
        exhaustive = True
    else:
        routes = evaluation_routes(num_layers, keep, order, options.orders, options.seed)
        exhaustive = count_routes(num_layers, keep, order) <= options.orders
    mixed = options.per in ("sample", "latin")
    uses_all = exhaustive or (keep == num_layers and not mixed)
    split = whole if uses_all else part

    def run(images: Split, routes: Routes | InTurn) -> Score:
        return score(model, images, routes, options.batch_size, execution)

    scores: dict[str, tuple[int, Score]] = {}  # name -> number of routes, score
    if options.per == "batch" and not exhaustive:
        used = routes[: math.ceil(len(split) / options.batch_size)]
        name = f"{len(used)} routes, one a batch" if len(used) > 1 else _name(used[0])
        in_turn = InTurn([OneRoute(route) for route in used], options.batch_size)
        scores[name] = len(used), run(split, in_turn)
    else:
        for route in routes:
            scores[_name(route)] = 1, run(split, OneRoute(route))
    # How much the images differ: the spread of their shares of correct answers over the routes.
    correct = torch.stack([one.correct for _, one in scores.values()]).double()
    std_images = correct.mean(0).std().item()
    rows = []
    for name, (count, one) in scores.items():
        rows.append(_row(keep, order, name, count, split, one, std_images))
    if mixed and not exhaustive:
        ends = (0, 0) if order == "arbitrary" else None
        drawn, count = _draw_mixed(model, whole, kept_layers(keep, order), ends, keep, config)
        one = run(whole, drawn)
        kind = "Latin" if options.per == "latin" and ends else "one a sample"
        std_images = one.correct.double().std().item()
        rows.append(_row(keep, order, f"{count} routes, {kind}", count, whole, one, std_images))
    return rows


def _draw_mixed(
    model: RoutedModel,
    split: Split,
    sampler: Sampler,
    ends: tuple[int, int] | None,
    keep: int | None,
    config: EvalConfig,
) -> tuple[RouteTable | InTurn, int]:
    """Draw routes for the images of a split, and count them.

    Every variant gets the same routes (differences are paired), every seed its own (the spread over
    seeds counts the routes').

    Args:
        model: the routes are for.
        split: its images run along them.
        sampler: draws a route for each image.
        ends: layers that the sampler leaves in place at either end. Under ``per: latin`` such a
            sampler gives way to Latin routes for each batch. None: it has no Latin form.
        keep: the length of Latin routes. None: all layers.
        config: of the evaluation.
    """
    options = config.options
    num_layers = model.num_layers
    rng = generator("samples", options.seed, config.seed, num_layers)
    if options.per != "latin" or not ends:
        table = per_sample(sampler, rng, num_layers, len(split))
        return RouteTable(table), len(split)
    batches = []
    count = 0
    for start in range(0, len(split), options.batch_size):
        batch = latin(rng, num_layers, *ends, keep)
        batches.append(batch)
        count += min(len(batch.routes), len(split) - start, options.batch_size)
    return InTurn(batches, options.batch_size), count


def _row(
    keep: int, order: str, name: str, count: int, split: Split, one: Score, std_images: float
) -> tuple:
    numbers = (one.accuracy, one.loss, one.position_accuracy, std_images)
    rounded = [None if value is None else round(value, 6) for value in numbers]
    return (keep, order, name, count, len(split), *rounded)


def _name(route: Route) -> str:
    """E.g. "2-0-1"; of layers side by side "0+1+2"."""
    steps = [step if isinstance(step, tuple) else (step,) for step in route]
    return "-".join("+".join(map(str, step)) for step in steps)


def evaluate_sampler(
    model: RoutedModel, split: Split, spec: Spec, config: EvalConfig, execution: Execution
) -> tuple:
    """Evaluate a sampler in one pass in which every image, or its group, has a route of its own."""
    batch_size = config.options.batch_size
    sampler = make_sampler(spec)
    routes, _ = _draw_mixed(model, split, sampler, latin_ends(spec), None, config)
    table = routes.rows(len(split))  # (n, L)
    layers = [tuple(route[route >= 0].tolist()) for route in table]
    distance = np.mean([kendall_distance(route) for route in layers]).item()
    length = np.mean([len(route) for route in layers]).item()
    one = score(model, split, routes, batch_size, execution)
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
