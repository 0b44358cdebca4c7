"""The trainings of stage `exits`, round by round: later ones start from what earlier ones left."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from papers.exits.compute.counting import write_canvases
from papers.exits.compute.plan import Backbone, Plan, Trained
from papers.exits.section import COUNTING, LATER_LAYERS
from pipeline.jobs.files import WEIGHTS
from pipeline.jobs.job import Job


def train(
    plan: Plan, out: Path, run: Callable[[Sequence[Job], str], None]
) -> tuple[dict[Backbone, Job], list[Trained]]:
    """Train every exit that params.yaml asks for.

    Args:
        plan: of the stage.
        out: folder for the canvases to count on.
        run: runs a round of jobs, which have ended when it returns; it is told what follows.

    Returns:
        The jobs of branches on frozen models, and the models trained with their exits.
    """
    options = plan.options
    plans = {plan: options.strategies}
    if options.counting_strategies:
        write_canvases(plan.data, options.counting, out / COUNTING)
        counting = plan.counting(out / COUNTING)
        run(list(counting.heads.values()), "trainings with exits")
        plans[counting] = options.counting_strategies

    trained: list[Trained] = []
    first_steps: list[Trained] = []
    for task, strategies in plans.items():
        if "end_to_end" in strategies or task.task == COUNTING:  # whose frozen models it trains
            trained += task.control()
        if "end_to_end" in strategies:
            trained += task.at_placements("end_to_end", options.branches)
        if "layer_wise" in strategies:
            first_steps += task.at_placements("layer_wise", options.layer_wise_branches)
    first: list[Job] = []
    for model in [*trained, *first_steps, *(step.twin() for step in first_steps)]:
        first += [*model.jobs, model.plan.costs()]
    run(first, "exits on frozen models")

    frozen: dict[Backbone, Job] = {}
    for task, strategies in plans.items():
        if "classifier_wise" in strategies:
            frozen |= task.frozen()
    joined = []
    for step, later in product(first_steps, LATER_LAYERS):
        joined.append((step, later, step.join(later)))
    run([*frozen.values(), *(job for _, _, job in joined)], "later steps" if joined else "")

    steps = []
    for step, later, job in joined:
        steps.append(step.next_step(f"layer_wise_{later}", job.folder / WEIGHTS))
    while steps:
        jobs = [job for step in steps for job in step.jobs]
        run(jobs, "" if steps[0].is_last else "later steps")
        trained += [step for step in steps if step.is_last]
        steps = [step.next_step() for step in steps if not step.is_last]
    return frozen, trained
