"""Stage nodes: refined models whose layers lie on nodes that fail."""

from papers import PAPERS
from pipeline.jobs.processes import stage_process
from pipeline.jobs.stage import Stage


@stage_process()
def main() -> None:
    """outs/finetune/ -> results/nodes.csv (a row a model, policy, placement and fault)"""
    stage = Stage("papers.nodes.compute.evaluation", PAPERS, section="nodes")
    from papers.nodes.compute.plan import Plan
    from papers.nodes.compute.rows import keep

    stage.measure("nodes", Plan(stage.params), keep)


if __name__ == "__main__":
    main()
