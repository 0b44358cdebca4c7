"""The jobs of stage `painters`. No torch here."""

from lsvit.routes import layers_of
from papers.painters.compute.strategies import cells
from papers.painters.section import Painters, PaintersConfig
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan

EVALUATE = "papers.painters.compute.evaluation:evaluate"


class Plan(BasePlan):
    """One evaluation a variant and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Painters)

    def jobs(self) -> dict[tuple[str, int], Job]:
        """Make the jobs, by variant and seed."""
        reports = 1 + len(set(self.options.treated))
        jobs = {}
        for variant in self.options.variants:
            for seed in self.seeds:
                jobs[variant, seed] = self.evaluation(
                    EVALUATE, PaintersConfig, variant, seed, total=reports, options=self.options
                )
        return jobs


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage painters runs, for `lsvit cost`."""
    options = params.resolve(Painters)
    works = []
    for name in options.variants:
        variant = params.all_variants[name]
        passes = []
        for strategies in cells(variant.layers or num_layers, options).values():
            for routes in strategies.values():
                passes += [len(layers_of(route)) for route in routes]
        works.append(
            Work(
                "painters",
                "",
                len(params.seeds),
                params.model_preset,
                variant,
                passes=passes,
                images=options.images,
            )
        )
    return works
