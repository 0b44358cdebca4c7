"""Stages finetune-baseline and finetune-variants: refine starting weights, a training a seed."""

import shutil
import sys

from papers import PAPERS
from papers.layershuffle import PAPER
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main(which: str) -> None:
    """outs/pretrain/ -> outs/baseline/, or outs/finetune/<variant>/ and results/finetune/"""
    stage = Stage("pipeline.training.loop", PAPERS, of=PAPER.name)
    from pipeline.config.sections import Finetune
    from pipeline.config.variant import BASELINE
    from pipeline.jobs.display import show_trainings
    from pipeline.jobs.files import FINETUNED, RESULTS, TABLE, finetuned
    from pipeline.jobs.plan import Plan
    from pipeline.training.gather import gather_trainings

    params = stage.params
    plan = Plan(params, Finetune)
    names = [BASELINE]
    if which == "variants":
        names = [name for name in params.all_variants if name != BASELINE]
    jobs = plan.refinements(names)
    shown = {
        name: (jobs[name][params.seeds[0]].config, params.values(Finetune, name)) for name in names
    }
    show_trainings(shown, params.seeds, params)
    threads = max((params.resolve(Finetune, name).threads for name in names), default=1)
    stage.train([job for seeds in jobs.values() for job in seeds.values()], threads)
    for name in names:
        folder = finetuned(name, 0).parents[1]
        gather_trainings(jobs[name], folder, plan.judge)
        stage.tracker.training(folder)
    if which == "variants":
        FINETUNED.mkdir(parents=True, exist_ok=True)  # also where there are no variants
        (RESULTS / "finetune").mkdir(parents=True, exist_ok=True)
        for name in params.all_variants:
            table = finetuned(name, 0).parents[1] / TABLE
            shutil.copyfile(table, RESULTS / "finetune" / f"{name}.csv")
    stage.results(f"finetune-{which}")


if __name__ == "__main__":
    main(*sys.argv[1:])
