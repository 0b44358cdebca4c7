"""Stage nodes: accuracy, throughput and latency of refined models whose layers lie on nodes that fail."""

from lsvit.errors import one_line_errors
from lsvit.jobs.stage import Stage
from lsvit.papers.nodes.compute.plan import Plan
from lsvit.papers.nodes.compute.rows import keep


@one_line_errors()
def main() -> None:
    """outs/finetune/ -> results/nodes.csv (a row a model, policy, placement and fault)"""
    stage = Stage("lsvit.papers.nodes.compute.evaluation")
    plan = Plan(stage.params)
    jobs = plan.jobs()
    stage.run(list(jobs.values()))
    keep(plan, jobs)
    stage.results("nodes")


if __name__ == "__main__":
    main()
