"""The jobs of stage `painters`. No torch here."""

from papers.painters.section import Painters, PaintersConfig
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
