"""The trainings of stage `exits`, round by round: later ones start from what earlier ones left."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.exits.compute.counting import write_canvases
from papers.exits.compute.plan import Frozen, Plan, Task, Trained
from papers.exits.section import COUNTING
from pipeline.jobs.files import WEIGHTS
from pipeline.jobs.job import Job

Run = Callable[[Sequence[Job]], None]


class Exits(NamedTuple):
    """What the stage trained: branches on frozen models, and models trained with their exits."""

    frozen: list[Frozen]  # on variants
    counted: list[Frozen]  # on backbones that count
    trained: list[Trained]

    def costs(self) -> list[Job]:
        """What measures the costs of the exits, each job once."""
        models: list[Frozen | Trained] = [*self.frozen, *self.counted, *self.trained]
        jobs = [model.costs for model in models]
        return list({job.key: job for job in jobs}.values())


def train(plan: Plan, out: Path, run: Run) -> Exits:
    """Train every exit that params.yaml asks for.

    Args:
        plan: of the stage.
        out: folder for the canvases to count on.
        run: runs a round of jobs, which have ended when it returns.
    """
    options = plan.options
    starts = {seed: plan.start(seed) for seed in plan.seeds}
    classes = Task(plan.params.dataset, plan.data, starts)
    trained: list[Trained] = []
    steps: list[Trained] = []
    if "end_to_end" in options.strategies:
        trained += plan.end_to_end(classes)
    if "layer_wise" in options.strategies:
        steps += plan.first_steps(classes)
    backbones: list[Trained] = []
    if options.counting_strategies:
        counting = _counting_task(plan, starts, out / COUNTING, run)
        backbones = plan.control(counting)
        if "end_to_end" in options.counting_strategies:
            trained += plan.end_to_end(counting)
        else:
            trained += backbones
        if "layer_wise" in options.counting_strategies:
            steps += plan.first_steps(counting)
    run([job for model in trained + steps for job in model.jobs])

    frozen = plan.variants(classes) if "classifier_wise" in options.strategies else []
    counted = plan.backbones(backbones) if "classifier_wise" in options.counting_strategies else []
    jobs = [model.job for model in frozen + counted]
    while steps or jobs:
        following = []
        for step in steps:
            after = plan.next_step(step)
            if after is None:
                trained.append(step)
            else:
                following.append(after)
                jobs += after.jobs
        steps = following
        if jobs:
            run(jobs)
        jobs = []
    return Exits(frozen, counted, trained)


def _counting_task(plan: Plan, starts: dict[int, Path], data: Path, run: Run) -> Task:
    """Counting on canvases, from starting weights that have a head for it."""
    write_canvases(plan.data, plan.options.counting, data)
    task = Task(COUNTING, data, starts)
    heads = {seed: plan.head_for(task, seed) for seed in starts}
    run(list(heads.values()))
    return task._replace(starts={seed: head.folder / WEIGHTS for seed, head in heads.items()})
