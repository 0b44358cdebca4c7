"""Stage painters: accuracy of refined models whose middle layers are executed in other ways."""

from papers import PAPERS
from papers.painters.compute.plan import Plan
from papers.painters.compute.rows import keep
from pipeline.errors import one_line_errors
from pipeline.jobs.stage import Stage


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/painters.csv (a row a model, strategy and number of layers treated)"""
    stage = Stage("papers.painters.compute.evaluation", PAPERS)
    plan = Plan(stage.params)
    jobs = plan.jobs()
    stage.run(list(jobs.values()))
    keep(plan, jobs)
    stage.results("painters")


if __name__ == "__main__":
    main()
