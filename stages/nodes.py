"""Stage nodes: accuracy, throughput and latency of refined models whose layers lie on nodes that fail."""

from papers import PAPERS
from papers.nodes.compute.plan import Plan
from papers.nodes.compute.rows import keep
from pipeline.errors import one_line_errors
from pipeline.jobs.stage import Stage


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/nodes.csv (a row a model, policy, placement and fault)"""
    stage = Stage("papers.nodes.compute.evaluation", PAPERS)
    plan = Plan(stage.params)
    jobs = plan.jobs()
    stage.run(list(jobs.values()))
    keep(plan, jobs)
    stage.results("nodes")


if __name__ == "__main__":
    main()
