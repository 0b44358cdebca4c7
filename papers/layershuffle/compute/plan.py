"""The jobs of stages `prune-eval` and `analysis`. No torch here."""

from lsvit.routes import ORDERS, count_routes
from papers.layershuffle.section import Analysis, AnalysisConfig, EvalConfig, PruneEval
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.samplers import ORDERLESS
from pipeline.config.variant import PRETRAINED
from pipeline.jobs.files import JUDGES, read_meta
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan

EVALUATE = "papers.layershuffle.compute.evaluation:evaluate"
ANALYSE = "papers.layershuffle.compute.analysis:analyse"


class Evaluations(Plan):
    """One evaluation a protocol, variant and seed.

    Two protocols that chose the same epoch share their evaluation.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params, PruneEval)
        counts = read_meta(self.data)["counts"]
        self.protocols = [protocol for protocol, judge in JUDGES.items() if judge in counts]

    def jobs(self) -> dict[tuple[str, str, int], Job]:
        """Make the jobs, by protocol, variant and seed."""
        jobs = {}
        for variant in self.params.all_variants:
            for seed in self.seeds:
                for protocol in self.protocols:
                    jobs[protocol, variant, seed] = self.evaluation(
                        EVALUATE,
                        EvalConfig,
                        variant,
                        seed,
                        weights=self.weights_of(variant, seed, JUDGES[protocol]),
                        total=len(self.options.keep) + 1,
                        options=self.options.of(variant),
                        seed=seed,
                    )
        return jobs


class Analyses(Plan):
    """One analysis a set of starting weights, and one a variant and seed."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Analysis)

    def jobs(self) -> dict[tuple[str, int], Job]:
        """Make the jobs, by variant and seed."""
        models = {(PRETRAINED, seed): self.start(seed) for seed in self.params.starts}
        for variant in self.options.variants:
            models |= {(variant, seed): self.weights_of(variant, seed) for seed in self.seeds}
        jobs = {}
        for (variant, seed), weights in models.items():
            jobs[variant, seed] = self.evaluation(
                ANALYSE,
                AnalysisConfig,
                variant,
                seed,
                weights=weights,
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
        only_all = variant.layers or variant.route in ORDERLESS
        keeps = {layers} if only_all else {*options.keep, layers}
        passes = [layers] * len(options.samplers)
        for keep in keeps:
            for order in ORDERS:
                routes = 1 if variant.route in ORDERLESS else count_routes(layers, keep, order)
                passes += [keep] * min(routes, options.orders)
        works.append(
            Work("prune-eval", "", seeds, preset, variant, passes=passes, images=options.images)
        )
    analysis = params.resolve(Analysis)
    models = len(params.starts) + len(analysis.variants) * seeds
    return [
        *works,
        Work("analysis", "", models, preset, passes=[num_layers], images=analysis.images),
    ]
