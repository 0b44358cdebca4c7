"""What stage inversion costs, counted without weights or data."""

from typing import Any

import numpy as np

from lsvit.routes import ENDED
from papers.inversion.compute import plan as inversion_jobs
from papers.inversion.compute.ablation import ablate
from papers.inversion.compute.descent import make_points
from papers.inversion.section import TRAINED, ClassImages, Descent, Inversion, InversionMeasure
from pipeline.config.params import Params
from pipeline.config.variant import PLAIN
from pipeline.cost.flops import Forward, count_variant, meta_backbone
from pipeline.cost.hardware import Work
from pipeline.cost.work import Stage, count, count_calls, route_work, training_job, without_heads

NOTES = (
    "inversion: a step that changes an input = 2 forward passes, in time like those of a training; without what is done to the pixels: "
    "distances, priors, the optimiser.",
)


def stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage inversion: the trainings from scratch, if there are any, the inversions and the class images.

    Raises:
        UserError: timm does not know a family's model, or its blocks are of a kind that parts cannot be taken out of.
    """
    plan, tuning = inversion_jobs.Plan(params), params.scratch_training(Inversion)
    options, subjects, classes = plan.options, plan.subjects(), params.dataset_preset.num_classes
    ablated: dict[tuple[Any, ...], Forward] = {}

    def counted(subject: inversion_jobs.Subject) -> Forward:
        variant = without_heads(subject.variant)
        if not subject.ablation:
            return count(subject.preset, classes, variant)
        key = subject.preset.model_dump_json(), variant.model_dump_json(), subject.ablation
        if key not in ablated:
            ablate(backbone := meta_backbone(subject.preset, classes), subject.ablation)
            ablated[key] = count_variant(backbone, subject.preset, variant)
        return ablated[key]

    trained = [
        subject
        for subject in subjects
        if subject.weights == TRAINED and not plan.is_own(subject.family)
    ]
    trainings = [training_job(counted(subject), PLAIN, tuning, *sizes) for subject in trained]
    inversions = []
    for subject, optimiser, order in plan.inverted(subjects):
        model = counted(subject)
        points = make_points(
            model.num_layers,
            options.depths,
            subject.alone(order),
            order,
            options.images,
            (options.seed, subject.seed),
        )
        inversions.append(
            inversion_job(model, points.routes.numpy(), options, options.optimisers[optimiser])
        )
    judged = plan.judged(subjects)
    class_images = [
        class_images_job(counted(subject), classes, options.class_images, judge is not None)
        for subject, judge in judged
    ]
    rows = [
        Stage("inversion", "inversions", inversions),
        Stage("inversion", "class images", class_images),
    ]
    return [
        *([Stage("inversion", "trainings", trainings, tuning.threads)] if trainings else []),
        *rows,
    ]


INPUT_STEP = 2  # one that changes the input alone


def input_step(work: Work) -> Work:
    """The work of forward passes, each followed by a backward pass to the input alone."""
    return work._replace(flops=INPUT_STEP * work.flops, to_input=True)


def states_work(model: Forward, routes: np.ndarray) -> list[Work]:
    """A pass to the states at the ends of routes (B, L), some of them empty, whose images are embedded and no more."""
    lengths = np.count_nonzero(routes != ENDED, axis=1)
    own, bare = routes[lengths > 0], int((lengths == 0).sum())
    work = (
        [route_work(model, len(own), len(own), lengths.sum() / len(own), count_calls(own))]
        if len(own)
        else []
    )
    return work + ([route_work(model, bare, bare, 0)] if bare else [])


def inversion_job(
    model: Forward, routes: np.ndarray, options: InversionMeasure, descent: Descent
) -> list[Work]:
    """One model's inversions of states at the ends of routes (points x images, L), under all learning rates at once.

    The states to meet are read for the yardstick and for the descent, those of shifted images for the yardstick; a descent ends on
    a pass without a step. The embedding alone is read beside the yardstick's states, and in the end of both images.
    """
    embedded, read = route_work(model, len(routes), len(routes), 0), states_work(model, routes)
    tried = states_work(model, np.tile(routes, (len(descent.lrs), 1)))
    steps = [input_step(work) for work in tried] * descent.steps
    return [embedded] * (3 + options.shifts) + read * (2 + options.shifts) + steps + tried


def class_images_job(
    model: Forward, classes: int, options: ClassImages, judged: bool
) -> list[Work]:
    """One model's class-maximising inputs, which it rates in the end, and another model if they are judged."""
    step = route_work(model, classes, min(classes, options.batch_size), model.num_layers)
    return [input_step(step)] * options.steps + [
        route_work(model, classes, classes, model.num_layers)
    ] * (1 + judged)
