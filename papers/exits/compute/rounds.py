"""The trainings of stage `exits`, round by round: later ones start from what earlier ones left."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from papers.exits.compute.counting import write_canvases
from papers.exits.compute.plan import Frozen, Plan, Task, Trained
from papers.exits.section import COUNTING, LATER_LAYERS
from pipeline.jobs.files import WEIGHTS
from pipeline.jobs.job import Job

Run = Callable[[Sequence[Job], str], None]


class Exits(NamedTuple):
    """What the stage trained: branches on frozen models, and models trained with their exits."""

    frozen: list[Frozen]  # on variants
    counted: list[Frozen]  # on backbones that count
    trained: list[Trained]


def train(plan: Plan, out: Path, run: Run) -> Exits:
    """Train every exit that params.yaml asks for.

    Args:
        plan: of the stage.
        out: folder for the canvases to count on.
        run: runs a round of jobs, which have ended when it returns; it is told what follows.
    """
    options = plan.options
    starts = {seed: plan.start(seed) for seed in plan.seeds}
    tasks = [(Task(plan.params.dataset, plan.data, starts), options.strategies)]
    if options.counting_strategies:
        counting = _counting_task(plan, starts, out / COUNTING, run)
        tasks.append((counting, options.counting_strategies))

    trained: list[Trained] = []
    first_steps: list[Trained] = []
    backbones: list[Trained] = []  # that count, without exits
    for task, strategies in tasks:
        if task.name == COUNTING:
            backbones = plan.control(task)
            trained += backbones
        elif "end_to_end" in strategies:
            trained += plan.control(task)
        if "end_to_end" in strategies:
            trained += plan.at_placements(task, "end_to_end", options.branches)
        if "layer_wise" in strategies:
            first_steps += plan.at_placements(task, "layer_wise", options.layer_wise_branches)
    twins = [plan.end_to_end_twin(step) for step in first_steps]
    models = [*trained, *first_steps, *twins]
    first = [job for model in models for job in (*model.jobs, model.costs)]
    run(first, "exits on frozen models")

    frozen: list[Frozen] = []
    counted: list[Frozen] = []
    if "classifier_wise" in options.strategies:
        frozen = plan.frozen_variants(tasks[0][0])
    if "classifier_wise" in options.counting_strategies:
        for model in backbones:
            counted.append(plan.frozen(model.task, COUNTING, model.weights(), model.seed))
    joined = []
    for step in first_steps:
        for later in LATER_LAYERS:
            joined.append((step, later, plan.join(step, later)))
    second = [model.job for model in frozen + counted] + [job for _, _, job in joined]
    run(second, "later steps" if joined else "")

    steps = []
    for step, later, job in joined:
        steps.append(plan.next_step(step, f"layer_wise_{later}", job.folder / WEIGHTS))
    while steps:
        jobs = [job for step in steps for job in step.jobs]
        run(jobs, "" if steps[0].is_last else "later steps")
        ended = [step for step in steps if step.is_last]
        trained += ended
        steps = [plan.next_step(step) for step in steps if not step.is_last]
    return Exits(frozen, counted, trained)


def _counting_task(plan: Plan, starts: dict[int, Path], data: Path, run: Run) -> Task:
    """Counting on canvases, from starting weights that have a head for it."""
    write_canvases(plan.data, plan.options.counting, data)
    task = Task(COUNTING, data, starts)
    heads = {seed: plan.head_for(task, seed) for seed in starts}
    run(list(heads.values()), "trainings with exits")
    return task._replace(starts={seed: head.folder / WEIGHTS for seed, head in heads.items()})
