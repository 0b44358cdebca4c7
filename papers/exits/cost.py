"""What early exits cost, counted without weights or data."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from papers.exits.branches import token_shape
from papers.exits.section import Exits
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.config.variant import PLAIN, BranchName, Variant
from pipeline.cost.flops import Forward, count_branch, meta_backbone
from pipeline.cost.hardware import Work
from pipeline.cost.work import Stage, count, route_work, training_job, without_heads

NOTES = (
    "exits: roughly: early stopping may end every training sooner; frozen layers of layer_wise count as trained, timing does not.",
)


def stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage exits, a row a strategy: on the data set, then on the counting task, for which a plain backbone is trained first.

    Raises:
        UserError: a branch does not fit the model.
    """
    options, threads, preset = (
        params.resolve(Exits),
        params.resolve(Finetune).threads,
        params.model_preset,
    )
    frozen = [
        (params.all_variants[name], branches or options.branches)
        for name, branches in options.variants.items()
    ]
    epochs, lrs = options.backbone_epochs, len(options.backbone_lrs)
    jobs = exit_jobs(params, preset, params.dataset_preset.num_classes, frozen, sizes, epochs, lrs)
    found = [Stage("exits", strategy, jobs[strategy], threads) for strategy in options.strategies]
    if options.counting_strategies:
        counter = preset.model_copy(update={"num_classes": None})
        task = options.counting
        sizes = task.train, task.validation, task.heldout
        jobs = exit_jobs(
            params,
            counter,
            1,
            [(PLAIN, options.branches)],
            sizes,
            task.epochs,
            len(task.lrs or options.backbone_lrs),
        )
        own = (
            [] if "end_to_end" in options.counting_strategies else ["backbone"]
        )  # else it is the control of end_to_end
        rows = [*own, *options.counting_strategies]
        found += [Stage("exits", f"counting, {row}", jobs[row], threads) for row in rows]
    return found


def exit_jobs(
    params: Params,
    preset: ModelPreset,
    classes: int,
    frozen: Sequence[tuple[Variant, Sequence[BranchName]]],
    sizes: tuple[int, int, int],
    epochs: int,
    lrs: int,
) -> dict[str, list[list[Work]]]:
    """By strategy, and of a plain "backbone": on frozen variants the features are computed once, and each branch is trained on them.

    `epochs` and `lrs`, the number of learning rates, are those of trainings of the backbone.
    """
    options, (train, validation, heldout) = params.resolve(Exits), sizes
    tuning = params.resolve(Finetune).model_copy(
        update={"epochs": epochs, "batch_size": options.batch_size, "images": options.images}
    )
    whole, shape, seeds = (
        count(preset, classes),
        token_shape(meta_backbone(preset, classes)),
        len(params.seeds[: options.seeds]),
    )
    branches = {kind: count_branch(kind, shape, classes, options) for kind in options.every_branch}

    def training(exits: np.ndarray | int = 0, layers: int = whole.num_layers) -> list[Work]:
        return training_job(
            replace(whole, num_layers=layers, outside=whole.outside + exits), PLAIN, tuning, *sizes
        )

    jobs: dict[str, list[list[Work]]] = {
        "backbone": [training()],
        "classifier_wise": [],
        "end_to_end": [training()],
        "layer_wise": [],
    }
    used, batch_size, epochs = (
        min(train, options.images or train),
        options.batch_size,
        options.epochs,
    )
    for variant, kinds in frozen:
        model = count(preset, classes, without_heads(variant))
        features = [
            route_work(model, images, batch_size, model.num_layers)
            for images in (used, heldout, 3 * validation)
        ]
        jobs["classifier_wise"] += [features] * seeds
        depths = options.depths or range(1, model.num_layers)
        for branch in (Forward(0, branches[kind], np.zeros(3)) for kind in kinds):
            job = [route_work(branch, epochs * used, batch_size, 0, training=True)]
            job += [
                route_work(branch, images, batch_size, 0)
                for images in (epochs * heldout, validation)
            ]
            jobs["classifier_wise"] += [job] * (len(depths) * len(options.lrs) * seeds)
    for placement in options.placements:
        jobs["end_to_end"] += [
            training(len(placement) * branches[kind]) for kind in options.branches
        ]
        for kind in options.layer_wise_branches:
            jobs["layer_wise"] += [
                *(training(branches[kind], last) for last in placement),
                training(),
            ]
    for strategy in ("backbone", "end_to_end", "layer_wise"):
        jobs[strategy] *= lrs * seeds
    return jobs
