"""The jobs of stage `exits`, round by round: those of a later one start from what an earlier one left."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lsvit.config.sections import Finetune
from lsvit.jobs.files import WEIGHTS
from lsvit.jobs.job import Job
from lsvit.jobs.pool import run
from lsvit.papers.exits.compute.counting import write_canvases
from lsvit.papers.exits.compute.plan import Frozen, Plan, Task, Trained, advance
from lsvit.papers.exits.section import COUNTING


class Exits(NamedTuple):
    """What the stage trained: branches on frozen variants, on backbones that count, and models trained with their exits."""

    frozen: list[Frozen]
    counted: list[Frozen]
    trained: list[Trained]


def train(plan: Plan, out: Path) -> Exits:
    """Train every exit that params.yaml asks for, and measure what each costs; canvases to count on go to `out`."""
    options, params = plan.options, plan.params
    threads = params.resolve(Finetune).threads

    def train_all(jobs: Sequence[Job], *trainings: Trained) -> None:
        todo = [*jobs, *(job for trained in trainings for job in trained.jobs)]
        run(todo, params.device, threads=threads, distributed=params.distributed, engine=params.engine)

    starts = {seed: plan.start(seed) for seed in plan.seeds}
    classes, counting = Task(params.dataset, plan.data, starts), Task(COUNTING, out / COUNTING, starts)
    frozen = plan.variants(classes) if "classifier_wise" in options.strategies else []
    trained = plan.end_to_end(classes) if "end_to_end" in options.strategies else []
    steps = plan.first_steps(classes) if "layer_wise" in options.strategies else []
    backbones: list[Trained] = []
    if options.counting_strategies:
        write_canvases(plan.data, options.counting, counting.data)
        heads = {seed: plan.head_for(counting, seed) for seed in starts}
        run(list({head.key: head for head in heads.values()}.values()), params.device)
        counting = counting._replace(starts={seed: head.folder / WEIGHTS for seed, head in heads.items()})
        steps += plan.first_steps(counting) if "layer_wise" in options.counting_strategies else []
        backbones = plan.control(counting)
        trained += plan.end_to_end(counting) if "end_to_end" in options.counting_strategies else backbones
    train_all([each.job for each in frozen], *trained, *steps)
    counted = plan.backbones(backbones) if "classifier_wise" in options.counting_strategies else []
    done, steps = advance(plan, steps)
    train_all([each.job for each in counted], *steps)
    while steps:
        finished, steps = advance(plan, steps)
        done += finished
        train_all([], *steps)
    trained += done
    costs = {job.key: job for job in [*(each.costs for each in frozen + counted), *(each.costs for each in trained)]}
    for job in costs.values():  # one after another, alone: they measure time
        train_all([job])
    return Exits(frozen, counted, trained)
