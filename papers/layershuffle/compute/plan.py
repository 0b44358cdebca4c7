"""The jobs of stages `prune-eval` and `analysis`. No torch here."""

from itertools import product

from papers.layershuffle.compute.cells import cells
from papers.layershuffle.section import (
    LOGISTIC,
    MISLED,
    Analysis,
    AnalysisConfig,
    EvalConfig,
    LogisticConfig,
    PruneEval,
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.variant import PLAIN, PRETRAINED
from pipeline.jobs.files import JUDGES, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan

EVALUATE = "papers.layershuffle.compute.evaluation:evaluate"
REGRESS = "papers.layershuffle.compute.logistic:evaluate"
ANALYSE = "papers.layershuffle.compute.analysis:analyse"


class Evaluations(Plan):
    """One evaluation a protocol, variant and seed, another one told wrong positions where the
    variant is told any, and the logistic regression.

    Two protocols that chose the same epoch share their evaluation. There is one regression, whose
    row stands for every seed: so differences from it are taken seed by seed.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params, PruneEval)
        counts = read_meta(self.data)["counts"]
        self.protocols = [protocol for protocol, judge in JUDGES.items() if judge in counts]

    def jobs(self) -> dict[tuple[str, str, int], Job]:
        """Make the jobs, by protocol, variant and seed."""
        jobs = {}
        for variant, made in self.params.all_variants.items():
            titles = [variant]
            if made.position.encode:
                titles.append(variant + MISLED)
            for seed, protocol in product(self.seeds, self.protocols):
                for title in titles:
                    misled = title != variant
                    jobs[protocol, title, seed] = self.evaluation(
                        EVALUATE,
                        EvalConfig,
                        variant,
                        seed,
                        weights=self.weights_of(variant, seed, JUDGES[protocol]),
                        title=title,
                        total=2 if misled else len(self.options.keep) + 1,
                        options=self.options.of(variant),
                        seed=seed,
                        misled=misled,
                    )
        if self.options.logistic:
            for protocol, seed in product(self.protocols, self.seeds):
                jobs[protocol, LOGISTIC, seed] = self.regress()
        return jobs

    def regress(self) -> Job:
        """Make the job of the logistic regression."""
        fields = self.fields(LOGISTIC, PLAIN, None)
        config = LogisticConfig(**fields, precision="fp32", values=self.options.logistic)
        return Job(LOGISTIC, REGRESS, config, {"data": self.data, "weights": None})


class Analyses(Plan):
    """One analysis a set of starting weights, and one a variant and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Analysis)

    def jobs(self) -> dict[tuple[str, int], Job]:
        """Make the jobs, by variant and seed."""
        jobs = {}
        for variant in (PRETRAINED, *self.options.variants):
            is_start = variant == PRETRAINED
            for seed in self.params.starts if is_start else self.seeds:
                jobs[variant, seed] = self.evaluation(
                    ANALYSE,
                    AnalysisConfig,
                    variant,
                    seed,
                    weights=self.start(seed) if is_start else None,
                    total=2,
                    options=self.options,
                    precision=self.precision(),
                )
        return jobs


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stages prune-eval and analysis run, for `lsvit cost`: one epoch of a training."""
    preset = params.model_preset
    seeds = len(params.seeds)
    works = []
    for name, variant in params.all_variants.items():
        options = params.resolve(PruneEval).of(name)
        layers = variant.layers or num_layers
        passes = [layers] * len(options.samplers)
        for cell in cells(layers, variant, options):
            passes += [cell.keep] * min(cell.routes, options.orders)
        works.append(
            Work("prune-eval", "", seeds, preset, variant, passes=passes, images=options.images)
        )
    analysis = params.resolve(Analysis)
    models = len(params.starts) + len(analysis.variants) * seeds
    works.append(Work("analysis", "", models, preset, passes=[num_layers], images=analysis.images))
    return works
