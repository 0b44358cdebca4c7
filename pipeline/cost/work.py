"""The work of one training, evaluation or search for inputs, counted without weights or data: what `pipeline.cost.estimate` adds up."""

import heapq
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from lsvit.routes import ENDED, Sampler, Spec, generator, make_sampler, per_sample, training_order
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Optimisation
from pipeline.config.types import Per
from pipeline.config.variant import PLAIN, Variant
from pipeline.cost.flops import Forward, count_variant, meta_backbone
from pipeline.cost.hardware import Hardware, Work
from pipeline.training.loop import validation_routes

STEP = 3  # a training step's FLOPs in forward passes: the backward pass takes two


class Stage(NamedTuple):
    """Jobs, each the work of one process of `threads` threads; `part` and `name` say which."""

    part: str
    name: str
    jobs: Sequence[list[Work]]
    threads: int = 1

    def time(self, hardware: Hardware) -> dict[str, float]:
        """Seconds of all jobs together, and until the last one ends: each starts in order on the first free worker."""
        seconds = [sum(work.seconds(hardware) for work in job) for job in self.jobs]
        free = [0.0] * hardware.workers(self.threads)
        for duration in seconds:
            heapq.heapreplace(free, free[0] + duration)
        return {"sum": sum(seconds), "wall": max(free)}

    def row(self, known: dict[str, Hardware]) -> dict[str, Any]:
        """A row of :func:`estimate`; passes of a stage that trains count as validation, of another as evaluation."""
        trainings = sum(any(work.training for work in job) for job in self.jobs)
        works = [work for job in self.jobs for work in job]
        passes = sum(work.images for work in works if not work.training)
        return {
            "part": self.part,
            "name": self.name,
            "trainings": trainings,
            "training_images": sum(work.images for work in works if work.training),
            "validation_images": passes if trainings else 0,
            "evaluation_images": 0 if trainings else passes,
            "flops": sum(work.flops for work in works),
            "seconds": {name: self.time(hardware) for name, hardware in known.items()},
        }


def count(preset: ModelPreset, num_classes: int, variant: Variant = PLAIN) -> Forward:
    """Counts of a variant of a preset's model, made once for all that differ in other than its parts. Raises UserError as counting does."""
    parts = PLAIN.model_copy(
        update={key: getattr(variant, key) for key in ("position", "exits", "talking_heads")}
    )
    counted = _count(preset.model_dump_json(), num_classes, parts.model_dump_json())
    return replace(counted, num_layers=variant.layers or counted.num_layers)


@cache
def _count(preset: str, num_classes: int, parts: str) -> Forward:
    given = ModelPreset.model_validate_json(preset)
    return count_variant(
        meta_backbone(given, num_classes), given, Variant.model_validate_json(parts)
    )


def without_heads(variant: Variant) -> Variant:
    """The variant where neither its exits nor its position predictions are read."""
    return variant.model_copy(
        update={"exits": None, "position": variant.position.model_copy(update={"predict": None})}
    )


def mean_length(spec: Spec, num_layers: int) -> float:
    """Layers that a sampler's routes execute on average; only LayerDrop's differ in length."""
    if isinstance(spec, dict) and "drop" in spec:
        rate = (
            spec["drop"] * (num_layers + 1) / (2 * num_layers)
            if spec.get("schedule") == "linear"
            else spec["drop"]
        )
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
    model: Forward,
    images: int,
    batch_size: int,
    length: float,
    calls: float | None = None,
    training: bool = False,
) -> Work:
    """The work of `images` along routes of `length` layers; `calls` of blocks a batch, by default one a layer."""
    batches = math.ceil(images / batch_size)
    operations = batches * (model.outside + (length if calls is None else calls) * model.block)[0]
    _, elements, flops = images * (model.outside + length * model.block)
    return Work(
        training,
        images,
        batches,
        float(operations),
        float(elements),
        float(flops) * (STEP if training else 1),
    )


def sampler_work(
    model: Forward, spec: Spec, images: int, batch_size: int, training: bool = False
) -> Work:
    """A pass in which every sample runs along a route of its own."""
    calls = _sampler_calls(json.dumps(spec), model.num_layers, min(batch_size, images))
    return route_work(
        model, images, batch_size, mean_length(spec, model.num_layers), calls, training
    )


def training_job(
    model: Forward,
    variant: Variant,
    options: Optimisation,
    train: int,
    validation: int,
    heldout: int,
    per: Per = "batch",
) -> list[Work]:
    """One training: epochs of complete batches, each validated in every order, the held-out images in one."""
    images = min(train, options.images or train) // options.batch_size * options.batch_size
    if per == "sample":
        epoch = [sampler_work(model, variant.route, images, options.batch_size, training=True)]
    else:
        epoch = [
            route_work(
                model,
                images,
                options.batch_size,
                mean_length(variant.route, model.num_layers),
                training=True,
            )
        ]
    batch_size = options.validation_batch_size
    routes = validation_routes(model.num_layers, math.ceil(validation / batch_size), variant.route)
    lengths, own = (
        {order: len(drawn[0]) for order, drawn in routes.items()},
        training_order(variant.route),
    )
    asked = lengths if options.validation_orders == "all" else (own,)
    epoch += [route_work(model, validation, batch_size, lengths[order]) for order in asked]
    epoch += [route_work(model, heldout, batch_size, lengths[own])] if heldout else []
    return epoch * options.epochs
