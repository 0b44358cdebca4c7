"""What evaluations and analyses cost, counted without weights or data."""

from lsvit.latin import latin_ends
from lsvit.routes import ORDERS, count_routes, kept_layers, limit
from papers.layershuffle.compute.analysis import BATCH_SIZE
from papers.layershuffle.compute.evaluation import cells
from papers.layershuffle.section import Analysis, EvalConfig, PruneEval
from pipeline.config.datasets import CLASSES, SIZES
from pipeline.config.params import Params
from pipeline.config.presets import ModelPreset
from pipeline.config.sections import Finetune
from pipeline.config.variant import BASELINE, Position, Variant
from pipeline.cost.flops import Forward
from pipeline.cost.hardware import Work
from pipeline.cost.work import (
    Stage,
    count,
    group_calls,
    route_work,
    sampler_work,
    training_job,
    without_heads,
)
from pipeline.jobs.plan import run_config

NOTES = (
    "prune-eval: one epoch a training; where the two protocols choose different ones, both are evaluated.",
)
# LayerShuffle, section 4: 224 px, batch 640 or 128
PAPER = "batch 128, 5 seeds, every epoch validated in both orders as here"
PAPER_SEEDS, PAPER_OPTIONS = 5, {"batch_size": 128, "validation_batch_size": 200, "threads": 1}
PAPER_DATA = {
    "ImageNet": SIZES["imagenet"],
    "CIFAR-100": SIZES["cifar100"],
}  # training, validation images
PAPER_CLASSES, PAPER_EPOCHS = (
    {"ImageNet": CLASSES["imagenet"], "CIFAR-100": CLASSES["cifar100"]},
    {"ImageNet": (20, 1), "CIFAR-100": (100, 20)},
)  # others, baseline
PAPER_MODELS = {
    "ViT-B/16": "vit_base_patch16_224",
    "DeiT-B dist.": "deit_base_distilled_patch16_224",
}
PAPER_POSITIONS: dict[str, dict] = {
    BASELINE: {},
    "LS": {},
    "LS-pos": {"encode": {"dim": 32}},
    "LS-pred": {"predict": {}},
}


def stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stages prune-eval and analysis."""
    preset, classes, seeds, evaluations = (
        params.model_preset,
        params.dataset_preset.num_classes,
        len(params.seeds),
        [],
    )
    for name, variant in params.all_variants.items():
        run = run_config(params, name, variant, "", None)
        evaluated, precision = (
            params.resolve(PruneEval).of(name),
            params.resolve(Finetune, name).precision,
        )
        config = EvalConfig(**run, options=evaluated, precision=precision, seed=0)
        evaluations += [evaluation_job(count(preset, classes, variant), config, sizes[1])] * seeds
    options, analysed = params.resolve(Analysis), [count(preset, classes)] * len(params.starts)
    for variant in map(params.all_variants.__getitem__, options.variants):
        analysed += [count(preset, classes, without_heads(variant))] * seeds
    analyses = [[sampler_work(each, "arbitrary", options.images, BATCH_SIZE)] for each in analysed]
    return [Stage("prune-eval", "", evaluations), Stage("analysis", "", analyses)]


def published(params: Params) -> list[Stage]:
    """The trainings behind the paper's Table 1: two data sets, two models, four approaches."""
    found = []
    for data, sizes in PAPER_DATA.items():
        for model_name, timm_name in PAPER_MODELS.items():
            preset = ModelPreset(timm=timm_name, weights="scratch")
            for name, position in PAPER_POSITIONS.items():
                variant = Variant(
                    route="sequential" if name == BASELINE else "arbitrary",
                    position=Position(**position),
                )
                options = params.finetune.model_copy(
                    update=PAPER_OPTIONS | {"epochs": PAPER_EPOCHS[data][name == BASELINE]}
                )
                job = training_job(
                    count(preset, PAPER_CLASSES[data], variant), variant, options, *sizes, heldout=0
                )
                found.append(Stage(f"{data}, {model_name}", name, [job] * PAPER_SEEDS))
    return found


def evaluation_job(model: Forward, config: EvalConfig, validation: int) -> list[Work]:
    """One model in every cell, as `evaluate_cell` runs it, and under every sampler that fits."""
    options, num_layers, batch_size = config.options, model.num_layers, config.options.batch_size
    part = min(validation, options.images or validation)
    job: list[Work] = []
    for keep in cells(num_layers, config):
        for order in ORDERS:
            found = count_routes(num_layers, keep, order)
            exhaustive, passes = found <= options.orders, min(found, options.orders)
            mixed = options.per in ("sample", "latin")
            images = validation if exhaustive or (not mixed and keep == num_layers) else part
            job += [route_work(model, images, batch_size, keep)] * (
                1 if options.per == "batch" and not exhaustive else passes
            )
            if mixed and not exhaustive:
                stacked = options.per == "latin" and order == "arbitrary"
                calls = (
                    None
                    if stacked
                    else group_calls(
                        kept_layers(keep, order), num_layers, min(batch_size, validation)
                    )
                )
                job.append(route_work(model, validation, batch_size, keep, calls))
    for spec in options.samplers:
        if limit(spec, num_layers) is None:
            if options.per == "latin" and latin_ends(spec):
                job.append(route_work(model, validation, batch_size, num_layers))
            else:
                job.append(sampler_work(model, spec, validation, batch_size))
    return job
