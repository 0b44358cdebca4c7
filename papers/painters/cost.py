"""What stage painters costs, counted without weights or data."""

from lsvit.routes import layers_of
from papers.painters.compute.strategies import cells
from papers.painters.section import Painters
from pipeline.config.params import Params
from pipeline.cost.flops import Forward
from pipeline.cost.hardware import Work
from pipeline.cost.work import Stage, count, route_work

NOTES = (
    "painters: layers side by side are counted one after another, as they run; without the mean of their outputs.",
)


def stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage painters."""
    options, preset, jobs = params.resolve(Painters), params.model_preset, []
    for name in options.variants:
        model = count(preset, params.dataset_preset.num_classes, params.all_variants[name])
        jobs += [evaluation_job(model, options, sizes[1])] * len(params.seeds)
    return [Stage("painters", "", jobs)]


def evaluation_job(model: Forward, options: Painters, validation: int) -> list[Work]:
    """One model on every route."""
    images, known = min(validation, options.images or validation), cells(model.num_layers, options)
    routes = [
        route for strategies in known.values() for drawn in strategies.values() for route in drawn
    ]
    return [
        route_work(model, images, options.batch_size, len(layers_of(route))) for route in routes
    ]
