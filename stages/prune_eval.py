"""Stage prune-eval: accuracy of every model with k layers kept, sequential and arbitrary, over many routes and samplers."""

from papers import PAPERS
from papers.layershuffle.compute.plan import Evaluations
from papers.layershuffle.compute.rows import keep_evaluations
from pipeline.errors import one_line_errors
from pipeline.jobs.stage import Stage


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/prune_eval.csv (a row a route), samplers.csv, protocols.csv, cell.json, metrics.json (means)"""
    stage = Stage("papers.layershuffle.compute.evaluation", PAPERS)
    plan = Evaluations(stage.params)
    jobs = plan.jobs()
    stage.run(list(jobs.values()))  # where two protocols chose the same epoch they share the job
    keep_evaluations(plan, jobs)
    stage.results("prune-eval")


if __name__ == "__main__":
    main()
