"""The jobs of stage `exits`, round by round: those of a later one start from what an earlier one left."""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.exits.compute.counting import write_canvases
from papers.exits.compute.plan import Frozen, Plan, Task, Trained, advance
from papers.exits.section import COUNTING
from pipeline.config.sections import Finetune
from pipeline.jobs.files import WEIGHTS
from pipeline.jobs.job import Job
from pipeline.jobs.pool import run


class Exits(NamedTuple):
    """What the stage trained: branches on frozen variants, on backbones that count, and models trained with their exits."""

    frozen: list[Frozen]
    counted: list[Frozen]
    trained: list[Trained]


def train(plan: Plan, out: Path) -> Exits:
    """Train every exit that params.yaml asks for, and measure what each costs; canvases to count on go to `out`."""
    params = plan.params

    def run_all(jobs: Sequence[Job]) -> None:
        run(
            jobs,
            params.device,
            threads=params.resolve(Finetune).threads,
            distributed=params.distributed,
            engine=params.engine,
        )

    waiting = rounds(plan, out)
    while True:
        try:
            run_all(next(waiting))
        except StopIteration as end:
            found: Exits = end.value
            break
    costs = [
        *(each.costs for each in found.frozen + found.counted),
        *(each.costs for each in found.trained),
    ]
    for job in {
        job.key: job for job in costs
    }.values():  # one after another, alone: they measure time
        run_all([job])
    return found


def rounds(plan: Plan, out: Path) -> Generator[list[Job], None, Exits]:
    """The trainings, round by round: those of a round have ended when the next one is asked for.

    The first round starts from the starting weights alone, the second one also from the refined models.
    """
    options, params = plan.options, plan.params
    starts = {seed: plan.start(seed) for seed in plan.seeds}
    classes, counting = (
        Task(params.dataset, plan.data, starts),
        Task(COUNTING, out / COUNTING, starts),
    )
    trained = plan.end_to_end(classes) if "end_to_end" in options.strategies else []
    steps = plan.first_steps(classes) if "layer_wise" in options.strategies else []
    backbones: list[Trained] = []
    if options.counting_strategies:
        write_canvases(plan.data, options.counting, counting.data)
        heads = {seed: plan.head_for(counting, seed) for seed in starts}
        run(list({head.key: head for head in heads.values()}.values()), params.device)
        counting = counting._replace(
            starts={seed: head.folder / WEIGHTS for seed, head in heads.items()}
        )
        steps += plan.first_steps(counting) if "layer_wise" in options.counting_strategies else []
        backbones = plan.control(counting)
        trained += (
            plan.end_to_end(counting) if "end_to_end" in options.counting_strategies else backbones
        )
    yield [job for each in trained + steps for job in each.jobs]
    frozen = plan.variants(classes) if "classifier_wise" in options.strategies else []
    counted = plan.backbones(backbones) if "classifier_wise" in options.counting_strategies else []
    done, steps = advance(plan, steps)
    yield [*(each.job for each in frozen + counted), *(job for step in steps for job in step.jobs)]
    while steps:
        finished, steps = advance(plan, steps)
        done += finished
        yield [job for step in steps for job in step.jobs]
    return Exits(frozen, counted, trained + done)
