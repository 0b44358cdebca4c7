"""Stage exits: early exits on frozen backbones and trained with them, dynamic inference, and a counting task."""

import json
import shutil
from pathlib import Path

import pandas as pd

from lsvit import launch
from lsvit.counting import write_canvases
from lsvit.errors import one_line_errors
from lsvit.exit_jobs import Frozen, Plan, Task, Trained, advance
from lsvit.exit_rows import Used, dynamic_rows, exit_metrics, frozen_rows, read_costs, trained_rows
from lsvit.jobs import EXIT_ARRAYS, EXIT_WEIGHTS, EXITS_IN_USE, WEIGHTS, gather_trainings, show_values, starting_weights
from lsvit.params import COUNTING, load
from lsvit.processes import root
from lsvit.routes import own_order
from lsvit.sections import Exits, Finetune
from lsvit.tracking import Tracker

DATA, OUT, RESULTS = Path("outs/prepare_data"), Path("outs/exits"), Path("results")


@one_line_errors()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/exits/, results/exits.csv (a row an exit), exits_dynamic.csv, exits.json (hardware)"""
    launch.warm_up("lsvit.exits")
    params = load()
    plan, options = Plan(params), params.resolve(Exits)
    show_values("exits", params.values(Exits))
    OUT.mkdir(parents=True, exist_ok=True)

    def run(jobs: list[launch.Job], *trainings: Trained) -> None:
        jobs = jobs + [job for trained in trainings for job in trained.jobs]
        launch.run(jobs, params.device, threads=params.resolve(Finetune).threads)

    # Rounds of jobs: those of a later one start from what an earlier one left.
    classes, counting = Task(params.dataset, DATA, starting_weights()), Task(COUNTING, OUT / COUNTING, starting_weights())
    frozen = plan.variants(classes) if "classifier_wise" in options.strategies else []
    trained = plan.end_to_end(classes) if "end_to_end" in options.strategies else []
    steps = plan.first_steps(classes) if "layer_wise" in options.strategies else []
    backbones: list[Trained] = []
    if options.counting_strategies:
        write_canvases(DATA, options.counting, counting.data)
        head = plan.head_for(counting)
        counting = counting._replace(start=head.folder / WEIGHTS)
        run([head])
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
    trained += done
    costs = {job.key: job for job in [*(each.costs for each in frozen + counted), *(each.costs for each in trained)]}
    for job in costs.values():  # one after another, alone: they measure time
        run([job])
    write_results(plan, frozen, counted, trained)
    keep_exits(plan, frozen + counted)
    trackers = {
        name: Tracker(f"{name}/{params.model}", root()) for name in dict.fromkeys([params.dataset, *(t.task.name for t in trained)])
    }
    for title in dict.fromkeys(each.title for each in trained):
        seeds = [each for each in trained if each.title == title]
        task = seeds[0].task
        gather_trainings({each.seed: each.best()[0].folder for each in seeds}, OUT / title, OUT / title / "history.csv", task.judge)
        trackers[task.name].training(OUT / title)
    trackers[params.dataset].results("exits")


def write_results(plan: Plan, frozen: list[Frozen], counted: list[Frozen], trained: list[Trained]) -> None:
    """results/exits.csv, exits_dynamic.csv, exits.json, exits_metrics.json."""
    model, options = plan.params.model, plan.options
    rows = pd.concat([frozen_rows(model, frozen + counted), trained_rows(model, trained)])
    rows.to_csv(RESULTS / "exits.csv", index=False, lineterminator="\n")
    dynamic_rows(model, frozen).to_csv(RESULTS / "exits_dynamic.csv", index=False, lineterminator="\n")
    hardware = sorted({*(read_costs(each)["hardware"] for each in frozen + counted), *(read_costs(each)["hardware"] for each in trained)})
    about = {"hardware": ", ".join(hardware), "batch_size": 1, "keep": options.keep, "images": options.images}
    (RESULTS / "exits.json").write_text(json.dumps(about | {"counting": options.counting.model_dump()}) + "\n")
    (RESULTS / "exits_metrics.json").write_text(json.dumps(exit_metrics(rows), indent=1) + "\n")


def keep_exits(plan: Plan, frozen: list[Frozen]) -> None:
    """outs/exits/classifier_wise/<variant>/seed_<n>/: the branches' weights, and what `lsvit predict --exits` needs."""
    for each in frozen:
        folder, done = OUT / "classifier_wise" / each.variant / f"seed_{each.seed}", each.job.folder
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(done / EXIT_WEIGHTS, folder / EXIT_WEIGHTS)
        if each.task.name != COUNTING:  # a count has no confidence to go by
            shutil.copyfile(done / EXIT_ARRAYS, folder / EXIT_ARRAYS)
            of = {"weights": str(each.job.inputs["weights"]), "weights_sha256": each.job.config.weights_sha256}
            order = own_order(plan.params.all_variants[each.variant].route)
            (folder / EXITS_IN_USE).write_text(
                json.dumps({**of, "order": order, "sizes": plan.sizes, **Used.of(each).record()}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
