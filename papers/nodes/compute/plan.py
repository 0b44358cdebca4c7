"""The jobs of stage `nodes`. No torch here."""

from papers.nodes.section import Journeys, Nodes, NodesConfig, Policy
from pipeline.config.params import Params
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan


class Plan(BasePlan):
    """One evaluation a variant, policy and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Nodes)

    def jobs(self) -> dict[tuple[str, Policy, int], Job]:
        """By variant, policy and seed."""
        return {
            (name, policy, seed): self._job(name, policy, seed)
            for name, policies in self.options.variants.items()
            for policy in policies
            for seed in self.seeds
        }

    def _job(self, name: str, policy: Policy, seed: int) -> Job:
        weights = self.weights_of(name, seed)
        # Without the names of variants: another one in the section evaluates no model again.
        options = Journeys.model_validate(
            self.options.model_dump(include=set(Journeys.model_fields))
        )
        config = NodesConfig(
            **self.fields(name, self.params.all_variants[name], weights),
            options=options,
            precision=self.precision(name),
            policy=policy,
            draw=seed,
        )
        inputs, total = {"data": self.data, "weights": weights}, len(options.nodes)
        return Job(
            f"{name} {policy} seed {seed}",
            "papers.nodes.compute.evaluation:evaluate",
            config,
            inputs,
            total,
        )
