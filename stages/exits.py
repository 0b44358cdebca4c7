"""Stage exits: early exits on frozen backbones and trained with them, dynamic inference, and a counting task."""

import json
import shutil
from pathlib import Path

import pandas as pd

from lsvit import launch
from lsvit.counting import write_canvases
from lsvit.errors import one_line_errors
from lsvit.exit_jobs import Frozen, Plan, Task, Trained, advance
from lsvit.exit_rows import Used, dynamic_rows, exit_metrics, frozen_rows, trained_rows
from lsvit.jobs import EXIT_ARRAYS, EXIT_COSTS, EXIT_WEIGHTS, EXITS_IN_USE, WEIGHTS, gather_trainings, starting_weights
from lsvit.params import COUNTING, load
from lsvit.processes import root
from lsvit.sections import Exits, Finetune
from lsvit.tracking import Tracker

DATA, OUT, RESULTS = Path("outs/prepare_data"), Path("outs/exits"), Path("results")


@one_line_errors()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/exits/, results/exits.csv (a row an exit), exits_dynamic.csv, exits.json (hardware)"""
    launch.warm_up("lsvit.exits")
    params = load()
    plan, options = Plan(params), params.resolve(Exits)
    tracker = Tracker(f"{params.dataset}/{params.model}", root())
    OUT.mkdir(parents=True, exist_ok=True)

    def run(jobs: list[launch.Job], *trainings: Trained) -> None:
        jobs = jobs + [job for trained in trainings for job in trained.jobs]
        launch.run(jobs, params.device, lambda job, row: tracker.epoch(job.record(), row), params.resolve(Finetune).threads)

    # Rounds of jobs: those of a later one start from what an earlier one left.
    classes, counting = Task(params.dataset, DATA, starting_weights()), Task(COUNTING, OUT / COUNTING, starting_weights())
    frozen = plan.variants(classes) if "classifier_wise" in options.strategies else []
    trained = plan.end_to_end(classes) if "end_to_end" in options.strategies else []
    steps = plan.first_steps(classes) if "layer_wise" in options.strategies else []
    tasks, backbones = [classes], []
    if options.counting_strategies:
        write_canvases(DATA, options.counting, counting.data)
        head = plan.head_for(counting)
        counting = counting._replace(start=head.folder / WEIGHTS)
        run([head])
        tasks.append(counting)
        steps += plan.first_steps(counting) if "layer_wise" in options.counting_strategies else []
        backbones = plan.control(counting)
        trained += plan.end_to_end(counting) if "end_to_end" in options.counting_strategies else backbones
    run([each.job for each in frozen], *trained, *steps)
    counted = plan.backbones(backbones) if "classifier_wise" in options.counting_strategies else []
    done, steps = advance(plan, steps)
    run([each.job for each in counted], *steps)
    while steps:
        finished, steps = advance(plan, steps)
        done += finished
        run([], *steps)
    costs = {task.name: plan.costs(task) for task in tasks}
    for job in costs.values():  # one after another, alone: they measure time
        run([job])
    measured = {name: json.loads((job.folder / EXIT_COSTS).read_text()) for name, job in costs.items()}
    write_results(plan, frozen, counted, trained + done, measured)
    keep_exits(plan, frozen + counted, measured)
    for title in dict.fromkeys(each.title for each in trained + done):
        seeds = [each for each in trained + done if each.title == title]
        gather_trainings(
            {each.seed: each.best()[0].folder for each in seeds}, OUT / title, OUT / title / "history.csv", seeds[0].task.judge
        )
        tracker.training(OUT / title)
    tracker.results("exits")


def write_results(plan: Plan, frozen: list[Frozen], counted: list[Frozen], trained: list[Trained], costs: dict) -> None:
    """results/exits.csv, exits_dynamic.csv, exits.json."""
    model, options = plan.params.model, plan.options
    rows = pd.concat([frozen_rows(model, frozen + counted, costs), trained_rows(model, trained, costs)])
    rows.to_csv(RESULTS / "exits.csv", index=False, lineterminator="\n")
    dynamic_rows(model, frozen, costs).to_csv(RESULTS / "exits_dynamic.csv", index=False, lineterminator="\n")
    about = {"hardware": costs[plan.params.dataset]["hardware"], "batch_size": 1, "keep": options.keep}
    found = {"exits": exit_metrics(rows), **about, "counting": options.counting.model_dump()}
    (RESULTS / "exits.json").write_text(json.dumps(found, indent=1) + "\n")


def keep_exits(plan: Plan, frozen: list[Frozen], costs: dict) -> None:
    """outs/exits/classifier_wise/<variant>/seed_<n>/: the branches' weights, and what `lsvit predict --exits` needs."""
    for each in frozen:
        folder = OUT / "classifier_wise" / each.variant / f"seed_{each.seed}"
        folder.mkdir(parents=True)
        shutil.copyfile(each.job.folder / EXIT_WEIGHTS, folder / EXIT_WEIGHTS)
        if each.task.name != COUNTING:  # a count has no confidence to go by
            shutil.copyfile(each.job.folder / EXIT_ARRAYS, folder / EXIT_ARRAYS)
            used = {"sizes": plan.sizes, **Used.of(each, costs).record()}
            (folder / EXITS_IN_USE).write_text(json.dumps(used, indent=1) + "\n")


if __name__ == "__main__":
    main()
