"""Stage analysis: UMAP of a layer's output and class-token contributions, for the starting weights and for LayerShuffle."""

from papers import PAPERS
from papers.layershuffle.compute.plan import Analyses
from papers.layershuffle.compute.rows import keep_analyses
from pipeline.errors import one_line_errors
from pipeline.jobs.stage import Stage


@one_line_errors()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/analysis/<model>.npz, results/analysis.json (mean and std over the seeds)"""
    stage = Stage("papers.layershuffle.compute.analysis", PAPERS)
    plan = Analyses(stage.params)
    jobs = plan.jobs()
    stage.run(list(jobs.values()))
    keep_analyses(plan, jobs)
    stage.results("analysis")


if __name__ == "__main__":
    main()
