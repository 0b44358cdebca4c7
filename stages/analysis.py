"""Stage analysis: UMAP of a layer's output, and class-token contributions."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/pretrain/, outs/finetune/ -> outs/analysis/, results/analysis.json"""
    stage = Stage("papers.layershuffle.compute.analysis", PAPERS)
    from papers.layershuffle.compute.plan import Analyses
    from papers.layershuffle.compute.rows import keep_analyses

    stage.measure("analysis", Analyses(stage.params), keep_analyses)


if __name__ == "__main__":
    main()
