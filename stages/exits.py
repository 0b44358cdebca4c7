"""Stage exits: early exits on frozen backbones and trained with them, dynamic inference, and a counting task."""

import json
import shutil
from pathlib import Path

import pandas as pd

from lsvit import launch
from lsvit.counting import write_canvases
from lsvit.errors import one_line_errors
from lsvit.exit_jobs import COUNTING, Plan, Task, Trained, advance
from lsvit.exit_rows import Used, dynamic_rows, frozen_rows, trained_rows
from lsvit.jobs import EXIT_ARRAYS, EXIT_COSTS, EXIT_WEIGHTS, EXITS_IN_USE, WEIGHTS, gather_trainings, starting_weights
from lsvit.params import load
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
    rows = [frozen_rows(params.model, frozen + counted, measured), trained_rows(params.model, trained + done, measured)]
    pd.concat(rows).to_csv(RESULTS / "exits.csv", index=False, lineterminator="\n")
    dynamic_rows(params.model, frozen, measured).to_csv(RESULTS / "exits_dynamic.csv", index=False, lineterminator="\n")
    about = {
        "hardware": measured[classes.name]["hardware"],
        "batch_size": 1,
        "keep": options.keep,
        "counting": options.counting.model_dump(),
    }
    (RESULTS / "exits.json").write_text(json.dumps(about) + "\n")
    for each in frozen + counted:
        folder = OUT / "classifier_wise" / (each.variant if each.task is classes else COUNTING) / f"seed_{each.seed}"
        folder.mkdir(parents=True)
        shutil.copyfile(each.job.folder / EXIT_WEIGHTS, folder / EXIT_WEIGHTS)
        if each in frozen:
            shutil.copyfile(each.job.folder / EXIT_ARRAYS, folder / EXIT_ARRAYS)
            use = {"backbone": str(each.job.inputs["weights"]), "sizes": plan.sizes, **Used.of(each, measured).record()}
            (folder / EXITS_IN_USE).write_text(json.dumps(use, indent=1) + "\n")
    for title in {each.title: None for each in trained + done}:
        folders = {each.seed: each.best()[0].folder for each in trained + done if each.title == title}
        task = next(each.task for each in trained + done if each.title == title)
        gather_trainings(folders, OUT / title, OUT / title / "history.csv", task.judge)
        tracker.training(OUT / title)
    tracker.results("exits")


if __name__ == "__main__":
    main()
