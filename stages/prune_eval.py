"""Stage prune-eval: accuracy of every model with k layers kept, over many routes and samplers."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/finetune/ -> results/prune_eval.csv (a row a route), samplers.csv, protocols.csv, ..."""
    stage = Stage("papers.layershuffle.compute.evaluation", PAPERS)
    from papers.layershuffle.compute.plan import Evaluations
    from papers.layershuffle.compute.rows import keep_evaluations

    stage.measure("prune-eval", Evaluations(stage.params), keep_evaluations)


if __name__ == "__main__":
    main()
