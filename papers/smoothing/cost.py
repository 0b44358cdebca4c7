"""What stage smoothing costs, counted without weights or data."""

from lsvit.routes import ORDERS
from papers.smoothing.compute.plan import Plan
from papers.smoothing.section import Smoothing
from pipeline.config.params import Params
from pipeline.cost.hardware import Work
from pipeline.cost.work import Stage, count, route_work, sampler_work, training_job, without_heads

NOTES = (
    "smoothing: without the losses themselves, and profiles without the attention scores that are computed again for them.",
)


def stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage smoothing, a row a depth: trainings from scratch, and then the profiles of them and of variants.

    Raises:
        UserError: timm refuses the model with another depth.
    """
    plan, tuning, classes = (
        Plan(params),
        params.scratch_training(Smoothing),
        params.dataset_preset.num_classes,
    )
    images, batch_size = min(sizes[0], plan.options.images), plan.options.batch_size
    found: dict[int, list[list[Work]]] = {}
    profiles: list[list[Work]] = []
    for model in plan.models():
        depth = model.preset.kwargs["depth"]
        forward = count(model.preset, classes, model.variant)
        found.setdefault(depth, []).append(training_job(forward, model.variant, tuning, *sizes))
        profiles.append([route_work(forward, images, batch_size, forward.num_layers)])
    for model in plan.references():
        forward = count(model.preset, classes, model.variant)
        profiles.append([route_work(forward, images, batch_size, forward.num_layers)])
    for model in plan.refined():
        forward = count(params.model_preset, classes, without_heads(model.variant))
        profiles += [[sampler_work(forward, order, images, batch_size)] for order in ORDERS]
    rows = [
        Stage("smoothing", f"{depth} layers", jobs, tuning.threads) for depth, jobs in found.items()
    ]
    return [*rows, Stage("smoothing", "profiles", profiles)]
