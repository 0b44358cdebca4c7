"""The jobs of stage `questions`. No torch here."""

from collections.abc import Mapping
from dataclasses import replace
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

    def further(self) -> dict[str, dict[int, Job]]:
        """Trainings with other seeds from the first seed's starting weights, by variant."""
        if len(self.params.starts) == 1:
            return {}
        first, *others = self.params.seeds
        jobs: dict[str, dict[int, Job]] = {}
        for name, count in self.options.common.items():
            variant = self.params.all_variants[name]
            options = self.params.resolve(Finetune, name)
            title = f"{name}_common_start"
            jobs[name] = {}
            for seed in others[:count]:
                jobs[name][seed] = self.training(
                    title, variant, options, seed, self.start(first), per=options.per
                )
        return jobs

    def members(self, variant: str, starts: Starts) -> dict[int, Path]:
        """Weights of the trainings that are merged, by seed."""
        files = {seed: self.weights_of(variant, seed) for seed in self.params.seeds}
        if len(self.params.starts) == 1:
            return files if starts == "common" else {}
        if starts == "separate":
            return {seed: files[seed] for seed in self.params.starts}
        first = self.params.seeds[0]
        further = self.further().get(variant, {})
        chosen = {seed: job.folder / weights_file(self.judge) for seed, job in further.items()}
        return {first: files[first]} | chosen if chosen else {}

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
        jobs: dict[Key, Job] = {}
        for variant in self.options.variants:
            for seed in self.seeds:
                jobs["passes", variant, seed] = self.evaluation(
                    PASS,
                    PassesConfig,
                    variant,
                    seed,
                    title=f"passes of {variant}",
                    total=5,
                    options=self.options.narrow(Passes),
                )
                jobs["pruning", variant, seed] = self.evaluation(
                    PRUNE,
                    PruningConfig,
                    variant,
                    seed,
                    title=f"pruned {variant}",
                    total=len(self.options.ways),
                    options=self.options.narrow(Pruning),
                )
            for starts in ("separate", "common"):
                jobs |= self.merges(variant, starts)
        return jobs

    def healing(self, jobs: Mapping[Key, Job]) -> dict[tuple[str, int, int], Job]:
        """Trainings of pruned models, by variant, seed and number of layers."""
        changes = {"epochs": self.options.healing_epochs, "validation_orders": "trained"}
        options = self.params.resolve(Finetune, BASELINE).model_copy(update=changes)
        trainings = {}
        for (part, name, seed), job in jobs.items():
            if part == "pruning" and seed in self.seeds[: self.options.healed]:
                for keep in self.options.keep:
                    variant = self.params.make_variant(route="sequential", layers=keep)
                    weights = job.folder / pruned_file(keep)
                    title = f"healed_{name}_{keep}"
                    trainings[name, seed, keep] = self.training(
                        title, variant, options, seed, weights
                    )
        return trainings


def list_work(params: Params, num_layers: int) -> list[Work]:
    """List what stage questions runs, for `lsvit cost`: at most, and for every image of a pass."""
    options = params.resolve(Questions)
    preset = params.model_preset
    seeds = len(params.seeds[: options.seeds])
    works = []
    for name in options.variants:
        variant = params.all_variants[name]
        # Own images and those of another kind, then merges in both orders.
        passes = [num_layers] * (2 * (1 + 3 * options.routes))
        passes += [keep for keep in options.shorter for _ in range(options.routes)]
        passes += [num_layers] * (2 * (1 + options.draws * len(options.members)))
        passes += [
            keep for keep in options.keep for _ in range(len(options.ways) + options.subsets)
        ]
        works.append(
            Work("questions", "", seeds, preset, variant, passes=passes, images=options.images)
        )
    for name, count in options.common.items():
        training = params.resolve(Finetune, name)
        works.append(
            Work("questions", f"{name} again", count, preset, params.all_variants[name], training)
        )
    healing = params.resolve(Finetune, BASELINE)
    healing = healing.model_copy(update={"epochs": options.healing_epochs})
    models = len(options.variants) * min(options.healed, seeds)
    if models:
        for keep in options.keep:
            variant = params.make_variant(route="sequential", layers=keep)
            works.append(Work("questions", f"healed {keep}", models, preset, variant, healing))
    return works
