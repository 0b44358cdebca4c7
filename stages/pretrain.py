"""Stage pretrain: the starting weights of every variant, trained from scratch or fetched."""

import os
import shutil

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/prepare_data/ -> outs/pretrain/, results/pretrain.csv"""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # its retries would drown the one line
    stage = Stage("pipeline.training.loop", PAPERS, of="pretrain")
    from pipeline.config.sections import Pretrain
    from pipeline.jobs.display import show_trainings
    from pipeline.jobs.files import PRETRAINED, RESULTS, TABLE
    from pipeline.jobs.plan import Plan
    from pipeline.training.gather import gather_trainings

    params = stage.params
    plan = Plan(params, Pretrain)
    jobs = plan.starting()
    if params.model_preset.weights == "scratch":
        first = jobs[params.starts[0]]
        shown = {"pretrain": (first.config, params.values(Pretrain))}
        show_trainings(shown, params.starts, params)
        stage.train(list(jobs.values()), plan.options.threads)
    else:
        stage.run(list(jobs.values()))
    gather_trainings(jobs, PRETRAINED)
    shutil.copyfile(PRETRAINED / TABLE, RESULTS / "pretrain.csv")
    stage.tracker.training(PRETRAINED)
    stage.results("pretrain")


if __name__ == "__main__":
    main()
