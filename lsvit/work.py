"""The work of one training, evaluation or search for inputs, counted without weights or data: what `lsvit.cost` adds up."""

import json
import math
from functools import cache

import numpy as np

from lsvit.evaluation import cells
from lsvit.flops import Forward
from lsvit.hardware import Work
from lsvit.inversion_sections import ClassImages, Descent, InversionMeasure
from lsvit.jobs import EvalConfig
from lsvit.routes import ENDED, ORDERS, Sampler, Spec, count_routes, generator, kept_layers, limit, make_sampler, per_sample, training_order
from lsvit.sections import Optimisation, Variant
from lsvit.training import validation_routes

STEP = 3  # a training step's FLOPs in forward passes: the backward pass takes two
INPUT_STEP = 2  # one that changes the input alone


def without_heads(variant: Variant) -> Variant:
    """The variant where neither its exits nor its position predictions are read."""
    return variant.model_copy(update={"exits": None, "position": variant.position.model_copy(update={"predict": None})})


def mean_length(spec: Spec, num_layers: int) -> float:
    """Layers that a sampler's routes execute on average; only LayerDrop's differ in length."""
    if isinstance(spec, dict) and "drop" in spec:
        rate = spec["drop"] * (num_layers + 1) / (2 * num_layers) if spec.get("schedule") == "linear" else spec["drop"]
        return num_layers * (1 - rate)
    return len(make_sampler(spec)(generator("samples", 0), num_layers))


def count_calls(routes: np.ndarray) -> int:
    """Block calls of a batch whose samples run along routes of their own, (B, L): at each depth one per layer that any runs next."""
    return sum(len(np.unique(column[column != ENDED])) for column in routes.T)


def group_calls(sampler: Sampler, num_layers: int, samples: int) -> float:
    """Block calls of a batch whose samples run along routes that a sampler draws for each."""
    return count_calls(per_sample(sampler, generator("samples", 0), num_layers, samples))


@cache
def _sampler_calls(spec: str, num_layers: int, samples: int) -> float:
    return group_calls(make_sampler(json.loads(spec)), num_layers, samples)


def route_work(
    model: Forward, images: int, batch_size: int, length: float, calls: float | None = None, training: bool = False
) -> Work:  # fmt: skip
    """The work of `images` along routes of `length` layers; `calls` of blocks a batch, by default one a layer."""
    batches = math.ceil(images / batch_size)
    operations = batches * (model.outside + (length if calls is None else calls) * model.block)[0]
    _, elements, flops = images * (model.outside + length * model.block)
    return Work(training, images, batches, float(operations), float(elements), float(flops) * (STEP if training else 1))


def sampler_work(model: Forward, spec: Spec, images: int, batch_size: int, training: bool = False) -> Work:
    """A pass in which every sample runs along a route of its own."""
    calls = _sampler_calls(json.dumps(spec), model.num_layers, min(batch_size, images))
    return route_work(model, images, batch_size, mean_length(spec, model.num_layers), calls, training)


def training_job(model: Forward, variant: Variant, options: Optimisation, train: int, validation: int, heldout: int) -> list[Work]:
    """One training: epochs of complete batches, each validated in every order, the held-out images in one."""
    images = min(train, options.images or train) // options.batch_size * options.batch_size
    if variant.per == "sample":
        epoch = [sampler_work(model, variant.route, images, options.batch_size, training=True)]
    else:
        epoch = [route_work(model, images, options.batch_size, mean_length(variant.route, model.num_layers), training=True)]
    batch_size = options.validation_batch_size
    routes = validation_routes(model.num_layers, math.ceil(validation / batch_size), variant.route)
    lengths, own = {order: len(drawn[0]) for order, drawn in routes.items()}, training_order(variant.route)
    asked = lengths if options.validation_orders == "all" else (own,)
    epoch += [route_work(model, validation, batch_size, lengths[order]) for order in asked]
    epoch += [route_work(model, heldout, batch_size, lengths[own])] if heldout else []
    return epoch * options.epochs


def evaluation_job(model: Forward, config: EvalConfig, validation: int) -> list[Work]:
    """One model in every cell, as `evaluate_cell` runs it, and under every sampler that fits."""
    options, num_layers, batch_size = config.options, model.num_layers, config.options.batch_size
    part = min(validation, options.images or validation)
    job: list[Work] = []
    for keep in cells(num_layers, config):
        for order in ORDERS:
            found = count_routes(num_layers, keep, order)
            exhaustive, passes = found <= options.orders, min(found, options.orders)
            images = validation if exhaustive or (options.per != "sample" and keep == num_layers) else part
            job += [route_work(model, images, batch_size, keep)] * (1 if options.per == "batch" and not exhaustive else passes)
            if options.per == "sample" and not exhaustive:
                calls = group_calls(kept_layers(keep, order), num_layers, min(batch_size, validation))
                job.append(route_work(model, validation, batch_size, keep, calls))
    return job + [sampler_work(model, spec, validation, batch_size) for spec in options.samplers if limit(spec, num_layers) is None]


def input_step(work: Work) -> Work:
    """The work of forward passes, each followed by a backward pass to the input alone."""
    return work._replace(flops=INPUT_STEP * work.flops, to_input=True)


def states_work(model: Forward, routes: np.ndarray) -> list[Work]:
    """A pass to the states at the ends of routes (B, L), some of them empty, whose images are embedded and no more."""
    lengths = np.count_nonzero(routes != ENDED, axis=1)
    own, bare = routes[lengths > 0], int((lengths == 0).sum())
    work = [route_work(model, len(own), len(own), lengths.sum() / len(own), count_calls(own))] if len(own) else []
    return work + ([route_work(model, bare, bare, 0)] if bare else [])


def inversion_job(model: Forward, routes: np.ndarray, options: InversionMeasure, descent: Descent) -> list[Work]:
    """One model's inversions of states at the ends of routes (points x images, L), under all learning rates at once.

    The states to meet are read for the yardstick and for the descent, those of shifted images for the yardstick; a descent ends on
    a pass without a step. The embedding alone is read beside the yardstick's states, and in the end of both images.
    """
    embedded, read = route_work(model, len(routes), len(routes), 0), states_work(model, routes)
    tried = states_work(model, np.tile(routes, (len(descent.lrs), 1)))
    steps = [input_step(work) for work in tried] * descent.steps
    return [embedded] * (3 + options.shifts) + read * (2 + options.shifts) + steps + tried


def class_images_job(model: Forward, classes: int, options: ClassImages, judged: bool) -> list[Work]:
    """One model's class-maximising inputs, which it rates in the end, and another model if they are judged."""
    step = route_work(model, classes, min(classes, options.batch_size), model.num_layers)
    return [input_step(step)] * options.steps + [route_work(model, classes, classes, model.num_layers)] * (1 + judged)
