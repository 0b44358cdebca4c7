"""The jobs of stage `nodes`. No torch here."""

from papers.nodes.section import POLICIES, Nodes, NodesConfig, Policy
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan


class Plan(BasePlan):
    """One evaluation a variant, policy and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Nodes)

    def jobs(self) -> dict[tuple[str, Policy, int], Job]:
        """Make the jobs, by variant, policy and seed, in the order of the policies."""
        jobs = {}
        for policy in POLICIES:
            for variant, policies in self.options.variants.items():
                for seed in self.seeds if policy in policies else ():
                    jobs[variant, policy, seed] = self.evaluation(
                        "papers.nodes.compute.evaluation:evaluate",
                        NodesConfig,
                        variant,
                        seed,
                        title=f"{variant} {policy}",
                        total=len(self.options.nodes),
                        options=self.options,
                        policy=policy,
                        draw=seed,
                    )
        return jobs


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage nodes runs at most, for `lsvit cost`: every image through all layers."""
    options = params.resolve(Nodes)
    passes = len(options.nodes) * len(options.replication) * len(options.faults)
    works = []
    for name, policies in options.variants.items():
        variant = params.all_variants[name]
        works.append(
            Work(
                "nodes",
                "",
                len(policies) * len(params.seeds),
                params.model_preset,
                variant,
                passes=[variant.layers or num_layers] * passes,
                images=options.images,
            )
        )
    return works
