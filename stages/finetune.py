"""Stages finetune-baseline and finetune-variants: refine the starting weights, every variant once per seed, all of them in one pool."""

import shutil
from typing import Literal

import typer

from papers import PAPERS
from pipeline.config.sections import Finetune
from pipeline.config.variant import BASELINE
from pipeline.errors import one_line_errors
from pipeline.jobs.display import show_trainings
from pipeline.jobs.files import FINETUNED, RESULTS, TABLE, finetuned
from pipeline.jobs.plan import Plan
from pipeline.jobs.stage import Stage
from pipeline.training.gather import gather_trainings


@one_line_errors()
def main(which: Literal["baseline", "variants"]) -> None:
    """outs/prepare_data/, outs/pretrain/ -> outs/baseline/, or outs/finetune/<variant>/ and results/finetune/<variant>.csv (epochs)"""
    stage = Stage("pipeline.training.loop", PAPERS, of="layershuffle")
    params, plan = stage.params, Plan(stage.params, Finetune)
    names = (
        [BASELINE]
        if which == BASELINE
        else [name for name in params.all_variants if name != BASELINE]
    )
    jobs, threads = (
        plan.refinements(names),
        [params.resolve(Finetune, name).threads for name in names],
    )
    show_trainings(
        {
            name: (jobs[name][params.seeds[0]].config, params.values(Finetune, name))
            for name in names
        },
        params.seeds,
        params,
    )
    stage.train([job for seeds in jobs.values() for job in seeds.values()], max(threads, default=1))
    for name in names:
        gather_trainings(jobs[name], folder := finetuned(name, 0).parents[1], plan.judge)
        stage.tracker.training(folder)
    if which != BASELINE:
        for folder in (FINETUNED, RESULTS / "finetune"):
            folder.mkdir(parents=True, exist_ok=True)  # also where there are no variants
        for name in params.all_variants:
            shutil.copyfile(
                finetuned(name, 0).parents[1] / TABLE, RESULTS / "finetune" / f"{name}.csv"
            )
    stage.results(f"finetune-{which}")


if __name__ == "__main__":
    typer.run(main)
