"""Stage painters: accuracy of refined models whose middle layers are executed in other ways."""

from lsvit.errors import one_line_errors
from lsvit.jobs.stage import Stage
from lsvit.papers.painters.compute.plan import Plan
from lsvit.papers.painters.compute.rows import keep


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/painters.csv (a row a model, strategy and number of layers treated)"""
    stage = Stage("lsvit.papers.painters.compute.evaluation")
    plan = Plan(stage.params)
    jobs = plan.jobs()
    stage.run(list(jobs.values()))
    keep(plan, jobs)
    stage.results("painters")


if __name__ == "__main__":
    main()
