"""Stage pretrain: the starting weights of every variant, trained from scratch or fetched."""

import os
import shutil

from papers import PAPERS
from pipeline.config.sections import Pretrain
from pipeline.errors import one_line_errors
from pipeline.jobs.display import show_trainings
from pipeline.jobs.files import PRETRAINED, RESULTS, TABLE
from pipeline.jobs.plan import Plan
from pipeline.jobs.stage import Stage
from pipeline.training.gather import gather_trainings


@one_line_errors()
def main() -> None:
    """outs/prepare_data/ -> outs/pretrain/, results/pretrain.csv"""
    os.environ.setdefault(
        "HF_HUB_VERBOSITY", "error"
    )  # the hub client's retries would drown the one line that helps
    stage = Stage("pipeline.training.loop", PAPERS, of="pretrain")
    params, plan = stage.params, Plan(stage.params, Pretrain)
    jobs = plan.starting()
    if params.model_preset.weights == "scratch":
        show_trainings(
            {"pretrain": (jobs[params.starts[0]].config, params.values(Pretrain))},
            params.starts,
            params,
        )
        stage.train(list(jobs.values()), plan.options.threads)
    else:
        stage.run(list(jobs.values()))
    gather_trainings(jobs, PRETRAINED)
    shutil.copyfile(PRETRAINED / TABLE, RESULTS / "pretrain.csv")
    stage.tracker.training(PRETRAINED)
    stage.results("pretrain")


if __name__ == "__main__":
    main()
