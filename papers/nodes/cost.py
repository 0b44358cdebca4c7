"""What stage nodes costs, counted without weights or data."""

from papers.nodes.section import Nodes
from pipeline.config.params import Params
from pipeline.cost.work import Stage, count, route_work

NOTES = (
    "nodes: every image through all layers, the most there can be; without the simulation, seconds.",
)


def stages(params: Params, sizes: tuple[int, int, int]) -> list[Stage]:
    """Stage nodes."""
    options, preset, jobs = params.resolve(Nodes), params.model_preset, []
    images = min(sizes[1], options.images or sizes[1])
    cells = len(options.nodes) * len(options.replication) * len(options.faults)
    for name, policies in options.variants.items():
        model = count(preset, params.dataset_preset.num_classes, params.all_variants[name])
        job = [route_work(model, images, options.batch_size, model.num_layers)] * cells
        jobs += [job] * len(policies) * len(params.seeds)
    return [Stage("nodes", "", jobs)]
