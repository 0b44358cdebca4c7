"""The jobs of stage `questions`. No torch here."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from papers.questions.section import (
    Merges,
    MergesConfig,
    Passes,
    PassesConfig,
    Pruning,
    PruningConfig,
    Questions,
    Starts,
    pruned_file,
)
from pipeline.config.paper import Work
from pipeline.config.params import Params
from pipeline.config.sections import Finetune
from pipeline.config.variant import BASELINE
from pipeline.jobs.files import weights_file
from pipeline.jobs.job import Job
from pipeline.jobs.plan import Plan as BasePlan

PASS = "papers.questions.compute.passes:evaluate"
MERGE = "papers.questions.compute.merging:evaluate"
PRUNE = "papers.questions.compute.pruning:evaluate"
Key = tuple[str, str, int]  # part of the results, variant, seed


class Plan(BasePlan):
    """First further trainings from common starting weights, then what is measured, then healing."""

    def __init__(self, params: Params) -> None:
        super().__init__(params, Questions)

    def further(self) -> dict[tuple[str, int], Job]:
        """Trainings with the next seeds from the first starting weights, by variant and seed."""
        if len(self.params.starts) < len(self.params.seeds):  # some are common anyway
            return {}
        first = self.params.seeds[0]
        jobs: dict[tuple[str, int], Job] = {}
        for name, count in self.options.common.items():
            variant = self.params.all_variants[name]
            options = self.params.resolve(Finetune, name)
            title = f"{name}_common_start"
            for seed in range(first + 1, first + 1 + count):
                jobs[name, seed] = self.training(
                    title, variant, options, seed, self.start(first), per=options.per
                )
        return jobs

    def members(self, variant: str, starts: Starts) -> dict[int, Path]:
        """Weights of the trainings that are merged, by seed."""
        start_of = self.params.start_of
        files = {seed: self.weights_of(variant, seed) for seed in self.params.seeds}
        if starts == "separate":
            return {seed: files[seed] for seed in self.params.starts}
        first = start_of(self.params.seeds[0])
        files = {seed: file for seed, file in files.items() if start_of(seed) == first}
        for (name, seed), job in self.further().items():
            if name == variant:
                files[seed] = job.folder / weights_file(self.judge)
        return files

    def merges(self, variant: str, starts: Starts) -> dict[Key, Job]:
        """Evaluations of merges: each training is once the first."""
        files = self.members(variant, starts)
        seeds = list(files)
        jobs: dict[Key, Job] = {}
        for i, seed in enumerate(seeds[: len(self.seeds)] if len(seeds) > 1 else []):
            others = {f"weights_{one}": files[one] for one in seeds[i + 1 :] + seeds[:i]}
            job = self.evaluation(
                MERGE,
                MergesConfig,
                variant,
                seed,
                weights=files[seed],
                title=f"merges of {variant}, {starts} starts,",
                total=1 + len(self.options.members),
                options=self.options.narrow(Merges),
                others_sha256=[self.digest_of(file) for file in others.values()],
            )
            jobs[starts, variant, seed] = replace(job, inputs={**job.inputs, **others})
        return jobs

    def jobs(self) -> dict[Key, Job]:
        """Make what is measured, when the further trainings have ended."""
        parts = (
            ("passes", PASS, PassesConfig, Passes, 5),
            ("pruning", PRUNE, PruningConfig, Pruning, len(self.options.ways)),
        )
        jobs: dict[Key, Job] = {}
        for variant in self.options.variants:
            for part, function, config, section, reports in parts:
                for seed in self.seeds:
                    jobs[part, variant, seed] = self.evaluation(
                        function,
                        config,
                        variant,
                        seed,
                        title=f"{part} of {variant}",
                        total=reports,
                        options=self.options.narrow(section),
                    )
            for starts in ("separate", "common"):
                jobs |= self.merges(variant, starts)
        return jobs

    def healing_options(self) -> Finetune:
        """How pruned models are trained on: as the baseline is, for fewer epochs."""
        changes = {"epochs": self.options.healing_epochs, "validation_orders": "trained"}
        return self.params.resolve(Finetune, BASELINE).model_copy(update=changes)

    def healing(self, jobs: Mapping[Key, Job]) -> dict[tuple[str, int, int], Job]:
        """Trainings of pruned models, by variant, seed and number of layers."""
        trainings = {}
        for (part, name, seed), job in jobs.items():
            if part == "pruning" and seed in self.seeds[: self.options.healed]:
                for keep in self.options.keep:
                    trainings[name, seed, keep] = self.training(
                        f"healed_{name}_{keep}",
                        self.params.make_variant(route="sequential", layers=keep),
                        self.healing_options(),
                        seed,
                        job.folder / pruned_file(keep),
                    )
        return trainings


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage questions runs at most, for `lsvit cost`."""
    plan = Plan(params)
    options = plan.options
    work = partial(Work, "questions", preset=params.model_preset)
    # Own images and those of another kind, then merges in both orders.
    whole = 2 * (1 + 3 * options.routes) + 2 * (1 + options.draws * len(options.members))
    passes = [num_layers] * whole + options.shorter * options.routes
    passes += options.keep * (len(options.ways) + options.subsets)
    works = []
    for name in options.variants:
        variant = params.all_variants[name]
        models = len(plan.seeds)
        works.append(work("", models, variant=variant, passes=passes, images=options.images))
    for name, count in options.common.items():
        training = params.resolve(Finetune, name)
        variant = params.all_variants[name]
        works.append(work(f"{name} again", count, variant=variant, training=training))
    models = len(options.variants) * len(plan.seeds[: options.healed])
    for keep in options.keep if models else []:
        variant = params.make_variant(route="sequential", layers=keep)
        works.append(work("healed", models, variant=variant, training=plan.healing_options()))
    return works
