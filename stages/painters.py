"""Stage painters: accuracy of refined models whose middle layers are executed in other ways."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/finetune/ -> results/painters.csv (a row a model, strategy and number of layers)"""
    stage = Stage("papers.painters.compute.evaluation", PAPERS, section="painters")
    from papers.painters.compute.plan import Plan
    from papers.painters.compute.rows import keep

    stage.measure("painters", Plan(stage.params), keep)


if __name__ == "__main__":
    main()
