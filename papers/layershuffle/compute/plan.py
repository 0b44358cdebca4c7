"""The jobs of stages `prune-eval` and `analysis`. No torch here."""

from papers.layershuffle.section import Analysis, AnalysisConfig, EvalConfig, PruneEval
from pipeline.config.params import Params
from pipeline.config.variant import PLAIN, PRETRAINED
from pipeline.jobs.files import JUDGES, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan


class Evaluations(Plan):
    """One evaluation a protocol, variant and seed; where two protocols chose the same epoch they share it."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, PruneEval)
        self.protocols = [
            protocol
            for protocol, judge in JUDGES.items()
            if judge in read_meta(self.data)["counts"]
        ]

    def jobs(self) -> dict[tuple[str, str, int], Job]:
        """By protocol, variant and seed."""
        names = [(name, seed) for name in self.params.all_variants for seed in self.seeds]
        return {
            (protocol, name, seed): self._job(protocol, name, seed)
            for name, seed in names
            for protocol in self.protocols
        }

    def _job(self, protocol: str, name: str, seed: int) -> Job:
        weights = self.weights_of(name, seed, JUDGES[protocol])
        fields = self.fields(name, self.params.all_variants[name], weights)
        config = EvalConfig(
            **fields, options=self.options.of(name), precision=self.precision(name), seed=seed
        )
        inputs, total = {"data": self.data, "weights": weights}, len(self.options.keep) + 1
        return Job(
            f"{name} seed {seed}",
            "papers.layershuffle.compute.evaluation:evaluate",
            config,
            inputs,
            total=total,
        )


class Analyses(Plan):
    """One analysis a set of starting weights, and one a variant and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Analysis)

    def jobs(self) -> dict[tuple[str, int], Job]:
        """By variant and seed."""
        found = {(PRETRAINED, seed): (self.start(seed), PLAIN) for seed in self.params.starts}
        for name in self.options.variants:
            found |= {
                (name, seed): (self.weights_of(name, seed), self.params.all_variants[name])
                for seed in self.seeds
            }
        jobs = {}
        for (name, seed), (weights, variant) in found.items():
            config = AnalysisConfig(
                **self.fields(name, variant, weights),
                options=self.options,
                precision=self.precision(),
            )
            inputs = {"data": self.data, "weights": weights}
            jobs[name, seed] = Job(
                f"{name} seed {seed}",
                "papers.layershuffle.compute.analysis:analyse",
                config,
                inputs,
            )
        return jobs
