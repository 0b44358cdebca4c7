"""The jobs of stage `painters`. No torch here."""

from papers.painters.section import Painters, PaintersConfig, Strategies
from pipeline.config.params import Params
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan


class Plan(BasePlan):
    """One evaluation a variant and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Painters)

    def jobs(self) -> dict[tuple[str, int], Job]:
        """By variant and seed."""
        return {
            (name, seed): self._job(name, seed)
            for name in self.options.variants
            for seed in self.seeds
        }

    def _job(self, name: str, seed: int) -> Job:
        weights = self.weights_of(name, seed)
        # Without the names of variants: another one in the section evaluates no model again.
        options = Strategies.model_validate(
            self.options.model_dump(include=set(Strategies.model_fields))
        )
        config = PaintersConfig(
            **self.fields(name, self.params.all_variants[name], weights),
            options=options,
            precision=self.precision(name),
        )
        inputs, total = {"data": self.data, "weights": weights}, 1 + len(set(options.treated))
        return Job(
            f"{name} seed {seed}",
            "papers.painters.compute.evaluation:evaluate",
            config,
            inputs,
            total,
        )
